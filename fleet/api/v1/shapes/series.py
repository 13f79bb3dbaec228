"""One metric over a window as the API tells it: columns of numbers, gaps null."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Self

import numpy as np
from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.shapes.steps import StretchOut
from telemetry.blocks import FloatArray, IntArray
from telemetry.series import Stretch

Numbers = list[float | None]
# No answer has more numbers than this in its means, whatever was asked.
MOST_NUMBERS = 50_000
SIGNIFICANT_DIGITS = 6


class PartOut(Told):
    """One part of a node, or a run as a whole, over time."""

    part: str = Field(
        description="node, core, device, efa or run; core and so on with their number.",
        examples=["core 3"],
    )
    values: Numbers = Field(description="One per moment of `t_s`; null is a gap.")
    low: Numbers | None = Field(
        description="Lowest of what each value is the mean of; null where values are no means."
    )
    high: Numbers | None = Field(description="Highest of the same.")


class SeriesOut(Told):
    """One metric over a window."""

    of: str = Field(description="Name of the node or run.", examples=["llama-03"])
    metric: str = Field(description="What is measured.", examples=["core_utilization_ratio"])
    unit: str = Field(description="Its unit, also the end of its name.", examples=["ratio"])
    help: str = Field(description="What it means.")
    since_s: int = Field(description="Where the window begins, in Unix seconds.")
    until_s: int = Field(description="Where it ends, in Unix seconds.")
    every_s: float = Field(
        description="Seconds from one point to the next, in the mean; 0 where there are not two."
    )
    stretches: list[StretchOut] = Field(description="Which tier told of which part, how finely.")
    t_s: list[float] = Field(description="Moments, in Unix seconds, rising.")
    parts: list[PartOut] = Field(description="What was measured at them, by part.")


@dataclass(frozen=True, slots=True)
class Table:
    """What a series is made of: ``t_s`` (n,), and ``mean``, ``low``, ``high`` (n, n_parts)."""

    t_s: FloatArray | IntArray
    mean: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None

    def slim(self, most: int) -> Self:
        """Merge neighbours until at most so many moments are left."""
        n_parts = max(1, self.mean.shape[1])
        most = max(1, min(most, MOST_NUMBERS // n_parts))
        n_each = -(-len(self.t_s) // most)
        if n_each <= 1:
            return self
        low, high = (self.mean if x is None else x for x in (self.low, self.high))
        with np.errstate(invalid="ignore"):
            return type(self)(
                _grouped(np.asarray(self.t_s, float)[:, None], n_each)[:, 0, 0],
                _mean(_grouped(self.mean, n_each)),
                np.fmin.reduce(_grouped(low, n_each), axis=1),
                np.fmax.reduce(_grouped(high, n_each), axis=1),
            )


def _grouped(values: FloatArray, n_each: int) -> FloatArray:
    """Return (n, m) in groups of neighbours, (n / n_each, n_each, m), filled up with NaN."""
    n_groups = -(-len(values) // n_each)
    filled = np.full((n_groups * n_each, *values.shape[1:]), np.nan)
    filled[: len(values)] = values
    # Counted, for numpy cannot infer it where there is no part at all.
    return filled.reshape(n_groups, n_each, *values.shape[1:])


def _mean(groups: FloatArray) -> FloatArray:
    """Return the mean of what is there in each group, NaN where nothing is."""
    there = np.isfinite(groups)
    n = there.sum(axis=1)
    total = np.where(there, groups, 0.0).sum(axis=1)
    return np.asarray(np.where(n > 0, total, np.nan) / np.maximum(n, 1))


def series_out(
    *,
    of: str,
    metric: str,
    unit: str,
    help_: str,
    window: tuple[int, int],
    table: Table,
    names: Sequence[str],
    stretches: Sequence[Stretch],
    most: int,
) -> SeriesOut:
    """Tell a series in at most so many points."""
    slim = table.slim(most)
    t_s = np.asarray(slim.t_s, float)
    every_s = float(t_s[-1] - t_s[0]) / (len(t_s) - 1) if len(t_s) > 1 else 0.0
    return SeriesOut(
        of=of,
        metric=metric,
        unit=unit,
        help=help_,
        since_s=window[0],
        until_s=window[1],
        every_s=round(every_s, 3),
        stretches=[StretchOut.of(each) for each in stretches],
        t_s=t_s.round(3).tolist(),
        parts=[
            PartOut.model_construct(
                part=name,
                values=_told(slim.mean[:, i]),
                low=None if slim.low is None else _told(slim.low[:, i]),
                high=None if slim.high is None else _told(slim.high[:, i]),
            )
            for i, name in enumerate(names)
        ],
    )


def _told(column: FloatArray) -> Numbers:
    """Return a column as JSON has it: to six digits, null where there is nothing."""
    digits = f".{SIGNIFICANT_DIGITS}g"
    return [float(format(value, digits)) if isfinite(value) else None for value in column.tolist()]
