"""What an arm could do besides what is expected of it: draws of all that was not seen for sure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.compare.blocks import block_length, resampled_sums
from telemetry.compare.differences import MIN_BLOCKS, student_quantile
from telemetry.project.course import Habits
from telemetry.project.rates import HALF, SURE_RATIO, Rate

N_DRAWS: Final = 4_000
N_RESAMPLES: Final = 999
NORMAL_QUANTILE: Final = 1.959964
EVEN_VARIANCE: Final = 1 / 12
# Of fewer, spread is anybody's guess.
LEAST_SEEN: Final = 3
# Draws of checkpoints leave some of each hour for training.
MOST_SAVED_S: Final = 3_420.0
ENDS: Final = ((1 - SURE_RATIO) / 2, (1 + SURE_RATIO) / 2)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is not known for sure of an arm; None where a figure is taken as it is.

    ``pace_error_log`` is the standard error of the logarithm of its tokens per second; those of
    compiling, loading and checkpoints likewise (`spread_log`).
    """

    pace_error_log: float | None = None
    failures: Rate | None = None
    recompiles: Rate | None = None
    compile_error_log: float | None = None
    load_error_log: float | None = None
    checkpoint_error_log: float | None = None


def drawn(
    habits: Habits,
    doubt: Doubt,
    *,
    days: float,
    rng: np.random.Generator,
    n_draws: int = N_DRAWS,
) -> Habits:
    """Return what an arm could do over so many days: every doubtful figure is (n_draws,).

    Notes
    -----
    The pace is lognormal around what was measured. Rates are drawn from what their counts allow
    (Gamma), then how often it really happens in these days (Poisson): few failures are a matter
    of luck even where the rate is known, and so is how long before one the last checkpoint was.
    """
    pace_rng, failure_rng, recompile_rng, loss_rng, *start_rngs = rng.spawn(7)
    compiling, loading, saving = (
        _factors(error, each, n_draws)
        for error, each in zip(
            (doubt.compile_error_log, doubt.load_error_log, doubt.checkpoint_error_log),
            start_rngs,
            strict=True,
        )
    )
    node_days = habits.n_nodes * days
    failures = _happening(
        doubt.failures, habits.failures_per_node_day, node_days, failure_rng, n_draws
    )
    recompiles = _happening(
        doubt.recompiles, habits.recompiles_per_day, days, recompile_rng, n_draws
    )
    return replace(
        habits,
        tokens_per_s=habits.tokens_per_s * _factors(doubt.pace_error_log, pace_rng, n_draws),
        compile_s=habits.compile_s * compiling,
        load_s=habits.load_s * loading,
        checkpoint_s_per_hour=_saved(habits.checkpoint_s_per_hour, saving),
        failures_per_node_day=failures,
        recompiles_per_day=recompiles,
        unlucky_ratio=_unlucky(failures * node_days, loss_rng),
    )


def _factors(error_log: float | None, rng: np.random.Generator, n_draws: int) -> FloatArray:
    """Return by what a figure could be off: lognormal around 1, (n_draws,)."""
    return np.exp(rng.standard_normal(n_draws) * (error_log or 0.0))


def _saved(per_hour_s: float | FloatArray, factors: FloatArray) -> FloatArray:
    return np.minimum(per_hour_s * factors, np.maximum(per_hour_s, MOST_SAVED_S))


def _unlucky(counts: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return how far the mean of so many evenly drawn moments is from the middle: (n_draws,).

    It is nearly normal, and within the interval; the variance of one such moment is a twelfth.
    """
    spread = np.sqrt(EVEN_VARIANCE / np.maximum(counts, 1.0))
    return np.clip(rng.standard_normal(len(counts)) * spread, -HALF, HALF)


def _happening(
    rate: Rate | None,
    known: float | FloatArray,
    exposure: float,
    rng: np.random.Generator,
    n_draws: int,
) -> FloatArray:
    """Return how often it happens per unit of exposure: (n_draws,)."""
    rates_rng, counts_rng = rng.spawn(2)
    per_unit = np.asarray(known) if rate is None else rate.drawn(n_draws, rng=rates_rng)
    counts = counts_rng.poisson(np.broadcast_to(per_unit * exposure, n_draws))
    return np.asarray(counts / exposure)


def interval(values: FloatArray) -> tuple[float, float]:
    """Return the ends between which 95 of 100 draws lie; they may be infinite."""
    low, high = np.quantile(values, ENDS, method="nearest")
    return float(low), float(high)


def spread_log(seen: Sequence[float] | FloatArray, *, of_next: bool) -> float | None:
    """Return how far the logarithm of a figure may be off that was seen some times.

    Parameters
    ----------
    seen : (n,) of one sort, such as the seconds of each start
    of_next : whether the next one is asked about, as of a start to come; else the mean of many

    Returns
    -------
    a standard error, stretched as Student's distribution is for so few; None of fewer than three

    Examples
    --------
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


def pace_error_log(tokens: FloatArray, taken_s: FloatArray, *, rng: np.random.Generator) -> float:
    """Return the standard error of the logarithm of a pace; NaN of too few steps.

    Parameters
    ----------
    tokens, taken_s : (n_steps,) tokens and seconds of settled steps, in order
    rng : where chance comes from

    Notes
    -----
    Steps hang together, so they are drawn anew in blocks, and the error stretched as Student's
    distribution is for as few blocks as there are (`telemetry.compare.differences`).
    """
    if not len(tokens) or not (taken_s.sum() > 0 and tokens.sum() > 0):
        return float("nan")
    length = block_length(tokens - tokens.sum() / taken_s.sum() * taken_s)
    n_blocks = len(tokens) // length
    if n_blocks < MIN_BLOCKS:
        return float("nan")
    columns = np.stack([tokens, taken_s], axis=1)
    sums = resampled_sums(columns, length, n_resamples=N_RESAMPLES, rng=rng)
    stretch = student_quantile(n_blocks - 1) / NORMAL_QUANTILE
    return float(np.log(sums[:, 0] / sums[:, 1]).std(ddof=1)) * stretch
