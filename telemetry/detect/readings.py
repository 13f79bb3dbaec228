"""Readings of a span: one figure of each node, the most of its parts, what was measured anew."""

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span


def of_node(span: Span, metric: str) -> FloatArray:
    """Return a figure that a node has one of: (n_ticks, n_nodes), NaN where nothing was said."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes)), np.nan)
    return np.asarray(values[..., 0], dtype=float)


def parts_of(span: Span, metric: str) -> FloatArray:
    """Return a figure of all parts: (n_ticks, n_nodes, n_parts), one NaN where there is none."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes), 1), np.nan)
    return values


def peak(span: Span, metric: str) -> FloatArray:
    """Return the most of any part: (n_ticks, n_nodes), NaN where nothing was said."""
    values = parts_of(span, metric)
    known = np.isfinite(values)
    most = np.where(known, values, -np.inf).max(axis=2)
    return np.where(known.any(axis=2), most, np.nan)


def measured(values: FloatArray) -> NDArray[np.bool_]:
    """Return which ticks brought a measurement of their own: the shape of ``values``.

    A probe of each minute, or a report of each 5 s, stands in every second until the next one
    comes. A value that is equal to the last one told is that value held, and counts once.
    """
    new = np.zeros(values.shape, dtype=bool)
    last = np.full(values.shape[1:], np.nan)
    for tick, now in enumerate(values):
        known = np.isfinite(now)
        new[tick] = known & (now != last)
        last = np.where(known, now, last)
    return new


def newest(values: FloatArray, n: int) -> FloatArray:
    """Return the newest measurements of each part: (n, ...), oldest first, NaN where fewer."""
    new = measured(values)
    age = np.cumsum(new[::-1], axis=0)[::-1]
    picked = [np.where(new & (age == i), values, 0.0).sum(axis=0) for i in range(n, 0, -1)]
    known = [(new & (age == i)).any(axis=0) for i in range(n, 0, -1)]
    return np.where(known, picked, np.nan)


def lasts(
    above: NDArray[np.bool_], reports: NDArray[np.bool_], *, least: int
) -> NDArray[np.bool_]:
    """Tell which parts stood out for long enough: (...), of (n_ticks, ...).

    Parameters
    ----------
    above : in which ticks a part stood out
    reports : which ticks brought a report of its own
    least : how many ticks it takes where each brings one

    Notes
    -----
    Where reports come less often, all of those in view must say so, and two at the least.
    """
    n_reports = reports.sum(axis=0)
    n_above = (above & reports).sum(axis=0)
    each_tick = n_reports >= least
    return np.asarray(
        np.where(each_tick, above.sum(axis=0) >= least, (n_reports > 1) & (n_above == n_reports))
    )
