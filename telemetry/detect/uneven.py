"""Work that is uneven: all workers unlike at once, each step another way."""

from collections.abc import Collection

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
# Fewer workers than this are no crowd: their own ups and downs must tell.
CROWD = 6
# With fewer workers to a stage their own middle tells nothing.
CROWD_OF_STAGE = 3
# How much more unlike workers, or a worker's steps, must be than they were.
LEAST_RATIO = 0.02
# Ups and downs show over more steps than a crowd needs.
RESTLESS_S, RESTLESS_STEPS, RESTLESS_JUMPS = 10.0, 3, 8
# Luck varies: so many even steps end an open alert.
CALM_STEPS = 4
# In long steps, few as they are: workers that take so much longer, of few or of many; so many of
# all, three at least; unlike by that, or on the whole by this part of it.
UNLIKE_RATIO, FEW_STEPS, FEW_S = (0.05, 0.04), 2, 6.0
MANY, ENOUGH_TO_TELL, ALIKE = 0.15, 4, 0.2
# So many of few workers make a single step uneven, late by this part of that.
SEVERAL, SEVERAL_RATIO = 3, 0.4
# Deviations of its own ups and downs; a machine's slowness differs by less than this part of it.
DEVIATIONS, UNSTEADY = 4.0, 0.35


def find_uneven_work(
    inputs: DetectionInput, steps: StepBatch, *, accused: Collection[str | None] = ()
) -> list[Problem]:
    """Find work that has become uneven; no machine is to blame for that.

    ``accused`` are the nodes whose own hardware says what makes them slow.

    Notes
    -----
    Machines fail one at a time and leave the bulk alike; sequences of unequal length make all
    workers unlike at once, and in every step another way (J. Lin et al., "Understanding
    Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713). With
    few workers the bulk tells nothing; then each one's time from step to step does.
    """
    is_crowd = len(steps.workers) >= CROWD
    found = _crowd(inputs, steps) if is_crowd else None
    if found is None and not _is_a_machine(inputs, steps):
        found = _mixed(inputs, steps, accused) or _restless(inputs, steps)
    if found is None:
        return []
    strength = found.excess / LEAST_RATIO
    score = CauseScore(CAUSE, strength, "spread_ratio", found.now, found.usual, 0, "ratio")
    onset_s = float(steps.ended_at_s[found.at] - steps.step_s[found.at])
    return [Problem(CAUSE, score, "waiting", onset_s, strength)]


def _is_a_machine(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Tell whether one machine is late in every step, by as much: that is no uneven work."""
    newest = steps.last(steps_beyond_chance(len(steps.workers)))
    if len(steps.workers) < 2 or not len(newest):
        return False
    late = lateness(newest)
    nodes = {inputs.node_of(steps.workers[i]) for i in late.late}
    return late.is_steady and late.is_no_luck and len(nodes) == 1


def _usual(inputs: DetectionInput) -> float | None:
    """Return how uneven work was when the open alert fired."""
    held = [s for s in inputs.open_problems if s.cause == CAUSE]
    figure = held[0].evidence.get("culprit") if held else None
    return (figure or {}).get("peers_median")


def _crowd(inputs: DetectionInput, steps: StepBatch) -> PhaseRise | None:
    """Compare the workers of each step, each relative to what it usually takes.

    A long stage, or a machine a little slower than others, is so in every step. A stage that
    grows longer makes half of a crowd unlike the other half: each stage is its own crowd.
    """
    compute = steps.phases["compute_s"]
    own = compute / median(compute.T)
    centre = _centre(inputs, steps, own)
    unlike = GAUSSIAN * lower_median(np.abs(own / centre - 1.0))
    usual, n_now = _usual(inputs), n_newest(steps)
    if usual is not None:
        n_now = max(n_now, CALM_STEPS)
    # Half of a crowd does not stumble at once: a single long step will do.
    return find_rise(
        unlike,
        least=_least(unlike, usual),
        n_now=n_now,
        usual=usual,
        n_calm=CALM_STEPS,
        clearly=1.0,
    )


def _centre(inputs: DetectionInput, steps: StepBatch, own: FloatArray) -> FloatArray:
    """Return what is usual among each worker's like: (n_steps, n_workers)."""
    stage = stage_of(inputs, steps)
    stages = np.unique(stage)
    if len(stages) < 2 or len(stage) < CROWD_OF_STAGE * len(stages):
        return np.broadcast_to(lower_median(own)[:, None], own.shape)
    typical = np.stack([lower_median(own[:, stage == s]) for s in stages], axis=1)
    return np.asarray(typical[:, np.searchsorted(stages, stage)])


def _mixed(
    inputs: DetectionInput, steps: StepBatch, accused: Collection[str | None]
) -> PhaseRise | None:
    """Compare the newest long steps of all workers with what each usually takes.

    A sick machine makes one worker slow, a long stage its own by the same factor each, a lower
    clock all of them; who draws longer sequences is slow by as much as chance has it.
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
    """Return how much longer each worker computes than it used to, as a ratio, newest steps.

    Of many, what all take longer is taken off: that is no unevenness.
    """
    compute = steps.phases["compute_s"]
    slower = np.asarray(compute[-n_rows:] / median(compute[:-n_rows].T) - 1.0)
    if len(steps.workers) < CROWD:
        return slower
    return np.asarray(slower - np.maximum(quickest_fifth(slower), 0.0)[:, None])


def _scatter(steps: StepBatch, n_rows: int) -> float:
    """Return by how much a worker's computing differs from step to step, before the newest."""
    compute = steps.phases["compute_s"][:-n_rows]
    typical = median(compute.T)
    return GAUSSIAN * middle(lower_median(np.abs(compute - typical).T) / typical)


def _are_several(slower: FloatArray, least: float) -> bool:
    """Tell whether a single long step was uneven: three of few workers late, no two alike.

    Two machines may fall ill in the same second, three do not.
    """
    late = np.sort(slower[slower >= least * SEVERAL_RATIO])
    return (
        late.size >= SEVERAL and late[-1] >= least and bool((np.diff(late) >= ALIKE * least).all())
    )


def _are_unlike(rows: FloatArray, is_long: NDArray[np.bool_], least: float) -> bool:
    """Tell whether figures differ on the whole, not by one that sticks out.

    One worker that is slow by the same factor each time is a slow machine.
    """
    slower = rows[is_long]
    if is_long.any(axis=0).sum() == 1:
        least = max(least, UNSTEADY * float(slower.mean()))
    if slower.size < ENOUGH_TO_TELL:
        return bool(np.ptp(slower) >= least)
    return float(lower_median(np.abs(slower - lower_median(slower)))) >= ALIKE * least


def _restless(inputs: DetectionInput, steps: StepBatch) -> PhaseRise | None:
    """Compare each worker's step with its step before."""
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
    # The middle of three tells ups and downs from a single jump to another level.
    windows = np.sort(np.stack([jumps[:-2], jumps[1:-1], jumps[2:]]), axis=0)[1]
    found = find_rise(windows, least=least_ratio, n_now=n_now - 2, usual=usual, n_calm=n_now)
    return None if found is None else PhaseRise(found.usual, found.now, found.at + 1)


def _least(figure: FloatArray, usual: float | None) -> float:
    """Return the smallest rise that counts: of work that never was even, as much again."""
    before = middle(figure[: max(1, len(figure) // 2)]) if usual is None else usual
    return max(LEAST_RATIO, before if np.isfinite(before) else 0.0)
