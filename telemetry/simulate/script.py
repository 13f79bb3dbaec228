"""The script of a run: what happens to which nodes, and when."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.catalog import Instance
from telemetry.simulate.faults import (
    BENIGN,
    FAULTS,
    HARDWARE_KINDS,
    SLOW_COMPUTE,
    STOPS,
    slowdown,
)
from telemetry.simulate.noise import mixed, stream, windows
from telemetry.simulate.plan import Benign, Fault, Plan, RunSpec
from telemetry.simulate.step_model import StepPlan, exposed_allreduce_s, step_plan
from telemetry.simulate.step_noise import PACE_DEVIATION, StepNoise

FOREVER_S = math.inf
EVALUATION_S = 60.0
# Events that interrupt training, and those that change who takes part.
COMPILES = "planned_compile"
MEMBERSHIP = ("scale_change", "node_joins", "node_leaves")
# One-off events that a step makes room for.
ONE_OFF = ("checkpoint", "evaluation", "recompile", "checkpoint_slow")
# A magnitude that grows does so in so many ramp steps.
N_RAMP_STEPS = 32
# What a step meets of a fault that comes and goes within few steps is known to this share.
N_LEVELS = 32
FLICKER_STEPS = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """A fault or benign event in Unix seconds; ``rows`` are the affected nodes.

    Before its act a joining node is absent. ``parts`` are cores, accelerators or EFA devices, by
    kind.
    """

    kind: str
    rows: IntArray
    parts: int | slice
    start_s: float
    end_s: float
    magnitude: float

    def is_on(self, at_s: float) -> bool:
        return self.start_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True, eq=False)
class Flicker:
    """A fault that is on for less than a few steps at a time: a step meets a share of it.

    ``strength`` (n_acts,) is how far each act has grown; ``levels`` are acts of every strength.
    """

    start_s: float
    end_s: float
    begins_s: FloatArray
    ends_s: FloatArray
    strength: FloatArray
    levels: tuple[Act, ...]

    def met_by(self, start_s: float, step_s: float) -> Act | None:
        """Return the fault at its mean strength during a step; None if it has no effect."""
        first, last = np.maximum(self.begins_s, start_s), np.minimum(self.ends_s, start_s + step_s)
        met = float(np.maximum(last - first, 0) @ self.strength) / step_s
        level = round(min(1.0, met) * N_LEVELS)
        return self.levels[level - 1] if level else None


def flicker_of(fault: Fault, acts: Sequence[Act]) -> Flicker:
    start_s, end_s = acts[0].start_s, acts[-1].end_s
    return Flicker(
        start_s,
        end_s,
        np.array([act.start_s for act in acts]),
        np.array([act.end_s for act in acts]),
        np.array([share_of(fault, act.magnitude) for act in acts]),
        tuple(
            replace(
                acts[0],
                start_s=start_s,
                end_s=end_s,
                magnitude=grown(fault.kind, fault.magnitude, level / N_LEVELS),
            )
            for level in range(1, N_LEVELS + 1)
        ),
    )


def grown(kind: str, magnitude: float, share: float) -> float:
    """Return a magnitude that has grown to a share of its size; at 0 it has no effect."""
    if kind in SLOW_COMPUTE:
        return 1 + (slowdown(magnitude) - 1) * share
    is_factor = FAULTS[kind].magnitude_unit == "factor"
    return 1 + (magnitude - 1) * share if is_factor else magnitude * share


def share_of(fault: Fault, magnitude: float) -> float:
    """Return how much of its size a magnitude has grown to: the inverse of ``grown``."""
    none, whole = (grown(fault.kind, fault.magnitude, share) for share in (0.0, 1.0))
    now = slowdown(magnitude) if fault.kind in SLOW_COMPUTE else magnitude
    return (now - none) / (whole - none) if whole != none else 1.0


def strengths(fault: Fault) -> Iterator[tuple[float, float, float]]:
    """Yield the stretches in which a fault is on: start, end, magnitude.

    A growing magnitude is that of the middle of each of ``N_RAMP_STEPS`` ramp steps.
    """
    end_s = fault.start_s + fault.duration_s
    windows = [(fault.start_s, end_s)]
    if fault.period_s is not None and fault.on_s is not None:
        n = math.ceil(fault.duration_s / fault.period_s)
        begins = [fault.start_s + i * fault.period_s for i in range(n)]
        windows = [(begin, min(end_s, begin + fault.on_s)) for begin in begins]
    for begin, end in windows:
        if not fault.ramp_s:
            yield begin, end, fault.magnitude
            continue
        ramp_step_s = fault.ramp_s / N_RAMP_STEPS
        edges = [fault.start_s + i * ramp_step_s for i in range(N_RAMP_STEPS + 1)]
        cuts = [begin, *(edge for edge in edges if begin < edge < end), end]
        for first, last in pairwise(cuts):
            ramp_step = math.floor((first - fault.start_s) / ramp_step_s + 1e-9)
            share = min(1.0, (ramp_step + 0.5) / N_RAMP_STEPS) if ramp_step < N_RAMP_STEPS else 1.0
            yield first, last, grown(fault.kind, fault.magnitude, share)


class Script:
    """A plan prepared for playing; the same plan is prepared once per process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run: RunSpec = plan.run
        self.epoch_s = float(plan.epoch_s)
        self.names = plan.run.node_names
        self.step_plan: StepPlan = step_plan(plan.run)
        self.instance: Instance = catalog.training_instance(plan.run.instance)
        # All that happens; what a step is made of; faults that flicker within a few steps.
        self.acts: tuple[Act, ...] = ()
        self._paced: tuple[Act, ...] = ()
        self.flickers: tuple[Flicker, ...] = ()
        for fault in plan.faults:
            self._add(fault)
        events = tuple(self._events(plan.benign))
        self.acts += events
        self._paced += events
        self._starts_s = np.array([act.start_s for act in self._paced], np.float64)
        self._ends_s = np.array([act.end_s for act in self._paced], np.float64)
        self.one_offs = tuple(act for act in self.acts if act.kind in (*ONE_OFF, COMPILES))
        self.stops = tuple(
            sorted((act for act in self.acts if act.kind in STOPS), key=lambda act: act.start_s)
        )
        self._changes = tuple(act for act in self.acts if act.kind in MEMBERSHIP)
        edges = [e for each in (*self._paced, *self.flickers) for e in (each.start_s, each.end_s)]
        self._edges = np.unique(np.array([e for e in edges if math.isfinite(e)], np.float64))

    def _add(self, fault: Fault) -> None:
        rows = np.array(fault.ranks_in(self.run), int)
        if not len(rows):
            return
        acts = tuple(
            self._act(fault.kind, rows, start_s, end_s - start_s, magnitude, parts=_parts(fault))
            for start_s, end_s, magnitude in strengths(fault)
        )
        self.acts += acts
        is_short = fault.on_s is not None and fault.on_s < FLICKER_STEPS * self.step_plan.step_s
        if is_short and FAULTS[fault.kind].flickers:
            self.flickers += (flicker_of(fault, acts),)
        else:
            self._paced += acts

    def key(self, name: str) -> np.uint64:
        return run_key(self.plan, name)

    @cached_property
    def step_noise(self) -> StepNoise | None:
        """Noise as measured; None where the scenario has another one."""
        noise, step_s = self.plan.noise, self.step_plan.step_s
        return StepNoise(noise, key=self.key, step_s=step_s) if noise.is_measured else None

    @cached_property
    def node_cv(self) -> float:
        """Deviation of the lasting pace of nodes, beyond that of all healthy ones."""
        measured = self.step_noise.node_cv if self.step_noise else 0.0
        return math.hypot(self.plan.noise.node_cv, measured)

    @cached_property
    def run_to_run_cv(self) -> float:
        measured = self.step_noise.run_cv if self.step_noise else 0.0
        return math.hypot(self.plan.noise.run_to_run_cv, measured)

    @cached_property
    def run_pace(self) -> float:
        """Random factor by which the whole run computes slower than the model, 0.5 or more."""
        cv = self.run_to_run_cv
        noise_value = (
            float(windows("normal", mixed(self.key("run"), np.array([0])), 1)[0, 0]) if cv else 0.0
        )
        return max(0.5, 1 + cv * min(max(noise_value, -3.0), 3.0))

    @cached_property
    def compile_s(self) -> float:
        """Duration of the first compilation."""
        if self.run.compile_s is not None:
            return self.run.compile_s
        return catalog.model(self.run.model).default_compile_s

    @cached_property
    def stage(self) -> IntArray:
        """Pipeline stage of each node's last rank: (n_nodes,); a stage is a block of ranks."""
        n_nodes, pp = self.run.nodes, self.run.pp
        return (np.arange(1, n_nodes + 1) * pp - 1) // n_nodes

    def on(self, at_s: float) -> tuple[Act, ...]:
        """Acts that affect a step which begins at a second."""
        met = (each.met_by(at_s, self.step_plan.step_s) for each in self.flickers)
        return (*self._lasting(at_s), *(act for act in met if act is not None))

    def changed(self, acts: tuple[Act, ...], at_s: float) -> tuple[Act, ...]:
        """Acts that affect the rest of a step which began with ``acts``."""
        new = (act for act in self._lasting(at_s) if act.kind in HARDWARE_KINDS)
        return (*(act for act in acts if act.kind not in HARDWARE_KINDS), *new)

    def _lasting(self, at_s: float) -> tuple[Act, ...]:
        found = np.flatnonzero((self._starts_s <= at_s) & (at_s < self._ends_s))
        return tuple(self._paced[i] for i in found)

    def flickers_at(self, at_s: float) -> bool:
        """Whether a fault is active that affects each step to a different degree."""
        return any(each.start_s <= at_s < each.end_s for each in self.flickers)

    def begun(self, after_s: float, until_s: float) -> tuple[Act, ...]:
        """One-off acts that begin in (after_s, until_s]."""
        return tuple(act for act in self.one_offs if after_s < act.start_s <= until_s)

    def membership_changed(self, after_s: float, until_s: float) -> bool:
        """Whether nodes join or leave in (after_s, until_s]."""
        return any(
            after_s < act.start_s <= until_s or after_s < act.end_s <= until_s
            for act in self._changes
        )

    def next_edge(self, after_s: float) -> float:
        """Next second at which an act begins or ends."""
        i = int(np.searchsorted(self._edges, after_s, side="right"))
        edge = float(self._edges[i]) if i < len(self._edges) else FOREVER_S
        for every_s in (self.run.checkpoint_every_s, self.run.evaluate_every_s):
            if every_s is not None:
                n = math.floor((after_s - self.epoch_s) / every_s) + 1
                edge = min(edge, max(self.epoch_s + n * every_s, np.nextafter(after_s, FOREVER_S)))
        return edge

    def is_due(self, every_s: float | None, after_s: float, until_s: float) -> bool:
        """Whether a periodic event occurs in (after_s, until_s]; never if ``every_s`` is None."""
        if every_s is None:
            return False
        n = math.floor((until_s - self.epoch_s) / every_s)
        return n >= 1 and self.epoch_s + n * every_s > after_s

    def _events(self, events: Iterable[Benign]) -> Iterable[Act]:
        for event in events:
            kind = BENIGN[event.kind]
            duration_s = event.duration_s or kind.default_duration_s or FOREVER_S
            magnitude = event.magnitude or kind.default_magnitude
            rows = np.arange(self.run.nodes)
            if event.node is not None:
                rows = np.array([self.names.index(event.node)])
            if event.kind == "scale_change":
                rows = np.arange(max(1, round(magnitude * self.run.nodes)), self.run.nodes)
            yield self._act(event.kind, rows, event.start_s, duration_s, magnitude)

    def _act(
        self,
        kind: str,
        rows: IntArray,
        start_s: float,
        duration_s: float,
        magnitude: float,
        *,
        parts: int | slice = slice(None),
    ) -> Act:
        start_s += self.epoch_s
        end_s = start_s + duration_s
        if kind == "node_joins":
            start_s, end_s = -FOREVER_S, start_s
        return Act(kind, rows, parts, start_s, end_s, magnitude)


