"""Workers that make others wait: one, several, or a different one in each step."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.causes import CAUSE_OF_PHASE, UNKNOWN
from telemetry.detect.findings import CauseScore, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.pace import (
    BASELINE_STEPS,
    PhaseRise,
    ShareCase,
    busy_s,
    find_rise,
    hardware_before_and_after,
    n_newest,
    open_baseline,
    quickest_fifth,
    work_s,
)
from telemetry.detect.parts import peer_nodes, score_parts
from telemetry.detect.rules import RULES
from telemetry.statistics.change_points import noise
from telemetry.statistics.peers import GAUSSIAN, deviations, lower_median, mean, median, middle
from telemetry.steps import StepBatch

# Phases that a worker spends on its own.
OWN_PHASES = ("compute_s", "input_s", "checkpoint_s", "other_s")
# Required deviations above the peers, and the minimum deviation assumed.
DEVIATIONS = 5.0
SPREAD_RATIO, TINY_S = 0.01, 1e-9
# Below this excess of the last worker, the work is even.
UNEVEN_RATIO = 0.05
# Unequal sequences make this many workers unlike, by this part of the excess of the last one.
# If the others are alike, one machine is late.
BULK, BULK_RATIO = 6, 0.15
# A worker is late repeatedly if it is late in this share of the steps.
USUALLY = 0.75
# Workers above this share of the largest excess count as late too.
AS_LATE = 0.5
# A slow node has the same delay in every step, within this tolerance.
STEADY_RATIO = 0.35
# Upper bound of the probability that the same worker is last by chance.
CHANCE_LIMIT = 0.01

Pattern = Literal["steady", "rotating", "none"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """Comparison of the busy times of workers over some steps.

    ``late``: columns of workers that are late repeatedly, worst first. ``worst``: the first of
    them, else the latest on average. ``own_s`` (n_workers,): typical busy times. ``spread_ratio``:
    how much longer the last worker is busy than the usual one; ``variation_ratio``: robust
    deviation of that from step to step. ``phase`` contains most of the excess of the worst worker.
    """

    pattern: Pattern
    worst: int
    late: tuple[int, ...]
    own_s: FloatArray
    strength: float
    spread_ratio: float
    variation_ratio: float
    phase: str
    n_steps: int

    @property
    def is_steady(self) -> bool:
        """Whether the same workers are late by about the same amount in every step."""
        return self.pattern == "steady" and (
            self.variation_ratio <= STEADY_RATIO * self.spread_ratio
        )

    @property
    def n_peers(self) -> int:
        return max(0, len(self.own_s) - 1)

    @property
    def is_beyond_chance(self) -> bool:
        """Whether one worker is last too often for chance."""
        return self.n_steps >= steps_beyond_chance(int(np.isfinite(self.own_s).sum()))


def steps_beyond_chance(n_workers: int, *, chance: float = CHANCE_LIMIT) -> int:
    """Count the steps in which the same worker must be last to rule out chance."""
    if n_workers < 2:
        return 1
    return max(3, 1 + int(np.ceil(np.log(1 / chance) / np.log(n_workers))))


def lateness(steps: StepBatch) -> Lateness:
    """Compare the busy times of workers.

    Parameters
    ----------
    steps : StepBatch
        Steps in which the share is above its limit; workers that report nothing are NaN.

    Notes
    -----
    All workers end the collective together, so the one that waits least arrived last, and its own
    time is the longest. The duration of the collective shows nothing: a barrier makes all equal.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713.
    """
    own = busy_s(steps)
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
    spread_ratio = middle(spread)
    pattern: Pattern = "none"
    if late or spread_ratio >= UNEVEN_RATIO:
        pattern = "steady" if late else "rotating"
    # The first step may be half healthy and does not count.
    settled = spread[1:, 0] if len(spread) > 2 else spread[:, 0]
    # Of a few steps, half their range: a node that became slow or recovered in between is a single
    # jump, not variation.
    variation_ratio = float(np.ptp(settled)) / 2 if settled.size < 4 else noise(settled)
    own_phases = {name: median(steps.phases[name].T) for name in OWN_PHASES}
    excess = {name: float(each[worst] - median(each)) for name, each in own_phases.items()}
    return Lateness(
        pattern=pattern,
        worst=worst,
        late=late,
        own_s=typical,
        strength=float(z[worst] / DEVIATIONS),
        spread_ratio=spread_ratio,
        variation_ratio=float(variation_ratio),
        phase=max(excess, key=lambda phase: excess[phase]),
        n_steps=len(steps),
    )


def unevenness(steps: StepBatch) -> float:
    """Robust relative deviation of workers within a step.

    Notes
    -----
    Machines fail one at a time and leave the bulk alike; unequal work makes all unlike at once,
    and shows in the very first step.
    """
    own = busy_s(steps)
    usual = lower_median(own)[:, None]
    spread = GAUSSIAN * lower_median(np.abs(own - usual))
    return middle(spread / np.maximum(usual[:, 0], TINY_S))


HOST = "vcpu_usage_ratio"
# Required rise of the host's load over its peers where a worker waits for its input.
HOST_RATIO = 0.15
# Phases that name their cause, and those that hardware or anything else makes longer.
NAMED_PHASES = ("input_s", "checkpoint_s")
MACHINE_PHASES = ("compute_s", "other_s")


def score_workers(case: ShareCase, late: Lateness) -> list[CauseScore]:
    """Score every cause of workers that wait for others."""
    node = case.inputs.node_of(case.after.workers[late.worst])
    is_steady = late.pattern == "steady"
    scores = []
    for phase in NAMED_PHASES:
        typical = median(case.after.phases[phase].T)
        value, peers = float(typical[late.worst]), float(median(typical))
        strength = late.strength if is_steady and late.phase == phase else 0.0
        cause, n_peers = CAUSE_OF_PHASE[phase], late.n_peers
        scores.append(CauseScore(cause, strength, phase, value, peers, n_peers, "s", node))
    if is_steady and late.phase == "other_s" and node is not None:
        scores += _score_host(case, node)
    if is_steady and late.phase == "compute_s" and node is not None:
        is_even = _variability(case, late) < UNEVEN_RATIO and case.inputs.n_stages == 1
        nodes = {case.inputs.node_of(case.after.workers[i]) for i in late.late}
        is_alone = nodes == {node} and not case.after.phases["checkpoint_s"].any()
        scores += score_parts(case, node, blame_only_device=is_even, is_alone=is_alone)
    return [
        *scores,
        _score_stage(case, late),
        _score_sequences(case, late),
        _score_machine(case, late, node),
    ]


def _score_host(case: ShareCase, node: str) -> list[CauseScore]:
    """Score a host that works while the cores of its node rest between executions.

    A runtime trace shows such rests, and no input time.
    """
    _, span = hardware_before_and_after(case, [HOST], nodes={node, *peer_nodes(case, node)})
    if HOST not in span.values or node not in span.nodes or not span.values[HOST].shape[2]:
        return []
    hosts = mean(span.values[HOST][..., 0], axis=0)
    own, peers = float(hosts[span.nodes.index(node)]), float(lower_median(hosts))
    strength = (own / peers - 1.0) / HOST_RATIO if peers > 0 else 0.0
    n_peers = max(0, int(np.isfinite(hosts).sum()) - 1)
    cause = CAUSE_OF_PHASE["input_s"]
    return [CauseScore(cause, strength, HOST, own, peers, n_peers, "ratio", node)]


def _score_stage(case: ShareCase, late: Lateness) -> CauseScore:
    """Score a pipeline stage with alike workers that takes longer than the others."""
    stage, own = case.inputs.stage, late.own_s
    stages = [own[stage == i] for i in range(case.inputs.n_stages)]
    typical = np.array([float(median(each)) for each in stages])
    usual = float(lower_median(typical))
    unlike = [float(median(np.abs(each - median(each)))) for each in stages]
    score = CauseScore("stage_imbalance", 0.0, "own_s", np.nan, usual, len(stages) - 1, "s")
    if len(stages) < 2 or not np.isfinite(typical).any() or late.phase != "compute_s":
        return score
    longest = int(np.nanargmax(typical))
    if late.pattern != "steady" or stage[late.worst] != longest:
        return score
    noise_s = max(float(np.nanmax(unlike)), late.variation_ratio * usual)
    least = max(UNEVEN_RATIO * usual, DEVIATIONS * noise_s)
    strength = (typical[longest] - usual) / least
    return replace(score, strength=_capped_strength(strength), value=float(typical[longest]))


def _score_sequences(case: ShareCase, late: Lateness) -> CauseScore:
    """Score uneven work.

    All workers differ at once, the last one changes from step to step, or its delay does. A slow
    node is slow by the same factor in every step.
    """
    before, now = unevenness(case.before) if case.before else 0.0, unevenness(case.after)
    is_one = len(late.late) == 1 and np.isfinite(late.own_s).sum() >= BULK
    is_alone = is_one and now < BULK_RATIO * late.spread_ratio
    strength = max(now - before, 0.0 if is_alone else _variability(case, late)) / UNEVEN_RATIO
    if late.pattern == "rotating" and lateness(case.newest).pattern == "rotating":
        strength = max(strength, late.spread_ratio / UNEVEN_RATIO)
    return CauseScore(
        cause="seq_imbalance",
        strength=_capped_strength(strength if late.phase == "compute_s" else 0.0),
        metric="spread_ratio",
        value=late.spread_ratio,
        peers_median=before,
        n_peers=late.n_peers,
        unit="ratio",
    )


def _variability(case: ShareCase, late: Lateness) -> float:
    """Rise of the variation of the delay from step to step.

    The noise of a steadily late node does not count.
    """
    if late.is_steady:
        return 0.0
    usual = lateness(case.before).variation_ratio if case.before else 0.0
    return late.variation_ratio - usual


def _score_machine(case: ShareCase, late: Lateness, node: str | None) -> CauseScore:
    """Score one node that is late in every step, for whatever reason.

    Steps alone are enough: a job may run without agent, or the reason may have no counter.
    """
    late = late if late.n_steps >= len(case.after) else lateness(case.after)
    value, usual = float(late.own_s[late.worst]), float(lower_median(late.own_s))
    nodes = {case.inputs.node_of(case.after.workers[i]) for i in late.late}
    is_alone = node is not None and nodes == {node}
    is_certain = late.is_steady and late.is_beyond_chance and late.phase in MACHINE_PHASES
    strength = _capped_strength(late.strength if is_alone and is_certain else 0.0)
    return CauseScore(UNKNOWN, strength, "own_s", value, usual, late.n_peers, "s", node)


def _capped_strength(strength: float) -> float:
    """At most 1, so that slow nodes come first: one slow node may be all of a stage."""
    return float(np.clip(strength, 0.0, 1.0)) if np.isfinite(strength) else 0.0


CAUSE = "stage_imbalance"
# Minimum rise of a stage relative to the others, as a share of the step.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# Random delays do not hit this many workers of a stage at once. They are late alike in each of
# this many steps, within this tolerance.
ENOUGH_WORKERS, ENOUGH_STEPS, UNLIKE = 2, 3, 0.35
# Least share of the steps that each worker reports while all stay.
MOSTLY_REPORTED = 0.8


def find_longer_stage(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find a stage whose fastest worker takes longer than before, relative to other stages.

    Notes
    -----
    Where most workers belong to the long stage, as of three nodes in two stages, they are what is
    usual and none is late: stages are compared, not workers. A stage of one worker may be a
    machine; see ``find_late_workers``. J. Lin et al., "Understanding Stragglers in Large Model
    Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713.
    """
    stage = stage_of(inputs, steps)
    if inputs.n_stages < 2 or len(stage) != len(steps.workers) or len(steps) < ENOUGH_STEPS:
        return []
    compute = steps.phases["compute_s"]
    usual = open_baseline(inputs, steps, cause=CAUSE)
    found: list[Problem] = []
    typical = np.stack([median(compute[:, stage == s]) for s in range(inputs.n_stages)], axis=1)
    for s in range(inputs.n_stages):
        own = compute[:, stage == s]
        if own.shape[1] < ENOUGH_WORKERS:
            continue
        # When a slow stage recovers, the stage ahead of it is not late.
        lag = np.maximum(np.fmin.reduce(own, axis=1) - lower_median(typical), 0.0)
        least_s = LEAST_RATIO * middle(work_s(steps))
        n_now = max(ENOUGH_STEPS, n_newest(steps))
        lifted = find_rise(lag, least=least_s, n_now=n_now, usual=usual)
        if lifted is None:
            continue
        # The workers of the stage are late alike, in each of the newest steps.
        newest = own[-ENOUGH_STEPS:]
        apart = middle(np.fmax.reduce(newest, axis=1) - np.fmin.reduce(newest, axis=1))
        # An open alert lasts through a step in which a worker of the stage is delayed.
        is_alike = max(apart, float(np.ptp(lag[-ENOUGH_STEPS:]))) <= UNLIKE * lifted.excess
        if is_alike or usual is not None:
            names = tuple(np.array(steps.workers)[stage == s].tolist())
            found.append(_problem(steps, lifted, names, inputs.n_stages))
    return sorted(found, key=lambda each: -each.strength)[:1]


