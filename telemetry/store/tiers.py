"""How finely a window is read, and from where on the durable tier has it."""

from collections.abc import Sequence

import numpy as np
from django.db.models import Min

from telemetry.blocks import FloatArray, IntArray
from telemetry.series import Stretch
from telemetry.store.models import HourRollup, MinuteRollup
from telemetry.store.rollups import N_STATS
from telemetry.store.run_chunks import ENDED
from telemetry.store.source import LongTerm, LongTermError

MINUTE_S = 60
# Divisors of an hour, by which the durable tier lets go of what is old: a border between tiers
# is one between rows.
GRIDS_S = (MINUTE_S, 300, 600, 1800)
MOST_ROWS = 2000


def grid_s(length_s: float) -> int:
    """Return how much time a row of a window stands for: at most 2,000 rows, or half an hour.

    >>> [grid_s(days * 86_400) for days in (1, 7, 30)]
    [60, 600, 1800]
    """
    return next((grid for grid in GRIDS_S if length_s <= grid * MOST_ROWS), GRIDS_S[-1])


def durable_from() -> int | None:
    """Return the oldest second that the durable tier still has, of anything; None of nothing."""
    hour = HourRollup.objects.aggregate(oldest=Min("hour"))["oldest"]
    minute = MinuteRollup.objects.aggregate(oldest=Min("minute"))["oldest"]
    return min((second for second in (hour, minute) if second is not None), default=None)


def coarser(stats: FloatArray, n_each: int) -> FloatArray:
    """Merge neighbours: lowest of the lowest, mean of the means, highest of the highest.

    Parameters
    ----------
    stats : (n, 3, n_parts)
        Lowest, mean and highest; NaN for gaps.
    n_each : int
        How many neighbours make one row.

    Returns
    -------
    merged : (ceil(n / n_each), 3, n_parts)
        Of what is there; NaN where nothing is.
    """
    if n_each == 1:
        return stats
    lacking = -len(stats) % n_each
    whole = np.pad(stats, [(0, lacking), (0, 0), (0, 0)], constant_values=np.nan)
    groups = whole.reshape(len(whole) // n_each, n_each, *stats.shape[1:])
    there = np.isfinite(groups[:, :, 1])
    total = np.where(there, groups[:, :, 1], 0.0).sum(axis=1)
    n = there.sum(axis=1)
    mean = np.divide(total, n, out=np.full(total.shape, np.nan), where=n > 0)
    low = np.fmin.reduce(groups[:, :, 0], axis=1)
    high = np.fmax.reduce(groups[:, :, 2], axis=1)
    return np.stack([low, mean, high], axis=1)


def with_older(
    long_term: LongTerm,
    *,
    node: str,
    metric: str,
    t_s: IntArray,
    stats: FloatArray,
    every_s: int,
) -> tuple[FloatArray, tuple[Stretch, ...]]:
    """Fill the rows that begin before the durable tier does from the long-term store.

    Where the store does not answer they stay as they are, and the stretch says why.
    """
    kept_from = durable_from()
    n_older = len(t_s) if kept_from is None else int(np.searchsorted(t_s, kept_from))
    if not n_older:
        return stats, (Stretch(int(t_s[0]), every_s, "durable"),)
    begin, end, why = int(t_s[0]), int(t_s[n_older - 1]) + every_s, ""
    try:
        _, values = long_term.node_minutes(node, metric, start=begin, end=end, every_s=every_s)
        older = values.reshape(n_older, N_STATS, -1)
        stats, older = _widened([stats, older])
        stats[:n_older] = np.where(np.isnan(older), stats[:n_older], older)
    except LongTermError as error:
        why = str(error)
    stretches = [Stretch(begin, every_s, "long term", why)]
    if n_older < len(t_s):
        stretches.append(Stretch(int(t_s[n_older]), every_s, "durable"))
    return stats, tuple(stretches)


def older_steps(
    long_term: LongTerm, run: str, kept: FloatArray, stretch: Stretch, *, end_s: float
) -> tuple[FloatArray, tuple[Stretch, ...]]:
    """Return average steps from before those that are kept, out of the long-term store.

    Parameters
    ----------
    kept : (n_steps, 9)
        What the durable tier has of the window, see ``run_chunks``.
    stretch : Stretch
        What that is, from where the window begins.

    Returns
    -------
    older : (n, 9)
        Rows of equal length up to the first minute that is kept.
    stretches : tuple of Stretch
        What the window now consists of.
    """
    kept_from = durable_from()
    told_from = int(kept[0, ENDED]) if len(kept) else int(end_s)
    first = min(told_from if kept_from is None else kept_from, told_from, int(end_s))
    first = first // MINUTE_S * MINUTE_S
    if first <= stretch.since:
        return kept[:0], (stretch,)
    every_s = grid_s(end_s - stretch.since)
    begin = stretch.since // every_s * every_s
    cut = max(begin, first // every_s * every_s)
    found, why = [kept[:0]], ""
    try:
        # The last rows before the seam are short, so that no minute is told twice or not at all.
        for start, end, grid in ((begin, cut, every_s), (cut, first, MINUTE_S)):
            if start < end:
                found.append(long_term.run_minutes(run, start=start, end=end, every_s=grid))
    except LongTermError as error:
        why = str(error)
    stretches = [Stretch(stretch.since, every_s, "long term", why)]
    if first < end_s:
        stretches.append(Stretch(first, stretch.every_s, stretch.tier))
    older = np.concatenate(found)
    return older[older[:, ENDED] >= stretch.since], tuple(stretches)


def _widened(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    """Give arrays of stats room for the same number of parts."""
    most = max(array.shape[2] for array in arrays)
    return [
        np.pad(array, [(0, 0), (0, 0), (0, most - array.shape[2])], constant_values=np.nan)
        for array in arrays
    ]
