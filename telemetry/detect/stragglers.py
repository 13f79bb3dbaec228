"""Workers that make others wait: one, several, or a different one in each step."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.causes import UNKNOWN
from telemetry.detect.findings import CauseScore, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.pace import PhaseRise, find_rise, n_newest, work_s
from telemetry.detect.rules import RULES
from telemetry.detect.share import CHANGED_RATIO, ShareCase, busy_s, hardware_before_and_after
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
# A worker is late repeatedly if it is late in this share of the steps.
USUALLY = 0.75
# Workers above this share of the largest excess count as late too.
AS_LATE = 0.5
# A slow node has the same delay in every step, within this tolerance.
STEADY_RATIO = 0.35
# Upper bound of the probability that the same worker is last by chance.
LUCK = 0.01

Pattern = Literal["steady", "rotating", "none"]


@dataclass(frozen=True, slots=True)
class Lateness:
    """Comparison of the busy times of workers over some steps.

    ``late``: columns of workers that are late repeatedly, worst first. ``worst``: the first of
    them, else the latest on average. ``own_s`` (n_workers,): typical busy times. ``spread_ratio``:
    how much longer the last worker is busy than the usual one; ``restless_ratio``: robust
    deviation of that from step to step. ``phase`` contains most of the excess of the worst worker.
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
        """Whether the same workers are late by about the same amount in every step."""
        return self.pattern == "steady" and (
            self.restless_ratio <= STEADY_RATIO * self.spread_ratio
        )

    @property
    def is_no_luck(self) -> bool:
        """Whether one worker is last too often for chance."""
        return self.n_steps >= steps_beyond_chance(int(np.isfinite(self.own_s).sum()))


