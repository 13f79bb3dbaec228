"""A run that ends no step: since when, and what its nodes do meanwhile."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.causes import phase_of
from telemetry.detect.inputs import (
    DetectionInput,
    node_peak,
    node_values,
    part_values,
)
from telemetry.detect.rules import RULES, names_of
from telemetry.statistics.peers import mean, middle
from telemetry.steps import StepBatch, once

MEMORY, LINKS = "hbm_bandwidth_bytes_per_s", "efa_tx_bytes_per_s"
EXECUTIONS = "executions_completed_per_s"
# Cores spin if they are always this busy while memory, links and executions do less than this
# part of their rate in a step.
SPINNING, MOVING = 0.9, 0.03
# Moments and seconds before the end of the last step that define the usual rate, and seconds that
# show the present.
USUAL_MOMENTS, USUAL_S, LOOK_S = 6, 60.0, 8
# Nothing moves in so many of those.
NEWEST_S = 3
# A link that carries a part of the exchange carries more than this; assumed.
IDLE_BYTES_PER_S = 1e5
# A run without step reports made its usual steps in so many seconds before the last execution.
HISTORY_S = 300


def spinning(
    inputs: DetectionInput,
    nodes: tuple[str, ...],
    cores: FloatArray,
    hosts: FloatArray,
    *,
    since_s: float,
    step_s: float,
) -> NDArray[np.bool_]:
    """Mark nodes whose cores are always busy without moving data: (n_nodes,).

    Parameters
    ----------
    nodes : those that report
    cores : (n_ticks, n_nodes, n_cores)
        How busy they were lately.
    hosts : (n_nodes,)
        Mean host utilization.
    since_s : Unix seconds
        When the last step ended.

    Notes
    -----
    NCCL waits in a kernel that polls: a GPU in an incomplete collective reads
    100 % busy for as long as it hangs, and touches its memory hardly at all.
    """
    known = np.isfinite(cores)
    busy = known.any(axis=(0, 2)) & ((cores >= SPINNING) | ~known).all(axis=(0, 2))
    # If few nodes are fully busy they may be slow, and the others wait for them. Those wait in
    # the collective with busy hosts, unless they did not join it.
    is_away = hosts[~busy] < WITH_THEM * hosts[busy].min(initial=1.0)
    may_spin = busy.any() and (2 * busy.sum() > len(nodes) or is_away.all())
    if not may_spin or inputs.hardware_at is None or not np.isfinite(step_s):
        return np.zeros(len(nodes), dtype=bool)
    back_s = min(max(2 * step_s, USUAL_MOMENTS), USUAL_S) + 2.0 * inputs.report_every_s
    ages = np.linspace(inputs.now_s - since_s + back_s, inputs.now_s - since_s, USUAL_MOMENTS)
    metrics = (MEMORY, LINKS, EXECUTIONS)
    usual = inputs.hardware_at(metrics, tuple(dict.fromkeys(ages.astype(int).tolist()))).of(nodes)
    now = inputs.hardware(metrics, inputs.lagging(LOOK_S)).of(nodes)
    stalled, is_known = np.ones(len(nodes), bool), np.zeros(len(nodes), bool)
    for metric in metrics:
        # A node without EFA devices has no link rate, a real one no memory bandwidth.
        # One that never carries more than its keep-alives shows no standstill.
        idle = IDLE_BYTES_PER_S if metric == LINKS else 0.0
        is_measured = np.isfinite(_moved(now, metric)) & (_moved(usual, metric) > idle)
        is_known |= is_measured
        stalled &= ~is_measured | (_newest(now, metric) < MOVING * _moved(usual, metric))
    return np.asarray(busy & is_known & stalled)


def _newest(span: Span, metric: str) -> FloatArray:
    """Most bytes moved per second by each node in its newest seconds: (n_nodes,).

    Between two steps a node executes nothing for a second.
    """
    moved = mean(part_values(span, metric).astype(float), axis=2)
    known = np.isfinite(moved)
    newest = len(moved) - known[::-1].argmax(axis=0)
    age = newest - np.arange(len(moved))[:, None]
    return np.asarray(np.where(known & (age > 0) & (age <= NEWEST_S), moved, -np.inf).max(axis=0))


def _moved(span: Span, metric: str) -> FloatArray:
    """Bytes moved per second by each node: (n_nodes,), NaN where unknown."""
    return mean(mean(part_values(span, metric).astype(float), axis=2), axis=0)


CORES, HOST = "core_utilization_ratio", "vcpu_usage_ratio"
TRAINING = "training"
# Clocks of workers may be ahead of ours by this much.
CLOCKS_S = 2.0
STANDSTILLS = names_of(lambda rule: rule.is_standstill)
# A step is overdue after this many step times, at least this many seconds.
_LIMITS = RULES["hang"].limits
LATE_STEPS, LATE_S = _LIMITS["late_steps"], _LIMITS["late_s"]
# The duration of the first step of a run is unknown, so allow this long.
FIRST_S = _LIMITS["first_s"]
USUAL_STEPS, RECENT_STEPS = 12, 24
# The first step after a restart loads and warms up: it takes up to this many usual steps.
FIRST_RATIO = 2.0
# Seconds of hardware to read, and moments since the end of the last step.
STANDSTILL_LOOK_S, MUTE_S, MOMENTS, OLDEST_S = 8, 5, 12, 840
# The newest seconds, in which a run that trains executes.
LATELY_S = 60
# Without step reports a step is assumed to take at most this long.
UNKNOWN_STEP_S = 30.0
# Younger data may still arrive. A node is present if it reported within these newest seconds.
ARRIVED_S, THERE_S = 3, 2
# Who stopped a run was silent by so many seconds after the end of the step in progress, or after
# the last execution of a run without step reports.
BEGAN_S, EXECUTED_S = 15.0, 5.0
# Within these seconds, nodes fell silent together.
TOGETHER_S = 5.0
# Above this a core computes or moves bytes. Below it, a host above the first limit compiles, above
# the second it reads or writes, otherwise it waits.
WORKING, COMPILING = _LIMITS["working_ratio"], _LIMITS["compiling_ratio"]
LOADING = _LIMITS["loading_ratio"]
# A worker below this part of the activity of its peers is not in the collective.
WITH_THEM = 0.5
LEAST_HOST = 0.03

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Standstill:
    """A training run without a finished step since ``since_s``.

    ``nodes`` had a part in the newest step and report now. For each of them, over the last
    seconds: ``peak`` of all cores, mean of ``cores`` and ``hosts`` (n_nodes,). ``silent`` had a
    part in the newest step and do not report now; ``gone`` fell silent only after that step,
    ``back`` are those of them that report again. ``limit_s`` is how long a step may take.
    ``spins`` marks nodes whose cores are busy with waiting.
    """

    since_s: float
    overdue_s: float
    step_s: float
    limit_s: float
    nodes: tuple[str, ...]
    peak: FloatArray
    cores: FloatArray
    hosts: FloatArray
    silent: tuple[str, ...]
    gone: tuple[str, ...]
    back: tuple[str, ...]
    spins: Flags

    @property
    def works(self) -> Flags:
        """Nodes that compute or move bytes."""
        return np.asarray((self.peak >= WORKING) & ~self.spins)

    @property
    def compiles(self) -> Flags:
        """Nodes with compiling hosts and idle cores."""
        return ~(self.works | self.spins) & (self.hosts >= COMPILING)

    @property
    def loads(self) -> Flags:
        """Nodes with reading or writing hosts and idle cores."""
        return ~(self.works | self.spins) & (self.hosts >= LOADING) & ~self.compiles

    @property
    def waits(self) -> Flags:
        """Nodes that only wait."""
        return ~(self.works | self.compiles | self.loads)

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Rows of nodes that are not in the collective, the most idle first.

        Notes
        -----
        Who waits in a collective polls for its completion: the host's threads spin, and the
        cores' engines look at their semaphores. Who never joined does neither, so its figures lie
        far below those of its peers. The usual figure is the upper median: of two nodes the one
        that does more is in the collective.
        """
        if len(self.nodes) + len(self.silent) == 1:
            return (0,)
        usual_host, usual_cores = upper_median(self.hosts), upper_median(self.cores)
        if self.spins.any():
            rests = ~self.spins & (self.cores < WITH_THEM * usual_cores)
            return tuple(int(row) for row in np.argsort(self.cores, kind="stable") if rests[row])
        if usual_host < LEAST_HOST:
            return ()
        # Some cores report nothing while they wait; then the hosts decide.
        is_away = (self.hosts < WITH_THEM * usual_host) & (
            (self.cores < WITH_THEM * usual_cores) | (usual_cores == 0)
        )
        order = np.argsort(self.hosts, kind="stable")
        return tuple(int(row) for row in order if is_away[row])