def _parts(fault: Fault) -> int | slice:
    """Parts that a fault affects: one of a node, all of a run or of the nodes of a rack."""
    if fault.device is not None:
        return fault.device
    return 0 if fault.node is not None or fault.nodes else slice(None)


def window_of(act: Act, ticks: IntArray | FloatArray) -> slice:
    """Rows of increasing ticks that end during an act."""
    first, last = np.searchsorted(ticks, [act.start_s, act.end_s], side="right")
    return slice(int(first), int(last))


def run_key(plan: Plan, name: str) -> np.uint64:
    """Key of a noise stream of a run."""
    return stream(plan.seed, plan.run.name, name)


# A worker plays all runs in turn: fewer entries than runs would build each script each second.
@lru_cache(maxsize=512)
def script_of(plan: Plan) -> Script:
    return Script(plan)


def spread(key: np.uint64, n: int, *, deviation: float, most: float) -> FloatArray:
    """Permanent differences between n parts: (n,) factors around 1."""
    rng = np.random.Generator(np.random.Philox(key=int(key)))
    return 1 + np.clip(rng.standard_normal(n) * deviation, -most, most)


# Alike machines are not equal: persistent differences in pace between nodes.
PACE_MOST = 0.01
# A lost packet holds up its chunk for a timeout; chunks are so many packets, and the timeout
# is so many times as long as a healthy chunk takes.
CHUNK_PACKETS = 64
TIMEOUT_CHUNKS = 40.0
# A device that takes over the stripes of its dead neighbour carries twice as much.
TAKEOVER = 2.0
# Share of the work that waits for memory is seldom below or above these.
MEMORY_BOUND_LEAST, MEMORY_BOUND_MOST = 0.5, 0.9
# Opening and closing a checkpoint on shared storage, whatever its size.
CHECKPOINT_LATENCY_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Conditions:
    """The pace of every worker and link: expected seconds per phase, noise left out.

    ``compute_s`` and ``input_s`` are (n_workers,), ``active`` says who takes part, and
    ``uneven_ratio`` how much longer the unluckiest worker of a step computes. Who is not
    ``slow_to_write`` has written its part of a checkpoint after ``brief_ratio`` of its time.
    """

    compute_s: FloatArray
    input_s: FloatArray
    transfer_s: float
    checkpoint_s: float
    slow_to_write: NDArray[np.bool_]
    brief_ratio: float
    tokens: int
    uneven_ratio: float
    active: NDArray[np.bool_]
    stuck: tuple[Act, ...]

    @property
    def shortest_s(self) -> float:
        """Lower bound of the step time, with rare exceptions."""
        return float(0.97 * (self.compute_s + self.input_s).max() + 0.9 * self.transfer_s)


