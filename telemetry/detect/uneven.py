"""Work that is uneven: all workers unlike at once, each step another way."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.look import Look
from telemetry.detect.pace import Lift, lift, n_newest
from telemetry.detect.peers import GAUSSIAN, lower_median, median
from telemetry.detect.problem import Problem
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

CAUSE = "seq_imbalance"
# Fewer workers than this are no crowd: their own ups and downs must tell.
CROWD = 6
# How much more unlike workers, or a worker's steps, must be than they were.
LEAST_RATIO = 0.02
# Ups and downs show over more steps than a crowd needs.
RESTLESS_S, RESTLESS_STEPS, RESTLESS_JUMPS = 10.0, 3, 8


def uneven(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find work that has become uneven; no machine is to blame for that.

    Notes
    -----
    Machines fail one at a time and leave the bulk alike; sequences of unequal length make all
    workers unlike at once, and in every step another way (J. Lin et al., "Understanding
    Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713). With
    few workers the bulk tells nothing; then each one's time from step to step does.
    """
    found = _crowd(vitals, steps) if len(steps.workers) >= CROWD else None
    found = found or _restless(vitals, steps)
    if found is None:
        return []
    strength = found.excess / LEAST_RATIO
    look = Look(CAUSE, strength, "spread_ratio", found.now, found.usual, 0, "ratio")
    onset_s = float(steps.ended_at_s[found.at] - steps.step_s[found.at])
    return [Problem(CAUSE, look, "waiting", onset_s, strength)]


def _usual(vitals: Vitals) -> float | None:
    """Return how uneven work was when the open alert fired."""
    held = [s for s in vitals.standing if s.cause == CAUSE]
    figure = held[0].evidence.get("culprit") if held else None
    return (figure or {}).get("peers_median")


def _crowd(vitals: Vitals, steps: StepBatch) -> Lift | None:
    """Compare the workers of each step, each relative to what it usually takes.

    A long stage, or a machine a little slower than others, is so in every step.
    """
    compute = steps.phases["compute_s"]
    own = compute / median(compute.T)
    centre = lower_median(own)
    unlike = GAUSSIAN * lower_median(np.abs(own - centre[:, None])) / centre
    return lift(unlike, least=LEAST_RATIO, n_now=n_newest(steps), usual=_usual(vitals))


def _restless(vitals: Vitals, steps: StepBatch) -> Lift | None:
    """Compare each worker's step with its step before."""
    least = max(RESTLESS_STEPS, -(-RESTLESS_JUMPS // len(steps.workers)))
    if len(steps) < 2 * least:
        return None
    jumps = lower_median(_jumps(steps))
    n_now = n_newest(steps, seconds=RESTLESS_S, least=least)
    last = jumps[-n_now:]
    if float(np.median(last)) < LEAST_RATIO:
        return None
    # The middle of three tells ups and downs from a single jump to another level.
    windows = np.sort(np.stack([jumps[:-2], jumps[1:-1], jumps[2:]]), axis=0)[1]
    usual = _usual(vitals)
    found = lift(windows, least=LEAST_RATIO, n_now=n_now - 2, usual=usual, n_calm=n_now)
    return None if found is None else Lift(found.usual, found.now, found.at + 1)


def _jumps(steps: StepBatch) -> FloatArray:
    """Return by how much each worker's compute time differs from the step before, as a ratio."""
    compute = steps.phases["compute_s"]
    return np.asarray(np.abs(np.diff(compute, axis=0)) / compute[:-1])
