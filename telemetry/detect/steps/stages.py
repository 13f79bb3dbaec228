"""A pipeline stage that has become longer: all of its workers late alike, few or most of all."""

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.look import Look
from telemetry.detect.peers import lower_median, median, middle
from telemetry.detect.problem import Problem
from telemetry.detect.rules import RULES
from telemetry.detect.steps.case import CHANGED_RATIO
from telemetry.detect.steps.pace import Lift, lift, n_newest, work_s
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

CAUSE = "stage_imbalance"
# A stage may take so much of a step more than it used to, against the others.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# So many workers of a stage do not stumble at once; they are late alike, and in each of so many
# steps by as much, within this part of it.
ENOUGH_WORKERS, ENOUGH_STEPS, UNLIKE = 2, 3, 0.35


def longer_stage(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find a stage whose quickest worker takes longer than it used to, against other stages.

    Notes
    -----
    Where most workers belong to the long stage, as of three nodes in two stages, they are what is
    usual and nobody is late: stages are compared, not workers. A stage of one worker may be a
    machine; see ``arriving_late``. J. Lin et al., "Understanding Stragglers in Large Model
    Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713.
    """
    stage = stage_of(vitals, steps)
    if vitals.n_stages < 2 or len(stage) != len(steps.workers) or len(steps) < ENOUGH_STEPS:
        return []
    compute = steps.phases["compute_s"]
    found: list[Problem] = []
    typical = np.stack([median(compute[:, stage == s]) for s in range(vitals.n_stages)], axis=1)
    for s in range(vitals.n_stages):
        own = compute[:, stage == s]
        if own.shape[1] < ENOUGH_WORKERS:
            continue
        # A stage that is ahead of a slow one does not fall behind when that recovers.
        lag = np.maximum(own.min(axis=1) - lower_median(typical), 0.0)
        lifted = _lifted(vitals, steps, lag)
        if lifted is not None and _is_alike(own, lag, lifted):
            names = tuple(np.array(steps.workers)[stage == s].tolist())
            found.append(_problem(steps, lifted, names, vitals.n_stages))
    return sorted(found, key=lambda each: -each.strength)[:1]


def stage_of(vitals: Vitals, steps: StepBatch) -> IntArray:
    """Return the stage of each worker; of none where some have left: nobody knows their places."""
    told = np.isfinite(steps.phases["compute_s"]).all()
    return vitals.stage if told else np.zeros(0, dtype=int)


def _lifted(vitals: Vitals, steps: StepBatch, lag: FloatArray) -> Lift | None:
    least_s = LEAST_RATIO * middle(work_s(steps))
    n_now = max(ENOUGH_STEPS, n_newest(steps))
    return lift(lag, least=least_s, n_now=n_now, usual=_usual(vitals, steps))


def _is_alike(own: FloatArray, lag: FloatArray, found: Lift) -> bool:
    """Tell whether the stage's workers are late alike, and as late in each of the newest steps."""
    newest = own[-ENOUGH_STEPS:]
    apart = middle(newest.max(axis=1) - newest.min(axis=1))
    return max(apart, float(np.ptp(lag[-ENOUGH_STEPS:]))) <= UNLIKE * found.excess


def _usual(vitals: Vitals, steps: StepBatch) -> float | None:
    """Return what was usual, by an open alert about such a stage in steps like these."""
    tokens = float(steps.tokens[-1])
    for alert in vitals.standing:
        held = alert.evidence
        if alert.cause != CAUSE or held.get("baseline_phase_s") is None:
            continue
        was = held.get("tokens")
        if was is None or not np.isfinite(tokens) or abs(tokens - was) <= CHANGED_RATIO * was:
            return float(held["baseline_phase_s"])
    return None


def _problem(steps: StepBatch, found: Lift, late: tuple[str, ...], n_stages: int) -> Problem:
    step_s, tokens = middle(work_s(steps)), float(steps.tokens[-1])
    strength = found.excess / (LEAST_RATIO * step_s)
    return Problem(
        cause=CAUSE,
        look=Look(CAUSE, strength, "own_s", found.now, found.usual, n_stages - 1, "s"),
        kind="waiting",
        onset_s=float(steps.ended_at_s[found.at] - steps.step_s[found.at]),
        strength=strength,
        late=late,
        more={
            "phase_s": found.now,
            "baseline_phase_s": found.usual,
            "tokens": tokens if np.isfinite(tokens) else None,
        },
    )
