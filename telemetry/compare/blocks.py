"""Resampling steps that hang together: in blocks long enough to keep what ties them."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray, IntArray

MIN_LAGS: Final = 5
MIN_BLOCKS: Final = 10
CUT_AT_MADS: Final = 6.0
# Nearer to never forgetting than by so many roots of the steps nothing can be told.
LONGEST_MEMORY: Final = 0.4


def block_length(values: FloatArray) -> int:
    """Return how many steps belong together.

    Parameters
    ----------
    values : (n_steps,) of any unit, in order

    Returns
    -------
    The block length, in steps, that a circular block bootstrap of their mean wants: 1 where
    steps are independent, at most a tenth of them.

    Notes
    -----
    The automatic choice of Politis and White (2004), with the correction of Patton, Politis and
    White (2009): lags count up to where the autocorrelation has died away, under a flat top.
    A few steps that stand out, such as checkpoints, would hide a slow drift behind them: the
    length is also asked of the values with those cut off, and the longer one taken.
    """
    middle = float(np.median(values))
    usual = CUT_AT_MADS * float(np.median(np.abs(values - middle)))
    return max(_length(values), _length(np.clip(values, middle - usual, middle + usual)))


def _length(values: FloatArray) -> int:
    """Return the block length that values want as they are."""
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / n
    if (
        n < MIN_BLOCKS * MIN_LAGS
        or variance <= np.finfo(float).eps * float(np.abs(values).max()) ** 2
    ):
        return 1
    covariance = _autocovariance(centred)
    reach = 2 * _last_lag_that_counts(covariance / covariance[0])
    lags = np.arange(1, min(reach, n - 1) + 1)
    weight = np.clip(2 * (1 - lags / max(reach, 1)), 0, 1)
    spread = float(2 * (weight * lags) @ covariance[lags])
    level = float(covariance[0] + 2 * weight @ covariance[lags])
    if level <= 0:
        return 1
    length = (2 * spread**2 / (4 / 3 * level**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, n // MIN_BLOCKS))


def _autocovariance(centred: FloatArray) -> FloatArray:
    """Return the autocovariance at every lag, by way of the spectrum: (n,)."""
    n = len(centred)
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance: FloatArray = np.fft.irfft(spectrum * spectrum.conj())[:n] / n
    return covariance


def _last_lag_that_counts(correlation: FloatArray) -> int:
    """Return the lag after which a run of lags is as small as chance would have it."""
    n = len(correlation)
    in_a_row = max(MIN_LAGS, int(np.ceil(np.sqrt(np.log10(n)))))
    # As far as blocks could reach; a longer memory than that no bootstrap can mend.
    farthest = n // MIN_BLOCKS + in_a_row
    is_small = np.abs(correlation[1 : farthest + 1]) < 2 * np.sqrt(np.log10(n) / n)
    together = np.convolve(is_small, np.ones(in_a_row, int), mode="valid") == in_a_row
    if together.any():
        return int(np.argmax(together))
    counting = np.flatnonzero(~is_small)
    return int(counting[-1]) + 1 if len(counting) else 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What blocks do not show of how long steps remember.

    ``unseen_ratio`` is the variance of the mean that blocks miss over the one they see; 0 where
    they miss none. ``n_pieces`` is into how many independent pieces the steps fall.
    """

    unseen_ratio: float
    n_pieces: float


def memory(values: FloatArray, length: int) -> Memory:
    """Return how much more the mean of values wavers than blocks of such a length show.

    Parameters
    ----------
    values : (n_steps,) of any unit, in order
    length : steps in a block

    Notes
    -----
    A memory that is no small part of the run leaves too few blocks, and too short ones. It is
    therefore also asked of a first-order autoregression, its coefficient freed of its bias
    (Kendall 1954), with blocks for what that leaves: prewhitening (Andrews and Monahan 1992).
    Rare long steps, which would hide the memory of the others, are left out for that.

    ``n`` steps of such an autoregression are worth ``n * (1 - tie) / (1 + tie)`` independent ones.
    Where rare long steps make the mean waver as well, both count by their share of the variance
    (Satterthwaite 1946).
    """
    n, n_blocks = len(values), len(values) / length
    if n < MIN_BLOCKS * MIN_LAGS:
        return Memory(0.0, n_blocks)
    seen = _block_variance(values - values.mean(), length)
    middle = float(np.median(values))
    usual = CUT_AT_MADS * float(np.median(np.abs(values - middle)))
    usual_ones = values[np.abs(values - middle) <= usual]
    cut = usual_ones - usual_ones.mean()
    power = float(cut @ cut)
    if seen <= 0 or power <= 0:
        return Memory(0.0, n_blocks)
    raw = float(cut[1:] @ cut[:-1]) / power
    raw += (1 + 3 * raw) / n
    tie = min(raw, 1 - LONGEST_MEMORY / math.sqrt(n))
    if tie <= 0:
        return Memory(0.0, n_blocks)
    left = cut[1:] - tie * cut[:-1]
    told = _block_variance(left - left.mean(), _length(left)) / (1 - tie) ** 2
    unseen = max(0.0, told - _block_variance(cut, length)) / seen
    # What the usual steps have of the variance, and what is left of it.
    usual_ratio = min(1.0, told / (seen * (1 + unseen)))
    n_usual = max(0.0, n * (1 - raw) / (1 + raw))
    if n_usual <= 0:
        return Memory(unseen, 0.0)
    n_pieces = 1 / (usual_ratio**2 / n_usual + (1 - usual_ratio) ** 2 / n_blocks)
    return Memory(unseen, min(n_blocks, n_pieces))


def _block_variance(centred: FloatArray, length: int) -> float:
    """Return the variance of a mean, times steps, that blocks of such a length show."""
    sums = _block_sums(centred[:, None], length)
    return float((sums**2).mean()) / length


def resampled_sums(
    columns: FloatArray, length: int, *, n_resamples: int, rng: np.random.Generator
) -> FloatArray:
    """Return the sums that other draws of the same steps would have had.

    Parameters
    ----------
    columns : (n_steps, n_columns), what each step took and yielded
    length : steps in a block
    n_resamples : how many draws
    rng : where chance comes from

    Returns
    -------
    (n_resamples, n_columns) sums over as many steps as there are.

    Notes
    -----
    The circular block bootstrap (Politis and Romano 1992): every step is as likely as any other.
    All columns are drawn together, so that ratios of them keep their ties.
    """
    n = len(columns)
    n_blocks, rest = divmod(n, length)
    whole = _block_sums(columns, length)
    starts = rng.integers(0, n, (n_resamples, n_blocks))
    sums = _gathered(whole, starts)
    if rest:
        sums += _block_sums(columns, rest)[rng.integers(0, n, n_resamples)]
    return sums


def _block_sums(columns: FloatArray, length: int) -> FloatArray:
    """Return the sum of every block of so many steps, round the end: (n_steps, n_columns)."""
    round_the_end = np.concatenate([columns, columns[: length - 1]]) if length > 1 else columns
    upto = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(round_the_end, axis=0)])
    sums: FloatArray = upto[length:] - upto[:-length]
    return sums


def _gathered(sums: FloatArray, starts: IntArray) -> FloatArray:
    """Add up the blocks that begin at ``starts``, (n_resamples, n_blocks), of every column."""
    total: FloatArray = np.stack(
        [column[starts].sum(axis=1) for column in np.ascontiguousarray(sums.T)], axis=1
    )
    return total