def stage_of(inputs: DetectionInput, steps: StepBatch) -> IntArray:
    """Stage of each worker; empty if some have left, since positions are unknown then.

    Single reports are lost now and then.
    """
    reported = np.isfinite(steps.phases["compute_s"])
    stays = reported[-ENOUGH_STEPS:].any(axis=0) & (reported.mean(axis=0) >= MOSTLY_REPORTED)
    return inputs.stage if stays.all() else np.zeros(0, dtype=int)


def _problem(steps: StepBatch, found: PhaseRise, late: tuple[str, ...], n_stages: int) -> Problem:
    step_s, tokens = middle(work_s(steps)), float(steps.tokens[-1])
    strength = found.excess / (LEAST_RATIO * step_s)
    return Problem(
        cause=CAUSE,
        score=CauseScore(CAUSE, strength, "own_s", found.now, found.usual, n_stages - 1, "s"),
        kind="waiting",
        onset_s=float(steps.ended_at_s[found.at] - steps.step_s[found.at]),
        strength=strength,
        late=late,
        extra={
            "phase_s": found.now,
            "baseline_phase_s": found.usual,
            "tokens": tokens if np.isfinite(tokens) else None,
        },
    )


UNEVEN_WORK = "seq_imbalance"
# Fewer workers are compared with their own past.
MANY_WORKERS = 6
# The median of a stage needs this many workers.
ENOUGH_IN_STAGE = 3
# Required rise of the deviation between workers, or between steps of a worker.
UNLIKE_LEAST_RATIO = 0.02
# Variation over steps needs more steps than variation over workers.
VARIES_S, VARIES_STEPS, VARIES_CHANGES = 10.0, 3, 8
# Chance varies: this many even steps resolve an open alert.
EVEN_STEPS = 4
# For long steps: required excess with few and with many workers; required share of workers, at
# least three; required deviation between them, absolute or relative.
UNLIKE_RATIO, FEW_STEPS, FEW_S = (0.05, 0.04), 2, 6.0
MANY, ENOUGH_VALUES, ALIKE = 0.15, 4, 0.2
# This many of a few workers make a single step uneven, each late by this part of the limit.
SEVERAL, SEVERAL_RATIO = 3, 0.4
# Required deviations of the normal variation. The slowness of a node varies by less than this
# part.
UNLIKE_DEVIATIONS, VARIES_RATIO = 4.0, 0.35


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
    usual = _usual_unevenness(inputs)
    found, has_many = None, len(steps.workers) >= MANY_WORKERS
    if len(steps.workers) >= SEVERAL:
        compute_s = _without_common(steps.phases["compute_s"], has_many=has_many)
        steps = replace(steps, phases={**steps.phases, "compute_s": compute_s})
    if has_many:
        found = _rise_between_workers(inputs, steps, usual)
    if found is None and not _is_a_machine(inputs, steps):
        found = _rise_of_long_steps(inputs, steps, accused) or _rise_between_steps(steps, usual)
    if found is None or (usual is None and _became_shorter(steps, found)):
        return []
    strength = found.excess / UNLIKE_LEAST_RATIO
    score = CauseScore(UNEVEN_WORK, strength, "spread_ratio", found.now, found.usual, 0, "ratio")
    onset_s = float(steps.ended_at_s[found.at] - steps.step_s[found.at])
    return [Problem(UNEVEN_WORK, score, "waiting", onset_s, strength)]


