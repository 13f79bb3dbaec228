"""Charts as data: from series and steps to the JSON that the page's script draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet.charts.windows import Window
from fleet.formatting import moment, percent, rate, si, size, usd, written
from fleet.formatting import seconds as formatting_seconds
from telemetry.blocks import FloatArray, IntArray, mean
from telemetry.series import EVERY_STEP, SOME_STEPS, Series, SeriesSource
from telemetry.store.history import durable_from
from telemetry.units import MINUTE_S

OF_STEPS = {EVERY_STEP: "every step", SOME_STEPS: "averages of steps"}
MERGED = ", similar parts merged"
ALONE = "figures of single workers are kept here only"


def resolution(every_s: int) -> str:
    """Describe the resolution of data in words.

    >>> [resolution(every_s) for every_s in (EVERY_STEP, SOME_STEPS, 1, 60, 1800)]
    ['every step', 'averages of steps', '1 s', '1 min', '30 min']
    """
    if every_s in OF_STEPS:
        return OF_STEPS[every_s]
    return f"{every_s} s" if every_s < MINUTE_S else f"{every_s // MINUTE_S} min"


def reach_of(stretches: Sequence[SeriesSource]) -> dict[str, Any]:
    """Describe the segments of a chart; empty where one tier has all of it in full detail."""
    is_plain = len(stretches) < 2 and all(
        stretch.tier != "long term" and stretch.every_s <= MINUTE_S for stretch in stretches
    )
    if is_plain:
        return {}
    return {
        "reach": [
            {
                "since": stretch.since,
                "detail": resolution(stretch.every_s) + ("" if stretch.has_all_parts else MERGED),
                "tier": stretch.tier,
                "why": stretch.why,
            }
            for stretch in stretches
        ]
    }


def reach_text(reach: Sequence[dict[str, Any]]) -> str:
    """Describe the segments, the newest first, in UTC."""
    texts = []
    for i, part in enumerate(reach):
        newer = reach[i + 1] if i + 1 < len(reach) else None
        before = f" before {_moment(newer['since'])}" if newer else ""
        source = ", from the long-term store" if part["tier"] == "long term" else ""
        detail = f"{part['detail']}{before}{source}"
        texts.append(f"nothing{before}: {part['why']}" if part["why"] else detail)
    return " · ".join(reversed(texts))


def workers_reach(window: Window) -> Sequence[SeriesSource]:
    """Return the segments of a chart by worker: the long-term store has none."""
    kept_from = durable_from()
    if kept_from is None or kept_from <= window.start:
        return ()
    missing = SeriesSource(window.start, MINUTE_S, "long term", ALONE)
    if kept_from >= window.end:
        return (missing,)
    return (missing, SeriesSource(kept_from, MINUTE_S, "durable"))


def _moment(second: float) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M} UTC"


MAX_POINTS = 2_000
MAX_COLUMNS = 300  # of a heat map: about the resolution of a screen
SIGNIFICANT_DIGITS = 4

Shade = tuple[float, float, str]
Mark = tuple[float, str, str]  # level, text, kind: peers, threshold


class Event(NamedTuple):
    """A moment that may explain a curve, in Unix seconds, and the page about it."""

    at_s: float
    text: str
    kind: str
    until_s: float | None = None
    url: str = ""


class Place(NamedTuple):
    """The page that a row of a heat map, or a bar, leads to, and how to name it."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line, bar or layer of a chart: ``values`` (n,), NaN for a gap."""

    label: str
    values: FloatArray
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: lines over time ``t_s`` (n,) in Unix seconds, or bars over ``labels``."""

    unit: str
    lines: Sequence[ChartLine] = ()
    t_s: IntArray | FloatArray = field(default_factory=lambda: np.zeros(0))
    labels: Sequence[str] = ()
    scale: str = "linear"  # from zero on; or log; or close: the range of the values
    limit: float | None = None
    shade: Sequence[Shade] = ()
    marks: Sequence[Mark] = ()
    events: Sequence[Event] = ()
    every_s: float = 1
    note: str | None = None
    window: tuple[float, float] | None = None
    has_gaps: bool = False  # points are uneven, and gaps are marked by NaN
    stretches: Sequence[SeriesSource] = ()
    places: Sequence[Place | None] = ()  # of the labels
    culprit: tuple[int, str] | None = None  # which of the labels, and what is said of it
    # Where the legend rests: at the figure, else at the moment; None: at the latest values.
    rest: tuple[float, float | None] | None = None
    missing: str = ""  # what the newest value is, where it is NaN; empty: the one before counts
    x_unit: str = ""  # of ``t_s``, where the x axis is no time; ``labels`` then names each point

    def as_json(self) -> dict[str, Any]:
        """Return the data for the page's script; a gap is null."""
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
            "rest": self.rest,
        } | reach_of(self.stretches)
        labels = {"labels": list(self.labels), "places": list(self.places)} if self.labels else {}
        labels |= {"culprit": list(self.culprit)} if self.culprit else {}
        labels |= {"missing": self.missing} if self.missing else {}
        return answer | labels | ({"x_unit": self.x_unit} if self.x_unit else {})

    def since(self, second: float) -> dict[str, Any]:
        new = self.t_s > second
        return {
            "t": seconds(self.t_s[new]),
            "values": [_with_nulls(rounded(line.values[new])) for line in self.lines],
            "bad": [i for i, line in enumerate(self.lines) if line.role == "bad"],
        }


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map over time: ``values`` (n_rows, n), NaN for a gap.

    Where rows are compared with their peers, ``strengths`` (n_rows, n), from -1 to 1, are the
    colours, and ``peers`` (n,) the medians; ``worse`` is the side that costs steps, 0 either.
    """

    t_s: FloatArray
    rows: Sequence[str]
    values: FloatArray
    unit: str = "ratio"
    every_s: float = 1
    window: tuple[float, float] | None = None
    stretches: Sequence[SeriesSource] = ()
    places: Sequence[Place | None] = ()  # of the rows
    strengths: FloatArray | None = None
    peers: FloatArray | None = None
    worse: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the data for the page's script; a gap is null."""
        return {
            "t": seconds(self.t_s),
            "window": self.window,
            "rows": list(self.rows),
            "places": list(self.places),
            "unit": self.unit,
            "every_s": self.every_s,
            "worse": self.worse,
            **self._columns(slice(None)),
        } | reach_of(self.stretches)

    def until(self, second: float) -> "Heat":
        """Keep the columns that are complete at ``second``."""
        return self._kept(self.t_s + (self.every_s - 1) / 2 <= second)

    def since(self, second: float) -> dict[str, Any]:
        """Return the new columns: rows of values, of strengths if it has them, and of peers."""
        new = self.t_s > second
        columns = self._columns(new)
        rows = [*columns["values"], *columns.get("strengths", ())]
        rows += [columns["peers"]] if "peers" in columns else []
        return {"t": seconds(self.t_s[new]), "values": rows}

    def _kept(self, columns: NDArray[np.bool_]) -> "Heat":
        strengths, peers = self.strengths, self.peers
        return replace(
            self,
            t_s=self.t_s[columns],
            values=self.values[:, columns],
            strengths=None if strengths is None else strengths[:, columns],
            peers=None if peers is None else peers[columns],
        )

    def _columns(self, columns: NDArray[np.bool_] | slice) -> dict[str, Any]:
        shown = self.values[:, columns].astype(float)
        values = np.round(shown, 2) if self.unit == "ratio" else rounded(shown)
        if self.strengths is None or self.peers is None:
            return {"values": [_with_nulls(row) for row in values]}
        strengths = np.round(self.strengths[:, columns].astype(float), 2) + 0.0
        return {
            "values": [_with_nulls(row) for row in values],
            "strengths": [_with_nulls(row) for row in strengths],
            "peers": _with_nulls(rounded(self.peers[columns])),
        }


