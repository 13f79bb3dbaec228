"""EFA latency measured by a probe: one JSON object per line, from a file or a command."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import Any

MAX_BYTES = 1 << 20
MAX_LATENCY_S = 60.0


class Probes:
    """The newest latency of each device; it is used for three periods after it was read.

    A line is ``{"device": "rdmap16s27", "latency_s": 0.0000173}``. Of two lines of one device
    the later counts.
    """

    def __init__(self, *, file: str | None, command: str | None, every_s: float) -> None:
        """Read ``file`` whenever it changes, or run ``command`` every so often."""
        self._file = file
        self._command = command
        self._every_s = every_s
        self._read_s = float("-inf")
        self._began_s = float("-inf")
        self._mark: tuple[float, int] | None = None
        self._latency_s: dict[str, float] = {}
        self._running: threading.Thread | None = None
        self.problem = ""

    def read(self, now_s: float) -> dict[str, float]:
        """Return latencies by device, in seconds; does not wait for a running command."""
        if self._file:
            self._read_file(self._file, now_s)
        elif self._command and now_s - self._began_s >= self._every_s and not self._is_running:
            self._began_s = now_s
            self._running = threading.Thread(target=self._run, args=(self._command, now_s))
            self._running.daemon = True
            self._running.start()
        return self._latency_s if now_s - self._read_s <= 3 * self._every_s else {}

    def wait(self) -> None:
        """Wait until a running command ends."""
        if self._running is not None:
            self._running.join()

    @property
    def _is_running(self) -> bool:
        return self._running is not None and self._running.is_alive()

    def _read_file(self, path: str, now_s: float) -> None:
        """Read the file if it changed since the last reading."""
        try:
            now = os.stat(path)  # noqa: PTH116 - asked every second
            mark = (now.st_mtime, now.st_ino)
            if mark != self._mark:
                with open(path, "rb") as file:  # noqa: PTH123
                    self._parse(file.read(MAX_BYTES), now_s)
                self._mark = mark
        except OSError as error:
            self.problem = f"probe file: {error.strerror}"

    def _run(self, command: str, now_s: float) -> None:
        try:
            run = subprocess.run(  # noqa: S602 - the administrator's own command line
                command, shell=True, capture_output=True, timeout=MAX_LATENCY_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.problem = f"probe: {type(error).__name__}"
        else:
            self._parse(run.stdout[:MAX_BYTES], now_s)

    def _parse(self, text: bytes, now_s: float) -> None:
        """Read lines; invalid ones are skipped, and the first is named in ``problem``."""
        results = [(_parse_line(line), line) for line in text.splitlines() if line.strip()]
        found = {result[0]: result[1] for result, _ in results if result}
        wrong = [line for result, line in results if not result]
        shown = wrong[0][:60].decode("utf-8", "replace") if wrong else ""
        expected = 'expected {"device": NAME, "latency_s": SECONDS}'
        self.problem = f"probe: {shown!r} is not a result; {expected}" if wrong else ""
        if found:
            self._latency_s, self._read_s = found, now_s


def _parse_line(line: bytes) -> tuple[str, float] | None:
    """Return a line's device and latency; None if it is not a result."""
    try:
        result: Any = json.loads(line)
        device, latency_s = str(result["device"]), float(result["latency_s"])
    except (ValueError, TypeError, KeyError):
        return None
    return (device, latency_s) if 0 < latency_s < MAX_LATENCY_S else None
