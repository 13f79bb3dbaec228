"""Who makes the others wait: one worker, several, or every one in turn."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.changes import noise
from telemetry.detect.peers import GAUSSIAN, deviations, lower_median, mean, median, middle
from telemetry.detect.steps.share import own_s
from telemetry.steps import StepBatch

# The phases of a worker's own time, and the cause that a late worker's excess in each points at.
OWN_PHASES = ("compute_s", "input_s", "checkpoint_s", "other_s")
# Deviations a worker's own time must lie above its peers', and the least deviation assumed.
DEVIATIONS = 5.0
SPREAD_RATIO, TINY_S = 0.01, 1e-9
# The last to arrive is this much later than the typical worker, or the work is even.
UNEVEN_RATIO = 0.05
# A worker is late, and does not just have its turn, if it is so in this share of the steps.
USUALLY = 0.75
# Workers beyond this share of the worst one's excess are as late as it is.
AS_LATE = 0.5
# A machine is late by the same factor in every step: within this part of it.
STEADY_RATIO = 0.35
# That the same worker is last by luck, in every step, must be less likely than this.
LUCK = 0.01

Pattern = Literal["steady", "rotating", "none"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How the workers' own times compare, over some steps.

    ``late`` are the columns of those that are late again and again, worst first; ``worst`` is the
    first of them, else the one that is latest on the whole. ``own_s`` (n_workers,) is each one's
    typical own time. ``spread_ratio`` is how much longer than usual the last to arrive is busy,
    ``restless_ratio`` by how much that differs from step to step: a robust deviation, for one
    stumble is no unrest. ``phase`` is where the worst one's excess lies, ``n_steps`` how many
    steps say so.
    """

    pattern: Pattern
    worst: int
    late: tuple[int, ...]
    own_s: FloatArray
    strength: float
    spread_ratio: float
    restless_ratio: float
    phase: str
    n_steps: int

    @property
    def is_steady(self) -> bool:
        """Whether the same workers are late by about as much in every step."""
        return self.pattern == "steady" and (
            self.restless_ratio <= STEADY_RATIO * self.spread_ratio
        )

    @property
    def is_no_luck(self) -> bool:
        """Whether one worker is late too often for that to be its turn by chance."""
        return self.n_steps >= enough_steps(int(np.isfinite(self.own_s).sum()))


def enough_steps(n_workers: int) -> int:
    """Return in how many steps the same worker must be last for that to be no luck."""
    if n_workers < 2:
        return 1
    return max(3, 1 + int(np.ceil(np.log(1 / LUCK) / np.log(n_workers))))


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
    centre = float(lower_median(typical))
    z = deviations(typical, floor=max(SPREAD_RATIO * centre, TINY_S))
    usual = lower_median(own)[:, None]
    latest = np.nanmax(own - usual, axis=1, keepdims=True)
    again = mean((own - usual >= AS_LATE * latest).astype(float), axis=0)
    order = np.argsort(np.where(np.isfinite(z), -z, np.inf))
    late = tuple(int(i) for i in order if z[i] >= DEVIATIONS and again[i] >= USUALLY)
    worst = late[0] if late else int(order[0])
    spread = latest / np.maximum(usual, TINY_S)
    # The step in which it began may be half healthy: it is no sign of unrest.
    settled = spread[1:, 0] if len(spread) > 2 else spread[:, 0]
    return Lateness(
        pattern=_pattern(late, middle(spread)),
        worst=worst,
        late=late,
        own_s=typical,
        strength=float(z[worst] / DEVIATIONS),
        spread_ratio=middle(spread),
        restless_ratio=float(_scatter(settled)),
        phase=_phase(steps, worst),
        n_steps=len(steps),
    )


def unevenness(steps: StepBatch) -> float:
    """Return how unlike the bulk of the workers is within a step: a robust deviation, as a ratio.

    Notes
    -----
    Machines fail one at a time and leave the bulk alike; unequal work makes all unlike at once,
    and shows in the very first step.
    """
    own = own_s(steps)
    usual = lower_median(own)[:, None]
    spread = GAUSSIAN * lower_median(np.abs(own - usual))
    return middle(spread / np.maximum(usual[:, 0], TINY_S))


def _scatter(x: FloatArray) -> float:
    """Return how much a figure differs from step to step: of a few steps their range tells more.

    A machine that fell ill or recovered meanwhile is a single jump, and no unrest.
    """
    return float(np.ptp(x)) / 2 if x.size < 4 else noise(x)


def _pattern(late: tuple[int, ...], spread_ratio: float) -> Pattern:
    """Put the comparison in a word."""
    if late:
        return "steady"
    return "rotating" if spread_ratio >= UNEVEN_RATIO else "none"


def _phase(steps: StepBatch, worker: int) -> str:
    """Return the phase in which a worker exceeds its peers the most."""
    excess = {}
    for phase in OWN_PHASES:
        typical = median(steps.phases[phase].T)
        excess[phase] = float(typical[worker] - median(typical))
    return max(excess, key=lambda phase: excess[phase])
