"""Neuron devices as the driver's sysfs shows them: what neuron-monitor lacks, or while it is away.

Power, health and ECC counts are read now and then; how busy the cores were only when nobody
else says it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

MAX_BYTES = 4096


class OpenFile:
    """One file, opened when it is first read, and again after it could not be."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return what the file says now; None where it cannot be read."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, MAX_BYTES, 0)
        except OSError:
            self.close()
            return None

    def integer(self) -> int | None:
        """Return the number that the file holds; None where there is none, or a negative one."""
        text = self.read()
        try:
            value = -1 if text is None else int(text)
        except ValueError:
            return None
        return value if value >= 0 else None

    def text(self) -> str | None:
        """Return the file's text without its last newline."""
        data = self.read()
        return None if data is None else data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


EFA_SYSFS = Path("/sys/class/infiniband")
# What grows each second and is worth a rate; all the others are read now and then.
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


class EfaCounters:
    """The EFA devices of this machine; devices keep their place for as long as the agent runs."""

    def __init__(self, root: Path = EFA_SYSFS, *, all_every_s: float = 15.0) -> None:
        """Look below ``root``; all counters, not just those with a rate, are read so often."""
        self._root = root
        self._all_every_s = all_every_s
        self._places: dict[str, int] = {}
        self._open: dict[tuple[str, int], dict[str, OpenFile]] = {}
        self._before: dict[tuple[str, int], dict[str, int]] = {}
        self._before_s: float | None = None
        self._all_s = float("-inf")

    def read(self, now_s: float) -> dict[str, Any] | None:
        """Return what the devices say, as it is sent; None where there are none.

        ``now_s`` is a clock that is never set. ``increase`` is by how much a counter grew since
        the last reading; a counter that fell was cleared, and says nothing that time.
        """
        whole = now_s - self._all_s >= self._all_every_s
        if whole:
            self._look()
            self._all_s = now_s
        devices = [self._device(key, whole=whole) for key in self._open]
        before_s, self._before_s = self._before_s, now_s
        known = [device for device in devices if device is not None]
        if not known:
            return None
        if before_s is None:
            return {"devices": known}
        return {"period": round(now_s - before_s, 6), "devices": known}

    def place(self, device: str) -> int | None:
        """Return a device's number on this machine."""
        return self._places.get(device)

    def _device(self, key: tuple[str, int], *, whole: bool) -> dict[str, Any] | None:
        """Read one port of one device."""
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
        said = {"device": key[0], "port": key[1], "index": self._places[key[0]], "increase": grown}
        return {**said, "counters": counters} if whole else said

    def _look(self) -> None:
        """Find the devices and their counters, and forget those that went."""
        found = {}
        for device in sorted(_names(self._root), key=_natural):
            folder = self._root / device
            for port in _names(folder / "ports"):
                counters = folder / "ports" / port / "hw_counters"
                if port.isdecimal() and counters.is_dir():
                    self._places.setdefault(device, len(self._places))
                    found[device, int(port)] = (folder / "hw_counters", counters)
        for key in set(self._open) - set(found):
            _close(self._open.pop(key))
            self._before.pop(key, None)
        for key, folders in found.items():
            files = self._open.setdefault(key, {})
            for folder in folders:
                for name in _names(folder):
                    if NAME.fullmatch(name) and name not in files:
                        files[name] = OpenFile(folder / name)


def _names(folder: Path) -> list[str]:
    """Return what is in a folder, in order; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort by numbers as numbers: rdmap9s0 before rdmap16s27."""
    return [(int(n or 0), word) for word, n in re.findall(r"(\D*)(\d*)", name)]


def _close(files: dict[str, OpenFile]) -> None:
    """Close files."""
    for file in files.values():
        file.close()