def _without_common(compute_s: FloatArray, *, has_many: bool) -> FloatArray:
    """Leave out what all workers take longer or less than usual: (n_steps, n_workers) seconds.

    That is a pause or a lower clock, not unevenness; of a few workers, if it is the same for all.
    A lower clock makes the longest work longer by most.
    """
    typical_s = median(compute_s.T)
    excess_s = compute_s - typical_s
    longer_s = np.maximum(quickest_fifth(excess_s), 0.0)
    shorter_s = np.minimum(-quickest_fifth(-excess_s), 0.0)
    is_pause = has_many | (np.ptp(excess_s, axis=1) <= ALIKE * longer_s)
    added = compute_s - np.where(is_pause, longer_s + shorter_s, 0.0)[:, None]
    ratio = compute_s / typical_s
    slower = np.maximum(quickest_fifth(ratio), 1.0)
    is_slower = has_many | (np.ptp(ratio, axis=1) <= ALIKE * (slower - 1.0))
    slowed = compute_s / np.where(is_slower, slower, 1.0)[:, None]
    unlike = [median(np.abs(each / typical_s - 1.0)) for each in (added, slowed)]
    return np.where((unlike[1] < unlike[0])[:, None], slowed, added)


def _became_shorter(steps: StepBatch, found: PhaseRise) -> bool:
    """Whether steps take no longer since then: uneven work makes each as long as its longest part.

    When a long stage is mended its workers are unlike what they used to be, too.
    """
    lasted_s = work_s(steps)
    return middle(lasted_s[found.at :]) < middle(lasted_s[: found.at])