def steps_beyond_chance(n_workers: int) -> int:
    """Count the steps in which the same worker must be last to rule out chance."""
    if n_workers < 2:
        return 1
    return max(3, 1 + int(np.ceil(np.log(1 / LUCK) / np.log(n_workers))))


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
    # The first step may be half healthy and does not count.
    settled = spread[1:, 0] if len(spread) > 2 else spread[:, 0]
    return Lateness(
        pattern=_pattern(late, middle(spread)),
        worst=worst,
        late=late,
        own_s=typical,
        strength=float(z[worst] / DEVIATIONS),
        spread_ratio=middle(spread),
        restless_ratio=float(_step_to_step_spread(settled)),
        phase=_phase(steps, worst),
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


def _step_to_step_spread(x: FloatArray) -> float:
    """Variation from step to step; of a few steps, half their range.

    A node that became slow or recovered in between is a single jump, not variation.
    """
    return float(np.ptp(x)) / 2 if x.size < 4 else noise(x)


def _pattern(late: tuple[int, ...], spread_ratio: float) -> Pattern:
    if late:
        return "steady"
    return "rotating" if spread_ratio >= UNEVEN_RATIO else "none"


def _phase(steps: StepBatch, worker: int) -> str:
    """Return the phase with the largest excess over the peers."""
    excess = {}
    for phase in OWN_PHASES:
        typical = median(steps.phases[phase].T)
        excess[phase] = float(typical[worker] - median(typical))
    return max(excess, key=lambda phase: excess[phase])


UTILIZATION, BANDWIDTH = "core_utilization_ratio", "hbm_bandwidth_bytes_per_s"
POWER, HOST = "device_power_ratio", "vcpu_usage_ratio"
PART_METRICS = (UTILIZATION, BANDWIDTH)
# Devices that wait for a slow one draw less power than before. The slow one saves this share of
# what they save, because it is clocked all the time. No figure is published: assumed.
CLOCKED_SAVES = 0.7
# Required distance of the power from the other devices of the node, in deviations and relative,
# and the seconds that show it.
POWER_DEVIATIONS, POWER_RATIO, POWER_S = 5.0, 0.015, 6
# Required rise of the host's load over its peers where a worker waits for its input.
HOST_RATIO = 0.15
# Required deviations from the other parts of the node, and the minimum deviation assumed,
# relative to the usual value: together 7.5 %.
LATE_PARTS_DEVIATIONS, SPREAD = 5.0, 0.015
# Required distance of the only part of a node from other nodes.
ALONE = 0.2
ENOUGH_PEER_NODES, ENOUGH_DEVICES = 63, 3


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of the same kind of a late node; each array (n,), NaN where missing.

    ``role``: usual value of the same part on ``n_peer_nodes`` other nodes. ``to_peer_nodes``:
    ratio to it. ``relative``: that ratio over the usual one of this node.
    """

    value: FloatArray
    role: FloatArray
    n_peer_nodes: int
    to_peer_nodes: FloatArray
    relative: FloatArray

    @property
    def is_only(self) -> bool:
        """Whether the node has one such part, so that its peers are on other nodes."""
        return self.relative.size == 1

    @property
    def usual(self) -> float:
        """NaN without peers."""
        if self.is_only:
            return float(self.role[0]) if self.n_peer_nodes else np.nan
        return float(median(self.value))

    @property
    def n_peers(self) -> int:
        return self.n_peer_nodes if self.is_only else int(np.isfinite(self.value).sum()) - 1

    @property
    def strength(self) -> FloatArray:
        """Evidence over threshold that each part is above its peers: (n,).

        A comparison with other nodes proves less, so its threshold is higher.
        """
        if self.is_only:
            return (self.to_peer_nodes - 1.0) / ALONE
        return deviations(self.relative, floor=SPREAD) / LATE_PARTS_DEVIATIONS


def score_parts(case: ShareCase, node: str, *, blame_only_device: bool = True) -> list[CauseScore]:
    """Score slow memory, slow cores and throttled accelerators, the most specific first.

    A single accelerator can only be compared with other nodes. The caller decides whether it is
    accused when all cores of the node are busy for longer (``blame_only_device``).

    Notes
    -----
    A tensor-parallel group meets after every layer, so one slow part paces its whole node: it
    alone stays busy while the others wait for it. An accelerator starved of memory moves fewer
    bytes besides, which no slow core or throttled accelerator does to it alone.
    """
    metrics = (*PART_METRICS, POWER)
    before, span = hardware_before_and_after(case, metrics, nodes={node, *_peer_nodes(case, node)})
    if node not in span.nodes or not len(span.ticks):
        return []
    peer_rows = [i for i, name in enumerate(span.nodes) if name != node]
    scores = []
    if BANDWIDTH in span.values:
        scores.append(_score_memory(node, parts(span, BANDWIDTH, node, peer_rows, sign=-1)))
    if UTILIZATION in span.values:
        cores = parts(span, UTILIZATION, node, peer_rows)
        per_device = max(1, case.inputs.cores_per_device)
        if cores.value.size % per_device:
            per_device = 1
        scores += _score_cores(node, cores, per_device)
        if case.inputs.cores_per_device == 1:
            # With one core per accelerator the two look the same.
            scores = [each for each in scores if each.cause != "throttle"]
            scores = [
                replace(each, cause="throttle") if each.cause == "slow_core" else each
                for each in scores
            ]
        if cores.value.size == per_device and not blame_only_device:
            scores = [score for score in scores if score.cause != "throttle"]
    if not any(score.stands_out for score in scores):
        scores += _score_power(case, node, before, span)
    return scores


def _score_power(case: ShareCase, node: str, before: Span, since: Span) -> list[CauseScore]:
    """Score the device that saves less power than the other devices of its node.

    For cores that count as busy while they wait. Power shows the device of a slow core, not the
    core.
    """
    if min(len(before.ticks), len(since.ticks)) < POWER_S or POWER not in since.values:
        return []
    was, now = (mean(span.of([node]).values[POWER], axis=0)[0] for span in (before, since))
    known = np.isfinite(was) & np.isfinite(now) & (was > 0)
    if known.sum() < ENOUGH_DEVICES:
        return []
    left = np.divide(now, was, out=np.full(was.shape, np.nan), where=known)
    usual = float(lower_median(left))
    spread = GAUSSIAN * float(lower_median(np.abs(left - usual)))
    device = int(np.nanargmax(left))
    strength = (float(left[device]) - usual) / max(POWER_RATIO, POWER_DEVIATIONS * spread)
    saves = (1.0 - float(left[device])) / max(1.0 - usual, TINY_S)
    of_a_core = 1.0 - (1.0 - CLOCKED_SAVES) / max(1, case.inputs.cores_per_device)
    is_core = case.inputs.cores_per_device > 1 and saves > (CLOCKED_SAVES + of_a_core) / 2
    return [
        CauseScore(
            "slow_core" if is_core else "throttle",
            strength if saves < 1.0 else 0.0,
            POWER,
            float(now[device]),
            float(lower_median(now)),
            int(known.sum()) - 1,
            "ratio",
            node,
            None if is_core else device,
        )
    ]


def _score_host(case: ShareCase, late: Lateness, node: str | None) -> list[CauseScore]:
    """Score a host that works while the cores of its node rest between executions.

    A runtime trace shows such rests, and no input time.
    """
    if node is None or late.pattern != "steady" or late.phase != "other_s":
        return []
    _, span = hardware_before_and_after(case, [HOST], nodes={node, *_peer_nodes(case, node)})
    if HOST not in span.values or node not in span.nodes:
        return []
    hosts = mean(span.values[HOST][..., 0], axis=0)
    own, peers = float(hosts[span.nodes.index(node)]), float(lower_median(hosts))
    strength = (own / peers - 1.0) / HOST_RATIO if peers > 0 else 0.0
    n_peers = max(0, int(np.isfinite(hosts).sum()) - 1)
    return [CauseScore("input_stall", strength, HOST, own, peers, n_peers, "ratio", node)]


def parts(span: Span, metric: str, node: str, peer_rows: list[int], *, sign: int = 1) -> Parts:
    """Compare the parts of a node, each by its role.

    Parameters
    ----------
    mates : rows of the other nodes that train
        The same part of other nodes plays the same role: in a pipeline, cores of one node may
        belong to different stages and be unlike for good.
    sign : 1 or -1
        Whether a sick part lies above the others or below.
    """
    level = mean(span.values[metric], axis=0)
    own = level[span.nodes.index(node)]
    peer_rows = [row for row in peer_rows if np.isfinite(level[row]).any()]
    role = median(level[peer_rows].T) if peer_rows else np.ones_like(own)
    ratio = np.divide(own, role, out=np.full(own.shape, np.nan), where=role > 0)
    if sign < 0:
        ratio = np.divide(1.0, ratio, out=np.full(own.shape, np.nan), where=ratio > 0)
    usual = float(lower_median(ratio))
    relative = ratio / usual if usual > 0 else np.full(own.shape, np.nan)
    return Parts(own, role, len(peer_rows), ratio, relative)


def _peer_nodes(case: ShareCase, node: str) -> list[str]:
    """Other training nodes, at most ENOUGH_PEER_NODES."""
    reported = np.isfinite(case.after.phases["compute_s"]).any(axis=0)
    training = {case.inputs.node_of(case.after.workers[i]): None for i in np.flatnonzero(reported)}
    return [name for name in training if name is not None and name != node][:ENOUGH_PEER_NODES]


def _score_memory(node: str, devices: Parts) -> CauseScore:
    """Score accelerators that move fewer bytes than the others of the node."""
    score = _look("hbm_slow", BANDWIDTH, "bytes_per_s", devices)
    return _name_worst_part(score, node, devices, devices.strength)


def _score_cores(node: str, cores: Parts, per_device: int) -> list[CauseScore]:
    """Score cores that stay busy while others wait: one, or all of an accelerator."""
    devices = Parts(
        value=cores.value.reshape(-1, per_device).mean(axis=1),
        role=cores.role.reshape(-1, per_device).mean(axis=1),
        n_peer_nodes=cores.n_peer_nodes,
        to_peer_nodes=cores.to_peer_nodes.reshape(-1, per_device).min(axis=1),
        relative=cores.relative.reshape(-1, per_device).min(axis=1),
    )
    whole = (
        devices.strength
        if devices.value.size == 1
        else _least_of_device(cores.strength, per_device)
    )
    strength = cores.strength
    throttle = _look("throttle", UTILIZATION, "ratio", devices)
    if per_device > 1:
        throttle = _name_worst_part(throttle, node, devices, whole)
        # If all cores of an accelerator are slow alike, the accelerator is slow.
        strength = np.where(
            np.repeat(_least_of_device(strength, per_device), per_device) < 1, strength, 0
        )
    slow = _look("slow_core", UTILIZATION, "ratio", cores)
    return [_name_worst_part(slow, node, cores, strength), throttle]


def _least_of_device(strength: FloatArray, per_device: int) -> FloatArray:
    """Minimum over the cores of each accelerator: (n_devices,)."""
    return np.asarray(strength.reshape(-1, per_device).min(axis=1))


def _look(cause: str, metric: str, unit: str, among: Parts) -> CauseScore:
    return CauseScore(cause, 0.0, metric, np.nan, among.usual, 0, unit)


def _name_worst_part(
    score: CauseScore, node: str, among: Parts, strength: FloatArray
) -> CauseScore:
    if not np.isfinite(strength).any():
        return score
    part = int(np.nanargmax(strength))
    return replace(
        score,
        strength=float(strength[part]),
        value=float(among.value[part]),
        n_peers=among.n_peers,
        is_only_part=among.is_only,
        node=node,
        device=part,
    )


# Phases that name their cause.
CAUSE_OF_PHASE = {"input_s": "input_stall", "checkpoint_s": "checkpoint_slow"}
MACHINE_PHASES = ("compute_s", "other_s")


def score_workers(case: ShareCase, late: Lateness) -> list[CauseScore]:
    """Score every cause of workers that wait for others."""
    node = case.inputs.node_of(case.after.workers[late.worst])
    scores = [_score_phase(case, late, phase, node) for phase in CAUSE_OF_PHASE]
    scores += _score_host(case, late, node)
    if late.pattern == "steady" and late.phase == "compute_s" and node is not None:
        is_even = _variability(case, late) < UNEVEN_RATIO and case.inputs.n_stages == 1
        scores += score_parts(case, node, blame_only_device=is_even)
    return [
        *scores,
        _score_stage(case, late),
        _score_sequences(case, late),
        _score_machine(case, late, node),
    ]


def _score_phase(case: ShareCase, late: Lateness, phase: str, node: str | None) -> CauseScore:
    """Score a phase that names the cause, by the excess of the late worker."""
    typical = median(case.after.phases[phase].T)
    peers = float(median(typical))
    is_it = late.pattern == "steady" and late.phase == phase
    return CauseScore(
        cause=CAUSE_OF_PHASE[phase],
        strength=late.strength if is_it else 0.0,
        metric=phase,
        value=float(typical[late.worst]),
        peers_median=peers,
        n_peers=_n_peers(late),
        unit="s",
        node=node,
    )


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
    noise_s = max(float(np.nanmax(unlike)), late.restless_ratio * usual)
    least = max(UNEVEN_RATIO * usual, DEVIATIONS * noise_s)
    strength = (typical[longest] - usual) / least
    return replace(score, strength=_capped_strength(strength), value=float(typical[longest]))


def _score_sequences(case: ShareCase, late: Lateness) -> CauseScore:
    """Score uneven work.

    All workers differ at once, the last one changes from step to step, or its delay does. A slow
    node is slow by the same factor in every step.
    """
    before = unevenness(case.before) if case.before else 0.0
    strength = max(unevenness(case.after) - before, _variability(case, late)) / UNEVEN_RATIO
    if late.pattern == "rotating" and lateness(case.newest).pattern == "rotating":
        strength = max(strength, late.spread_ratio / UNEVEN_RATIO)
    return CauseScore(
        cause="seq_imbalance",
        strength=_capped_strength(strength if late.phase == "compute_s" else 0.0),
        metric="spread_ratio",
        value=late.spread_ratio,
        peers_median=before,
        n_peers=_n_peers(late),
        unit="ratio",
    )


def _variability(case: ShareCase, late: Lateness) -> float:
    """Rise of the variation of the delay from step to step.

    The noise of a steadily late node does not count.
    """
    if late.is_steady:
        return 0.0
    usual = lateness(case.before).restless_ratio if case.before else 0.0
    return late.restless_ratio - usual


def _score_machine(case: ShareCase, late: Lateness, node: str | None) -> CauseScore:
    """Score one node that is late in every step, for whatever reason.

    Steps alone are enough: a job may run without agent, or the reason may have no counter.
    """
    late = late if late.n_steps >= len(case.after) else lateness(case.after)
    typical = late.own_s
    score = CauseScore(
        cause=UNKNOWN,
        strength=0.0,
        metric="own_s",
        value=float(typical[late.worst]),
        peers_median=float(lower_median(typical)),
        n_peers=_n_peers(late),
        unit="s",
        node=node,
    )
    nodes = {case.inputs.node_of(case.after.workers[i]) for i in late.late}
    is_alone = node is not None and nodes == {node}
    is_certain = late.is_steady and late.is_no_luck and late.phase in MACHINE_PHASES
    return replace(
        score, strength=_capped_strength(late.strength if is_alone and is_certain else 0.0)
    )


def _capped_strength(strength: float) -> float:
    """At most 1, so that slow nodes come first: one slow node may be all of a stage."""
    return float(np.clip(strength, 0.0, 1.0)) if np.isfinite(strength) else 0.0


def _n_peers(late: Lateness) -> int:
    return max(0, len(late.own_s) - 1)


CAUSE = "stage_imbalance"
# Minimum rise of a stage relative to the others, as a share of the step.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# Random delays do not hit this many workers of a stage at once. They are late alike in each of
# this many steps, within this tolerance.
ENOUGH_WORKERS, ENOUGH_STEPS, UNLIKE = 2, 3, 0.35


def find_longer_stage(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find a stage whose fastest worker takes longer than before, relative to other stages.

    Notes
    -----
    Where most workers belong to the long stage, as of three nodes in two stages, they are what is
    usual and none is late: stages are compared, not workers. A stage of one worker may be a
    machine; see ``arriving_late``. J. Lin et al., "Understanding Stragglers in Large Model
    Training Using What-if Analysis", OSDI 2025, arXiv:2505.05713.
    """
    stage = stage_of(inputs, steps)
    if inputs.n_stages < 2 or len(stage) != len(steps.workers) or len(steps) < ENOUGH_STEPS:
        return []
    compute = steps.phases["compute_s"]
    found: list[Problem] = []
    typical = np.stack([median(compute[:, stage == s]) for s in range(inputs.n_stages)], axis=1)
    for s in range(inputs.n_stages):
        own = compute[:, stage == s]
        if own.shape[1] < ENOUGH_WORKERS:
            continue
        # When a slow stage recovers, the stage ahead of it is not late.
        lag = np.maximum(own.min(axis=1) - lower_median(typical), 0.0)
        least_s = LEAST_RATIO * middle(work_s(steps))
        n_now = max(ENOUGH_STEPS, n_newest(steps))
        lifted = find_rise(lag, least=least_s, n_now=n_now, usual=_usual(inputs, steps))
        if lifted is not None and _is_alike(own, lag, lifted):
            names = tuple(np.array(steps.workers)[stage == s].tolist())
            found.append(_problem(steps, lifted, names, inputs.n_stages))
    return sorted(found, key=lambda each: -each.strength)[:1]


def stage_of(inputs: DetectionInput, steps: StepBatch) -> IntArray:
    """Stage of each worker; empty if some have left, since positions are unknown then."""
    reported = np.isfinite(steps.phases["compute_s"]).all()
    return inputs.stage if reported else np.zeros(0, dtype=int)


def _is_alike(own: FloatArray, lag: FloatArray, found: PhaseRise) -> bool:
    """Whether the workers of the stage are late alike, in each of the newest steps."""
    newest = own[-ENOUGH_STEPS:]
    apart = middle(newest.max(axis=1) - newest.min(axis=1))
    return max(apart, float(np.ptp(lag[-ENOUGH_STEPS:]))) <= UNLIKE * found.excess


def _usual(inputs: DetectionInput, steps: StepBatch) -> float | None:
    """Baseline in an open alert about a stage in steps with the same tokens."""
    tokens = float(steps.tokens[-1])
    for alert in inputs.open_problems:
        held = alert.evidence
        if alert.cause != CAUSE or held.get("baseline_phase_s") is None:
            continue
        was = held.get("tokens")
        if was is None or not np.isfinite(tokens) or abs(tokens - was) <= CHANGED_RATIO * was:
            return float(held["baseline_phase_s"])
    return None


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
