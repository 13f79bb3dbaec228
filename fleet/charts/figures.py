"""What a chart is made of: from Series and steps to the JSON that the page's script draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np

from fleet.charts.reach import reach_of
from telemetry.blocks import FloatArray, IntArray
from telemetry.series import Series, Stretch

MAX_POINTS = 2_000
MAX_COLUMNS = 300  # of a heat map: about what a screen tells apart
SIGNIFICANT_DIGITS = 4

Shade = tuple[float, float, str]
Mark = tuple[float, str, str]  # a level, its words, and what it is: peers, threshold
Event = tuple[float, str, str]  # a moment, what happened, and its kind


@dataclass(frozen=True, slots=True)
class Line:
    """One line, bar or layer of a chart: ``values`` (n,), NaN for a gap."""

    label: str
    values: FloatArray
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart: lines over time ``t_s`` (n,) in Unix seconds, or bars over ``labels``."""

    unit: str
    lines: Sequence[Line] = ()
    t_s: IntArray | FloatArray = field(default_factory=lambda: np.zeros(0))
    labels: Sequence[str] = ()
    scale: str = "linear"  # from zero on; or log, or close: only as far as its values go
    limit: float | None = None
    shade: Sequence[Shade] = ()
    marks: Sequence[Mark] = ()
    events: Sequence[Event] = ()
    every_s: int = 1
    note: str | None = None
    window: tuple[float, float] | None = None
    has_gaps: bool = False  # points are uneven by nature, and every gap is one already
    stretches: Sequence[Stretch] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what the page's script draws; a gap is null."""
        answer: dict[str, Any] = {
            "t": seconds(self.t_s),
            "series": [
                {"label": line.label, "values": rounded(line.values).tolist(), "role": line.role}
                for line in self.lines
            ],
            "unit": self.unit,
            "scale": self.scale,
            "limit": self.limit,
            "shade": [list(shade) for shade in self.shade],
            "marks": [list(mark) for mark in self.marks],
            "events": [list(event) for event in self.events],
            "every_s": self.every_s,
            "note": self.note,
            "window": self.window,
            "has_gaps": self.has_gaps,
        } | reach_of(self.stretches)
        return answer | ({"labels": list(self.labels)} if self.labels else {})

    def since(self, second: float) -> dict[str, Any]:
        """Return what a chart appends: the points after ``second``."""
        new = self.t_s > second
        return {
            "t": seconds(self.t_s[new]),
            "values": [_with_nulls(rounded(line.values[new])) for line in self.lines],
            "bad": [i for i, line in enumerate(self.lines) if line.role == "bad"],
        }


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map over time: ``values`` (n_rows, n), NaN for a gap."""

    t_s: FloatArray
    rows: Sequence[str]
    values: FloatArray
    unit: str = "ratio"
    every_s: int = 1
    window: tuple[float, float] | None = None
    stretches: Sequence[Stretch] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what the page's script draws; a gap is null."""
        return {
            "t": seconds(self.t_s),
            "window": self.window,
            "rows": list(self.rows),
            "values": np.round(self.values.astype(float), 2).tolist(),
            "unit": self.unit,
            "every_s": self.every_s,
        } | reach_of(self.stretches)

    def until(self, second: float) -> "Heat":
        """Keep the columns that are whole once ``second`` has been told."""
        whole = self.t_s + (self.every_s - 1) / 2 <= second
        return replace(self, t_s=self.t_s[whole], values=self.values[:, whole])

    def since(self, second: float) -> dict[str, Any]:
        """Return what a chart appends: the columns after ``second``."""
        new = self.t_s > second
        values = np.round(self.values[:, new].astype(float), 2)
        return {"t": seconds(self.t_s[new]), "values": [_with_nulls(row) for row in values]}


def seconds(t_s: FloatArray | IntArray) -> list[float]:
    """Return moments as short as JSON can say them: whole seconds, or to the millisecond."""
    rounded_s = np.round(np.asarray(t_s, dtype=float), 3)
    is_whole = bool((rounded_s == np.floor(rounded_s)).all())
    moments: list[float] = (rounded_s.astype(int) if is_whole else rounded_s).tolist()
    return moments


def rounded(values: FloatArray) -> FloatArray:
    """Round to four significant digits, which is more than a screen shows."""
    exact = np.asarray(values, dtype=float)
    size = np.abs(np.where(np.isfinite(exact) & (exact != 0), exact, 1.0))
    power = SIGNIFICANT_DIGITS - 1 - np.floor(np.log10(size))
    # Powers of ten above one are exact, those below are not: divide by the former only.
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    return np.asarray(np.round(exact * up / down) * down / up)


def _with_nulls(values: FloatArray) -> list[float | None]:
    return [value if isfinite(value) else None for value in values.tolist()]


def thinned(
    t_s: FloatArray | IntArray, values: FloatArray, *, most: int = MAX_POINTS
) -> tuple[FloatArray, FloatArray]:
    """Average runs of neighbours until at most so many points are left.

    Parameters
    ----------
    t_s : (n,)
        Unix seconds.
    values : (n, ...)
        NaN for gaps.
    most : int
        How many points are allowed.

    Returns
    -------
    t_s, values : (m,) and (m, ...), m at most ``most``
        A gap stays one where all it covers is gap.
    """
    every = -(-len(t_s) // most)
    if every <= 1:
        return np.asarray(t_s, float), values
    whole = -(-len(t_s) // every) * every
    times = _padded(np.asarray(t_s, float), whole).reshape(-1, every)
    parts = _padded(values, whole).reshape(-1, every, *values.shape[1:])
    return mean_of(times), mean_of(parts)


def _padded(values: FloatArray, n_rows: int) -> FloatArray:
    missing = np.full((n_rows - len(values), *values.shape[1:]), np.nan)
    return np.concatenate([values, missing])


def mean_of(values: FloatArray) -> FloatArray:
    """Average over axis 1 what is there; NaN where nothing is."""
    there = np.isfinite(values)
    return _ratio(np.where(there, values, 0.0).sum(axis=1), there.sum(axis=1))


def _ratio(total: FloatArray, count: IntArray) -> FloatArray:
    empty = np.full(total.shape, np.nan)
    return np.asarray(np.divide(total, count, out=empty, where=count > 0))


def heat_of(series: Series, part: str, *, every_s: int) -> Heat:
    """Return one row of values per part, oldest first, for a heat map over time.

    A column averages ``every_s``, counted from the full hour: columns keep their place while
    the window moves on. ``t_s`` is the middle of a column.
    """
    first = int(series.t_s[0]) // every_s * every_s if len(series.t_s) else 0
    n_each = every_s // series.every_s
    lead = (int(series.t_s[0]) - first) // series.every_s if len(series.t_s) else 0
    n_columns = -(-(lead + len(series.t_s)) // n_each)
    ahead = np.full((lead, *series.values.shape[1:]), np.nan)
    laid = _padded(np.concatenate([ahead, series.values]), n_columns * n_each)
    values = mean_of(laid.reshape(n_columns, n_each, *series.values.shape[1:]))
    t_s = first + every_s * np.arange(n_columns) + (every_s - series.every_s) / 2
    labels = [f"{part} {i}" for i in range(values.shape[1])]
    return Heat(t_s, labels, values.T, every_s=every_s, stretches=series.stretches)


def column_s(length_s: float, *, every_s: int) -> int:
    """Return how much time a column of a heat map over such a window stands for."""
    return every_s * max(1, -(-int(length_s) // (every_s * MAX_COLUMNS)))
