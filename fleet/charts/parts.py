"""Parts of a node in one chart: each as a line, or their spread; whoever stands out is marked."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fleet.charts.figures import Figure, Line, mean_of, thinned
from telemetry.blocks import FloatArray
from telemetry.series import Series

MANY_PARTS = 40
N_OUTLIERS = 4
N_PIECES = 15  # of a window: in one quarter of an hour, a minute each
LEAST_PIECE = 12  # samples, below which their spread says little
N_RECENT = 10
OUTLIER_DEVIATIONS = 6.0
NOISE_DEVIATIONS = 2.3
OUTLIER_RATIO = 0.08  # a part that differs from its peers by less is not worth a colour


def outliers(values: FloatArray) -> list[int]:
    """Return the parts that differ from their peers, the furthest first, at most four.

    Parameters
    ----------
    values : (n, n_parts)
        One column per part, NaN for gaps.

    Notes
    -----
    A part is out when its median distance from the median of all parts, over any fifteenth of
    the window (at least twelve samples, at most a fifth) or the last ten samples, is more than
    six robust deviations of the parts (1.4826 times the median absolute deviation), 8 % of
    their level and 2.3 times its own noise. Pieces are short so that a part which was out for
    two of them is out for one of them wholly, wherever the window begins.
    """
    if values.shape[1] < 3 or not len(values):
        return []
    n_pieces = max(min(5, len(values)), min(N_PIECES, len(values) // LEAST_PIECE))
    pieces = [values[-N_RECENT:], *reversed(np.array_split(values, n_pieces))]
    found = dict.fromkeys(part for piece in pieces for part in _out(piece))
    return list(found)[:N_OUTLIERS]


def _out(recent: FloatArray) -> list[int]:
    """Return the parts that are out in these samples, the furthest first."""
    seen = np.flatnonzero(np.isfinite(recent).any(axis=0))
    told = recent[np.isfinite(recent).any(axis=1)][:, seen].astype(float)
    if not told.size:
        return []
    # What all parts do together, as computing and waiting in turn, sets none apart.
    apart = told - np.nanmedian(told, axis=1)[:, None]
    level = np.nanmedian(apart, axis=0)
    off = np.abs(level - np.median(level))
    spread = 1.4826 * np.median(off)
    alike = max(OUTLIER_DEVIATIONS * spread, OUTLIER_RATIO * abs(np.nanmedian(told)), 1e-12)
    found = np.flatnonzero(off > np.maximum(alike, NOISE_DEVIATIONS * np.nanstd(apart, axis=0)))
    return [int(seen[i]) for i in found[np.argsort(-off[found])]]


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
        Line("lowest", _extreme(low, np.fmin), "low"),
        Line("mean", mean_of(series.values), "compute"),
        Line("highest", _extreme(high, np.fmax), "high"),
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
    return Figure(unit, lines, t_s, every_s=series.every_s, stretches=series.stretches, **more)


def throughput(fetch: Callable[[str], Series]) -> Figure:
    """Sum what all links send and receive."""
    sent, received = fetch("efa_tx_bytes_per_s"), fetch("efa_rx_bytes_per_s")
    t_s, out = thinned(sent.t_s, _total(sent))
    _, back = thinned(received.t_s, _total(received))
    lines = [Line("sent", out, "transfer"), Line("received", back, "compute")]
    return Figure("bytes_per_s", lines, t_s, every_s=sent.every_s, stretches=sent.stretches)


def _total(series: Series) -> FloatArray:
    there = np.isfinite(series.values)
    total = np.where(there, series.values, 0.0).sum(axis=1)
    return np.asarray(np.where(there.any(axis=1), total, np.nan))
