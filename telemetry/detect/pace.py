"""Compare steps with the past of the run: which phase takes longer, and since when."""

from dataclasses import dataclass, replace

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.inputs import EXCHANGE, DetectionInput, sum_phases
from telemetry.detect.rules import RULES
from telemetry.detect.share import (
    BASELINE_STEPS,
    CHANGED_RATIO,
    NEWEST_STEPS,
    RECENT_STEPS,
    ShareCase,
)
from telemetry.statistics.change_points import noise, rise
from telemetry.statistics.peers import middle
from telemetry.steps import StepBatch

# Newest steps that confirm a rise: seconds, and steps. A single longer step is enough if its rise
# is clear.
PERSISTS_S, PERSISTS_STEPS, CLEARLY = 5.0, 2, 2.0
# Required rise in deviations of the normal variation.
DEVIATIONS = 4.0
# A rise varies from step to step if its deviation is above this share of it.
STEADY = 0.1
# The fastest fifth of the workers ignores a few late ones.
QUICK = 0.2
# An open alert resolves at this share of the limit.
HALF = RULES["step_slow"].limits["half_ratio"]


@dataclass(frozen=True, slots=True)
class PhaseRise:
    """``usual`` before, ``now``, and ``at``, the row of the first step with the higher value."""

    usual: float
    now: float
    at: int

    @property
    def excess(self) -> float:
        return self.now - self.usual


def comparable_steps(steps: StepBatch) -> StepBatch:
    """Keep steps with the tokens and the number of workers of the newest one.

    A step with twice the tokens, or half the workers, takes twice as long without a problem.
    """
    n_workers = np.isfinite(steps.phases["compute_s"]).sum(axis=1)
    tokens = np.nan_to_num(steps.tokens)
    alike = np.abs(tokens - tokens[-1]) <= CHANGED_RATIO * abs(tokens[-1])
    rows = np.flatnonzero(alike & (n_workers == n_workers[-1]))
    if len(rows) == len(steps):
        return steps
    return replace(
        steps,
        step=steps.step[rows],
        ended_at_s=steps.ended_at_s[rows],
        phases={phase: values[rows] for phase, values in steps.phases.items()},
        tokens=steps.tokens[rows],
    )


def work_s(steps: StepBatch) -> FloatArray:
    """Step time without checkpoints, evaluations and pauses: (n_steps,) seconds."""
    worked_s = sum_phases(steps, ("compute_s", "input_s"))
    exchanged_s = sum_phases(steps, EXCHANGE)
    # An untimed exchange is part of the compute time.
    if np.isfinite(exchanged_s).all():
        worked_s = worked_s + exchanged_s
    else:
        worked_s = worked_s + np.nan_to_num(exchanged_s)
    known = np.isfinite(worked_s)
    if known.all() and worked_s.shape[1]:
        return np.asarray(worked_s.sum(axis=1) / worked_s.shape[1])
    return np.asarray(np.where(known, worked_s, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def n_newest(steps: StepBatch, *, seconds: float = PERSISTS_S, least: int = 1) -> int:
    """Count the newest steps that cover the required seconds, at most half of all."""
    lasted_s = np.cumsum(work_s(steps)[::-1])
    n_steps = int(np.searchsorted(lasted_s, seconds)) + 1
    return max(least, min(n_steps, len(steps) // 2))


def quickest_fifth(values: FloatArray) -> FloatArray:
    """Return the upper bound of the fastest fifth of workers: (n_steps, n_workers) to (n_steps,).

    It rises only if all workers become slower.
    """
    known = np.sort(values, axis=1)
    n = np.isfinite(known).sum(axis=1)
    at = np.floor(QUICK * np.maximum(n - 1, 0)).astype(int)
    return np.asarray(np.take_along_axis(known, at[:, None], axis=1)[:, 0])


def find_rise(
    x: FloatArray,
    *,
    least: float,
    n_now: int,
    usual: float | None = None,
    n_calm: int = PERSISTS_STEPS,
    clearly: float = CLEARLY,
) -> PhaseRise | None:
    """Find a rise that lasts until now.

    Parameters
    ----------
    x : (n_steps,)
        The figure, oldest first, none NaN.
    least : same unit as x
        The minimum rise that counts.
    n_now : steps
        How many of the newest say how it is now.
    usual : same unit as x, optional
        What it was when an open alert fired: then half of ``least`` keeps the alert open.
    n_calm : steps
        How many of the newest must be back for an open alert to end; one of long ones.
    clearly
        How many times the minimum rise a single step must show.

    Notes
    -----
    The likeliest change point (Hinkley 1970) splits the window; the median before it is what is
    usual. Both newest steps must bear it out; a single one only where it is a long one, and
    twice as clear.

    Examples
    --------
    >>> find_rise(np.array([1.0, 1, 1, 1, 1, 1.5, 1.5, 1.5]), least=0.1, n_now=2)
    PhaseRise(usual=1.0, now=1.5, at=5)
    """
    if x.size < n_now:
        return None
    now = middle(x[-n_now:])
    if usual is not None:
        back = x - usual < HALF * least
        is_varied = (
            noise(x[~back]) > STEADY * (middle(x[~back]) - usual) if (~back).any() else False
        )
        if back[-(n_calm if is_varied else min(n_now, n_calm)) :].all():
            return None
        at = int(np.flatnonzero(back)[-1]) + 1 if back.any() else 0
        return PhaseRise(usual, now, min(at, x.size - 1))
    change = rise(x, floor=least / 6)
    if change is None or change.at < BASELINE_STEPS or x.size - change.at < n_now:
        return None
    before = middle(x[: change.at])
    n_high = min(PERSISTS_STEPS, x.size - change.at)
    enough = least if n_high == PERSISTS_STEPS else clearly * least
    # A varying figure must rise clearly above its variation.
    enough = max(enough, DEVIATIONS * noise(x[: change.at]) / np.sqrt(n_high))
    if now - before < enough or float(x[-n_high:].min()) - before < HALF * least:
        return None
    return PhaseRise(before, now, change.at)


def case_since(inputs: DetectionInput, steps: StepBatch, at: int) -> ShareCase:
    """Return a ShareCase for steps that are slow since a row."""
    before, after = steps[:at], steps[at:]
    return ShareCase(
        inputs=inputs,
        before=before if len(before) >= BASELINE_STEPS else None,
        after=after.last(RECENT_STEPS),
        newest=after.last(NEWEST_STEPS),
        onset_s=float(steps.ended_at_s[at] - steps.step_s[at]),
    )
