"""The clocks of a node: wall time, and seconds since boot, which cannot be set."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """One time by two clocks: the wall clock, which may be set, and seconds since boot."""

    wall_s: float
    up_s: float


class Clock:
    def __init__(self) -> None:
        self.boot = _boot()

    def now(self) -> Moment:
        return Moment(time.time(), up_s())

    def sleep(self, s: float) -> None:
        time.sleep(s)

    def wall_of(self, then: Moment, boot: bytes, *, now: Moment) -> float:
        """Return an earlier moment in Unix seconds, by the wall clock as it is set now.

        The difference is measured since boot, so setting the clock in between does not matter.
        After a reboot only the wall time noted then is left.
        """
        return now.wall_s - (now.up_s - then.up_s) if boot == self.boot else then.wall_s


def up_s() -> float:
    """Return seconds since boot, time in suspend included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> bytes:
    """Return the boot id, 16 bytes; a random one where the system has none."""
    try:
        return uuid.UUID(BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return uuid.uuid4().bytes
