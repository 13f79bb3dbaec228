"""What the agent reads: neuron-monitor's reports, EFA and Neuron sysfs, and EFA latency probes."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NEURON_MONITOR = "/opt/aws/neuron/bin/neuron-monitor"
MAX_LINE_BYTES = 8_000_000
CHUNK_BYTES = 1 << 18
MAX_BACKOFF_S = 60.0
GRACE_S = 2.0


def configuration(period_s: float, *, only_cores: bool = False) -> bytes:
    """Return neuron-monitor's configuration file for one report per period."""
    runtime = ["neuroncore_counters"]
    system = []
    if not only_cores:
        runtime += ["memory_used", "neuron_runtime_vcpu_usage", "execution_stats"]
        system += ["vcpu_usage", "memory_info", "neuron_hw_counters"]
    wanted = {
        "period": f"{period_s:g}s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": t} for t in runtime]}],
        "system_metrics": [{"type": t} for t in system],
    }
    return json.dumps(wanted).encode()


class Monitor:
    """A stream of reports, one per line; a program that ends is restarted."""

    def __init__(
        self, *, command: str | None, stdin: bool, period_s: float, only_cores: bool = False
    ) -> None:
        """Run ``command``, or read standard input, or run neuron-monitor."""
        self._only_cores = only_cores
        self._stdin = stdin
        self._command = shlex.split(command) if command else None
        self._period_s = period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._descriptor = sys.stdin.fileno() if stdin else -1
        self._partial = b""
        self._object = bytearray()
        self._backoff_s = 1.0
        self._start_at_s = float("-inf")
        self.n_skipped = 0
        self.is_over = False
        self.problem = ""

    def lines(self, now_s: float, timeout_s: float) -> list[bytes]:
        """Return reports that have arrived, after waiting for ``timeout_s`` at most."""
        if self._descriptor < 0 and not self.is_over and now_s >= self._start_at_s:
            self._start(now_s)
        if not _is_ready(self._descriptor, max(0.0, timeout_s)):
            return []
        piece = os.read(self._descriptor, CHUNK_BYTES)
        if not piece:
            self._descriptor = -1
            if self._stdin:
                self.is_over = True
                piece = b"\n"
            else:
                self._end_program()
                self._start_at_s = max(self._start_at_s, now_s + 1.0)
        whole, newline, rest = (self._partial + piece).rpartition(b"\n")
        rest = rest if piece else b""
        self._partial = rest if len(rest) <= MAX_LINE_BYTES else b""
        self.n_skipped += len(rest) > MAX_LINE_BYTES
        reports = []
        for line in (whole + newline).splitlines(keepends=True):
            # JSON over several lines: only its first and its last line are not indented.
            is_inside = bool(self._object) and line[:1] in b" \t}"
            if not is_inside or len(self._object) > MAX_LINE_BYTES:
                self.n_skipped += self._object.count(b"\n")
                self._object.clear()
            if is_inside or line.rstrip() == b"{":
                self._object += line
                if line[:1] != b"}":
                    continue
            stripped = (bytes(self._object).replace(b"\n", b" ") or line).strip()
            self._object.clear()
            if stripped[:1] == b"{" and stripped[-1:] == b"}":
                reports.append(stripped)
            elif stripped:
                self.n_skipped += 1
                shown = stripped[:40].decode("utf-8", "replace")
                self.problem = f"{shown!r} is not a report; `jq -c .` writes one per line"
        if reports:
            self._backoff_s, self.problem = 1.0, ""
        return reports

    def stop(self) -> None:
        self.is_over = True
        self._end_program()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

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
        path.write_bytes(configuration(self._period_s, only_cores=self._only_cores))
        return [program, "-c", str(path)]

    def _end_program(self) -> None:
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


def _is_ready(descriptor: int, timeout_s: float) -> bool:
    """Wait until a file can be read; without one (negative) for the whole time."""
    # Unlike select, it has no limit for the number of a descriptor.
    waiting = select.poll()
    if descriptor >= 0:
        waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * timeout_s))


MAX_FILE_BYTES = 4096

