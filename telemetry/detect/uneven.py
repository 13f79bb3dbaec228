"""The cause seq_imbalance: all workers differ at once, in each step differently."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.detect.findings import CauseScore, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.pace import PhaseRise, find_rise, n_newest, quickest_fifth
from telemetry.detect.share import BASELINE_STEPS
from telemetry.detect.stragglers import lateness, stage_of, steps_beyond_chance
from telemetry.statistics.peers import GAUSSIAN, lower_median, median, middle
from telemetry.steps import StepBatch

CAUSE = "seq_imbalance"
# Fewer workers are compared with their own past.
CROWD = 6
# The median of a stage needs this many workers.
CROWD_OF_STAGE = 3
# Required rise of the deviation between workers, or between steps of a worker.
LEAST_RATIO = 0.02
# Variation over steps needs more steps than variation over workers.
RESTLESS_S, RESTLESS_STEPS, RESTLESS_JUMPS = 10.0, 3, 8
# Chance varies: this many even steps resolve an open alert.
CALM_STEPS = 4
# For long steps: required excess with few and with many workers; required share of workers, at
# least three; required deviation between them, absolute or relative.
UNLIKE_RATIO, FEW_STEPS, FEW_S = (0.05, 0.04), 2, 6.0
MANY, ENOUGH_TO_TELL, ALIKE = 0.15, 4, 0.2
# This many of a few workers make a single step uneven, each late by this part of the limit.
SEVERAL, SEVERAL_RATIO = 3, 0.4
# Required deviations of the normal variation. The slowness of a node varies by less than this
# part.
DEVIATIONS, UNSTEADY = 4.0, 0.35


def find_uneven_work(
    inputs: DetectionInput, steps: StepBatch, *, accused: Collection[str | None] = ()
) -> list[Problem]:
    """Find work that became uneven; no node is accused.

    ``accused``: nodes whose own hardware explains their delay.

    Notes
    -----
    Machines fail one at a time and leave the bulk alike; sequences of unequal length make all
    workers unlike at once, and in every step another way (J. Lin et al., "Understanding
    Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713). With
    few workers the bulk tells nothing; then each one's time from step to step does.
    """
    is_crowd = len(steps.workers) >= CROWD
    if is_crowd:
        steps = _without_common_excess(steps)
    found = _crowd(inputs, steps) if is_crowd else None
    if found is None and not _is_a_machine(inputs, steps):
        found = _mixed(inputs, steps, accused) or _restless(inputs, steps)
    if found is None:
        return []
    strength = found.excess / LEAST_RATIO
    score = CauseScore(CAUSE, strength, "spread_ratio", found.now, found.usual, 0, "ratio")
    onset_s = float(steps.ended_at_s[found.at] - steps.step_s[found.at])
    return [Problem(CAUSE, score, "waiting", onset_s, strength)]


def _without_common_excess(steps: StepBatch) -> StepBatch:
    """Subtract what all workers take longer or less than usual: a pause is not unevenness."""
    compute = steps.phases["compute_s"]
    excess_s = compute - median(compute.T)
    longer_s = np.maximum(quickest_fifth(excess_s), 0.0)
    shorter_s = np.minimum(-quickest_fifth(-excess_s), 0.0)
    compute_s = compute - (longer_s + shorter_s)[:, None]
    return replace(steps, phases={**steps.phases, "compute_s": compute_s})


def _is_a_machine(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Whether one node is late in every step by the same amount."""
    newest = steps.last(steps_beyond_chance(len(steps.workers)))
    if len(steps.workers) < 2 or not len(newest):
        return False
    late = lateness(newest)
    nodes = {inputs.node_of(steps.workers[i]) for i in late.late}
    return late.is_steady and late.is_no_luck and len(nodes) == 1


def _usual(inputs: DetectionInput) -> float | None:
    """Unevenness when the open alert fired."""
    held = [s for s in inputs.open_problems if s.cause == CAUSE]
    figure = held[0].evidence.get("culprit") if held else None
    return (figure or {}).get("peers_median")


def _crowd(inputs: DetectionInput, steps: StepBatch) -> PhaseRise | None:
    """Compare the workers of each step, each relative to its usual time.

    A long stage, or a slightly slower node, is the same in every step. Each stage is compared
    within itself: a stage that becomes longer makes half of the workers differ from the other
    half.
    """
    compute = steps.phases["compute_s"]
    own = compute / median(compute.T)
    centre = _centre(inputs, steps, own)
    unlike = GAUSSIAN * lower_median(np.abs(own / centre - 1.0))
    usual, n_now = _usual(inputs), n_newest(steps)
    if usual is not None:
        n_now = max(n_now, CALM_STEPS)
    # Random delays do not hit half of many workers at once, so a single long step is enough.
    return find_rise(
        unlike,
        least=_least(unlike, usual),
        n_now=n_now,
        usual=usual,
        n_calm=CALM_STEPS,
        clearly=1.0,
    )


