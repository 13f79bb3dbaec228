"""What an arm could do besides what is expected of it: draws of all that was not seen for sure."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.compare.blocks import block_length, resampled_sums
from telemetry.compare.differences import MIN_BLOCKS, student_quantile
from telemetry.project.course import Habits
from telemetry.project.rates import SURE_RATIO, Rate

N_DRAWS: Final = 4_000
N_RESAMPLES: Final = 999
NORMAL_QUANTILE: Final = 1.959964
ENDS: Final = ((1 - SURE_RATIO) / 2, (1 + SURE_RATIO) / 2)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is not known for sure of an arm; None where a figure is taken as it is.

    ``pace_error_log`` is the standard error of the logarithm of its tokens per second.
    """

    pace_error_log: float | None = None
    failures: Rate | None = None
    recompiles: Rate | None = None


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
    of luck even where the rate is known.
    """
    pace_rng, failure_rng, recompile_rng = rng.spawn(3)
    spread = pace_rng.standard_normal(n_draws) * (doubt.pace_error_log or 0.0)
    node_days = habits.n_nodes * days
    failures = _happening(
        doubt.failures, habits.failures_per_node_day, node_days, failure_rng, n_draws
    )
    recompiles = _happening(
        doubt.recompiles, habits.recompiles_per_day, days, recompile_rng, n_draws
    )
    return replace(
        habits,
        tokens_per_s=habits.tokens_per_s * np.exp(spread),
        failures_per_node_day=failures,
        recompiles_per_day=recompiles,
    )


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
