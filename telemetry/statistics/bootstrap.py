"""Differences between two runs with confidence intervals (block bootstrap)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray

MIN_LAGS: Final = 5
MIN_BLOCKS: Final = 10
CUT_AT_MADS: Final = 6.0
# The autoregression's coefficient stays at least this many 1/sqrt(n_steps) below 1.
LONGEST_MEMORY: Final = 0.4


def block_length(values: FloatArray) -> int:
    """Return the block length, in steps, for a circular block bootstrap of the mean.

    ``values`` are (n_steps,) of any unit, in order. The length is 1 where steps are independent,
    and a tenth of the steps at most.

    Notes
    -----
    Automatic choice of Politis and White (2004), corrected by Patton, Politis and White (2009):
    lags count up to where the autocorrelation vanishes, with flat-top weights. Outliers such as
    checkpoints would hide a slow drift, so the length is also computed without them, and the
    longer one is used.
    """
    middle = float(np.median(values))
    usual = CUT_AT_MADS * float(np.median(np.abs(values - middle)))
    return max(_length(values), _length(np.clip(values, middle - usual, middle + usual)))


def _length(values: FloatArray) -> int:
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred) / n
    if (
        n < MIN_BLOCKS * MIN_LAGS
        or variance <= np.finfo(float).eps * float(np.abs(values).max()) ** 2
    ):
        return 1
    # All lags by FFT: (n,).
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance: FloatArray = np.fft.irfft(spectrum * spectrum.conj())[:n] / n
    reach = 2 * _last_lag_that_counts(covariance / covariance[0])
    lags = np.arange(1, min(reach, n - 1) + 1)
    weight = np.clip(2 * (1 - lags / max(reach, 1)), 0, 1)
    spread = float(2 * (weight * lags) @ covariance[lags])
    level = float(covariance[0] + 2 * weight @ covariance[lags])
    if level <= 0:
        return 1
    length = (2 * spread**2 / (4 / 3 * level**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, n // MIN_BLOCKS))


def _last_lag_that_counts(correlation: FloatArray) -> int:
    """Return the lag before the first run of insignificant lags."""
    n = len(correlation)
    in_a_row = max(MIN_LAGS, int(np.ceil(np.sqrt(np.log10(n)))))
    # As far as blocks can reach.
    farthest = n // MIN_BLOCKS + in_a_row
    is_small = np.abs(correlation[1 : farthest + 1]) < 2 * np.sqrt(np.log10(n) / n)
    together = np.convolve(is_small, np.ones(in_a_row, int), mode="valid") == in_a_row
    if together.any():
        return int(np.argmax(together))
    counting = np.flatnonzero(~is_small)
    return int(counting[-1]) + 1 if len(counting) else 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Correlation of steps beyond the block length.

    ``unseen_ratio``: variance of the mean that blocks miss, over the variance they contain.
    ``n_pieces``: number of independent pieces.
    """

    unseen_ratio: float
    n_pieces: float


def memory(values: FloatArray, length: int) -> Memory:
    """Estimate how much more the mean varies than blocks of ``length`` steps show.

    Notes
    -----
    If correlation lasts for a large part of the run, blocks are too few and too short. The
    variance is therefore also estimated by a first-order autoregression of the usual steps, its
    coefficient corrected for bias (Kendall 1954), and blocks of its residuals: prewhitening
    (Andrews and Monahan 1992).

    ``n`` steps of such a process are worth ``n * (1 - tie) / (1 + tie)`` independent ones. Where
    rare long steps contribute to the variance, both count by their share (Satterthwaite 1946).
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
    modelled = _block_variance(left - left.mean(), _length(left)) / (1 - tie) ** 2
    unseen = max(0.0, modelled - _block_variance(cut, length)) / seen
    # The share of the usual steps in the variance.
    usual_ratio = min(1.0, modelled / (seen * (1 + unseen)))
    n_usual = max(0.0, n * (1 - raw) / (1 + raw))
    if n_usual <= 0:
        return Memory(unseen, 0.0)
    n_pieces = 1 / (usual_ratio**2 / n_usual + (1 - usual_ratio) ** 2 / n_blocks)
    return Memory(unseen, min(n_blocks, n_pieces))


def _block_variance(centred: FloatArray, length: int) -> float:
    """Variance of a mean, times steps, by blocks of a length."""
    sums = _block_sums(centred[:, None], length)
    return float((sums**2).mean()) / length


def resampled_sums(
    columns: FloatArray, length: int, *, n_resamples: int, rng: np.random.Generator
) -> FloatArray:
    """Return sums of resampled steps: (n_resamples, n_columns).

    Parameters
    ----------
    columns : (n_steps, n_columns), time and yield of each step
    length : steps per block

    Notes
    -----
    Circular block bootstrap (Politis and Romano 1992): each step is equally likely. Columns are
    drawn together, so that their ratios keep their correlation.
    """
    n = len(columns)
    n_blocks, rest = divmod(n, length)
    whole = _block_sums(columns, length)
    starts = rng.integers(0, n, (n_resamples, n_blocks))
    # (n_resamples, n_columns)
    sums: FloatArray = np.stack(
        [column[starts].sum(axis=1) for column in np.ascontiguousarray(whole.T)], axis=1
    )
    if rest:
        sums += _block_sums(columns, rest)[rng.integers(0, n, n_resamples)]
    return sums


def _block_sums(columns: FloatArray, length: int) -> FloatArray:
    round_the_end = np.concatenate([columns, columns[: length - 1]]) if length > 1 else columns
    upto = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(round_the_end, axis=0)])
    sums: FloatArray = upto[length:] - upto[:-length]
    return sums


N_RESAMPLES: Final = 999
SURE_RATIO: Final = 0.95
# With fewer blocks there is no interval.
DIFFERENCES_MIN_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """Samples of the steps of one run.

    Parameters
    ----------
    names : name of each column, such as ``step_s``, ``tokens``, ``usd``
    columns : (n_steps, n_columns), in order, settled steps only
    lines : intercept and slope of measures that are linear in a ratio
    """

    names: Sequence[str]
    columns: FloatArray
    lines: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns)

    def place(self, name: str) -> int:
        """Index of a column; ``steps`` are counted, not stored."""
        return list(self.names).index(name)


@dataclass(frozen=True, slots=True)
class Measure:
    """A ratio of two sums, such as dollars per token.

    With ``line`` it is that line of the arm at the ratio: hours to train some tokens are the hours
    before the first step, plus a slope times seconds per token.
    """

    over: str
    under: str
    is_better_low: bool
    line: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two arms, in its own unit.

    ``ratio`` is candidate over baseline minus 1, with a 95 % interval from ``low`` to ``high``.
    ``error_log`` is the standard error of the ratio's logarithm; ``n_blocks`` is the number of
    independent pieces of the shorter arm. NaN with too few steps.
    """

    baseline: float
    candidate: float
    ratio: float
    low: float
    high: float
    error_log: float
    n_blocks: int


