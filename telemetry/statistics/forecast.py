"""Forecast of cost and progress of a long run from a short one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import (
    DIFFERENCES_MIN_BLOCKS,
    N_PARTS,
    RUN_CV,
    ArmSamples,
    Measure,
    estimate,
    student_quantile,
)
from telemetry.units import DAY_S, HOUR_S

HOURS_PER_DAY: Final = 24.0
# Avoids overflow; such a run never ends.
MOST_EXPONENT: Final = 50.0

Amount = float | FloatArray


@dataclass(frozen=True, slots=True)
class ArmRates:
    """What one arm does; figures may be (n_draws,) arrays of what they could be."""

    n_nodes: int  # how many nodes it runs on
    usd_per_hour: Amount  # dollars for all of them
    tokens_per_s: Amount  # pace of settled steps, without checkpoints
    checkpoint_s_per_hour: Amount  # seconds of each hour of training that go into checkpoints
    checkpoint_every_s: Amount  # seconds of training between two of them
    compile_s: Amount  # seconds to compile all graphs with an empty cache
    load_s: Amount  # seconds from a start to the first step, besides compiling
    warm_up_s: Amount  # seconds that warming up takes beyond what its steps take once settled
    failures_per_node_day: Amount  # failures that stop the run, per node and day of training
    recompiles_per_day: Amount  # unplanned recompilations per day of training
    # Seconds from a failure until the restart begins: noticing it, replacing the node
    outage_s: Amount = 0.0
    # How much more of an interval than its half a failure loses, -0.5 to 0.5
    unlucky_ratio: Amount = 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """Where an arm goes, as straight lines: dollars from the start, tokens from the first step.

    Every figure is one number, or (n_draws,).
    """

    fixed_usd: Amount
    usd_per_day: Amount
    start_days: Amount
    tokens_per_day: Amount

    def usd_by(self, days: Amount) -> Amount:
        return self.fixed_usd + self.usd_per_day * days

    def tokens_by(self, days: Amount) -> Amount:
        return np.maximum(days - self.start_days, 0.0) * self.tokens_per_day

    def days_for(self, tokens: Amount) -> Amount:
        """Days to train on some tokens, including the start."""
        return self.start_days + tokens / self.tokens_per_day

    def usd_for(self, tokens: Amount) -> Amount:
        """Dollars to train on some tokens, including the start."""
        return self.usd_by(self.days_for(tokens))

    @property
    def usd_per_token(self) -> Amount:
        return self.usd_per_day / self.tokens_per_day

    @property
    def usd_at_first_step(self) -> Amount:
        return self.usd_by(self.start_days)


def course(habits: ArmRates, *, has_reuse: bool, porting_usd: float = 0.0) -> Course:
    """Compute the course of an arm; with reuse, later starts find their graphs compiled.

    The start takes ``compile_s + load_s + warm_up_s``. Then a day of training takes `stretch`
    days, and yields ``tokens_per_s * 86400 * (1 - checkpoint_s_per_hour / 3600)`` tokens.

    One node at $24 an hour and 1,000 tokens/s saves for 36 s of each hour, starts in 2.4 h (1.4 h
    of them compiling), and fails once a day. With reuse a day of training takes 25.55 h:

    >>> one = ArmRates(1, 24.0, 1000.0, 36.0, 3600.0, 5040.0, 3600.0, 0.0, 1.0, 0.0)
    >>> kept = course(one, has_reuse=True)
    >>> round(kept.start_days, 6), kept.usd_per_day
    (0.1, 576.0)
    >>> round(float(stretch(one, has_reuse=True)) * 24, 2)
    25.55
    """
    training_ratio = 1 - habits.checkpoint_s_per_hour / HOUR_S
    a_day = habits.tokens_per_s * DAY_S * training_ratio
    return Course(
        fixed_usd=porting_usd,
        usd_per_day=habits.usd_per_hour * HOURS_PER_DAY,
        start_days=(habits.compile_s + habits.load_s + habits.warm_up_s) / DAY_S,
        tokens_per_day=a_day / stretch(habits, has_reuse=has_reuse),
    )


def stretch(habits: ArmRates, *, has_reuse: bool) -> Amount:
    """Days per day of training, with failures and recompilations: 1 or more.

    Failures occur at random with rate ``f`` per second, also during checkpoints and restarts. Each
    costs a restart of ``r`` seconds (``load_s + warm_up_s``, without reuse also ``compile_s``) and
    the work since the last checkpoint. Without reuse recompilations stretch the ``t`` seconds
    between checkpoints to ``t' = t (1 + recompiles_per_day compile_s / 86400)``. The mean time for
    an interval is

        exp(f r) (exp(f t') - 1) / f

    seconds (Daly, equation 20). For rare failures that is ``t' (1 + f (r + t' / 2))`` (Young
    1974), 2 % too low at one failure in three intervals, and 13 % at one in each.
    ``unlucky_ratio`` adds to the half interval lost per failure, to first order.

    During an outage of ``o`` seconds nothing runs that could fail again. Failures occur at rate
    ``f`` in all other time, so outages make it ``1 + f o`` times as long.

    References
    ----------
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (2006), 303-312.
    J. W. Young, "A First Order Approximation to the Optimum Checkpoint Interval",
    Communications of the ACM 17 (1974), 530-531.
    """
    failures_per_s = habits.failures_per_node_day * habits.n_nodes / DAY_S
    restart_s = habits.load_s + habits.warm_up_s + (0.0 if has_reuse else habits.compile_s)
    recompiling_s = 0.0 if has_reuse else habits.recompiles_per_day * habits.compile_s
    longer = 1 + recompiling_s / DAY_S
    restart = np.minimum(failures_per_s * restart_s, MOST_EXPONENT)
    lost = np.minimum(failures_per_s * habits.checkpoint_every_s * longer, MOST_EXPONENT)
    x = np.asarray(lost, dtype=float)
    some = np.where(x > 0, x, 1.0)
    return (
        longer
        * np.exp(restart + lost * habits.unlucky_ratio)
        * np.where(x > 0, np.expm1(some) / some, 1.0)
        * (1 + failures_per_s * habits.outage_s)
    )


SURE_RATIO: Final = 0.95
HALF: Final = 0.5
N_HALVINGS: Final = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """Events over exposure, such as failures over node-days.

    ``extra`` events in ``extra_exposure`` are added like a Gamma prior: half an event, because
    zero observed events do not mean a rate of zero; some exposure, so that half an event in
    minutes does not become dozens a day.
    """

    n: int
    exposure: float
    extra: float = HALF
    extra_exposure: float = 0.0

    @property
    def mean(self) -> float:
        """The expected rate, per unit of exposure; NaN where there was no exposure.

        >>> Rate(0, 4.0).mean
        0.125
        """
        exposure = self.exposure + self.extra_exposure
        return (self.n + self.extra) / exposure if exposure > 0 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if not self.exposure > 0:
            return math.nan, math.nan
        low, high = poisson_interval(self.n)
        return low / self.exposure, high / self.exposure

    def drawn(
        self, n_draws: int, *, rng: np.random.Generator, dispersion: float = 1.0
    ) -> FloatArray:
        """Draw what the rate could be, given its count: (n_draws,), Gamma.

        ``dispersion`` is the variance of such counts over their mean: events in bursts show less.
        """
        # Half of the extra exposure: a short observation without events must not exclude rates
        # that happen, such as one in two node-days. The mean of the draws is larger than `mean`.
        exposure = self.exposure + self.extra_exposure / 2
        shape = (self.n + self.extra) / dispersion
        return np.asarray(rng.standard_gamma(shape, n_draws) * dispersion / exposure)


def poisson_interval(n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson count of ``n``.

    References
    ----------
    F. Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28 (1936), 437-442.

    >>> [round(end, 2) for end in poisson_interval(0)]
    [0.0, 3.69]
    """
    tail = (1 - SURE_RATIO) / 2
    top = n + 10 * math.sqrt(n + 1) + 10
    low = _root(lambda mean: at_most(n - 1, mean) - (1 - tail), top) if n else 0.0
    return low, _root(lambda mean: at_most(n, mean) - tail, top)


