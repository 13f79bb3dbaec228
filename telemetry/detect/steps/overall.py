"""Why all workers compute for longer at once: clocks that are lower, or memory that is slower."""

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.look import Look
from telemetry.detect.peers import mean
from telemetry.detect.steps.late_parts import BANDWIDTH, PART_METRICS, UTILIZATION
from telemetry.detect.steps.pace import Lift
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

# Whole steps that are looked at, before and after, by how long they take together.
ENOUGH_S, MOST_S = 20.0, 120.0
# A step's memory traffic that shrinks by this is not the same work any more.
FEWER_BYTES = 0.94
# As many bytes as ever, within this.
SAME_WORK = 0.08
# Cores that are as busy as ever, or busier, but for this.
AS_BUSY = 0.1


def overall_looks(vitals: Vitals, steps: StepBatch, found: Lift) -> list[Look]:
    """Look why everybody computes for longer: the memories first, then the clocks.

    Notes
    -----
    What the memories moved in whole steps, before and since, tells: as many bytes a step as ever
    are the same work done more slowly, for the clock is lower; fewer are less memory. Without
    bandwidth (real nodes do not report it) nobody can tell.
    """
    before, after = _enough(steps[: found.at]), _enough(steps[found.at :])
    began_s = before.ended_at_s[0] - before.step_s[0] if len(before) else vitals.now_s
    back_s = min(float(vitals.now_s - began_s), MOST_S + ENOUGH_S)
    span = vitals.hardware(PART_METRICS, int(back_s) + 2)
    (was_bytes, was_busy), (is_bytes, is_busy) = (
        _per_step(span, each) for each in (before, after)
    )
    kept, busier = is_bytes / was_bytes, is_busy / was_busy
    if not (np.isfinite(kept) and np.isfinite(busier)):
        return []
    # Of a run on a single node that node is all there is to blame.
    node = vitals.nodes[0] if len(vitals.nodes) == 1 else None
    device = 0 if node and span.values[BANDWIDTH].shape[2] == 1 else None
    starved = (1.0 - kept) / (1.0 - FEWER_BYTES)
    is_throttled = abs(kept - 1.0) <= SAME_WORK and busier >= 1.0 - AS_BUSY
    return [
        Look("hbm_slow", starved, BANDWIDTH, is_bytes, was_bytes, 0, "bytes_per_s", node, device),
        Look(
            "throttle",
            float(is_throttled),
            "compute_s",
            found.now,
            found.usual,
            0,
            "s",
            node,
            device,
        ),
    ]


def _enough(steps: StepBatch) -> StepBatch:
    """Keep the newest steps: of some seconds, one at the least."""
    lasted_s = np.cumsum(steps.step_s[::-1])
    return steps.last(1 + int(np.searchsorted(lasted_s, ENOUGH_S)))


def _per_step(span: Span, steps: StepBatch) -> tuple[float, float]:
    """Return the bytes moved in an average step, and how busy cores were on the whole.

    NaN where the seconds are not known, or the accelerators do not say.
    """
    if any(name not in span.values or not span.values[name].shape[2] for name in PART_METRICS):
        return np.nan, np.nan
    if not len(steps):
        return np.nan, np.nan
    ends = steps.ended_at_s
    edges_s = np.array([ends[0] - steps.step_s[0], ends[-1]])
    moved = _sum_between(span, BANDWIDTH, edges_s) / len(steps)
    return moved, _sum_between(span, UTILIZATION, edges_s) / float(np.diff(edges_s)[0])


def _sum_between(span: Span, metric: str, edges_s: FloatArray) -> float:
    """Return a rate's sum between two moments, parts of ticks counted as parts."""
    rate = mean(mean(span.values[metric].astype(float), axis=2), axis=1)
    known = np.isfinite(rate)
    if not known.any() or edges_s[0] < span.ticks[0] - 1 or edges_s[1] > span.ticks[-1] + 1:
        return float("nan")
    total = np.concatenate([[0.0], np.cumsum(np.where(known, rate, np.mean(rate[known])))])
    at_s = np.concatenate([[span.ticks[0] - 1], span.ticks])
    return float(np.diff(np.interp(edges_s, at_s, total))[0])
