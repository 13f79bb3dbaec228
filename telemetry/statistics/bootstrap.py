"""Differences between two arms of runs with confidence intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.peers import noise

MIN_LAGS: Final = 5
MIN_BLOCKS: Final = 10
CUT_AT_MADS: Final = 6.0
# The autoregression's coefficient stays at least this many 1/sqrt(n_steps) below 1.
LONGEST_MEMORY: Final = 0.4
# A smaller relative deviation of a step is a rounding error.
ROUNDING: Final = 1e-9


def block_length(values: FloatArray) -> int:
    """Return the block length, in steps, for a circular block bootstrap of the mean.

    ``values`` are (n_steps,) of any unit, in order. The length is 1 where steps are independent,
    and a tenth of the steps at most.

    Automatic choice of Politis and White (2004), corrected by Patton, Politis and White (2009):
    lags count up to where the autocorrelation vanishes, with flat-top weights. Outliers such as
    checkpoints would hide a slow drift, so the length is also computed without them, and the
    longer one is used.
    """
    middle, usual = _usual(values)
    return max(_length(values), _length(np.clip(values, middle - usual, middle + usual)))


def _usual(values: FloatArray) -> tuple[float, float]:
    """Median of values, and how far from it they are no outliers.

    Infinite where most are equal, as step times that a log rounds to a second: the others are
    all that varies.
    """
    middle = float(np.median(values))
    usual = CUT_AT_MADS * float(np.median(np.abs(values - middle)))
    return middle, usual if usual > ROUNDING * float(np.abs(values).max()) else math.inf


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
    middle, usual = _usual(values)
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
    # The last blocks go on at the beginning.
    upto = np.concatenate([[0.0], np.cumsum(np.concatenate([centred, centred[: length - 1]]))])
    return float(((upto[length:] - upto[:-length]) ** 2).mean()) / length


SURE_RATIO: Final = 0.95
# With fewer independent pieces in a run there is no interval.
DIFFERENCES_MIN_BLOCKS: Final = 8
# Assumed standard deviation of a run's pace between runs of one configuration, while fewer than
# `MEASURED_RUNS` of each arm show it. Published: below 0.3 % on one machine, more between machines
# (pytorch/pytorch#5799); 1 to 2 % by the time of day (Llama 3, arXiv:2407.21783, section 3.3.4).
RUN_CV: Final = 0.0125
MEASURED_RUNS: Final = 3


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """Samples of the steps of one run."""

    names: Sequence[str]  # name of each column, such as ``step_s``, ``tokens``, ``usd``
    columns: FloatArray  # (n_steps, n_columns), in order, settled steps only
    # Intercept and slope of measures that are linear in a ratio
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
    before the first step, plus a slope times seconds per token. ``is_share``: a share of the step
    time, which varies between runs by as many seconds as the step.
    """

    over: str
    under: str
    is_better_low: bool
    line: str = ""
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """One figure of one run, and how uncertain its logarithm is.

    ``block_variance`` is that of correlated steps, from ``n_pieces`` independent pieces.
    ``drift_variance`` is that of a level that moves during the run, beyond what such steps
    explain; ``change_log`` is the largest difference between its quarters. A pace that differs by
    1 % changes the figure by ``sensitivity`` times as much. ``has_drift``: the quarters differ by
    more than chance.
    """

    value: float
    block_variance: float
    n_pieces: float
    drift_variance: float
    change_log: float
    sensitivity: float = 1.0
    has_drift: bool = False


# Pieces of a run whose levels are compared.
N_PARTS: Final = 4
# Variance of a uniform distribution as wide as the levels of the whole run: quarters of a line
# span three quarters of its rise.
RANGE_FACTOR: Final = (N_PARTS / (N_PARTS - 1)) ** 2 / 12
# Mean square of the range of four independent normal values (Tippett 1925), in variances of the
# mean of all.
CHANCE_FACTOR: Final = (2.059**2 + 0.880**2) * N_PARTS * RANGE_FACTOR
# Batches whose successive differences show the noise around a drift, and how many deviations of a
# quarter's mean its levels must differ by: by chance in one run of a hundred.
N_BATCHES: Final = 20
DRIFT_SIGMA: Final = 6.0
# A smaller difference between quarters is not worth reporting.
LEAST_CHANGE: Final = 0.01