def lost(stall: Standstill) -> set[str]:
    """Nodes that fell silent when the run stopped, or without which it never began.

    Steps are kept for some minutes: whether a run that has stood still for longer ever made one
    is unknown.
    """
    never_began = np.isnan(stall.step_s) and stall.overdue_s <= OLDEST_S
    return set(stall.silent) & set(stall.silent if never_began else stall.gone)


def upper_median(x: FloatArray) -> float:
    """Return the upper of the two middle values; NaN of none."""
    known = np.sort(x[np.isfinite(x)])
    return float(known[known.size // 2]) if known.size else float("nan")


@once
def usual_step_s(steps: StepBatch) -> float:
    """Recent step time; NaN without steps."""
    return middle(steps.step_s[-USUAL_STEPS:]) if len(steps) else float("nan")


def recent_steps(inputs: DetectionInput) -> StepBatch:
    """Return the newest reported steps, enough to know the pace."""
    steps, reported = inputs.steps, inputs.steps.reported
    is_whole = len(reported) == len(steps)
    return reported.last(RECENT_STEPS) if is_whole else steps.last(RECENT_STEPS).reported


def is_training(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Whether the run reports training, or ended steps after it reported another phase."""
    if inputs.phase == TRAINING or inputs.phase_since_s is None:
        return inputs.phase == TRAINING
    # The step in progress ended after the phase began, by a clock that may be ahead.
    began_s = steps.ended_at_s[-1:] - steps.step_s[-1:] - CLOCKS_S
    return bool((began_s > inputs.phase_since_s).any())


def no_step_since(inputs: DetectionInput, steps: StepBatch) -> float | None:
    """When the run last ended a step, or began training.

    Steps are stored for some minutes; an open alert preserves the time for longer.
    """
    known = [inputs.phase_since_s] if inputs.phase_since_s is not None else []
    if len(steps):
        known.append(float(steps.ended_at_s[-1]))
    elif (executed_s := _last_executed_s(inputs)) is not None:
        known.append(executed_s)
    stood = [alert.evidence for alert in inputs.open_problems if alert.rule in STANDSTILLS]
    known += [float(evidence["since_s"]) for evidence in stood if "since_s" in evidence]
    if not len(steps):
        # The step that a slow checkpoint interrupts has not ended.
        slow = (a.evidence for a in inputs.open_problems if phase_of(a.cause) == "checkpoint_s")
        known += [float(evidence["onset_s"]) for evidence in slow if "onset_s" in evidence]
    return max(known, default=None)


def lag_s(inputs: DetectionInput) -> float:
    """How much older than a second the newest report of a run without step reports may be."""
    return 0.0 if len(inputs.steps) else 2.0 * (inputs.report_every_s - 1)


def _last_executed_s(inputs: DetectionInput) -> float | None:
    # Nearly always the newest seconds show it.
    for last_s in (LATELY_S, OLDEST_S):
        if (executed := executed_at(inputs, last_s)).size:
            return float(executed[-1])
    return None


def executed_at(inputs: DetectionInput, last_s: int = OLDEST_S) -> FloatArray:
    """Seconds in which nodes completed executions, oldest first."""
    span = inputs.hardware((EXECUTIONS,), last_s)
    executes = (node_values(span, EXECUTIONS) > 0).any(axis=1)
    return np.asarray(span.ticks[executes], dtype=float)


def longest_pause_s(inputs: DetectionInput, since_s: float) -> float:
    """Longest time between two executions up to a moment; NaN without any.

    For a run without step reports it bounds the step time from below.
    """
    executed = executed_at(inputs)
    executed = executed[(executed <= since_s) & (executed > since_s - HISTORY_S)]
    if executed.size < 2 or executed[-1] - executed[0] < FIRST_S:
        return float("nan")
    return float(np.diff(executed).max())


def training_nodes(inputs: DetectionInput, steps: StepBatch) -> tuple[str, ...]:
    """Nodes with a part in the newest step; all without steps."""
    if not len(steps):
        return inputs.nodes
    reported = np.isfinite(steps.phases["compute_s"][-1])
    if steps.workers == inputs.nodes and reported.all():
        # Nearly always each node has one worker, named after it, and all train.
        return inputs.nodes
    training = {inputs.node_of(steps.workers[i]) for i in np.flatnonzero(reported)}
    return tuple(node for node in inputs.nodes if node in training)


def standstill(inputs: DetectionInput, *, late_steps: float = LATE_STEPS) -> Standstill | None:
    """None where the next step is not overdue, or the run need not train.

    Notes
    -----
    What is late is judged by the newest second of any report, not by the clock: a
    monitoring that lags sees neither hardware nor steps, and knows nothing.
    """
    newest = inputs.steps.ended_at_s[-1:]
    if newest.size and inputs.now_s - newest[-1] <= LATE_S:
        return None
    steps = recent_steps(inputs)
    since_s = no_step_since(inputs, steps)
    if since_s is None or not is_training(inputs, steps):
        return None
    if inputs.now_s - since_s <= min(LATE_S, FIRST_S) + lag_s(inputs):
        # No step is late so soon, whatever is usual.
        return None
    step_s = usual_step_s(steps)
    if not len(inputs.steps):
        step_s = longest_pause_s(inputs, since_s)
    is_first = inputs.phase_since_s is not None and since_s == inputs.phase_since_s
    steps_late = FIRST_RATIO * late_steps if is_first else late_steps
    limit_s = max(LATE_S, steps_late * step_s) if np.isfinite(step_s) else FIRST_S
    if inputs.now_s - since_s <= limit_s + lag_s(inputs):
        return None
    return _observe(inputs, training_nodes(inputs, steps), since_s, step_s, limit_s)


def _observe(
    inputs: DetectionInput, nodes: tuple[str, ...], since_s: float, step_s: float, limit_s: float
) -> Standstill | None:
    span = inputs.hardware((CORES, HOST), inputs.lagging(STANDSTILL_LOOK_S)).of(nodes)
    reporting = span.reported
    newest = np.flatnonzero(reporting.any(axis=1))
    if not newest.size and has_no_agent(inputs, since_s):
        # What nodes without an agent do is unknown.
        nan, none, since = np.full(len(nodes), np.nan), np.zeros(len(nodes), bool), since_s
        now_s = inputs.now_s
        return Standstill(
            since, now_s - since, step_s, limit_s, nodes, nan, nan, nan, (), (), (), none
        )
    if not newest.size or span.ticks[newest[-1]] - since_s <= limit_s:
        return None
    upto = reporting[: newest[-1] + 1]
    lately = np.asarray(upto[-inputs.lagging(MUTE_S) :].any(axis=0))
    is_there = np.asarray(upto[-inputs.lagging(THERE_S) :].any(axis=0))
    here = _those(nodes, lately)
    cores, most = part_values(span, CORES)[:, lately], node_peak(span, CORES)[:, lately]
    hosts = mean(node_values(span, HOST)[:, lately], axis=0)
    missed = _missing_since(inputs, nodes, since_s, step_s)
    return Standstill(
        since_s=since_s,
        overdue_s=float(span.ticks[newest[-1]] - since_s),
        step_s=step_s,
        limit_s=limit_s,
        nodes=here,
        peak=np.where(np.isfinite(most), most, -1.0).max(axis=0),
        cores=mean(mean(cores, axis=2), axis=0),
        hosts=hosts,
        silent=_those(nodes, ~lately),
        gone=_those(nodes, missed),
        back=_those(nodes, missed & is_there),
        spins=spinning(inputs, here, cores, hosts, since_s=since_s, step_s=step_s),
    )


def has_no_agent(inputs: DetectionInput, since_s: float) -> bool:
    """Whether the nodes of a run with step reports reported no hardware when it made steps.

    Once steps or hardware of that time are no longer kept, the open alert says so.
    """
    back_s = int(inputs.now_s - since_s) + LOOK_S
    if not len(inputs.steps) or back_s > OLDEST_S:
        held = [
            alert.evidence for alert in inputs.open_problems if RULES[alert.rule].is_standstill
        ]
        return any(each.get("host_by_node") == {} for each in held)
    return not inputs.hardware((HOST,), back_s).reported.any()


def _those(nodes: tuple[str, ...], flags: Flags) -> tuple[str, ...]:
    return tuple(nodes[row] for row in np.flatnonzero(flags))


def since_ages(inputs: DetectionInput, since_s: float, *, newest: int = 0) -> Sequence[int]:
    """Ages (seconds) of a few moments from the end of the last step until ``newest``."""
    oldest = min(int(inputs.now_s) - int(since_s), OLDEST_S)
    return tuple(dict.fromkeys(np.linspace(oldest, newest, MOMENTS).astype(int).tolist()))


def _missing_since(
    inputs: DetectionInput, nodes: tuple[str, ...], since_s: float, step_s: float
) -> Flags:
    """Nodes that reported when the last step ended, and did not at a later moment."""
    if inputs.now_s - since_s > OLDEST_S or inputs.hardware_at is None:
        return np.zeros(len(nodes), dtype=bool)
    if inputs.report_every_s > 1:
        # Reports may be lost: a longer hole that began in the step in progress counts. Executions
        # of a report may have ended one interval before it, and a node one before its next.
        around_s = 3.0 * inputs.report_every_s
        step_s = float(np.nan_to_num(step_s))
        until_s, before_s = since_s + step_s + around_s, since_s - around_s - step_s
        if not len(inputs.steps):
            # The others execute until they all wait for it, for an unknown part of a step.
            until_s = since_s + CLOCKS_S
            before_s = min(before_s, since_s - UNKNOWN_STEP_S - max(around_s, step_s))
        span = inputs.hardware((HOST,), int(inputs.now_s - before_s) + 1).of(nodes)
        ticks = span.ticks[:, None]
        last_s = np.maximum.accumulate(np.where(span.reported, ticks, 0), axis=0)
        hole = (last_s > 0) & (ticks - last_s > inputs.lagging(MUTE_S))
        began = np.asarray((hole & (last_s <= until_s)).any(axis=0))
        within_s = TOGETHER_S + 2.0 * inputs.report_every_s
        return _first_to_leave(began, hole[-1], last_s[-1], within_s=within_s)
    newest = ARRIVED_S if len(nodes) > 1 else 0
    if np.isfinite(step_s) and len(nodes) > 1:
        # The others wait for a node that was lost in the step in progress. Who fell silent later,
        # while they waited, did not stop the run: agents restart.
        until_s = since_s + (step_s + BEGAN_S if len(inputs.steps) else EXECUTED_S)
        newest = max(newest, int(inputs.now_s - until_s))
    ages = since_ages(inputs, since_s, newest=newest)
    reporting = inputs.hardware_at((HOST,), ages).of(nodes).reported
    # A moment without any report proves nothing. For a single node it does, once it reports again.
    reported = np.asarray(reporting.any(axis=1))
    if len(nodes) == 1:
        reported = np.logical_or.accumulate(reported[::-1])[::-1]
    reporting, ages_s = reporting[reported], np.array(ages)[reported]
    missed: Flags = reporting[0] & ~reporting.all(axis=0)
    left_s = -ages_s[np.argmin(reporting, axis=0)]
    return _first_to_leave(missed, ~reporting[-1], left_s, within_s=TOGETHER_S)


def _first_to_leave(missed: Flags, is_away: Flags, left_s: IntArray, *, within_s: float) -> Flags:
    """Of the nodes that are still away, those that left with the first: the others waited for it.

    An agent may restart while they do.
    """
    away = missed & is_away
    first_s = min(left_s[away].tolist(), default=np.inf)
    return np.asarray(missed & ~(away & (left_s > first_s + within_s)))


# A worker with no steps to report sends a heartbeat this often. One that misses two of those that
# others sent is dead.
HEARTBEAT_S, DEAD_S = 10.0, 22.0
MOST = 0.5
# What ends in time did not after so many seconds.
LONG_S = 600.0
STEP, INPUT, CHECKPOINT, OTHER, COMPILE = "step", "input", "checkpoint", "other", "compile"


@dataclass(frozen=True, slots=True)
class Activities:
    """Each node's activity, when it began, and when the node said so; ``dead`` nodes."""

    doing: Mapping[str, str]
    since_s: Mapping[str, float]
    heard_s: Mapping[str, float]
    dead: tuple[str, ...]

    @property
    def common(self) -> str:
        """What most of the nodes do; empty where no activity is that common."""
        name, n_nodes = Counter(self.doing.values()).most_common(1)[0]
        return name if n_nodes > MOST * len(self.doing) else ""

    def is_away(self, node: str) -> bool:
        """Whether a node does something else while others have said since that they are in a step.

        The first one to leave a step is not away.
        """
        in_step = (heard for name, heard in self.heard_s.items() if self.doing[name] == STEP)
        return self.doing[node] != STEP and self.since_s[node] + CLOCKS_S < max(in_step, default=0)

    def lasts_s(self, now_s: float) -> float:
        """Seconds since the newest of the common activities began; 0 where none is common."""
        name = self.common
        began_s = (since for node, since in self.since_s.items() if self.doing[node] == name)
        return now_s - max(began_s, default=now_s)


def activities(inputs: DetectionInput, since_s: float) -> Activities | None:
    """Return what the nodes of a run do since its last step ended; None where none has said.

    Of several workers on a node the one that said most recently counts.
    """
    if inputs.workers is None:
        return None
    newest = {
        state.node: state for state in sorted(inputs.workers().values(), key=lambda s: s.heard_s)
    }
    heard_s = max((state.heard_s for state in newest.values()), default=0.0)
    known = {
        node: state
        for node, state in newest.items()
        if state.activity and state.heard_s > since_s + CLOCKS_S and node in inputs.nodes
    }
    if not known:
        return None
    return Activities(
        doing={node: state.activity for node, state in known.items()},
        since_s={node: max(state.since_s, since_s) for node, state in known.items()},
        heard_s={node: state.heard_s for node, state in known.items()},
        dead=tuple(
            node
            for node, state in newest.items()
            if heard_s - state.heard_s > DEAD_S and node in inputs.nodes
        ),
    )
