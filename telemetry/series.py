"""One metric over a window, as read from the store."""

from dataclasses import dataclass
from typing import Literal

from telemetry.blocks import FloatArray, IntArray

# Resolutions of steps: all of them, or averages of neighbours.
EVERY_STEP, SOME_STEPS = 0, -1
Tier = Literal["hot", "durable", "long term"]


@dataclass(frozen=True, slots=True)
class SeriesSource:
    """A part of a window that comes from one tier at one resolution, from ``since`` on.

    ``every_s`` may be EVERY_STEP or SOME_STEPS. ``why`` is the error if the tier is unreachable.
    Without ``has_all_parts``, those that did not stand out have the same values.
    """

    since: int
    every_s: int
    tier: Tier
    why: str = ""
    has_all_parts: bool = True


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one node (or run) over a window; gaps are NaN, never zero.

    ``t_s`` (n,) Unix seconds; ``values`` (n, n_parts). ``every_s`` is the resolution: a
    minute's value is the mean, with its ``low`` and ``high`` (n, n_parts). ``stretches`` are the
    sources of its parts, in order of time.
    """

    name: str
    t_s: IntArray
    values: FloatArray
    every_s: int = 1
    low: FloatArray | None = None
    high: FloatArray | None = None
    stretches: tuple[SeriesSource, ...] = ()
