"""How the numbers of a template become values: which of them add up to what, over what.

The figures follow `telemetry/ingest/values.py`, for columns of reports instead of one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.ingest.reading import Identity, Shape

# Of these a node has one figure: the sum of the processes' rates, each over its own period.
RATED = frozenset(
    {"executions_completed_per_s", "executions_failed_per_s", "execution_errors_per_s"}
)
SHARES = frozenset({"core_utilization_ratio", "vcpu_usage_ratio"})


@dataclass(frozen=True, slots=True)
class Part:
    """One part's value: the sum of some holes over a divisor, which may be another hole."""

    holes: tuple[int, ...]
    over: float = 1.0
    period: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a template makes of its numbers, and the bounds within which it may."""

    shape: Shape
    identity: Identity
    n_efa: int
    lowest: FloatArray
    highest: FloatArray
    periods: IntArray
    executed: Mapping[str, IntArray]
    places: Mapping[str, slice]
    holes: IntArray
    over: FloatArray
    period: IntArray

    def fits(self, numbers: FloatArray) -> bool:
        """Whether all numbers, (n_rows, n_holes), are as the door wants them."""
        return bool(((numbers >= self.lowest) & (numbers <= self.highest)).all())

    def made(
        self, numbers: FloatArray
    ) -> tuple[dict[str, FloatArray], list[float], dict[str, list[list[float]]]]:
        """Return values (n_rows, n_parts) by name, seconds covered, and counts by process."""
        n_rows = len(numbers)
        constants = np.repeat([[0.0], [1.0], [math.nan]], n_rows, axis=1)
        known = np.concatenate([numbers.T, constants])
        # Along the first axis numpy adds one after the other, as a loop over a report does.
        flat = known[self.holes].sum(axis=0) / self.over[:, None] / known[self.period]
        values = {}
        for name, place in self.places.items():
            parts = flat[place]
            if name in RATED:
                parts = parts.sum(axis=0, keepdims=True)
            elif name in SHARES:
                parts = np.minimum(parts, 1.0)
            values[name] = np.ascontiguousarray(parts.T)
        periods_s = known[self.periods].max(axis=0, initial=0.0).tolist()
        executed = {
            tag: known[holes].sum(axis=0).T.tolist() for tag, holes in self.executed.items()
        }
        return values, periods_s, executed


def laid_out(
    parts: Mapping[str, Sequence[Part]], *, n_holes: int
) -> tuple[dict[str, slice], IntArray, FloatArray, IntArray]:
    """Return where each metric's parts are, and of every part holes, divisor and period."""
    places: dict[str, slice] = {}
    flat: list[Part] = []
    for name, some in parts.items():
        places[name] = slice(len(flat), len(flat) + len(some))
        flat += some
    one, absent = n_holes + 1, n_holes + 2
    holes = indices([[*part.holes] or [absent] for part in flat], n_holes=n_holes)
    over = np.array([part.over for part in flat])
    period = np.array([one if part.period is None else part.period for part in flat])
    return places, holes, over, period


def indices(rows: Sequence[Sequence[int]], *, n_holes: int) -> IntArray:
    """Return lists of holes as columns; below the shorter ones stands the hole that is 0."""
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *[n_holes] * (width - len(row))] for row in rows]
    return np.array(filled, dtype=np.intp).reshape(len(rows), width).T