EFA_SYSFS = Path("/sys/class/infiniband")
# Read every time, because rates are computed from them; all others every ``all_every_s``.
RATED_COUNTERS = (
    "tx_bytes",
    "rx_bytes",
    "tx_pkts",
    "retrans_pkts",
    "rx_drops",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
)
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
NEURON_SYSFS = Path("/sys/devices/virtual/neuron_device")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
DEVICE = re.compile(r"neuron(\d+)")
CORE = re.compile(r"neuron_core(\d+)")
IN_CORE = re.compile(r"((?:(?P<parent>.*)/)?neuron_core\d+)/(?P<path>.*)")
# Each purpose has the bytes allocated now (total), the last change (present) and the peak.
MEMORY = re.compile(r"(?:^|/)device_mem/[^/]+/total$")
POWER_VALID = "POWER_STATUS_VALID"
MICROS = 1e6
# Where the driver says which UltraServer of four or of two machines this one belongs to.
NEURON_CLASS = Path("/sys/class/neuron_device")
SERVER_ID = re.compile(r"(?!0+$)[0-9a-f]{16}")
# The driver measures power each minute; a new value is seen after this long.
POWER_EVERY_S = 5.0
# Without neuron-monitor devices are read this often, and sent with every line.
WITHOUT_MONITOR_EVERY_S = 10.0


class OpenFile:
    """A file that is opened on first read and kept open; reopened after an error.

    It is closed with its last reference, as of a device that was removed.
    """

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return the current content, at most 4 KiB; None if the file cannot be read."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, MAX_FILE_BYTES, 0)
        except OSError:
            self.close()
            return None

    def integer(self) -> int | None:
        """Return the content as an integer; None if it is not an integer, or is negative."""
        text = self.read()
        try:
            value = -1 if text is None else int(text)
        except ValueError:
            return None
        return value if value >= 0 else None

    def text(self) -> str | None:
        data = self.read()
        return None if data is None else data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class EfaCounters:
    """The EFA devices of this machine; a device keeps its index for as long as the agent runs."""

    def __init__(
        self,
        root: Path = EFA_SYSFS,
        *,
        all_every_s: float = 15.0,
        only: Sequence[str] | None = None,
    ) -> None:
        """Read below ``root``; counters without a rate are read every ``all_every_s`` only.

        ``only`` names the counters to open: an open file each, and a process may have few.
        """
        self._root = root
        self._only = only
        self._rated = RATED_COUNTERS if only is None else only
        self._all_every_s = all_every_s
        self._places: dict[str, int] = {}
        self._open: dict[tuple[str, int], dict[str, OpenFile]] = {}
        self._before: dict[tuple[str, int], dict[str, int]] = {}
        self._before_s: float | None = None
        self._all_s = float("-inf")

    def read(self, now_s: float) -> dict[str, Any] | None:
        """Return the devices' counters as sent to the server; None without devices.

        ``now_s`` is monotonic. ``increase`` is how much a counter grew since the last reading;
        a counter that fell was cleared and is left out.
        """
        whole = now_s - self._all_s >= self._all_every_s
        if whole:
            self._discover()
            self._all_s = now_s
        devices = [self._device(key, whole=whole) for key in self._open]
        before_s, self._before_s = self._before_s, now_s
        known = [device for device in devices if device is not None]
        if not known:
            return None
        if before_s is None:
            return {"devices": known}
        return {"period": round(now_s - before_s, 6), "devices": known}

    def _device(self, key: tuple[str, int], *, whole: bool) -> dict[str, Any] | None:
        files = self._open[key]
        counters = {}
        for name in files if whole else self._rated:
            value = files[name].integer() if name in files else None
            if value is not None:
                counters[name] = value
        if not counters:
            return None
        before, now = (
            self._before.get(key, {}),
            {n: counters[n] for n in self._rated if n in counters},
        )
        self._before[key] = now
        grown = {n: now[n] - before[n] for n in now if n in before and now[n] >= before[n]}
        fields = {
            "device": key[0],
            "port": key[1],
            "index": self._places[key[0]],
            "increase": grown,
        }
        return {**fields, "counters": counters} if whole else fields

    def _discover(self) -> None:
        """Find devices and counters; removed devices are closed."""

        def by_number(name: str) -> list[tuple[int, str]]:
            # rdmap9s0 before rdmap16s27
            return [(int(n or 0), word) for word, n in re.findall(r"(\D*)(\d*)", name)]

        ports = {}
        for device in sorted(_names(self._root), key=by_number):
            folder = self._root / device
            for port in _names(folder / "ports"):
                counters = folder / "ports" / port / "hw_counters"
                if port.isdecimal() and counters.is_dir():
                    self._places.setdefault(device, len(self._places))
                    ports[device, int(port)] = (folder / "hw_counters", counters)
        for key in set(self._open) - set(ports):
            del self._open[key]
            self._before.pop(key, None)
        for key, folders in ports.items():
            files = self._open.setdefault(key, {})
            for folder in folders:
                for name in _names(folder):
                    is_wanted = self._only is None or name in self._only
                    if is_wanted and NAME.fullmatch(name) and name not in files:
                        files[name] = OpenFile(folder / name)


