"""The source of reports: neuron-monitor, kept running, another command, or standard input."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NEURON_MONITOR = "/opt/aws/neuron/bin/neuron-monitor"
MAX_LINE_BYTES = 8_000_000
CHUNK_BYTES = 1 << 18
MAX_BACKOFF_S = 60.0
GRACE_S = 2.0


def configuration(period_s: float) -> bytes:
    """Return neuron-monitor's configuration file for one report per period."""
    runtime = ("neuroncore_counters", "memory_used", "neuron_runtime_vcpu_usage")
    wanted = {
        "period": f"{period_s:g}s",
        "neuron_runtimes": [
            {"tag_filter": ".*", "metrics": [{"type": t} for t in (*runtime, "execution_stats")]}
        ],
        "system_metrics": [
            {"type": t} for t in ("vcpu_usage", "memory_info", "neuron_hw_counters")
        ],
    }
    return json.dumps(wanted).encode()


class Monitor:
    """A stream of reports, one per line; a program that ends is restarted."""

    def __init__(self, *, command: str | None, stdin: bool, period_s: float) -> None:
        """Run ``command``, or read standard input, or run neuron-monitor."""
        self._stdin = stdin
        self._command = shlex.split(command) if command else None
        self._period_s = period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._descriptor = sys.stdin.fileno() if stdin else -1
        self._partial = b""
        self._backoff_s = 1.0
        self._start_at_s = float("-inf")
        self.n_skipped = 0
        self.is_over = False
        self.problem = ""

    def lines(self, now_s: float, timeout_s: float) -> list[bytes]:
        """Return reports that have arrived, after waiting for ``timeout_s`` at most."""
        if self._descriptor < 0 and not self.is_over and now_s >= self._start_at_s:
            self._start(now_s)
        waited_for = [self._descriptor] if self._descriptor >= 0 else []
        ready, _, _ = select.select(waited_for, [], [], max(0.0, timeout_s))
        if not ready:
            return []
        piece = os.read(self._descriptor, CHUNK_BYTES)
        if not piece:
            self._end_of_stream(now_s)
            piece = b"\n" if self._stdin else b""
        whole, newline, rest = (self._partial + piece).rpartition(b"\n")
        rest = rest if piece else b""
        self._partial = rest if len(rest) <= MAX_LINE_BYTES else b""
        self.n_skipped += len(rest) > MAX_LINE_BYTES
        return self._reports((whole + newline).splitlines())

    def stop(self) -> None:
        self.is_over = True
        self._end_program()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _reports(self, lines: Sequence[bytes]) -> list[bytes]:
        """Keep lines that look like one JSON object; count the others as skipped."""
        stripped = [line.strip() for line in lines]
        reports = [line for line in stripped if line[:1] == b"{" and line[-1:] == b"}"]
        self.n_skipped += sum(map(bool, stripped)) - len(reports)
        if reports:
            self._backoff_s, self.problem = 1.0, ""
        return reports

    def _start(self, now_s: float) -> None:
        """Start the program; after a failure the next call tries again, with backoff."""
        self._start_at_s = now_s + self._backoff_s
        self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s)
        command = self._command or self._neuron_monitor()
        if command is None:
            self.problem = (
                "neuron-monitor is not installed; install aws-neuronx-tools or give --command"
            )
            return
        try:
            process = subprocess.Popen(  # noqa: S603 - what the administrator wants run
                command, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            self.problem = f"{command[0]}: {error.strerror}"
            return
        self._process = process
        self._descriptor = process.stdout.fileno() if process.stdout else -1

    def _neuron_monitor(self) -> list[str] | None:
        """Write neuron-monitor's configuration; return its command line, None if not installed."""
        program = shutil.which("neuron-monitor") or shutil.which(NEURON_MONITOR)
        if program is None:
            return None
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="trnwatch-agent-")
        path = Path(self._folder.name) / "monitor.json"
        path.write_bytes(configuration(self._period_s))
        return [program, "-c", str(path)]

    def _end_of_stream(self, now_s: float) -> None:
        self._descriptor = -1
        if self._stdin:
            self.is_over = True
            return
        self._end_program()
        self._start_at_s = max(self._start_at_s, now_s + 1.0)

    def _end_program(self) -> None:
        """End the program and its children."""
        process, self._process, self._descriptor = self._process, None, -1
        if process is None:
            return
        for end in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, end)
            try:
                process.wait(GRACE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        if process.stdout is not None:
            process.stdout.close()
        self.problem = f"the monitor ended with status {process.returncode}"