def _centre(inputs: DetectionInput, steps: StepBatch, own: FloatArray) -> FloatArray:
    """Usual value among comparable workers: (n_steps, n_workers)."""
    stage = stage_of(inputs, steps)
    stages = np.unique(stage)
    if len(stages) < 2 or len(stage) < CROWD_OF_STAGE * len(stages):
        return np.broadcast_to(lower_median(own)[:, None], own.shape)
    typical = np.stack([lower_median(own[:, stage == s]) for s in stages], axis=1)
    return np.asarray(typical[:, np.searchsorted(stages, stage)])


def _mixed(
    inputs: DetectionInput, steps: StepBatch, accused: Collection[str | None]
) -> PhaseRise | None:
    """Compare the newest long steps of all workers with their usual times.

    A slow node affects one worker, a long stage its own by the same factor, a lower clock all of
    them. Sequence lengths differ at random.
    """
    n_now, is_open = n_newest(steps, seconds=FEW_S), _usual(inputs) is not None
    if n_now > FEW_STEPS or len(steps) < CALM_STEPS + FEW_STEPS + BASELINE_STEPS:
        return None
    is_crowd = len(steps.workers) >= CROWD
    width = n_now if is_crowd else FEW_STEPS
    n_looks = CALM_STEPS if is_open else 1
    slower = _slower(steps, width + n_looks - 1)
    unlike = max(UNLIKE_RATIO[is_crowd], DEVIATIONS * _scatter(steps, width + n_looks - 1))
    slower = slower[:, [inputs.node_of(worker) not in accused for worker in steps.workers]]
    if not is_crowd and n_newest(steps) == 1 and _are_several(slower[-1], unlike):
        return PhaseRise(0.0, float(np.ptp(slower[-1])), len(steps) - 1)
    for first in range(n_looks):
        rows = slower[first : first + width]
        is_long = rows >= unlike
        least = max(2 + is_crowd, int(np.ceil(MANY * rows.size)))
        if is_long.sum() >= least and _are_unlike(rows, is_long, unlike):
            at = len(steps) - len(slower) + first + int(np.argmax(is_long.any(axis=1)))
            return PhaseRise(0.0, float(np.ptp(rows[is_long])), at)
    return None


def _slower(steps: StepBatch, n_rows: int) -> FloatArray:
    """Relative excess of compute time in the newest steps."""
    compute = steps.phases["compute_s"]
    return np.asarray(compute[-n_rows:] / median(compute[:-n_rows].T) - 1.0)


def _scatter(steps: StepBatch, n_rows: int) -> float:
    """Variation of the compute time of a worker before the newest steps."""
    compute = steps.phases["compute_s"][:-n_rows]
    typical = median(compute.T)
    return GAUSSIAN * middle(lower_median(np.abs(compute - typical).T) / typical)


def _are_several(slower: FloatArray, least: float) -> bool:
    """Whether one long step was uneven: three of a few workers late, no two alike.

    Two nodes may fail in the same second, three do not.
    """
    late = np.sort(slower[slower >= least * SEVERAL_RATIO])
    return (
        late.size >= SEVERAL and late[-1] >= least and bool((np.diff(late) >= ALIKE * least).all())
    )


def _are_unlike(rows: FloatArray, is_long: NDArray[np.bool_], least: float) -> bool:
    """Whether values differ in general, not by a single outlier.

    A worker that is slow by the same factor each time is a slow node.
    """
    slower = rows[is_long]
    if is_long.any(axis=0).sum() == 1:
        least = max(least, UNSTEADY * float(slower.mean()))
    if slower.size < ENOUGH_TO_TELL:
        return bool(np.ptp(slower) >= least)
    return float(lower_median(np.abs(slower - lower_median(slower)))) >= ALIKE * least


def _restless(inputs: DetectionInput, steps: StepBatch) -> PhaseRise | None:
    """Compare each step of a worker with its previous one."""
    least = max(RESTLESS_STEPS, -(-RESTLESS_JUMPS // len(steps.workers)))
    if len(steps) < 2 * least:
        return None
    compute = steps.phases["compute_s"]
    jumps = lower_median(np.asarray(np.abs(np.diff(compute, axis=0)) / compute[:-1]))
    n_now = n_newest(steps, seconds=RESTLESS_S, least=least)
    usual = _usual(inputs)
    least_ratio = _least(jumps, usual)
    if usual is None and middle(jumps[-n_now:]) < least_ratio:
        return None
    # The median of three steps tells variation from a single jump.
    windows = np.sort(np.stack([jumps[:-2], jumps[1:-1], jumps[2:]]), axis=0)[1]
    found = find_rise(windows, least=least_ratio, n_now=n_now - 2, usual=usual, n_calm=n_now)
    return None if found is None else PhaseRise(found.usual, found.now, found.at + 1)


def _least(figure: FloatArray, usual: float | None) -> float:
    """Minimum rise that counts; where work was never even, the same amount again."""
    before = middle(figure[: max(1, len(figure) // 2)]) if usual is None else usual
    return max(LEAST_RATIO, before if np.isfinite(before) else 0.0)