@lru_cache(maxsize=256)
def conditions(script: Script, acts: tuple[Act, ...]) -> Conditions:
    plan, n_nodes = script.step_plan, script.run.nodes
    active = np.ones(n_nodes, dtype=bool)
    stall_s, slowed, slow = np.zeros(n_nodes), np.ones(n_nodes), np.ones(n_nodes)
    for act in acts:
        rows = act.rows
        if act.kind in MEMBERSHIP:
            active[rows] = False
        elif act.kind == "input_stall":
            stall_s[rows] += act.magnitude
        elif act.kind == "checkpoint_slow":
            slow[rows] = np.maximum(slow[rows], act.magnitude)
        elif act.kind == "stage_imbalance":
            rows = np.flatnonzero(script.stage == script.stage[rows[-1]])
        # A tensor-parallel group synchronizes after every layer, so one slow core or accelerator
        # slows its node. The slowest part counts.
        slowed[rows] = np.maximum(slowed[rows], core_factor(script, act))
    active[0] |= not active.any()
    n_active = int(active.sum())
    batch = float(np.prod([act.magnitude for act in acts if act.kind == "batch_change"]))
    share = n_nodes / n_active  # the same batch on fewer or more shoulders
    busy_s = (plan.compute_s + plan.tp_collective_s) * batch * share
    pace = spread(script.key("pace"), n_nodes, deviation=PACE_DEVIATION, most=PACE_MOST)
    if node_cv := script.node_cv:
        pace *= spread(script.key("node pace"), n_nodes, deviation=node_cv, most=2 * node_cv)
    work_s = busy_s + plan.bubble_s + plan.optimizer_s
    compute_s = work_s * script.run_pace * pace * slowed
    # Every collective is striped over all EFA devices of all nodes in fixed shares, so all
    # workers see the slowest link.
    latency, bandwidth = np.array([(1.0, 1.0), *(efa_stretch(act) for act in acts)]).max(axis=0)
    transfer_s = exposed_allreduce_s(plan, latency_factor=latency, bandwidth_factor=bandwidth)
    # All nodes write in parallel; the run waits for the slowest.
    checkpoint_s = CHECKPOINT_LATENCY_S + plan.checkpoint_s * n_nodes / n_active
    least, most = float(slow[active].min()), float(slow[active].max())
    return Conditions(
        compute_s=np.where(active, compute_s, 0),
        input_s=np.where(active, plan.input_s * batch * share + stall_s, 0),
        transfer_s=float(transfer_s),
        checkpoint_s=checkpoint_s * most,
        slow_to_write=slow > least if slow.max() > least else active,
        brief_ratio=least / most,
        tokens=round(plan.tokens * batch),
        uneven_ratio=sum(act.magnitude for act in acts if act.kind == "seq_imbalance"),
        active=active,
        stuck=tuple(a for a in acts if a.kind in STOPS and active[a.rows].any()),
    )