NEURON_SYSFS = Path("/sys/devices/virtual/neuron_device")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
DEVICE = re.compile(r"neuron(\d+)")
CORE = re.compile(r"neuron_core(\d+)")
POWER_VALID = "POWER_STATUS_VALID"
MICROS = 1e6
# While nobody else reports, devices are read this often, and told of every time.
WITHOUT_MONITOR_EVERY_S = 10.0


class NeuronSysfs:
    """The Neuron devices of this machine, as their driver counts."""

    def __init__(self, root: Path = NEURON_SYSFS, *, slow_every_s: float = 60.0) -> None:
        """Look below ``root``; power, health and ECC counts are read so often."""
        self._root = root
        self._slow_every_s = slow_every_s
        self._slow_s = float("-inf")
        self._devices: list[dict[str, Any]] = []
        self._busy: dict[tuple[int, int], OpenFile] = {}
        self._before: dict[tuple[int, int], int] = {}
        self._before_s = 0.0

    def read(self, now_s: float, *, cores: bool) -> dict[str, Any] | None:
        """Return what the driver says, as it is sent; None where there is nothing to say.

        With ``cores``, how busy each core was since the last reading, and what memory it uses.
        """
        said: dict[str, Any] = {}
        every_s = WITHOUT_MONITOR_EVERY_S if cores else self._slow_every_s
        is_due = now_s - self._slow_s >= every_s
        if is_due:
            self._slow_s = now_s
            folders = _numbered(self._root, DEVICE)
            self._devices = [_device(i, path, memory=cores) for i, path in folders]
        if self._devices and (is_due or cores):
            said["devices"] = self._devices
        if cores:
            said.update(self._cores(now_s))
        else:
            self._forget()
        return said or None

    def _cores(self, now_s: float) -> dict[str, Any]:
        """Return the share of time that each core was in use since the last reading."""
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

    def _forget(self) -> None:
        """Stop watching the cores."""
        for file in self._busy.values():
            file.close()
        self._busy, self._before = {}, {}


def _device(index: int, path: Path, *, memory: bool) -> dict[str, Any]:
    """Read what one device says of itself."""
    hardware = path / "stats/hardware"
    said: dict[str, Any] = {"index": index, "cores": _integer(path / "core_count")}
    for kind in ECC:
        said[kind] = _integer(hardware / kind)
    said["power_ratio"] = _power(_text(path / "stats/power/utilization"))
    unhealthy = _text(hardware / "health_status/unhealthy_components")
    if unhealthy is not None:
        said["unhealthy"] = [word for word in re.split(r"[,\s]+", unhealthy) if word][:16]
    used = [_memory(folder) for _, folder in _numbered(path, CORE)] if memory else []
    known = [n_bytes for n_bytes in used if n_bytes is not None]
    said["memory_used_bytes"] = sum(known) if known else None
    return {name: value for name, value in said.items() if value is not None}


def _power(line: str | None) -> float | None:
    """Return the average of the last minute as a share of the most a device draws."""
    words = (line or "").split(",")
    try:
        return float(words[4]) / 100 if words[0] == POWER_VALID else None
    except (IndexError, ValueError):
        return None


def _memory(core: Path) -> int | None:
    """Return the device memory used on behalf of one core, over all purposes."""
    folder = core / "stats/memory_usage/device_mem"
    used = [_integer(folder / purpose / "present") for purpose in _neuron_names(folder)]
    known = [n_bytes for n_bytes in used if n_bytes is not None]
    return sum(known) if known else None


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the numbered folders of a kind, by their number."""
    found = [(pattern.fullmatch(name), name) for name in _neuron_names(folder)]
    return sorted((int(match[1]), folder / name) for match, name in found if match)


def _neuron_names(folder: Path) -> list[str]:
    """Return what is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


def _text(path: Path) -> str | None:
    """Return a file's text; None where there is none."""
    file = OpenFile(path)
    text = file.text()
    file.close()
    return text


def _integer(path: Path) -> int | None:
    """Return the number in a file; None where there is none."""
    file = OpenFile(path)
    value = file.integer()
    file.close()
    return value
