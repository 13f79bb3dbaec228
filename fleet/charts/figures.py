"""What a chart is made of: from Series and steps to the JSON that the page's script draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.series import Series

MAX_POINTS = 2_000
MAX_COLUMNS = 300  # of a heat map: about what a screen tells apart
MANY_PARTS = 40
N_OUTLIERS = 4
N_RECENT = 10
OUTLIER_DEVIATIONS = 6.0
OUTLIER_RATIO = 0.08  # a part that differs from its peers by less is not worth a colour
SIGNIFICANT_DIGITS = 4

Shade = tuple[float, float, str]


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
    scale: str = "linear"
    limit: float | None = None
    shade: Sequence[Shade] = ()
    every_s: int = 1
    note: str | None = None
    window: tuple[float, float] | None = None
    has_gaps: bool = False  # points are uneven by nature, and every gap is one already

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
            "every_s": self.every_s,
            "note": self.note,
            "window": self.window,
            "has_gaps": self.has_gaps,
        }
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

    def as_json(self) -> dict[str, Any]:
        """Return what the page's script draws; a gap is null."""
        return {
            "t": seconds(self.t_s),
            "rows": list(self.rows),
            "values": np.round(self.values.astype(float), 2).tolist(),
            "unit": self.unit,
            "every_s": self.every_s,
        }


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


def outliers(values: FloatArray) -> list[int]:
    """Return the parts that differ from their peers, the furthest first, at most four.

    Parameters
    ----------
    values : (n, n_parts)
        One column per part, NaN for gaps.

    Notes
    -----
    A part is out when its median, over any fifth of the window or the last ten samples, lies
    more than six robust deviations (1.4826 times the median absolute deviation) and 8 % off
    the median of all parts.
    """
    if values.shape[1] < 3 or not len(values):
        return []
    pieces = [values[-N_RECENT:], *reversed(np.array_split(values, min(5, len(values))))]
    found = dict.fromkeys(part for piece in pieces for part in _out(piece))
    return list(found)[:N_OUTLIERS]


def _out(recent: FloatArray) -> list[int]:
    """Return the parts that are out in these samples, the furthest first."""
    seen = np.isfinite(recent).any(axis=0)
    level = np.full(recent.shape[1], np.nan)
    if not seen.any():
        return []
    level[seen] = np.nanmedian(recent[:, seen], axis=0)
    middle = np.nanmedian(level)
    off = np.abs(level - middle)
    spread = 1.4826 * np.nanmedian(off)
    bound = max(OUTLIER_DEVIATIONS * spread, OUTLIER_RATIO * abs(middle), 1e-12)
    found = np.flatnonzero(np.nan_to_num(off) > bound)
    return [int(part) for part in found[np.argsort(-off[found])]]


def part_lines(series: Series, part: str, *, marked: Sequence[int] = ()) -> list[Line]:
    """Draw each part as a line, peers muted; where parts are many, only their spread.

    ``marked`` parts stand out whatever they do: the culprit of an alert.
    """
    values = series.values
    n_parts = values.shape[1]
    loud = {*(m for m in marked if 0 <= m < n_parts), *outliers(values)}
    calm = "muted" if n_parts > 2 else None
    roles = {i: "bad" if i in loud else calm for i in range(n_parts)}
    drawn = sorted(loud) if n_parts > MANY_PARTS else range(n_parts)
    names = [part] if n_parts == 1 else [f"{part} {i}" for i in range(n_parts)]
    lines = [Line(names[i], values[:, i], roles[i]) for i in drawn]
    return [*spread_lines(series), *lines] if n_parts > MANY_PARTS else lines


def spread_lines(series: Series) -> list[Line]:
    """Draw the lowest, the mean and the highest of all parts."""
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    return [
        Line("lowest", _extreme(low, np.fmin), "input"),
        Line("mean", mean_of(series.values), "compute"),
        Line("highest", _extreme(high, np.fmax), "input"),
    ]


def _extreme(values: FloatArray, pick: np.ufunc) -> FloatArray:
    """Return the lowest or highest part of each row: NaN only where all are."""
    return np.asarray(pick.reduce(values, axis=1, initial=np.nan))


def series_figure(
    series: Series, part: str, unit: str, *, marked: Sequence[int] = (), **more: Any
) -> Figure:
    """Return the chart of one metric of one node, all its parts."""
    t_s, values = thinned(series.t_s, series.values)
    low = None if series.low is None else thinned(series.t_s, series.low)[1]
    high = None if series.high is None else thinned(series.t_s, series.high)[1]
    slim = Series(series.name, t_s, values, series.every_s, low, high)  # type: ignore[arg-type]
    lines = part_lines(slim, part, marked=marked)
    return Figure(unit, lines, t_s, every_s=series.every_s, **more)


def heat_of(series: Series, part: str) -> Heat:
    """Return one row of values per part, oldest first, for a heat map over time."""
    t_s, values = thinned(series.t_s, series.values, most=MAX_COLUMNS)
    every_s = series.every_s * -(-len(series.t_s) // MAX_COLUMNS)
    labels = [f"{part} {i}" for i in range(values.shape[1])]
    return Heat(t_s, labels, values.T, every_s=every_s)