def seconds(t_s: FloatArray | IntArray) -> list[float]:
    """Shorten times for JSON: whole seconds, or milliseconds."""
    rounded_s = np.round(np.asarray(t_s, dtype=float), 3)
    is_whole = bool((rounded_s == np.floor(rounded_s)).all())
    moments: list[float] = (rounded_s.astype(int) if is_whole else rounded_s).tolist()
    return moments


def rounded(values: FloatArray) -> FloatArray:
    """Round to four significant digits."""
    exact = np.asarray(values, dtype=float)
    size = np.abs(np.where(np.isfinite(exact) & (exact != 0), exact, 1.0))
    power = SIGNIFICANT_DIGITS - 1 - np.floor(np.log10(size))
    # Only powers of ten above one are exact floats, so divide by those.
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    return np.asarray(np.round(exact * up / down) * down / up)


def _with_nulls(values: FloatArray) -> list[float | None]:
    return [value if isfinite(value) else None for value in values.tolist()]


def thinned(
    t_s: FloatArray | IntArray, values: FloatArray, *, most: int = MAX_POINTS
) -> tuple[FloatArray, FloatArray]:
    """Average neighbouring points of (n,) times and (n, ...) values to at most ``most``.

    A point is a gap only where all it covers is one.
    """
    every = -(-len(t_s) // most)
    if every <= 1:
        return np.asarray(t_s, float), values
    whole = -(-len(t_s) // every) * every
    times = _padded(np.asarray(t_s, float), whole).reshape(-1, every)
    parts = _padded(values, whole).reshape(-1, every, *values.shape[1:])
    return mean(times, 1), mean(parts, 1)


def _padded(values: FloatArray, n_rows: int) -> FloatArray:
    missing = np.full((n_rows - len(values), *values.shape[1:]), np.nan)
    return np.concatenate([values, missing])


def heat_of(series: Series, part: str, *, every_s: int) -> Heat:
    """Return one row of values per part, oldest first, for a heat map over time."""
    t_s, values = columns_of(series, series.values, every_s=every_s)
    labels = [f"{part} {i}" for i in range(values.shape[1])]
    return Heat(t_s, labels, values.T, every_s=every_s, stretches=series.stretches)


def columns_of(
    series: Series,
    values: FloatArray,
    *,
    every_s: int,
    how: Callable[[FloatArray, int], FloatArray] = mean,
) -> tuple[FloatArray, FloatArray]:
    """Average (n, ...) values at the times of a series to columns of ``every_s``.

    Columns are counted from the full hour, so that they do not change while the window moves.
    Their times are their middles.
    """
    first = int(series.t_s[0]) // every_s * every_s if len(series.t_s) else 0
    n_each = every_s // series.every_s
    lead = (int(series.t_s[0]) - first) // series.every_s if len(series.t_s) else 0
    n_columns = -(-(lead + len(series.t_s)) // n_each)
    ahead = np.full((lead, *values.shape[1:]), np.nan)
    laid = _padded(np.concatenate([ahead, values]), n_columns * n_each)
    t_s = first + every_s * np.arange(n_columns) + (every_s - series.every_s) / 2
    return t_s, how(laid.reshape(n_columns, n_each, *values.shape[1:]), 1)


def column_s(length_s: float, *, every_s: int) -> int:
    """Return the seconds per column of a heat map over such a window."""
    return every_s * max(1, -(-int(length_s) // (every_s * MAX_COLUMNS)))


MOST_ROWS = 240

WRITERS: Mapping[str, Callable[[float | None], str]] = {
    "ratio": percent,
    "s": formatting_seconds,
    "bytes": size,
    "bytes_per_s": rate,
    "per_s": si,
    "usd": usd,
    "count": si,
}


@dataclass(frozen=True, slots=True)
class ChartTable:
    """Column heads and rows of cells; where rows are times, the newest comes first."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    reach: str = ""
    events: Sequence[Event] = ()


def _time_of(second: float, every_s: float) -> str:
    """Write a moment with its date; where readings are closer than a second, with tenths.

    >>> _time_of(59.97, 0.1)
    '1970-01-01 00:01:00.0'
    """
    if every_s >= 1:
        return written(moment(second), "full")
    whole, tenth = divmod(round(second * 10), 10)
    return f"{written(moment(whole), 'full')}.{tenth}"


def table_of(drawn: Mapping[str, Any]) -> ChartTable:
    """Convert a chart (``Chart.as_json``, ``Heat.as_json``) to a table."""
    columns = drawn.get("series") or [
        {"label": label, "values": values}
        for label, values in zip(drawn.get("rows", ()), drawn.get("values", ()), strict=True)
    ]
    write = WRITERS.get(drawn["unit"], si)
    names, n = list(drawn.get("labels", ())), len(drawn["t"])
    order = range(len(names)) if names else range(n - 1, -1, -max(1, -(-n // MOST_ROWS)))
    first = names or [_time_of(second, drawn["every_s"]) for second in drawn["t"]]
    heads = ["" if names else "UTC", *(column["label"] for column in columns)]
    rows = [[first[i], *(write(column["values"][i]) for column in columns)] for i in order]
    events = [Event(*event) for event in drawn.get("events", ())]
    return ChartTable(heads, rows, reach_text(drawn.get("reach", ())), events)
