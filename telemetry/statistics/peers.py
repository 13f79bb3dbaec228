"""Robust statistics of parts in the same role; NaN means not reported."""

from collections.abc import Collection

import numpy as np

from telemetry import blocks
from telemetry.blocks import FloatArray, IntArray

# A median absolute deviation times this is a standard deviation, if the bulk is Gaussian.
GAUSSIAN = 1.4826
mean = blocks.mean


def median(x: FloatArray) -> FloatArray:
    """Median over the last axis, NaN without values; no warnings."""
    if _is_whole(x):
        known, n_all = np.sort(x, axis=-1), x.shape[-1]
        return np.asarray((known[..., (n_all - 1) // 2] + known[..., n_all // 2]) / 2)
    known, n = _sorted(x)
    low = np.take_along_axis(known, np.maximum(n - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(known, np.minimum(n // 2, known.shape[-1] - 1), axis=-1)
    return np.asarray((low + high) / 2)[..., 0]


def lower_median(x: FloatArray) -> FloatArray:
    """Lower of the two middle values over the last axis, NaN without values."""
    if _is_whole(x):
        return np.asarray(np.sort(x, axis=-1)[..., (x.shape[-1] - 1) // 2])
    known, n = _sorted(x)
    return np.asarray(np.take_along_axis(known, np.maximum(n - 1, 0) // 2, axis=-1))[..., 0]


def middle(x: FloatArray) -> float:
    """Median of a small array; NaN if it is empty or contains NaN."""
    known = np.sort(x, axis=None)
    if not x.size or np.isnan(known[-1]):
        return float("nan")
    return float((known[(x.size - 1) // 2] + known[x.size // 2]) / 2)


def noise(x: FloatArray) -> float:
    """Estimate the deviation of a series around a mean that may jump.

    Differences of neighbours cancel the mean wherever it does not jump, and their median does not
    see the few places where it does.

    References
    ----------
    J. von Neumann, R. H. Kent, H. R. Bellinson, B. I. Hart, "The Mean Square Successive
    Difference", Ann. Math. Stat. 12 (1941), 153-162; with the median instead of the mean.

    Examples
    --------
    >>> x = np.tile([0.0, 0.1], 20) + np.repeat([0.0, 5.0], 20)
    >>> round(noise(x), 3)  # the jump by 5 does not show
    0.105
    """
    return GAUSSIAN * middle(np.abs(np.diff(x))) / float(np.sqrt(2)) if x.size > 1 else 0.0


def _is_whole(x: FloatArray) -> bool:
    return x.shape[-1] > 0 and bool(np.isfinite(x).all())


def _sorted(x: FloatArray) -> tuple[FloatArray, IntArray]:
    """Sort the last axis, NaN last, and count other values; an empty axis becomes one NaN."""
    if x.shape[-1] == 0:
        x = np.full((*x.shape[:-1], 1), np.nan)
    known = np.sort(x, axis=-1)
    return known, np.isfinite(known).sum(axis=-1)[..., None]


def total(x: FloatArray) -> FloatArray:
    """Sum of the reported values over the first axis, 0 without any."""
    return np.asarray(np.where(np.isnan(x), 0, x).sum(axis=0))


def chance_of_count(n: int, *, total: int, n_parts: int) -> float:
    """Probability that a given part has ``n`` or more of ``total`` evenly spread events.

    The upper tail of the binomial distribution with probability ``1 / n_parts``.

    >>> round(chance_of_count(2, total=2, n_parts=4), 4)
    0.0625
    """
    if n <= 0 or n_parts <= 1:
        return 1.0
    chance = 1 / n_parts
    exactly, below = (1 - chance) ** total, 0.0
    for i in range(n):
        below += exactly
        exactly *= (total - i) / (i + 1) * chance / (1 - chance)
    return max(0.0, 1.0 - below)


def median_with_zeros(counts: Collection[int], n_parts: int) -> float:
    """Median of ``n_parts`` counts; parts that ``counts`` leaves out have none."""
    ranked, n_zeros = sorted(counts), n_parts - len(counts)
    low, high = ((n_parts - 1) // 2 - n_zeros, n_parts // 2 - n_zeros)
    return sum(ranked[i] if i >= 0 else 0 for i in (low, high)) / 2


def scatter_of(values: FloatArray) -> FloatArray:
    """Return the standard error of medians by what the values (n_values, …) scatter by now."""
    n = len(values)
    if n < 2:
        return np.zeros(values.shape[1:])
    columns = np.moveaxis(values, 0, -1)
    # Of two or three values half their range.
    apart = (
        np.ptp(values, axis=0) / 2
        if n < 4
        else GAUSSIAN * median(np.abs(columns - median(columns)[..., None]))
    )
    return np.asarray(np.nan_to_num(apart) * np.sqrt(np.pi / 2 / n))
