"""Cost that drifts: what a run loses a little at a time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.detect.rules import RULES
from telemetry.steps import PHASES, StepBatch

DRIFT = "cost_drift"
DRIFT_LIMITS = RULES[DRIFT].limits
# Planned pauses are not part of the pace.
PLANNED = ("checkpoint_s", "other_s")


@dataclass(frozen=True, slots=True)
class MinutePace:
    """The pace of a run, minute by minute.

    ``began_s`` (n,) Unix seconds; ``cost`` (n,) node-seconds per token, NaN where no step ended;
    ``tokens`` and ``n_active`` (n,) tokens and active workers of the usual step.
    """

    began_s: FloatArray
    cost: FloatArray
    tokens: FloatArray
    n_active: FloatArray

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def layout(self) -> tuple[float, float]:
        """Tokens per step and active workers, by the later half of the minutes."""
        late = len(self) // 2
        return float(np.nanmedian(self.tokens[late:])), float(np.median(self.n_active[late:]))


@dataclass(frozen=True, slots=True)
class Drift:
    """``ratio``: excess over the expected cost, in the half of the window with the lower cost."""

    ratio: float
    cost: float
    expected: float


def pace_of(minutes: StepBatch, *, nodes_per_worker: float) -> MinutePace:
    """Compute the pace from the average step of each minute.

    Notes
    -----
    ``cost = nodes at work * (step_s less checkpoints and evaluation) / tokens``. It is dollars
    per token at any price, and stays as it is where the batch grows or nodes leave.
    """
    reported = np.stack([minutes.phases[phase] for phase in PHASES], axis=-1)
    known = np.isfinite(reported)
    filled = np.where(known, reported, 0.0)
    planned = sum(filled[..., PHASES.index(phase)] for phase in PLANNED)
    # A step without phases counts as work.
    is_divided = known[..., : PHASES.index("checkpoint_s")].any(axis=-1)
    work = filled.sum(axis=-1) - np.where(is_divided, planned, 0.0)
    active = known.any(axis=-1)
    n_active = active.sum(axis=1)
    step_s = np.where(active, work, 0.0).sum(axis=1) / np.maximum(n_active, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = n_active * nodes_per_worker * step_s / minutes.tokens
    cost = np.where((step_s > 0) & np.isfinite(cost), cost, np.nan)
    return MinutePace(minutes.ended_at_s, cost, minutes.tokens, n_active.astype(float))


def unexplained_minutes(pace: MinutePace, explained: FloatArray) -> NDArray[np.bool_]:
    """Minutes with a known cost outside all explained spans (m, 2): (n,) flags."""
    inside = (pace.began_s[:, None] >= explained[:, 0]) & (
        pace.began_s[:, None] <= explained[:, 1]
    )
    return np.asarray(~inside.any(axis=1) & np.isfinite(pace.cost))


def is_same_layout(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two layouts have the same tokens per step and the same number of workers."""
    return all(
        abs(a - b) <= DRIFT_LIMITS["alike_ratio"] * abs(b) for a, b in zip(one, other, strict=True)
    )


def drift(
    pace: MinutePace, explained: FloatArray, *, expected: float, limit_ratio: float
) -> Drift | None:
    """Return the excess of the cost over the expected cost; None where it is not certain.

    Notes
    -----
    Both halves of the window must be above the limit by their medians, each by enough minutes
    that no other alert explains, of the layout that the run has now.
    """
    layout = pace.layout
    same = np.abs(pace.tokens - layout[0]) <= DRIFT_LIMITS["alike_ratio"] * layout[0]
    usable = unexplained_minutes(pace, explained) & same & (pace.n_active == layout[1])
    middle = (pace.began_s[0] + pace.began_s[-1]) / 2
    halves = [pace.cost[usable & side] for side in (pace.began_s < middle, pace.began_s >= middle)]
    if min(map(len, halves)) < DRIFT_LIMITS["least_minutes"] / 2:
        return None
    cost = min(float(np.median(half)) for half in halves)
    ratio = cost / expected - 1
    return Drift(ratio, cost, expected) if ratio > limit_ratio else None