def _names(folder: Path) -> list[str]:
    """Return a folder's names, sorted; empty if it does not exist."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


class NeuronSysfs:
    def __init__(
        self,
        root: Path = NEURON_SYSFS,
        *,
        class_root: Path = NEURON_CLASS,
        slow_every_s: float = 60.0,
    ) -> None:
        """Read below ``root``; health and ECC counts every ``slow_every_s``."""
        self._root = root
        self._class_root = class_root
        self._slow_every_s = slow_every_s
        self._slow_s = float("-inf")
        self._power_s = float("-inf")
        self._layout: SysfsLayout | None = None
        self._devices: list[dict[str, Any]] = []
        self._power: dict[int, OpenFile] = {}
        self._power_at: dict[int, int] = {}
        self._busy: dict[tuple[int, int], OpenFile] = {}
        self._flops: dict[tuple[int, int], OpenFile] = {}
        self._before: dict[tuple[int, int], tuple[int, int | None]] = {}
        self._before_s = 0.0

    def read(self, now_s: float, *, cores: bool) -> dict[str, Any] | None:
        """Return the driver's values as sent to the server; None if there are none now.

        With ``cores``, also each core's utilization since the last reading, and device memory.
        """
        fields: dict[str, Any] = {}
        every_s = WITHOUT_MONITOR_EVERY_S if cores else self._slow_every_s
        is_due = now_s - self._slow_s >= every_s
        if is_due:
            self._slow_s = now_s
            self._discover(memory=cores)
        if self._devices and (is_due or cores):
            fields["devices"] = self._devices
        if self._devices and is_due:
            servers = (OpenFile(self._class_root / f"server_id_{n}").text() or "" for n in (4, 2))
            if server := next(filter(SERVER_ID.fullmatch, servers), None):
                fields["ultraserver_id"] = server
        if now_s - self._power_s >= POWER_EVERY_S:
            self._power_s = now_s
            power = [new for i, file in self._power.items() if (new := self._new_power(i, file))]
            if power:
                fields["power"] = power
        if cores:
            fields.update(self._cores(now_s))
        else:
            self._busy, self._flops, self._before = {}, {}, {}
        return fields or None

    def _discover(self, *, memory: bool) -> None:
        folders = dict(numbered(self._root, DEVICE))
        if not folders:
            self._layout = None
        elif self._layout is None:
            self._layout = SysfsLayout(next(iter(folders.values())))
        layout = self._layout
        if layout is None:
            self._devices = []
            return
        self._devices = [_device(i, path, layout, memory=memory) for i, path in folders.items()]
        for index in self._power.keys() - folders.keys():
            del self._power[index]
        if layout.power is not None:
            for index in folders.keys() - self._power.keys():
                self._power[index] = OpenFile(folders[index] / layout.power)

    def _new_power(self, index: int, file: OpenFile) -> dict[str, Any] | None:
        """Return a device's power, None unless the driver measured it again.

        The line is ``STATUS,TIMESTAMP,MIN,MAX,MEAN``: of the last minute, in percent of the
        maximum power.
        """
        words = (file.text() or "").split(",")
        try:
            at, ratio = int(words[1]), float(words[4]) / 100
        except (IndexError, ValueError):
            return None
        if words[0] != POWER_VALID or not 0 <= ratio <= 1 or at == self._power_at.get(index):
            return None
        self._power_at[index] = at
        return {"device": index, "at": at, "ratio": round(ratio, 6)}

    def _cores(self, now_s: float) -> dict[str, Any]:
        """Return the utilization and FLOPs of cores since the last reading; empty at first."""
        layout = self._layout
        if not self._busy and layout is not None and layout.busy is not None:
            self._busy = core_files(self._root, layout, layout.busy)
            if layout.flops is not None:
                self._flops = core_files(self._root, layout, layout.flops)
        now = {
            key: (value, self._flops[key].integer() if key in self._flops else None)
            for key, f in self._busy.items()
            if (value := f.integer()) is not None
        }
        period_s, self._before_s = now_s - self._before_s, now_s
        before, self._before = self._before, now
        if not before or period_s <= 0:
            return {}
        cores = []
        for (device, core), (value, flops) in now.items():
            was, flops_were = before.get((device, core), (value + 1, None))
            if value < was:
                continue
            busy = round(min(1.0, (value - was) / MICROS / period_s), 6)
            fields: dict[str, Any] = {"device": device, "core": core, "busy": busy}
            if flops is not None and flops_were is not None and flops >= flops_were:
                fields["flops"] = flops - flops_were
            cores.append(fields)
        return {"period": round(period_s, 6), "cores": cores} if cores else {}


class SysfsLayout:
    """Where the driver keeps its files, relative to a device's or a core's folder.

    Driver 2.31 moved files, and some values are files in one version and folders with a
    ``total`` in another. So the files of the first device are found by their names.
    """

    def __init__(self, device: Path) -> None:
        """Search below one device's folder; symbolic links are not followed."""
        paths = sorted(
            (os.path.relpath(os.path.join(folder, name), device)  # noqa: PTH118
             for folder, _, names in os.walk(device) for name in names),
            key=lambda path: (path.count("/"), path),
        )  # fmt: skip
        in_cores = [match for path in paths if (match := IN_CORE.fullmatch(path))]
        own = [path for path in paths if not IN_CORE.fullmatch(path)]
        first = [match for match in in_cores if match[1] == in_cores[0][1]]
        self.cores = (first[0]["parent"] or "") if first else ""
        in_first = [match["path"] for match in first]
        self.core_count = _path_ending(own, "core_count")
        self.power = _path_ending(own, "power/utilization", "power_utilization")
        self.unhealthy = _path_ending(own, "unhealthy_components")
        self.ecc = {kind: _path_ending(own, kind, f"{kind}/total") for kind in ECC}
        self.busy = _path_ending(in_first, "nc_time_in_use", "nc_time_in_use/total")
        self.flops = _path_ending(in_first, "flop_count", "flop_count/total")
        self.memory = [path for path in in_first if MEMORY.search(path)]