def memory_bound_ratio(script: Script) -> float:
    """Share of the compute time that slower memory would stretch."""
    plan, chip = script.step_plan, script.instance.chip
    moving_s = plan.hbm_bytes / (chip.hbm_bytes_per_s * plan.layout.constants.hbm_ratio)
    busy_s = plan.compute_s + plan.optimizer_s
    return min(max(moving_s / busy_s, MEMORY_BOUND_LEAST), MEMORY_BOUND_MOST)


def core_factor(script: Script, act: Act) -> float:
    """Compute slowdown of the nodes that an act affects."""
    if act.kind in {"slow_core", "throttle"}:
        return slowdown(act.magnitude)
    if act.kind == "hbm_slow":
        return 1 + memory_bound_ratio(script) * (slowdown(act.magnitude) - 1)
    if act.kind == "stage_imbalance":
        return 1 + act.magnitude
    return 1.0


def efa_stretch(act: Act) -> tuple[float, float]:
    """Slowdown of latency and bandwidth over the links that an act affects.

    The round trip of a link stretches the latency of the collective as it is. By Little's law a
    flow moves what is in flight once per round trip. SRD keeps about as much in flight as a
    healthy round trip needs, so on a round trip that is m times as long the throughput is 1/m.

    A lost packet is sent again after a timeout, and the chunk it belongs to is not complete
    before: with ratio r, ``1 - (1 - r) ** CHUNK_PACKETS`` of the chunks come that much later.

    A device that is down leaves its stripes to a neighbour, which then carries twice as much.

    References
    ----------
    J. D. C. Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9(3), 1961.
    L. Shalev et al., "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC",
    IEEE Micro 40(6), 2020: SRD's congestion control, few bytes in flight, and retransmission.
    """
    if act.kind == "efa_latency":
        return act.magnitude, act.magnitude
    if act.kind == "efa_loss":
        held_up = 1 - (1 - act.magnitude) ** CHUNK_PACKETS
        return 1 + 2 * act.magnitude, 1 + TIMEOUT_CHUNKS * held_up
    if act.kind == "efa_down":
        return 1.0, TAKEOVER
    return 1.0, 1.0