def at_most(n: int, mean: float) -> float:
    """Probability that a Poisson count with this mean is at most ``n``."""
    if mean <= 0:
        return 1.0
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(n + 1)]
    return math.fsum(map(math.exp, logs))


def _root(falling: Callable[[float], float], high: float) -> float:
    low = 0.0
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


N_DRAWS: Final = 4_000
NORMAL_QUANTILE: Final = 1.959964
EVEN_VARIANCE: Final = 1 / 12
# With fewer, the spread is unknown.
LEAST_SEEN: Final = 3
# Draws of checkpoints leave some of each hour for training.
MOST_SAVED_S: Final = 3_420.0
# Failures come in bursts: times between them follow a Weibull distribution of shape 0.7 to 0.8
# (Schroeder and Gibson, DSN 2006). Of shape 0.7, counts vary 2.14 times as much as Poisson's:
# gamma(1 + 2 / 0.7) / gamma(1 + 1 / 0.7)**2 - 1.
BURST_DISPERSION: Final = 2.14
# Half a failure in so many node-days is added to the observed ones. That is twenty times the rate
# in the log of OPT-175B (some 35 restarts of 124 hosts in two months): cautious at first, and
# negligible after a few weeks.
EXTRA_NODE_DAYS: Final = 5.0


# Assumed from a failure to the restart: 10 minutes until a waiting collective gives up (PyTorch's
# default for NCCL), 5 to take a replacement from stand-by nodes. 419 unexpected interruptions in
# 54 days lost Llama 3 less than 10 % of its time (arXiv:2407.21783, section 3.3.4): at most 19
# minutes each, with restart and lost steps.
ASSUMED_OUTAGE_S: Final = 900.0
# The interval of that assumption reaches from a third to three times as much.
ASSUMED_OUTAGE_ERROR_LOG: Final = math.log(3) / NORMAL_QUANTILE
ENDS: Final = ((1 - SURE_RATIO) / 2, (1 + SURE_RATIO) / 2)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Uncertainty of an arm; None where a figure is exact.

    ``*_error_log`` are standard errors of logarithms, see `spread_log`. ``failure_dispersion`` is
    the variance of the number of failures over its mean: 1 if they are independent.
    """

    pace_error_log: float | None = None
    failures: Rate | None = None
    recompiles: Rate | None = None
    compile_error_log: float | None = None
    load_error_log: float | None = None
    checkpoint_error_log: float | None = None
    outage_error_log: float | None = None
    failure_dispersion: float = BURST_DISPERSION


def drawn(
    habits: ArmRates,
    doubt: Uncertainty,
    *,
    days: float,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
) -> ArmRates:
    """Draw the rates of an arm over some days: uncertain figures become (n_draws,).

    The pace is lognormal. Event rates are drawn given their counts (Gamma), then the number of
    events in these days (Poisson, or wider for failures in bursts), the time since the last
    checkpoint before each failure, and the mean outage.
    """
    pace_rng, failure_rng, recompile_rng, loss_rng, *start_rngs = rng.spawn(8)
    compiling, loading, saving, replacing = (
        _factors(error, each, n_draws)
        for error, each in zip(
            (
                doubt.compile_error_log,
                doubt.load_error_log,
                doubt.checkpoint_error_log,
                doubt.outage_error_log,
            ),
            start_rngs,
            strict=True,
        )
    )
    node_days = habits.n_nodes * days
    failures = _happening(
        doubt.failures,
        habits.failures_per_node_day,
        node_days,
        failure_rng,
        n_draws,
        dispersion=doubt.failure_dispersion,
    )
    recompiles = _happening(
        doubt.recompiles, habits.recompiles_per_day, days, recompile_rng, n_draws
    )
    # Standard error of the mean of evenly distributed moments.
    counts = failures * node_days
    spread = np.sqrt(EVEN_VARIANCE / np.maximum(counts, 1.0))
    return replace(
        habits,
        tokens_per_s=habits.tokens_per_s * _factors(doubt.pace_error_log, pace_rng, n_draws),
        compile_s=habits.compile_s * compiling,
        load_s=habits.load_s * loading,
        checkpoint_s_per_hour=_saved(habits.checkpoint_s_per_hour, saving),
        failures_per_node_day=failures,
        recompiles_per_day=recompiles,
        outage_s=habits.outage_s * replacing,
        unlucky_ratio=np.clip(loss_rng.standard_normal(len(counts)) * spread, -HALF, HALF),
    )


def _factors(error_log: float | None, rng: np.random.Generator, n_draws: int) -> FloatArray:
    """Lognormal factors around 1: (n_draws,)."""
    return np.exp(rng.standard_normal(n_draws) * (error_log or 0.0))


def _saved(per_hour_s: float | FloatArray, factors: FloatArray) -> FloatArray:
    return np.minimum(per_hour_s * factors, np.maximum(per_hour_s, MOST_SAVED_S))


def _happening(
    rate: Rate | None,
    known: float | FloatArray,
    exposure: float,
    rng: np.random.Generator,
    n_draws: int,
    *,
    dispersion: float = 1.0,
) -> FloatArray:
    """Draw the observed rate per unit of exposure: (n_draws,)."""
    rates_rng, counts_rng, bursts_rng = rng.spawn(3)
    per_unit = np.asarray(known)
    if rate is not None:
        per_unit = rate.drawn(n_draws, rng=rates_rng, dispersion=dispersion)
    expected = np.broadcast_to(per_unit * exposure, n_draws)
    if dispersion > 1:
        # A Poisson count of a Gamma mean is a negative binomial one.
        scale = dispersion - 1
        expected = bursts_rng.standard_gamma(expected / scale) * scale
    return np.asarray(counts_rng.poisson(expected) / exposure)


def interval(values: FloatArray) -> tuple[float, float]:
    """Return the 95 % interval of draws; ends may be infinite."""
    low, high = np.quantile(values, ENDS, method="nearest")
    return float(low), float(high)


def spread_log(seen: Sequence[float] | FloatArray, *, of_next: bool) -> float | None:
    """Return the standard error of the logarithm of a figure; None with fewer than three values.

    Parameters
    ----------
    seen : (n,) values, such as the seconds of each start
    of_next : whether to predict the next value; else the mean of many

    Notes
    -----
    Stretched as Student's distribution is for so few values.

    >>> spread_log([600.0, 600.0], of_next=True) is None
    True
    >>> round(spread_log([590.0, 600.0, 610.0, 600.0, 600.0], of_next=True), 3)
    0.018
    """
    values = np.asarray(seen, dtype=float)
    n = len(values)
    if n < LEAST_SEEN or not (values > 0).all():
        return None
    of_one = np.log(values).std(ddof=1)
    of_all = of_one * np.sqrt(1 + 1 / n) if of_next else of_one / np.sqrt(n)
    return float(of_all * student_quantile(n - 1) / NORMAL_QUANTILE)


TOKENS_PER_SECOND: Final = Measure("tokens", "taken_s", is_better_low=False)


def pace_error_log(tokens: FloatArray, taken_s: FloatArray, *, run_cv: float = RUN_CV) -> float:
    """Return the standard error of the logarithm of the next run's pace.

    Of too few steps, only the part between runs is known.

    Parameters
    ----------
    tokens, taken_s : (n_steps,) of settled steps, in order
    run_cv : standard deviation of the pace between runs, relative

    Notes
    -----
    The error of this run's mean (`telemetry.statistics.bootstrap.estimate`: correlated steps, and
    a level that drifts), each part stretched as Student's distribution is; and twice the variance
    between runs, because this run is one and the long run is another.
    """
    between = 2 * run_cv**2
    if not len(tokens) or not (taken_s.sum() > 0 and tokens.sum() > 0):
        return math.sqrt(between)
    pace = estimate(
        ArmSamples(("tokens", "taken_s"), np.stack([tokens, taken_s], axis=1)), TOKENS_PER_SECOND
    )
    if pace.n_pieces < DIFFERENCES_MIN_BLOCKS:
        return math.sqrt(between)
    parts = ((pace.block_variance, pace.n_pieces - 1), (pace.drift_variance, N_PARTS - 1))
    within = sum(
        variance * (student_quantile(freedom) / NORMAL_QUANTILE) ** 2
        for variance, freedom in parts
        if variance > 0
    )
    return math.sqrt(within + between)
