"""One metric over a window, on its way out of the store."""

from dataclasses import dataclass

from telemetry.blocks import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one node (or run) over a window; gaps are NaN, never zero.

    ``t_s`` (n,) Unix seconds; ``values`` (n, n_parts). ``every_s`` is the resolution: a
    minute's value is the mean, with ``low`` and ``high`` (n, n_parts) beside it.
    """

    name: str
    t_s: IntArray
    values: FloatArray
    every_s: int = 1
    low: FloatArray | None = None
    high: FloatArray | None = None
