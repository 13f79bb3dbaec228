"""Sysfs readers for EFA and Neuron devices.

Power, health and ECC counts are read once a minute. Core utilization is read only while there
is no neuron-monitor.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 4096

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
POWER_VALID = "POWER_STATUS_VALID"
MICROS = 1e6
# Without neuron-monitor devices are read this often, and sent with every line.
WITHOUT_MONITOR_EVERY_S = 10.0


class OpenFile:
    """A file that is opened on first read and kept open; reopened after an error."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return the current content, at most 4 KiB; None if the file cannot be read."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, MAX_BYTES, 0)
        except OSError:
            self.close()
            return None

    def integer(self) -> int | None:
        """Return the content as an integer; None if it is none or negative."""
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


class EfaCounters:
    """The EFA devices of this machine; a device keeps its index for as long as the agent runs."""

    def __init__(self, root: Path = EFA_SYSFS, *, all_every_s: float = 15.0) -> None:
        """Read below ``root``; counters without a rate are read every ``all_every_s`` only."""
        self._root = root
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
        for name in files if whole else RATED_COUNTERS:
            value = files[name].integer() if name in files else None
            if value is not None:
                counters[name] = value
        if not counters:
            return None
        before, now = (
            self._before.get(key, {}),
            {n: counters[n] for n in RATED_COUNTERS if n in counters},
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

        found = {}
        for device in sorted(_names(self._root), key=by_number):
            folder = self._root / device
            for port in _names(folder / "ports"):
                counters = folder / "ports" / port / "hw_counters"
                if port.isdecimal() and counters.is_dir():
                    self._places.setdefault(device, len(self._places))
                    found[device, int(port)] = (folder / "hw_counters", counters)
        for key in set(self._open) - set(found):
            for file in self._open.pop(key).values():
                file.close()
            self._before.pop(key, None)
        for key, folders in found.items():
            files = self._open.setdefault(key, {})
            for folder in folders:
                for name in _names(folder):
                    if NAME.fullmatch(name) and name not in files:
                        files[name] = OpenFile(folder / name)


def _names(folder: Path) -> list[str]:
    """Return a folder's names, sorted; empty if it does not exist."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


class NeuronSysfs:
    """The Neuron devices of this machine."""

    def __init__(self, root: Path = NEURON_SYSFS, *, slow_every_s: float = 60.0) -> None:
        """Read below ``root``; power, health and ECC counts every ``slow_every_s``."""
        self._root = root
        self._slow_every_s = slow_every_s
        self._slow_s = float("-inf")
        self._devices: list[dict[str, Any]] = []
        self._busy: dict[tuple[int, int], OpenFile] = {}
        self._before: dict[tuple[int, int], int] = {}
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
            folders = _numbered(self._root, DEVICE)
            self._devices = [_device(i, path, memory=cores) for i, path in folders]
        if self._devices and (is_due or cores):
            fields["devices"] = self._devices
        if cores:
            fields.update(self._cores(now_s))
        else:
            self._close_cores()
        return fields or None

    def _cores(self, now_s: float) -> dict[str, Any]:
        """Return each core's utilization since the last reading; empty the first time."""
        if not self._busy:
            self._busy = {
                (device, core): OpenFile(folder / "stats/other_info/nc_time_in_use")
                for device, path in _numbered(self._root, DEVICE)
                for core, folder in _numbered(path, CORE)
            }
        now = {key: value for key, f in self._busy.items() if (value := f.integer()) is not None}
        period_s, self._before_s = now_s - self._before_s, now_s
        before, self._before = self._before, now
        if not before or period_s <= 0:
            return {}
        cores = [
            {"device": d, "core": c, "busy": round(min(1.0, grown / MICROS / period_s), 6)}
            for (d, c), value in now.items()
            if (grown := value - before.get((d, c), value + 1)) >= 0
        ]
        return {"period": round(period_s, 6), "cores": cores} if cores else {}

    def _close_cores(self) -> None:
        for file in self._busy.values():
            file.close()
        self._busy, self._before = {}, {}


def _device(index: int, path: Path, *, memory: bool) -> dict[str, Any]:
    """Read one device; values that the driver does not give are left out."""
    hardware = path / "stats/hardware"
    fields: dict[str, Any] = {"index": index, "cores": _integer(path / "core_count")}
    for kind in ECC:
        fields[kind] = _integer(hardware / kind)
    # The fifth field is the average of the last minute, as a percentage of the maximum power.
    power = (_text(path / "stats/power/utilization") or "").split(",")
    with suppress(IndexError, ValueError):
        fields["power_ratio"] = float(power[4]) / 100 if power[0] == POWER_VALID else None
    unhealthy = _text(hardware / "health_status/unhealthy_components")
    if unhealthy is not None:
        fields["unhealthy"] = [word for word in re.split(r"[,\s]+", unhealthy) if word][:16]
    used = [_memory(folder) for _, folder in _numbered(path, CORE)] if memory else []
    known = [n_bytes for n_bytes in used if n_bytes is not None]
    fields["memory_used_bytes"] = sum(known) if known else None
    return {name: value for name, value in fields.items() if value is not None}


def _memory(core: Path) -> int | None:
    """Return the device memory used for one core, summed over all purposes."""
    folder = core / "stats/memory_usage/device_mem"
    used = [_integer(folder / purpose / "present") for purpose in _names(folder)]
    known = [n_bytes for n_bytes in used if n_bytes is not None]
    return sum(known) if known else None


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the folders whose name matches, sorted by their number."""
    found = [(pattern.fullmatch(name), name) for name in _names(folder)]
    return sorted((int(match[1]), folder / name) for match, name in found if match)


def _text(path: Path) -> str | None:
    file = OpenFile(path)
    text = file.text()
    file.close()
    return text


def _integer(path: Path) -> int | None:
    file = OpenFile(path)
    value = file.integer()
    file.close()
    return value
