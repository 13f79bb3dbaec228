"""Who makes the others wait: one worker, several, or every one in turn."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.peers import deviations, median
from telemetry.detect.share import own_s
from telemetry.steps import StepBatch

# The phases of a worker's own time, and the cause that a late worker's excess in each points at.
OWN_PHASES = ("compute_s", "input_s", "checkpoint_s", "other_s")
# Deviations a worker's own time must lie above its peers', and the least deviation assumed.
DEVIATIONS = 5.0
SPREAD_RATIO = 0.01
# A worker is the straggler where it, or one of its equals, is last in this share of the steps.
USUALLY = 0.6
# Workers within this share of the worst one's excess are as bad as it is.
AS_BAD = 0.5

Pattern = Literal["one", "several", "rotating", "none"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How the workers' own times compare, over some steps.

    ``worst`` is the column of the worker that arrives last most often, ``late`` all columns that
    lie far above their peers, worst first. ``own_s`` (n_workers,) is each one's typical own time,
    ``excess_s`` (n_workers,) that less the median of all. ``last_ratio`` is the share of steps in
    which one of the late came last, ``spread_ratio`` how much longer than the median the last to
    arrive is busy, typically. ``phase`` is where the worst one's excess lies.
    """

    pattern: Pattern
    worst: int
    late: tuple[int, ...]
    own_s: FloatArray
    excess_s: FloatArray
    strength: float
    last_ratio: float
    spread_ratio: float
    phase: str


def lateness(steps: StepBatch) -> Lateness:
    """Compare the own times of the workers.

    Parameters
    ----------
    steps : StepBatch
        Steps in which the share is above its limit; workers that report nothing are NaN.

    Notes
    -----
    All workers end the collective together, so whoever waits least arrived last, and its own time
    is the longest. Durations of the collective itself tell nothing: a barrier makes them equal.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713.
    """
    own = own_s(steps)
    typical = median(own.T)
    centre = float(median(typical))
    z = deviations(typical, floor=max(SPREAD_RATIO * centre, 1e-9))
    order = np.argsort(np.where(np.isfinite(z), -z, np.inf))
    worst = int(order[0])
    excess = typical - centre
    far = [int(i) for i in order if z[i] >= DEVIATIONS and excess[i] >= AS_BAD * excess[worst]]
    last = np.nanargmax(own, axis=1)
    last_ratio = float(np.isin(last, far or [worst]).mean())
    spread = float(np.median(np.nanmax(own, axis=1) / median(own) - 1.0))
    return Lateness(
        pattern=_pattern(len(far), last_ratio, spread),
        worst=worst,
        late=tuple(far),
        own_s=typical,
        excess_s=excess,
        strength=float(z[worst] / DEVIATIONS) if np.isfinite(z[worst]) else 0.0,
        last_ratio=last_ratio,
        spread_ratio=spread,
        phase=_phase(steps, worst),
    )


def _pattern(n_far: int, last_ratio: float, spread_ratio: float) -> Pattern:
    """Put the comparison in a word."""
    if n_far and last_ratio >= USUALLY:
        return "one" if n_far == 1 else "several"
    return "rotating" if spread_ratio > DEVIATIONS * SPREAD_RATIO else "none"


def _phase(steps: StepBatch, worker: int) -> str:
    """Return the phase in which a worker exceeds its peers the most."""
    excess = {}
    for phase in OWN_PHASES:
        typical = median(steps.phases[phase].T)
        excess[phase] = float(typical[worker] - median(typical))
    return max(excess, key=lambda phase: excess[phase])