def _is_a_machine(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Whether one node is late in every step by the same amount."""
    newest = steps.last(steps_beyond_chance(len(steps.workers)))
    if len(steps.workers) < 2 or not len(newest):
        return False
    late = lateness(newest)
    nodes = {inputs.node_of(steps.workers[i]) for i in late.late}
    return late.is_steady and late.is_beyond_chance and len(nodes) == 1


def _usual_unevenness(inputs: DetectionInput) -> float | None:
    """Unevenness when the open alert fired."""
    held = [s for s in inputs.open_problems if s.cause == UNEVEN_WORK]
    figure = held[0].evidence.get("culprit") if held else None
    return (figure or {}).get("peers_median")


def _rise_between_workers(
    inputs: DetectionInput, steps: StepBatch, usual: float | None
) -> PhaseRise | None:
    """Compare the workers of each step, each relative to its usual time.

    A long stage, or a slightly slower node, is the same in every step. Each stage is compared
    within itself: a stage that becomes longer makes half of the workers differ from the other
    half.
    """
    compute = steps.phases["compute_s"]
    own = compute / median(compute.T)
    centre, stage = lower_median(own)[:, None], stage_of(inputs, steps)
    stages = np.unique(stage)
    if len(stages) > 1 and len(stage) >= ENOUGH_IN_STAGE * len(stages):
        typical = np.stack([lower_median(own[:, stage == s]) for s in stages], axis=1)
        centre = typical[:, np.searchsorted(stages, stage)]
    unlike = GAUSSIAN * lower_median(np.abs(own / centre - 1.0))
    n_now = n_newest(steps, least=1 if usual is None else EVEN_STEPS)
    # Random delays do not hit half of many workers at once, so a single long step is enough.
    return find_rise(
        unlike,
        least=_least(unlike, usual),
        n_now=n_now,
        usual=usual,
        n_to_resolve=EVEN_STEPS,
        clearly=1.0,
    )


def _rise_of_long_steps(
    inputs: DetectionInput, steps: StepBatch, accused: Collection[str | None]
) -> PhaseRise | None:
    """Compare the newest long steps of all workers with their usual times.

    A slow node affects one worker, a long stage its own by the same factor, a lower clock all of
    them. Sequence lengths differ at random.
    """
    n_now, is_open = n_newest(steps, seconds=FEW_S), _usual_unevenness(inputs) is not None
    if n_now > FEW_STEPS or len(steps) < EVEN_STEPS + FEW_STEPS + BASELINE_STEPS:
        return None
    has_enough = len(steps.workers) >= MANY_WORKERS
    width = n_now if has_enough else FEW_STEPS
    n_looks = EVEN_STEPS if is_open else 1
    compute, n_rows = steps.phases["compute_s"], width + n_looks - 1
    before, typical = compute[:-n_rows], median(compute[:-n_rows].T)
    slower = np.asarray(compute[-n_rows:] / typical - 1.0)
    scatter = GAUSSIAN * middle(lower_median(np.abs(before - typical).T) / typical)
    unlike = max(UNLIKE_RATIO[has_enough], UNLIKE_DEVIATIONS * scatter)
    slower = slower[:, [inputs.node_of(worker) not in accused for worker in steps.workers]]
    late = np.sort(slower[-1][slower[-1] >= unlike * SEVERAL_RATIO])
    # Two nodes may fail in the same second. Three of a few workers late, no two alike: uneven.
    is_several = late.size >= SEVERAL and late[-1] >= unlike
    is_several = is_several and bool((np.diff(late) >= ALIKE * unlike).all())
    if is_several and not has_enough and n_newest(steps) == 1:
        return PhaseRise(0.0, float(np.ptp(slower[-1])), len(steps) - 1)
    for first in range(n_looks):
        rows = slower[first : first + width]
        is_long = rows >= unlike
        least = max(2 + has_enough, int(np.ceil(MANY * rows.size)))
        if is_long.sum() >= least and _are_unlike(rows, is_long, unlike):
            at = len(steps) - len(slower) + first + int(np.argmax(is_long.any(axis=1)))
            return PhaseRise(0.0, float(np.ptp(rows[is_long])), at)
    return None


def _are_unlike(rows: FloatArray, is_long: NDArray[np.bool_], least: float) -> bool:
    """Whether values differ in general, not by a single outlier.

    A worker that is slow by the same factor each time is a slow node, also if it became slow
    within the first step. What is twice as long scatters twice as much.
    """
    slower = rows[is_long]
    if is_long.any(axis=0).sum() == 1:
        slower = slower[1:]
        least = max(least, VARIES_RATIO * middle(slower))
    if slower.size < 2:
        return False
    if slower.size < ENOUGH_VALUES:
        return bool(np.ptp(slower) >= least)
    usual = float(lower_median(slower))
    return float(lower_median(np.abs(slower - usual))) >= ALIKE * least * (1.0 + usual)


def _rise_between_steps(steps: StepBatch, usual: float | None) -> PhaseRise | None:
    """Compare each step of a worker with its previous one."""
    least = max(VARIES_STEPS, -(-VARIES_CHANGES // len(steps.workers)))
    if len(steps) < 2 * least:
        return None
    compute = steps.phases["compute_s"]
    jumps = lower_median(np.asarray(np.abs(np.diff(compute, axis=0)) / compute[:-1]))
    n_now = n_newest(steps, seconds=VARIES_S, least=least)
    least_ratio = _least(jumps, usual)
    if usual is None and middle(jumps[-n_now:]) < least_ratio:
        return None
    # The median of three steps tells variation from a single jump.
    windows = np.sort(np.stack([jumps[:-2], jumps[1:-1], jumps[2:]]), axis=0)[1]
    found = find_rise(windows, least=least_ratio, n_now=n_now - 2, usual=usual, n_to_resolve=n_now)
    return None if found is None else PhaseRise(found.usual, found.now, found.at + 1)


def _least(figure: FloatArray, usual: float | None) -> float:
    """Minimum rise that counts; where work was never even, the same amount again."""
    before = middle(figure[: max(1, len(figure) // 2)]) if usual is None else usual
    return max(UNLIKE_LEAST_RATIO, before if np.isfinite(before) else 0.0)
