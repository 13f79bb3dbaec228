"""Neuron devices as the driver's sysfs shows them: what neuron-monitor lacks, or while it is away.

Power, health and ECC counts are read now and then; how busy the cores were only when nobody
else says it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from telemetry.agent.opened import Opened

SYSFS = Path("/sys/devices/virtual/neuron_device")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
DEVICE = re.compile(r"neuron(\d+)")
CORE = re.compile(r"neuron_core(\d+)")
VALID = "POWER_STATUS_VALID"
MICROS = 1e6
# While nobody else reports, devices are read this often, and told of every time.
ALONE_EVERY_S = 10.0


class Neuron:
    """The Neuron devices of this machine, as their driver counts."""

    def __init__(self, root: Path = SYSFS, *, slow_every_s: float = 60.0) -> None:
        """Look below ``root``; power, health and ECC counts are read so often."""
        self._root = root
        self._slow_every_s = slow_every_s
        self._slow_s = float("-inf")
        self._devices: list[dict[str, Any]] = []
        self._busy: dict[tuple[int, int], Opened] = {}
        self._before: dict[tuple[int, int], int] = {}
        self._before_s = 0.0

    def read(self, now_s: float, *, cores: bool) -> dict[str, Any] | None:
        """Return what the driver says, as it is sent; None where there is nothing to say.

        With ``cores``, how busy each core was since the last reading, and what memory it uses.
        """
        said: dict[str, Any] = {}
        every_s = ALONE_EVERY_S if cores else self._slow_every_s
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
                (device, core): Opened(folder / "stats/other_info/nc_time_in_use")
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
        return float(words[4]) / 100 if words[0] == VALID else None
    except (IndexError, ValueError):
        return None


def _memory(core: Path) -> int | None:
    """Return the device memory used on behalf of one core, over all purposes."""
    folder = core / "stats/memory_usage/device_mem"
    used = [_integer(folder / purpose / "present") for purpose in _names(folder)]
    known = [n_bytes for n_bytes in used if n_bytes is not None]
    return sum(known) if known else None


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return the numbered folders of a kind, by their number."""
    found = [(pattern.fullmatch(name), name) for name in _names(folder)]
    return sorted((int(match[1]), folder / name) for match, name in found if match)


def _names(folder: Path) -> list[str]:
    """Return what is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


def _text(path: Path) -> str | None:
    """Return a file's text; None where there is none."""
    file = Opened(path)
    text = file.text()
    file.close()
    return text


def _integer(path: Path) -> int | None:
    """Return the number in a file; None where there is none."""
    file = Opened(path)
    value = file.integer()
    file.close()
    return value
