"""The all-reduce share of runs whose steps end at different times, on one common clock."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.steps import StepBatch

EVERY_S = 10
# A step speaks for this long after its end, or for three times its own length.
HOLDS_S = 15.0
HOLDS_STEPS = 3.0


def grid(start_s: float, end_s: float) -> FloatArray:
    """Return the full ten seconds after ``start_s`` and up to ``end_s``, in Unix seconds."""
    first = np.floor(start_s / EVERY_S) * EVERY_S + EVERY_S
    return np.arange(first, end_s, EVERY_S)


def share_now(steps: StepBatch, t_s: FloatArray) -> FloatArray:
    """Return a run's all-reduce share as it stood at some moments.

    Parameters
    ----------
    steps : StepBatch
        The run's steps.
    t_s : (n,)
        Unix seconds, rising, ``EVERY_S`` apart.

    Returns
    -------
    share_ratio : (n,), 0 to 1
        Mean of the steps that ended in the ten seconds before; else that of the last step, for
        as long as it can speak for the present; else NaN.
    """
    share = steps.allreduce_share_ratio if len(steps) else np.zeros(0)
    known = np.isfinite(share)
    if not known.any():
        return np.full(len(t_s), np.nan)
    share, ended_s, step_s = share[known], steps.ended_at_s[known], steps.step_s[known]
    before = np.searchsorted(ended_s, t_s, side="right")
    since = np.searchsorted(ended_s, t_s - EVERY_S, side="right")
    since = np.clip(since, 0, np.maximum(before - 1, 0))
    total = np.concatenate([[0.0], np.cumsum(share)])
    mean = (total[before] - total[since]) / np.maximum(before - since, 1)
    last = np.maximum(before - 1, 0)
    holds_s = np.maximum(HOLDS_S, HOLDS_STEPS * step_s[last])
    return np.where((before > 0) & (t_s - ended_s[last] <= holds_s), mean, np.nan)
