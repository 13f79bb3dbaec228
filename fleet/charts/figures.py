"""What a chart is made of: from Series and steps to the JSON that the page's script draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.series import Series

MAX_POINTS = 2_000
MANY_PARTS = 40
N_OUTLIERS = 4
OUTLIER_DEVIATIONS = 6.0
OUTLIER_RATIO = 0.08  # a part that differs from its peers by less is not worth a colour
SIGNIFICANT_DIGITS = 5

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

    def as_json(self) -> dict[str, Any]:
        """Return what the page's script draws; a gap is null."""
        answer: dict[str, Any] = {
            "t": np.round(self.t_s, 3).tolist(),
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
        }
        return answer | ({"labels": list(self.labels)} if self.labels else {})


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
            "t": self.t_s.tolist(),
            "rows": list(self.rows),
            "values": np.round(self.values, 3).tolist(),
            "unit": self.unit,
            "every_s": self.every_s,
        }


def rounded(values: FloatArray) -> FloatArray:
    """Round to five significant digits, which is more than a screen shows."""
    size = np.abs(np.where(np.isfinite(values) & (values != 0), values, 1.0))
    step = 10.0 ** (np.floor(np.log10(size)) - (SIGNIFICANT_DIGITS - 1))
    return np.asarray(np.round(values / step) * step)


def thinned(t_s: FloatArray | IntArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Average runs of neighbours until at most 2,000 points are left.

    Parameters
    ----------
    t_s : (n,)
        Unix seconds.
    values : (n, ...)
        NaN for gaps.

    Returns
    -------
    t_s, values : (m,) and (m, ...), m at most 2,000
        A gap stays one where all it covers is gap.
    """
    every = -(-len(t_s) // MAX_POINTS)
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
    A part is out when the median of its last third lies more than six robust deviations
    (1.4826 times the median absolute deviation) and 8 % off the median of all parts.
    """
    if values.shape[1] < 3 or not len(values):
        return []
    recent = values[-max(1, len(values) // 3) :]
    seen = np.isfinite(recent).any(axis=0)
    level = np.full(values.shape[1], np.nan)
    level[seen] = np.nanmedian(recent[:, seen], axis=0)
    if not seen.any():
        return []
    middle = np.nanmedian(level)
    off = np.abs(level - middle)
    spread = 1.4826 * np.nanmedian(off)
    bound = max(OUTLIER_DEVIATIONS * spread, OUTLIER_RATIO * abs(middle), 1e-12)
    found = np.flatnonzero(np.nan_to_num(off) > bound)
    return [int(part) for part in found[np.argsort(-off[found])]][:N_OUTLIERS]


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
    lines = [Line(f"{part} {i}", values[:, i], roles[i]) for i in drawn]
    return [*spread_lines(series), *lines] if n_parts > MANY_PARTS else lines


def spread_lines(series: Series) -> list[Line]:
    """Draw the lowest, the mean and the highest of all parts."""
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    return [
        Line("lowest", _extreme(low, np.fmin), "muted"),
        Line("mean", mean_of(series.values), "compute"),
        Line("highest", _extreme(high, np.fmax), "muted"),
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
    t_s, values = thinned(series.t_s, series.values)
    labels = [f"{part} {i}" for i in range(values.shape[1])]
    return Heat(t_s, labels, values.T, every_s=series.every_s)
