"""States of a run that ends no step, and of its nodes.

1. A run that trains ends steps, or executes. Since the last one its next step has been going on.
2. A step that lasts too long makes a standstill. Until then nothing else is read.
3. In a standstill each node that reports works, spins (waits with busy cores), compiles, loads
   (reads or writes), or waits: by what its cores and its host do in the newest seconds.
4. Others are silent. Those that left while the last step was going on are gone; some are back.
5. Workers say themselves whether they are in their step, or load, save, compile or else. Who says
   nothing any more while others do is dead.
6. How long a state may last is one test (`Limit`): usual steps of the run, and seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.causes import phase_of
from telemetry.detect.inputs import DetectionInput, node_peak, node_values, part_values
from telemetry.detect.rules import RULES, names_of
from telemetry.statistics.peers import mean, middle
from telemetry.steps import RETURN_S, StepBatch, WorkerState, once

CORES, HOST = "core_utilization_ratio", "vcpu_usage_ratio"
MEMORY, LINKS = "hbm_bandwidth_bytes_per_s", "efa_tx_bytes_per_s"
EXECUTIONS = "executions_completed_per_s"
TRAINING = "training"
STEP, INPUT, CHECKPOINT = "step", "input", "checkpoint"
COMPILE, OTHER = "compile", "other"
STANDSTILLS = names_of(lambda rule: rule.is_standstill)
Flags = NDArray[np.bool_]

# Protocol: clocks of workers may be ahead of ours by so much, and hardware is kept for so long.
CLOCKS_S, OLDEST_S = 2.0, 840
# Protocol: a worker with no steps to report sends a heartbeat this often. One that misses two of
# those that others sent is dead.
HEARTBEAT_S = 10.0
DEAD_S = 2 * HEARTBEAT_S + CLOCKS_S
# Protocol: who sends a report each second misses five in a row only if it is silent. Nodes that
# left within so long left together.
MUTE_S = TOGETHER_S = 5
# Newest seconds that show what a node does: more than two reports of 2 s, or one of 5 s.
LOOK_S = 8
# Steps that are looked at; the newer half of them shows what is usual.
RECENT_STEPS = 24
# Moments that are read of a standstill, however long it is.
MOMENTS = 12
# Settings of the rule: above the first a core computes or moves bytes. Below it, a host above the
# second compiles, above the third it reads or writes, else it waits.
_SET = RULES["hang"].limits
WORKING, COMPILING = _SET["working_ratio"], _SET["compiling_ratio"]
LOADING = _SET["loading_ratio"]
# Physics: cores that poll are always busy and move next to nothing; a link without gradients
# carries keep-alives only.
SPINNING, MOVING, KEEPS_ALIVE_BYTES_PER_S = 0.9, 0.03, 1e5
# Physics: the threads of a host that polls use more than this; one below half of its peers does
# not.
POLLING_RATIO, MOST = 0.03, 0.5


class Limit(NamedTuple):
    """How long a state may last: so many usual steps of the run, and so many seconds.

    However long steps are, it is no more than a step and ``stall_s``.
    """

    steps: float
    seconds: float
    stall_s: float = np.inf

    def of(self, step_s: float) -> float:
        step_s = float(np.nan_to_num(step_s))
        return max(self.seconds, min(self.steps * step_s, step_s + self.stall_s))


# Settings of the rule: a step that is looked at, a stall, and a wait in which no one stands out.
# Healthy runs stand still for 2 to 8 steps, or for 5 to 80 s, once in 1,000 to 3,000 steps
# (recorded: docs/physics.md).
LATE = Limit(_SET["late_steps"], _SET["late_s"])
STALLED = Limit(_SET["patience_steps"], _SET["late_s"], _SET["stall_s"])
WAITING = Limit(_SET["patience_steps"], _SET["patience_s"], _SET["stall_s"])
# The first step of a run, and how much longer the first one after a restart may be: it loads and
# warms up.
FIRST_S, FIRST_RATIO = _SET["first_s"], 2.0
# What ends in time (saving, evaluating, loading, computing) has not after torch's default timeout
# of a collective, nor after so many steps.
ENDLESS = Limit(20.0, 600.0)
LONG_S = ENDLESS.seconds


@dataclass(frozen=True)
class Standstill:
    """A training run without a finished step since ``since_s``.

    ``nodes`` had a part in the newest step and report now: mean of their ``cores`` and ``hosts``
    in the newest seconds, and what they do (n_nodes,) each. ``silent`` had a part in it and do not
    report; ``gone`` left while a step was going on, ``back`` are those of them that report again.
    ``limit_s`` is how long a step may take.
    """

    since_s: float
    overdue_s: float
    step_s: float
    limit_s: float
    nodes: tuple[str, ...]
    cores: FloatArray
    hosts: FloatArray
    works: Flags
    spins: Flags
    is_full: bool = False
    silent: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    back: tuple[str, ...] = ()

    @property
    def is_unobserved(self) -> bool:
        """Whether no host reports."""
        return bool(np.isnan(self.hosts).all())

    @property
    def compiles(self) -> Flags:
        """Nodes with compiling hosts and idle cores."""
        return ~(self.works | self.spins) & (self.hosts >= COMPILING)

    @property
    def loads(self) -> Flags:
        """Nodes with reading or writing hosts and idle cores."""
        return ~(self.works | self.spins) & (self.hosts >= LOADING) & (self.hosts < COMPILING)

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
        rests, by = self.cores < MOST * usual_cores, self.cores
        if self.spins.any():
            rests &= ~self.spins
        else:
            # Some cores report nothing while they wait; then the hosts decide.
            rests, by = (rests | (usual_cores == 0)) & (self.hosts < MOST * usual_host), self.hosts
            rests &= usual_host >= POLLING_RATIO
        return tuple(int(row) for row in np.argsort(by, kind="stable") if rests[row])

    def exceeds(self, limit: Limit, *, least_s: float = 0.0) -> bool:
        return self.overdue_s > max(limit.of(self.step_s), least_s)


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
    return middle(steps.step_s[-RECENT_STEPS // 2 :]) if len(steps) else float("nan")


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
    held = [(each, each.evidence) for each in inputs.open_problems]
    known += [seen["since_s"] for a, seen in held if a.rule in STANDSTILLS and "since_s" in seen]
    if len(steps):
        return max(float(each) for each in (*known, steps.ended_at_s[-1]))
    # Nearly always the newest minute has executions.
    reads = (executed_at(inputs.hardware, last_s) for last_s in (60, OLDEST_S))
    executed = next((at_s for at_s in reads if at_s.size), ())
    known += [float(each) for each in executed[-1:]]
    # The step that a slow checkpoint interrupts has not ended.
    slow = (seen for a, seen in held if phase_of(a.cause) == "checkpoint_s")
    known += [float(seen["onset_s"]) for seen in slow if "onset_s" in seen]
    return max(known, default=None)


def executed_at(
    hardware: Callable[[Sequence[str], int], Span], last_s: int = OLDEST_S
) -> FloatArray:
    """Seconds in which nodes completed executions, oldest first."""
    span = hardware((EXECUTIONS,), last_s)
    executes = (node_values(span, EXECUTIONS) > 0).any(axis=1)
    return np.asarray(span.ticks[executes], dtype=float)


def longest_pause_s(inputs: DetectionInput, since_s: float) -> float:
    """Longest time between two executions in the minutes before; NaN without any.

    For a run without step reports it bounds the step time from below.
    """
    executed = executed_at(inputs.hardware)
    executed = executed[(executed <= since_s) & (executed > since_s - LONG_S / 2)]
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


def standstill(inputs: DetectionInput) -> Standstill | None:
    """None where the next step is not overdue, or the run need not train.

    Notes
    -----
    What is late is judged by the newest second of any report, not by the clock: a
    monitoring that lags sees neither hardware nor steps, and knows nothing.
    """
    newest = inputs.steps.ended_at_s[-1:]
    if newest.size and inputs.now_s - newest[-1] <= LATE.seconds:
        return None
    steps = recent_steps(inputs)
    since_s = no_step_since(inputs, steps)
    # The newest report of a run without step reports may be this old.
    lag_s = 0.0 if len(inputs.steps) else 2.0 * (inputs.report_every_s - 1)
    if since_s is None or not is_training(inputs, steps):
        return None
    if inputs.now_s - since_s <= LATE.seconds + lag_s:
        # No step is late so soon, whatever is usual.
        return None
    has_steps = bool(len(inputs.steps))
    step_s = usual_step_s(steps) if has_steps else longest_pause_s(inputs, since_s)
    is_first = inputs.phase_since_s is not None and since_s == inputs.phase_since_s
    limit_s = LATE.of((FIRST_RATIO if is_first else 1.0) * step_s)
    limit_s = limit_s if np.isfinite(step_s) else FIRST_S
    if inputs.now_s - since_s <= limit_s + lag_s:
        return None
    return _observe(inputs, training_nodes(inputs, steps), since_s, step_s, limit_s)


def _observe(
    inputs: DetectionInput, nodes: tuple[str, ...], since_s: float, step_s: float, limit_s: float
) -> Standstill | None:
    span = inputs.hardware((CORES, HOST), inputs.lagging(LOOK_S)).of(nodes)
    reporting = span.reported
    newest = np.flatnonzero(reporting.any(axis=1))
    if not newest.size and has_no_agent(inputs, since_s):
        # What nodes without an agent do is unknown.
        nan, no = np.full(len(nodes), np.nan), np.zeros(len(nodes), bool)
        return Standstill(
            since_s, inputs.now_s - since_s, step_s, limit_s, nodes, nan, nan, no, no
        )
    if not newest.size or span.ticks[newest[-1]] - since_s <= limit_s:
        return None
    upto = reporting[: newest[-1] + 1]
    lately = np.asarray(upto[-inputs.lagging(MUTE_S) :].any(axis=0))
    # Who is back has sent one of the newest two reports.
    is_there = np.asarray(upto[-inputs.lagging(2) :].any(axis=0))
    here = span.of(_those(nodes, lately))
    cores, peaks = part_values(here, CORES), node_peak(here, CORES)
    hosts = mean(node_values(here, HOST), axis=0)
    gone = _gone(inputs, nodes, lately, since_s=since_s, step_s=step_s)
    spins = spinning(inputs, here.nodes, cores, hosts, since_s=since_s, step_s=step_s)
    most = np.where(np.isfinite(peaks), peaks, -1.0).max(axis=0)
    return Standstill(
        since_s,
        float(span.ticks[newest[-1]] - since_s),
        step_s,
        limit_s,
        here.nodes,
        mean(mean(cores, axis=2), axis=0),
        hosts,
        works=(most >= WORKING) & ~spins,
        spins=spins,
        is_full=bool(most.max(initial=0.0) >= SPINNING),
        silent=_those(nodes, ~lately),
        gone=_those(nodes, gone),
        back=_those(nodes, gone & is_there),
    )


def _those(nodes: tuple[str, ...], flags: Flags) -> tuple[str, ...]:
    return tuple(nodes[row] for row in np.flatnonzero(flags))


def has_no_agent(inputs: DetectionInput, since_s: float) -> bool:
    """Whether the nodes of a run with step reports reported no hardware when it made steps.

    Once steps or hardware of that time are no longer kept, the open alert says so.
    """
    back_s = int(inputs.now_s - since_s) + LOOK_S
    if not len(inputs.steps) or back_s > OLDEST_S:
        held = (each.evidence for each in inputs.open_problems if each.rule in STANDSTILLS)
        return any(each.get("host_by_node") == {} for each in held)
    return not inputs.hardware((HOST,), back_s).reported.any()


def hosts_between(span: Span, least: float, below: float = np.inf) -> FloatArray:
    """Nodes with idle cores and a host within limits: (n_ticks, n_nodes), NaN where unknown."""
    hosts = node_values(span, HOST)
    is_so = (hosts >= least) & (hosts < below) & ~(node_peak(span, CORES) >= WORKING)
    return np.where(np.isfinite(hosts), is_so, np.nan)


def since_ages(inputs: DetectionInput, since_s: float) -> Sequence[int]:
    """Ages (seconds) of a few moments from the end of the last step until now."""
    oldest = min(int(inputs.now_s) - int(since_s), OLDEST_S)
    return tuple(dict.fromkeys(np.linspace(oldest, 0, MOMENTS).astype(int).tolist()))


def _gone(
    inputs: DetectionInput,
    nodes: tuple[str, ...],
    lately: Flags,
    *,
    since_s: float,
    step_s: float,
) -> Flags:
    """Nodes that left while the last step was going on, with the first of those still away.

    The others wait for it. Who fell silent later, while they waited, did not stop the run: agents
    restart.
    """
    every_s = inputs.report_every_s
    # Three reports may be lost; of who reports each second, as many as make it silent.
    around_s = max(RULES["node_silent"].limits["quiet_s"], 3.0 * every_s)
    step_s = float(np.nan_to_num(step_s))
    from_s, until_s = since_s - 3.0 * every_s, since_s + step_s + around_s
    if not len(inputs.steps):
        # The others execute until they all wait for it, for an unknown part of a step.
        until_s = since_s + CLOCKS_S
        most_s = max(3.0 * every_s, step_s)
        from_s = min(from_s - step_s, since_s - WAITING.seconds - most_s)
    mute_s = inputs.lagging(MUTE_S)
    last_s = min(inputs.now_s, until_s + mute_s + 2 * every_s)
    if inputs.now_s - since_s > OLDEST_S or inputs.hardware_at is None:
        return np.zeros(len(nodes), dtype=bool)
    # Each second of a step of minutes; of a longer one as many moments.
    n_moments = min(10 * MOMENTS, int(last_s - from_s) + 1)
    at_s = np.unique(np.linspace(int(from_s), int(last_s), n_moments).astype(int))
    span = inputs.hardware_at((HOST,), (int(inputs.now_s) - at_s).tolist()).of(nodes)
    ticks = span.ticks[:, None]
    heard_s = np.maximum.accumulate(np.where(span.reported, ticks, 0), axis=0)
    hole = (heard_s > 0) & (heard_s <= until_s) & (ticks - heard_s > mute_s)
    left = np.asarray(hole.any(axis=0))
    if left.all() and len(nodes) > 1:
        # Monitoring was away.
        return np.zeros(len(nodes), dtype=bool)
    left_s = np.where(hole, heard_s, np.inf).min(axis=0, initial=np.inf)
    first_s = np.where(left & ~lately, left_s, np.inf).min(initial=np.inf)
    is_later = ~lately & (left_s > first_s + MUTE_S + 2 * (every_s - 1))
    return np.asarray(left & ~is_later)


def spinning(
    inputs: DetectionInput,
    nodes: tuple[str, ...],
    cores: FloatArray,
    hosts: FloatArray,
    *,
    since_s: float,
    step_s: float,
) -> Flags:
    """Mark nodes whose cores are always busy without moving data: (n_nodes,).

    ``cores`` is how busy they were lately, (n_ticks, n_nodes, n_cores); ``hosts`` (n_nodes,).

    Notes
    -----
    NCCL waits in a kernel that polls: a GPU in an incomplete collective reads
    100 % busy for as long as it hangs, and touches its memory hardly at all.
    """
    known = np.isfinite(cores)
    busy = known.any(axis=(0, 2)) & ((cores >= SPINNING) | ~known).all(axis=(0, 2))
    # If few nodes are fully busy they may be slow, and the others wait for them. Those wait in
    # the collective with busy hosts, unless they did not join it.
    is_away = hosts[~busy] < MOST * hosts[busy].min(initial=1.0)
    may_spin = busy.any() and (2 * busy.sum() > len(nodes) or is_away.all())
    if not may_spin or inputs.hardware_at is None or not np.isfinite(step_s):
        return np.zeros(len(nodes), dtype=bool)
    # The rate of two steps before the last one ended, of at most a minute.
    back_s = min(max(2 * step_s, MOMENTS / 2), 60.0) + 2.0 * inputs.report_every_s
    last_s = inputs.now_s - since_s
    ages = np.linspace(last_s + back_s, last_s, MOMENTS // 2).astype(int)
    metrics = (MEMORY, LINKS, EXECUTIONS)
    usual = inputs.hardware_at(metrics, tuple(dict.fromkeys(ages.tolist()))).of(nodes)
    now = inputs.hardware(metrics, inputs.lagging(LOOK_S)).of(nodes)
    stalled, is_known = np.ones(len(nodes), bool), np.zeros(len(nodes), bool)
    for metric in metrics:
        # A node without EFA devices has no link rate, a real one no memory bandwidth.
        least = KEEPS_ALIVE_BYTES_PER_S if metric == LINKS else 0.0
        was, newest = mean(_moved(usual, metric), axis=0), _newest(_moved(now, metric))
        is_measured = np.isfinite(newest) & (was > least)
        is_known |= is_measured
        stalled &= ~is_measured | (newest < MOVING * was)
    return np.asarray(busy & is_known & stalled)


def _moved(span: Span, metric: str) -> FloatArray:
    """Return what each node moved per second: (n_ticks, n_nodes), NaN where unknown."""
    return mean(part_values(span, metric).astype(float), axis=2)


def _newest(moved: FloatArray) -> FloatArray:
    """Most of the newest three seconds: between two steps a node executes nothing for one."""
    known = np.isfinite(moved)
    age = len(moved) - known[::-1].argmax(axis=0) - np.arange(len(moved))[:, None]
    most = np.where(known & (age > 0) & (age <= 3), moved, -np.inf).max(axis=0)
    return np.asarray(np.where(known.any(axis=0), most, np.nan))


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

    def lasts_s(self, name: str, now_s: float) -> float:
        """Seconds since the last node began an activity; 0 where none does it."""
        began_s = (since for node, since in self.since_s.items() if self.doing[node] == name)
        return now_s - max(began_s, default=now_s)


def in_contact_since_s(states: Collection[WorkerState]) -> float:
    """Return when the first worker was back after a silence of all; 0 without one.

    Others have `RETURN_S` from then on.
    """
    heard_s = max((state.heard_s for state in states), default=0.0)
    recent = (state.back_s for state in states if heard_s - state.heard_s <= DEAD_S)
    return min(recent, default=0.0)


def activities(inputs: DetectionInput, since_s: float) -> Activities | None:
    """Return what the nodes of a run do since its last step ended; None where none has said.

    Of several workers on a node the one that said most recently counts.
    """
    if inputs.workers is None:
        return None
    by_age = sorted(inputs.workers().values(), key=lambda state: state.heard_s)
    newest = {state.node: state for state in by_age}
    here = {node: state for node, state in newest.items() if node in inputs.row_of}
    known = {
        node: state
        for node, state in here.items()
        if state.activity and state.heard_s > since_s + CLOCKS_S
    }
    if not known:
        return None
    heard_s, contact_s = by_age[-1].heard_s, in_contact_since_s(by_age)
    return Activities(
        doing={node: state.activity for node, state in known.items()},
        since_s={node: max(state.since_s, since_s) for node, state in known.items()},
        heard_s={node: state.heard_s for node, state in known.items()},
        dead=tuple(
            node
            for node, each in here.items()
            if inputs.now_s > contact_s + RETURN_S and heard_s > each.heard_s + DEAD_S
        ),
    )