def differences(
    baseline: ArmSamples,
    candidate: ArmSamples,
    measures: Mapping[str, Measure],
    *,
    rng: np.random.Generator,
) -> dict[str, Difference]:
    """Compare two arms by several measures, with 95 % intervals.

    Notes
    -----
    Steps are resampled in the same blocks for all measures of an arm. Intervals are those of the
    drawn logarithms, stretched as Student's distribution is against the normal one, because a
    bootstrap of few blocks is overconfident (Lahiri 2003, chapter 7).
    """
    arms = [_Drawn(arm, measures.values(), rng) for arm in (baseline, candidate)]
    return {name: _compared(arms[0], arms[1], measure) for name, measure in measures.items()}


class _Drawn:
    def __init__(
        self, arm: ArmSamples, measures: Iterable[Measure], rng: np.random.Generator
    ) -> None:
        self.arm = arm
        self.total = arm.columns.sum(axis=0)
        self.length = max((self._length(measure) for measure in measures), default=1)
        self.sums = resampled_sums(arm.columns, self.length, n_resamples=N_RESAMPLES, rng=rng)

    def figure(self, measure: Measure) -> float:
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        start, slope = self.arm.lines.get(measure.line, (0.0, 1.0))
        return start + slope * float(self.total[over] / self.total[under])

    def memory(self, measure: Measure) -> Memory:
        return memory(self._parts(measure), self.length)

    def logs(self, measure: Measure, unseen: float) -> FloatArray:
        """Logarithms of the resampled figures: (n_resamples,).

        ``unseen``: the variance that blocks miss, over the one they contain.
        """
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        start, slope = self.arm.lines.get(measure.line, (0.0, 1.0))
        drawn = np.log(start + slope * self.sums[:, over] / self.sums[:, under])
        middle = math.log(self.figure(measure)) if unseen else 0.0
        return middle + (drawn - middle) * math.sqrt(1 + unseen)

    def _length(self, measure: Measure) -> int:
        return block_length(self._parts(measure))

    def _parts(self, measure: Measure) -> FloatArray:
        """Contribution of each step to a ratio of sums, minus the mean: (n_steps,)."""
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        columns, ratio = self.arm.columns, self.total[over] / self.total[under]
        parts: FloatArray = columns[:, over] - ratio * columns[:, under]
        return parts


def _compared(baseline: _Drawn, candidate: _Drawn, measure: Measure) -> Difference:
    before, after = baseline.figure(measure), candidate.figure(measure)
    kept = [drawn.memory(measure) for drawn in (baseline, candidate)]
    n_blocks = min(int(each.n_pieces) for each in kept)
    if n_blocks < DIFFERENCES_MIN_BLOCKS or not (before > 0 and after > 0):
        return Difference(before, after, after / before - 1, *(math.nan,) * 3, n_blocks)
    ratio = math.log(after / before)
    drawn = candidate.logs(measure, kept[1].unseen_ratio)
    drawn -= baseline.logs(measure, kept[0].unseen_ratio)
    off = drawn - ratio
    stretch = student_quantile(n_blocks - 1) / NormalDist().inv_cdf((1 + SURE_RATIO) / 2)
    below, above = np.quantile(off, [(1 - SURE_RATIO) / 2, (1 + SURE_RATIO) / 2]) * stretch
    return Difference(
        before,
        after,
        ratio=math.expm1(ratio),
        low=math.expm1(ratio - above),
        high=math.expm1(ratio - below),
        error_log=float(off.std(ddof=1)) * stretch,
        n_blocks=n_blocks,
    )


def student_quantile(freedom: float, ratio: float = (1 + SURE_RATIO) / 2) -> float:
    """Quantile of Student's distribution.

    Hill's expansion (1970) around the normal quantile; accurate to 0.1 % from five degrees of
    freedom on.
    """
    z = NormalDist().inv_cdf(ratio)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
