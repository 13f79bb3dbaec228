"""Time on a node: what its clock shows, and what has passed whether or not that was set."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moment:
    """One moment: by the clock that may be set, and by the one that only counts from boot."""

    wall_s: float
    up_s: float


class Clock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self.boot = _boot()

    def now(self) -> Moment:
        """Return this moment."""
        return Moment(time.time(), up_s())

    def rest(self, s: float) -> None:
        """Let so many seconds pass."""
        time.sleep(s)

    def wall_of(self, then: Moment, boot: bytes, *, now: Moment) -> float:
        """Return when something was, by the clock as it shows now.

        The seconds since then are those that really passed, so that a clock which was set in
        between does not move what was noted before; after a boot there is only what was noted.
        """
        return now.wall_s - (now.up_s - then.up_s) if boot == self.boot else then.wall_s


def up_s() -> float:
    """Return seconds since boot, those asleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot() -> bytes:
    """Return which boot this is: 16 bytes, new ones where the system does not say."""
    try:
        return uuid.UUID(BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return uuid.uuid4().bytes