def _path_ending(paths: Sequence[str], *endings: str) -> str | None:
    return next((p for end in endings for p in paths if p == end or p.endswith(f"/{end}")), None)


def _device(index: int, path: Path, layout: SysfsLayout, *, memory: bool) -> dict[str, Any]:
    """Read one device; values that the driver does not give are left out."""
    counts = {"cores": layout.core_count, **layout.ecc}
    fields: dict[str, Any] = {"index": index}
    fields |= {name: OpenFile(path / place).integer() for name, place in counts.items() if place}
    unhealthy = OpenFile(path / layout.unhealthy).text() if layout.unhealthy else None
    if unhealthy is not None:
        fields["unhealthy"] = [word for word in re.split(r"[,\s]+", unhealthy) if word][:16]
    if memory:
        folders = [folder for _, folder in numbered(path / layout.cores, CORE)]
        used = [
            OpenFile(folder / place).integer() for folder in folders for place in layout.memory
        ]
        known = [n_bytes for n_bytes in used if n_bytes is not None]
        fields["memory_used_bytes"] = sum(known) if known else None
    return {name: value for name, value in fields.items() if value is not None}


def numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the folders whose name matches, sorted by their number."""
    matches = [(pattern.fullmatch(name), name) for name in _names(folder)]
    return sorted((int(match[1]), folder / name) for match, name in matches if match)


def core_files(root: Path, layout: SysfsLayout, file: str) -> dict[tuple[int, int], OpenFile]:
    """Return a file of every core, by device and core."""
    return {
        (device, core): OpenFile(folder / file)
        for device, path in numbered(root, DEVICE)
        for core, folder in numbered(path / layout.cores, CORE)
    }


MAX_PROBE_BYTES = 1 << 20
MAX_LATENCY_S = 60.0
# Whatever the server requests, the command runs no more often than this.
MIN_BETWEEN_REQUESTS_S = 15.0
DEFAULT_PROBE_EVERY_S = 60.0
# A command's probe of milliseconds may fall into an exchange of gradients, which makes it late: it
# runs so often, this far apart, and the least latency of each device counts.
N_ROUNDS, ROUNDS_APART_S = 3, 5.0
# The same of a requested probe, whose answer is waited for.
REQUESTED_APART_S = 2.0


class Probes:
    """The newest latency of each device; it is used for three periods after it was read.

    A line is ``{"device": "rdmap16s27", "latency_s": 0.0000173}``. Of two lines of one device
    the later counts.
    """

    def __init__(
        self,
        *,
        file: str | None,
        command: str | None,
        every_s: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read ``file`` whenever it changes, or run ``command`` every ``every_s``, in rounds.

        With 0 the command runs only on request.
        """
        self._pause = pause
        self._file = file
        self._command = command
        self._every_s = every_s
        self._valid_s = 3 * (every_s or DEFAULT_PROBE_EVERY_S)
        self._read_s = float("-inf")
        self._began_s = float("-inf")
        self._mark: tuple[float, int] | None = None
        self._latency_s: dict[str, float] = {}
        self._running: threading.Thread | None = None
        self._requested_s = float("-inf")
        self.problem = ""

    def request(self, now_s: float, answer: Callable[[Mapping[str, Any]], None]) -> None:
        """Run the command now, and answer with latencies by device or why there are none."""
        command = self._command
        if command is None:
            answer({"reason": "the agent has no --probe-command"})
        elif now_s - self._requested_s < MIN_BETWEEN_REQUESTS_S:
            answer({"reason": f"requested again within {MIN_BETWEEN_REQUESTS_S:.0f} s"})
        else:
            self._requested_s = now_s

            def run() -> None:
                latency_s = self._run(command, now_s, apart_s=REQUESTED_APART_S)
                answer(
                    {"latency_s": latency_s}
                    if latency_s
                    else {"reason": self.problem or "no result"}
                )

            self._running = threading.Thread(target=run, daemon=True)
            self._running.start()

    def read(self, now_s: float) -> dict[str, float]:
        """Return latencies by device, in seconds; does not wait for a running command."""
        is_running = self._running is not None and self._running.is_alive()
        if self._file:
            try:
                now = os.stat(self._file)  # noqa: PTH116 - asked every second
                mark = (now.st_mtime, now.st_ino)
                if mark != self._mark:
                    with open(self._file, "rb") as file:  # noqa: PTH123
                        latency_s = self._parse(file.read(MAX_PROBE_BYTES))
                    if latency_s:
                        self._latency_s, self._read_s = latency_s, now_s
                    self._mark = mark
            except OSError as error:
                self.problem = f"probe file: {error.strerror}"
        elif not self._every_s:
            # What was measured on request is the answer alone.
            return {}
        elif self._command and now_s - self._began_s >= self._every_s and not is_running:
            self._began_s = now_s
            self._running = threading.Thread(target=self._run, args=(self._command, now_s))
            self._running.daemon = True
            self._running.start()
        return self._latency_s if now_s - self._read_s <= self._valid_s else {}

    def wait(self) -> None:
        if self._running is not None:
            self._running.join()

    def _run(
        self, command: str, now_s: float, *, apart_s: float = ROUNDS_APART_S
    ) -> dict[str, float]:
        """Run the command in rounds; return the least latency of each device."""
        least: dict[str, float] = {}
        for number in range(N_ROUNDS):
            if number:
                self._pause(apart_s)
            for device, latency_s in self._run_once(command).items():
                least[device] = min(latency_s, least.get(device, latency_s))
        if least:
            self._latency_s, self._read_s = least, now_s
        return least

    def _run_once(self, command: str) -> dict[str, float]:
        try:
            run = subprocess.run(  # noqa: S602 - the administrator's own command line
                command, shell=True, capture_output=True, timeout=MAX_LATENCY_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.problem = f"probe: {type(error).__name__}"
            return {}
        return self._parse(run.stdout[:MAX_PROBE_BYTES])

    def _parse(self, text: bytes) -> dict[str, float]:
        """Read lines; invalid ones are skipped, and the first is named in ``problem``."""
        results = [(_parse_line(line), line) for line in text.splitlines() if line.strip()]
        latency_s = {result[0]: result[1] for result, _ in results if result}
        wrong = [line for result, line in results if not result]
        shown = wrong[0][:60].decode("utf-8", "replace") if wrong else ""
        expected = 'expected {"device": NAME, "latency_s": SECONDS}'
        self.problem = f"probe: {shown!r} is not a result; {expected}" if wrong else ""
        return latency_s


def _parse_line(line: bytes) -> tuple[str, float] | None:
    """Return a line's device and latency; None if it is not a result."""
    try:
        result: Any = json.loads(line)
        device, latency_s = str(result["device"]), float(result["latency_s"])
    except (ValueError, TypeError, KeyError):
        return None
    return (device, latency_s) if 0 < latency_s < MAX_LATENCY_S else None
