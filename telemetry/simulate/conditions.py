"""What a step takes under the faults that are under way when it begins."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.simulate.estimate import exposed_allreduce_s
from telemetry.simulate.kinds import slowdown
from telemetry.simulate.script import MEMBERSHIP, Act, Script, spread

# Alike machines are not equal: persistent differences in pace between nodes.
PACE_DEVIATION, PACE_MOST = 0.004, 0.01
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
        """A step is hardly ever shorter than this."""
        return float(0.97 * (self.compute_s + self.input_s).max() + 0.9 * self.transfer_s)


def conditions(script: Script, acts: Iterable[Act]) -> Conditions:
    """Return the pace of a run while these acts are under way."""
    acts = tuple(acts)
    plan = script.step_plan
    active = _active(script, acts)
    batch = float(np.prod([act.magnitude for act in acts if act.kind == "batch_change"]))
    share = script.run.nodes / active.sum()  # the same batch on fewer or more shoulders
    busy_s = (plan.compute_s + plan.tp_collective_s) * batch * share
    pace = spread(script.key("pace"), script.run.nodes, deviation=PACE_DEVIATION, most=PACE_MOST)
    work_s = busy_s + plan.bubble_s + plan.optimizer_s
    compute_s = work_s * pace * _compute_factor(script, acts)
    slow = _writing_factor(script, acts)
    return Conditions(
        compute_s=np.where(active, compute_s, 0),
        input_s=np.where(active, plan.input_s * batch * share + _stall_s(script, acts), 0),
        transfer_s=_transfer_s(script, acts),
        checkpoint_s=_checkpoint_s(script, int(active.sum())) * float(slow[active].max()),
        slow_to_write=slow > slow[active].min() if slow.max() > slow[active].min() else active,
        brief_ratio=float(slow[active].min() / slow[active].max()),
        tokens=round(plan.tokens * batch),
        uneven_ratio=sum(act.magnitude for act in acts if act.kind == "seq_imbalance"),
        active=active,
        stuck=tuple(a for a in acts if a.kind in {"hang", "node_crash"} and active[a.rows].any()),
    )


def _active(script: Script, acts: tuple[Act, ...]) -> NDArray[np.bool_]:
    """Return which nodes take part: (n_nodes,); one always does."""
    active = np.ones(script.run.nodes, dtype=bool)
    for act in acts:
        if act.kind in MEMBERSHIP:
            active[act.rows] = False
    active[0] |= not active.any()
    return active


def memory_bound_ratio(script: Script) -> float:
    """Return the share of a step's computing that would stretch with slower memory."""
    plan, chip = script.step_plan, script.instance.chip
    moving_s = plan.hbm_bytes / (chip.hbm_bytes_per_s * plan.layout.constants.hbm_ratio)
    busy_s = plan.compute_s + plan.optimizer_s
    return min(max(moving_s / busy_s, MEMORY_BOUND_LEAST), MEMORY_BOUND_MOST)


def core_factor(script: Script, act: Act) -> float:
    """Return how many times longer the nodes compute that an act hits."""
    if act.kind in {"slow_core", "throttle"}:
        return slowdown(act.magnitude)
    if act.kind == "hbm_slow":
        return 1 + memory_bound_ratio(script) * (slowdown(act.magnitude) - 1)
    if act.kind == "stage_imbalance":
        return 1 + act.magnitude
    return 1.0


def _compute_factor(script: Script, acts: tuple[Act, ...]) -> FloatArray:
    """Return how many times longer each node computes: (n_nodes,).

    A tensor-parallel group meets after every layer, so one slow core or accelerator paces
    its node; the slowest part counts.
    """
    factor = np.ones(script.run.nodes)
    for act in acts:
        rows = act.rows
        if act.kind == "stage_imbalance":
            rows = np.flatnonzero(script.stage == script.stage[act.rows[-1]])
        factor[rows] = np.maximum(factor[rows], core_factor(script, act))
    return factor


def _stall_s(script: Script, acts: tuple[Act, ...]) -> FloatArray:
    stall_s = np.zeros(script.run.nodes)
    for act in acts:
        if act.kind == "input_stall":
            stall_s[act.rows] += act.magnitude
    return stall_s


def efa_stretch(act: Act) -> tuple[float, float]:
    """Return how many times longer latency and bytes take over the links that an act hits.

    Notes
    -----
    The latency of a link stretches the latency of the collective as it is. Its bytes suffer
    more: congestion control takes the delay for congestion of its own making and keeps fewer
    bytes in flight on a way that takes longer, so throughput falls with the square.

    A lost packet is sent again after a timeout, and the chunk it belongs to is not complete
    before: with ratio r, ``1 - (1 - r) ** CHUNK_PACKETS`` of the chunks come that much later.

    A device that is down leaves its stripes to a neighbour, which then carries twice as much.

    References
    ----------
    L. Shalev et al., "A Cloud-Optimized Transport Protocol for Elastic and Scalable HPC",
    IEEE Micro 40(6), 2020: SRD's congestion control and retransmission.
    """
    if act.kind == "efa_latency":
        return act.magnitude, act.magnitude**2
    if act.kind == "efa_loss":
        held_up = 1 - (1 - act.magnitude) ** CHUNK_PACKETS
        return 1 + 2 * act.magnitude, 1 + TIMEOUT_CHUNKS * held_up
    if act.kind == "efa_down":
        return 1.0, TAKEOVER
    return 1.0, 1.0


def _transfer_s(script: Script, acts: tuple[Act, ...]) -> float:
    """Return the exposed gradient collective: paced by the slowest link of all nodes.

    Every collective is striped over all EFA devices of all nodes in fixed shares, so all
    workers see the pace of the worst one.
    """
    latency, bandwidth = np.array([(1.0, 1.0), *(efa_stretch(act) for act in acts)]).max(axis=0)
    return float(
        exposed_allreduce_s(script.step_plan, latency_factor=latency, bandwidth_factor=bandwidth)
    )


def _checkpoint_s(script: Script, n_nodes: int) -> float:
    """Return the seconds of one checkpoint: all nodes write their part side by side."""
    return CHECKPOINT_LATENCY_S + script.step_plan.checkpoint_s * script.run.nodes / n_nodes


def _writing_factor(script: Script, acts: tuple[Act, ...]) -> FloatArray:
    """Return how many times longer each node writes: (n_nodes,); the run waits for the slowest."""
    factor = np.ones(script.run.nodes)
    for act in acts:
        if act.kind == "checkpoint_slow":
            factor[act.rows] = np.maximum(factor[act.rows], act.magnitude)
    return factor
