"""EFA devices: their hardware counters from sysfs, and by how much they grew in a period."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from telemetry.agent.opened import Opened

SYSFS = Path("/sys/class/infiniband")
# What grows each second and is worth a rate; all the others are read now and then.
WATCHED = (
    "tx_bytes",
    "rx_bytes",
    "tx_pkts",
    "retrans_pkts",
    "rx_drops",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
)
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Efa:
    """The EFA devices of this machine; devices keep their place for as long as the agent runs."""

    def __init__(self, root: Path = SYSFS, *, all_every_s: float = 15.0) -> None:
        """Look below ``root``; all counters, not just those with a rate, are read so often."""
        self._root = root
        self._all_every_s = all_every_s
        self._places: dict[str, int] = {}
        self._open: dict[tuple[str, int], dict[str, Opened]] = {}
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
        for name in files if whole else WATCHED:
            value = files[name].integer() if name in files else None
            if value is not None:
                counters[name] = value
        if not counters:
            return None
        before, now = self._before.get(key, {}), {n: counters[n] for n in WATCHED if n in counters}
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
                        files[name] = Opened(folder / name)


def _names(folder: Path) -> list[str]:
    """Return what is in a folder, in order; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir costs three times as much
    except OSError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort by numbers as numbers: rdmap9s0 before rdmap16s27."""
    return [(int(n or 0), word) for word, n in re.findall(r"(\D*)(\d*)", name)]


def _close(files: dict[str, Opened]) -> None:
    """Close files."""
    for file in files.values():
        file.close()