def estimate(run: ArmSamples, measure: Measure) -> RunEstimate:
    """Measure a figure of one run.

    The variance of a ratio of sums is that of its linear part (delta method) under a circular
    block bootstrap (Politis and Romano 1992), which needs no draws, plus what blocks miss
    (`memory`).

    Where the level drifts or jumps during the run, blocks of the steps seen so far do not show how
    far the mean is from that of another run. The range of the quarters' means does: the mean may
    be anywhere between the levels. What the range would be by chance is subtracted.
    """
    over, under = (run.columns[:, run.place(name)] for name in (measure.over, measure.under))
    ratio = float(over.sum() / under.sum())
    start, slope = run.lines.get(measure.line, (0.0, 1.0))
    value = start + slope * ratio
    n = len(run)
    # Each step's contribution to the logarithm: (n_steps,), mean zero.
    parts = (over - ratio * under) * (slope / (under.mean() * value)) if value > 0 else over * 0
    if not np.isfinite(parts).all():
        return RunEstimate(value, math.nan, 0.0, math.nan, math.nan)
    # What rounding leaves of steps that do not vary is no correlation.
    parts = np.where(np.abs(parts) > ROUNDING, parts, 0.0)
    length = block_length(parts)
    kept = memory(parts, length)
    blocks = _block_variance(parts, length) / n * (1 + kept.unseen_ratio)
    levels = [float(part.mean()) for part in np.array_split(parts, N_PARTS) if len(part)]
    change = max(levels) - min(levels)
    drift = max(0.0, RANGE_FACTOR * change**2 - CHANCE_FACTOR * blocks)
    # A line's start does not vary with the pace; of a share, all seconds that vary may be part.
    sensitivity = max(1.0, 1 / value - 1) if measure.is_share else slope * ratio / value
    batches = [float(part.mean()) for part in np.array_split(parts, N_BATCHES) if len(part)]
    of_quarter = noise(np.array(batches)) / math.sqrt(N_BATCHES / N_PARTS)
    has_drift = change > max(DRIFT_SIGMA * of_quarter, LEAST_CHANGE)
    return RunEstimate(value, blocks, kept.n_pieces, drift, change, sensitivity, has_drift)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two arms, in its own unit: the geometric mean of each arm's runs.

    ``ratio`` is candidate over baseline minus 1, with a 95 % interval from ``low`` to ``high``.
    ``error_log`` is the standard error of the ratio's logarithm, with ``freedom`` degrees;
    ``run_error_log`` is the part of it between runs, which more steps do not reduce.
    ``n_blocks`` is the number of independent pieces of the run that has the fewest. NaN with too
    few steps.
    """

    baseline: float
    candidate: float
    ratio: float
    low: float
    high: float
    error_log: float
    n_blocks: int
    freedom: float = math.inf
    run_error_log: float = 0.0


def differences(
    baseline: Sequence[ArmSamples],
    candidate: Sequence[ArmSamples],
    measures: Mapping[str, Measure],
    *,
    run_cv: float = RUN_CV,
) -> dict[str, Difference]:
    """Compare the runs of two arms by several measures, with 95 % intervals."""
    return {
        name: difference(
            [estimate(run, measure) for run in baseline],
            [estimate(run, measure) for run in candidate],
            run_cv=run_cv,
        )
        for name, measure in measures.items()
    }


def difference(
    baseline: Sequence[RunEstimate], candidate: Sequence[RunEstimate], *, run_cv: float = RUN_CV
) -> Difference:
    """Compare one figure of two arms.

    Parameters
    ----------
    baseline, candidate : of each run of the arm
    run_cv : assumed standard deviation of the pace between runs of one arm

    Notes
    -----
    Steps of one run do not show how much the next run differs. With `MEASURED_RUNS` of each arm
    the runs show it, whatever happens within them: Welch's t of their logarithms, or the
    uncertainty within the runs, whichever interval is wider. With fewer the standard deviation
    between runs is ``run_cv``, or that of the runs there are where it is larger. Variances of few
    degrees of freedom are added by Satterthwaite (1946).
    """
    arms = (baseline, candidate)
    before, after = (
        math.exp(sum(math.log(run.value) for run in arm) / len(arm))
        if all(run.value > 0 for run in arm)
        else sum(run.value for run in arm) / len(arm)
        for arm in arms
    )
    n_blocks = int(min(run.n_pieces for arm in arms for run in arm))
    unknown = Difference(before, after, after / before - 1, *(math.nan,) * 3, n_blocks)
    if not (before > 0 and after > 0):
        return unknown
    # Between the runs of an arm: variance and degrees of freedom.
    between = [
        (float(np.var([math.log(run.value) for run in arm], ddof=1)), len(arm) - 1)
        if len(arm) > 1
        else (0.0, 0)
        for arm in arms
    ]
    within = [
        (variance / len(arm) ** 2, freedom)
        for arm in arms
        for run in arm
        for variance, freedom in (
            (run.block_variance, max(run.n_pieces - 1, 1.0)),
            (run.drift_variance, N_PARTS - 1.0),
        )
    ]
    if min(map(len, arms)) >= MEASURED_RUNS:
        errors = [
            (variance / len(arm), n) for arm, (variance, n) in zip(arms, between, strict=True)
        ]
        blocks = sum(run.block_variance / len(arm) ** 2 for arm in arms for run in arm)
        error, freedom = _added(errors)
        if math.sqrt(blocks) * student_quantile(math.inf) > error * student_quantile(freedom):
            error, freedom, run_error = math.sqrt(blocks), math.inf, 0.0
        else:
            run_error = math.sqrt(max(0.0, error**2 - blocks))
    else:
        if n_blocks < DIFFERENCES_MIN_BLOCKS:
            return unknown
        freedoms = sum(n for _, n in between)
        seen = sum(variance * n for variance, n in between) / freedoms if freedoms else 0.0
        of_runs = sum(
            max((run_cv * run.sensitivity) ** 2, seen) / len(arm) ** 2
            for arm in arms
            for run in arm
        )
        error, freedom = _added([*within, (of_runs, math.inf)])
        run_error = math.sqrt(of_runs)
    if not math.isfinite(error):
        return unknown
    ratio, reach = math.log(after / before), student_quantile(freedom) * error
    return replace(
        unknown,
        low=math.expm1(ratio - reach),
        high=math.expm1(ratio + reach),
        error_log=error,
        freedom=freedom,
        run_error_log=run_error,
    )


def _added(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Add variances with their degrees of freedom: standard error, degrees of freedom."""
    known = [(variance, freedom) for variance, freedom in parts if variance > 0]
    total = sum(variance for variance, _ in known)
    doubt = sum(variance**2 / freedom for variance, freedom in known)
    return math.sqrt(total), total**2 / doubt if doubt else math.inf


def student_quantile(freedom: float, ratio: float = (1 + SURE_RATIO) / 2) -> float:
    """Quantile of Student's distribution, above the median.

    Exact at one and two degrees of freedom; from there on Hill's algorithm (1970, no. 396),
    accurate to 1e-5. Below two it counts as one.
    """
    tail = 2 * (1 - ratio)
    if freedom < 2:
        return 1 / math.tan(math.pi * tail / 2)
    if freedom == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    z = NormalDist().inv_cdf(ratio)
    if math.isinf(freedom):
        return z
    n, a = freedom, 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20_700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * tail) ** (2 / n)
    if y > 0.05 + a:
        c += 0.3 * (n - 4.5) * (0.6 - z) if n < 5 else 0.0
        c += (((0.05 * d * z + 5) * z - 7) * z + 2) * z + b
        y = (((((0.4 * z**2 + 6.3) * z**2 + 36) * z**2 + 94.5) / c - z**2 - 3) / b + 1) * z
        return math.sqrt(n * math.expm1(a * y**2))
    inner = 1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)
    return math.sqrt(n * ((inner * y - 1) * (n + 1) / (n + 2) + 1 / y))
