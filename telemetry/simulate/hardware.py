"""Reports of the hardware of a run: cores, accelerators, executions, EFA devices, host."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.faults import SLOW_COMPUTE
from telemetry.simulate.noise import Floats, TickNoise
from telemetry.simulate.script import Script, core_factor, window_of
from telemetry.simulate.timeline import RUN_PHASES, TRAINING, TimelineRows
from telemetry.units import DAY_S

TICK_S = 1.0
# Unix seconds, of samples with fractions.
Ticks = IntArray | FloatArray


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Shares of each tick, 0 to 1, per node: (n_ticks, n_nodes); of gaps (n_ticks, 1).

    ``phase`` are the shares of gaps, by phase; that of "training" is the pause of
    an unplanned compile. ``computed`` and ``transferred`` are progress, in steps per second.
    Of the ``checkpoint`` a node is ``writing`` for a part: then it waits for the others.
    ``takes_part`` is 0 for nodes that the run does without, else 1.
    """

    compute: FloatArray
    wait: FloatArray
    transfer: FloatArray
    input: FloatArray
    checkpoint: FloatArray
    writing: FloatArray
    evaluation: FloatArray
    phase: Mapping[str, FloatArray]
    computed: FloatArray
    transferred: FloatArray
    takes_part: FloatArray


class _Meter:
    def __init__(self, rows: TimelineRows, ticks: Ticks, tick_s: float) -> None:
        edges = np.concatenate([ticks - tick_s, ticks])
        self.tick_s = tick_s
        self.row = np.searchsorted(rows.start_s, edges, side="right") - 1
        self.at_s = edges - rows.start_s[self.row]

    def share(self, begins_s: FloatArray, length_s: FloatArray) -> FloatArray:
        before = np.zeros((len(length_s) + 1, *length_s.shape[1:]))
        np.cumsum(length_s, axis=0, out=before[1:])
        into = np.clip(self._at(begins_s) - begins_s[self.row], 0, length_s[self.row])
        total, n = before[self.row] + into, len(self.row) // 2
        return np.asarray((total[n:] - total[:n]) / self.tick_s)

    def progress(self, begins_s: FloatArray, length_s: FloatArray) -> FloatArray:
        """Return number of such parts completed per second in each tick, with fractions."""
        before = np.zeros((len(length_s) + 1, *length_s.shape[1:]))
        np.cumsum(length_s > 0, axis=0, out=before[1:])
        length = length_s[self.row]
        into = np.clip(self._at(begins_s) - begins_s[self.row], 0, length)
        done = np.divide(into, length, out=np.zeros_like(into), where=length > 0)
        n = len(self.row) // 2
        whole = before[self.row]
        return np.asarray((whole[n:] - whole[:n]) + (done[n:] - done[:n])) / self.tick_s

    def _at(self, like: FloatArray) -> FloatArray:
        return self.at_s if like.ndim == 1 else self.at_s[:, None]


def occupancy(rows: TimelineRows, ticks: Ticks, *, tick_s: float = TICK_S) -> Occupancy:
    """Compute how workers spent each tick.

    Parameters
    ----------
    rows : consecutive, from before the first tick to the last
    ticks : (n_ticks,) Unix seconds; a tick is the second, or ``tick_s``, that ends with it

    Notes
    -----
    All times lie on the clock's grid, so the sums are exact: the same tick has the same
    shares whatever rows come along with it.
    """
    meter = _Meter(rows, ticks, tick_s)
    pause_s, ready_s = rows.pause_s, rows.ready_s
    begins_s = pause_s[:, None] + rows.input_s
    wait_s = rows.wait_s
    transferred_s = ready_s + rows.transfer_s
    zeros = np.zeros_like(pause_s)
    gaps = {
        i: np.where(rows.phase == i, pause_s, 0) for i in set(rows.phase[pause_s > 0].tolist())
    }
    here = (rows.active | (rows.phase != TRAINING)[:, None])[rows_at(rows, ticks)].astype(float)
    checkpoint = here * meter.share(transferred_s, rows.checkpoint_s)[:, None]
    writing = checkpoint
    if (rows.brief_s < rows.checkpoint_s).any():
        brief = here * meter.share(transferred_s, rows.brief_s)[:, None]
        writing = np.where(rows.slow_to_write[rows_at(rows, ticks)], checkpoint, brief)
    return Occupancy(
        compute=meter.share(begins_s, rows.compute_s),
        wait=meter.share(ready_s[:, None] - wait_s, wait_s),
        transfer=here * meter.share(ready_s, rows.transfer_s)[:, None],
        input=meter.share(np.broadcast_to(pause_s[:, None], begins_s.shape), rows.input_s),
        checkpoint=checkpoint,
        writing=writing,
        evaluation=here * meter.share(transferred_s + rows.checkpoint_s, rows.after_s)[:, None],
        phase={RUN_PHASES[i]: meter.share(zeros, gap_s)[:, None] for i, gap_s in gaps.items()},
        computed=meter.progress(begins_s, rows.compute_s),
        transferred=here * meter.progress(ready_s, rows.transfer_s)[:, None],
        takes_part=here,
    )


def rows_at(rows: TimelineRows, ticks: Ticks) -> IntArray:
    """Row in progress at the end of each tick: (n_ticks,)."""
    return np.searchsorted(rows.start_s, ticks, side="left") - 1


# Sent: read once; received: written, and half of it read and added to what was there.
HBM_BYTES_PER_EFA_BYTE = 3.0
# How busy a core is in each phase. Collectives run on separate engines.
BUSY = 0.97
BUSY_WAITING, BUSY_TRANSFERRING, BUSY_BLOCKED = 0.04, 0.28, 0.02
BUSY_EVALUATING = 0.6
BUSY_IN = {"compiling": 0.012, "warming_up": 0.22, "training": 0.004}
HOST_IN = {"compiling": 0.71, "warming_up": 0.34, "training": 0.66}
EMPTY_IN = {"pending": 1.0, "compiling": 0.97, "warming_up": 0.3, "finished": 1.0, "failed": 1.0}
HOST_IDLE, HOST_TRAINING, HOST_CHECKPOINT, HOST_INPUT = 0.015, 0.10, 0.3, 0.25
HOST_MEMORY, HOST_MEMORY_COMPILING = 0.16, 0.27
CORE_NOISE, DEVICE_NOISE, NODE_NOISE = 0.009, 0.004, 0.006
CORE_SPREAD, DEVICE_SPREAD, POWER_SPREAD = 0.006, 0.006, 0.02
DRIFT_S = 20
ECC_CORRECTED_PER_DAY = 0.5


@dataclass(frozen=True, slots=True)
class PartVariation:
    """Permanent differences between parts: (n_nodes, n_parts) each."""

    core: Floats
    device: Floats
    efa: Floats
    ecc: FloatArray
    ecc_per_s: FloatArray
    power: Floats


def nature(script: Script) -> PartVariation:
    """Return the permanent differences of a run's parts; a change of its plan changes nothing."""
    return _nature(script.key("nature"), script.run.instance, script.run.nodes)


# A worker plays all runs in turn: fewer entries than runs would draw them again each second.
@lru_cache(maxsize=512)
def _nature(key: np.uint64, instance_name: str, n: int) -> PartVariation:
    instance = catalog.instance(instance_name)
    rng = np.random.Generator(np.random.Philox(key=int(key)))

    def normal(n_parts: int) -> Floats:
        return np.clip(rng.standard_normal((n, n_parts), dtype=np.float32), -3, 3)

    per_day = rng.exponential(ECC_CORRECTED_PER_DAY, (n, instance.n_devices))
    return PartVariation(
        core=1 + np.float32(CORE_SPREAD) * normal(instance.n_cores),
        device=1 + np.float32(DEVICE_SPREAD) * normal(instance.n_devices),
        efa=normal(instance.n_efa),
        ecc=rng.poisson(0.4, (n, instance.n_devices)).astype(float),
        ecc_per_s=np.where(per_day > 2 * ECC_CORRECTED_PER_DAY, per_day, 0) / DAY_S,
        power=1 + np.float32(POWER_SPREAD) * normal(instance.n_devices),
    )


def _in_gaps(spent: Occupancy, levels: Mapping[str, float]) -> FloatArray:
    """Contribution of gaps in training, by kind: (n_ticks, 1)."""
    total = np.zeros((len(spent.compute), 1))
    for phase, share in spent.phase.items():
        total += levels.get(phase, 0.0) * share
    return total


def busy_ratio(script: Script, spent: Occupancy) -> FloatArray:
    """Mean core utilization of each node: (n_ticks, n_nodes).

    Utilization is time in execution. Collectives are part of the compiled graph, so a core that
    waits in one is inside an execution: busy. Where waiting does not count as busy, a core is
    idle in the pipeline's bubble and half idle in tensor-parallel collectives.
    """
    plan = script.step_plan
    outside = BUSY_BLOCKED * (spent.input + spent.checkpoint) + _in_gaps(spent, BUSY_IN)
    if script.plan.inputs.busy_while_waiting:
        inside = spent.compute + spent.wait + spent.transfer
        return np.asarray(BUSY * inside + BUSY_EVALUATING * spent.evaluation + outside)
    idle_s = plan.bubble_s + 0.5 * plan.tp_collective_s
    return np.asarray(
        BUSY * (1 - idle_s / plan.work_s) * spent.compute
        + BUSY_WAITING * spent.wait
        + BUSY_TRANSFERRING * spent.transfer
        + BUSY_BLOCKED * (spent.input + spent.checkpoint)
        + BUSY_EVALUATING * spent.evaluation
        + _in_gaps(spent, BUSY_IN)
    )


def core_utilization(script: Script, busy: FloatArray, noise: TickNoise, nodes: slice) -> Floats:
    """Utilization of each core: (n_ticks, n_nodes, n_cores), 0 to 1.

    Noise has a part per node, per accelerator and per core, and constant differences of
    the cores.
    """
    instance = script.instance
    per_device = instance.chip.cores_logical
    node = 1 + NODE_NOISE * noise.drift(every=DRIFT_S)
    ratio = noise.normal(instance.n_cores)
    ratio *= CORE_NOISE
    ratio += nature(script).core[nodes]
    device = DEVICE_NOISE * noise.normal(instance.n_devices)
    ratio.reshape(*device.shape, per_device)[...] += device[..., None]
    ratio *= (busy * node).astype(np.float32)[..., None]
    return np.clip(ratio, 0, 1, out=ratio)


def exchanged(script: Script, spent: Occupancy) -> FloatArray:
    """Gradient exchange of each node per second, in steps."""
    plan = script.step_plan
    whole_s = plan.exposed_allreduce_s + plan.hidden_allreduce_s
    exposed = plan.exposed_allreduce_s / whole_s if whole_s else 1.0
    return exposed * spent.transferred + (1 - exposed) * spent.computed


def device_values(
    script: Script, spent: Occupancy, ticks: Ticks, noise: TickNoise, nodes: slice
) -> dict[str, Floats]:
    """HBM bandwidth, memory and ECC counts of accelerators.

    What goes over EFA is read from HBM, and what comes is written there, added and read again.
    """
    plan, n = script.step_plan, script.instance.n_devices
    of = nature(script)
    moved = plan.hbm_bytes * (spent.computed + 0.4 / plan.work_s * spent.evaluation)
    traffic = HBM_BYTES_PER_EFA_BYTE * plan.efa_bytes / n * exchanged(script, spent)
    warming = 0.1 / plan.work_s * plan.hbm_bytes * _in_gaps(spent, {"warming_up": 1.0})
    moved = moved + traffic + warming + 2e6
    bandwidth = 1 + 0.012 * noise.normal(n)
    bandwidth *= of.device[nodes]
    bandwidth *= moved.astype(np.float32)[..., None]
    empty = _in_gaps(spent, EMPTY_IN)
    held = plan.device_memory_bytes * (1 - empty) * spent.takes_part
    memory = held.astype(np.float32)[..., None] * of.device[nodes]
    since_s = ticks[:, None, None] - script.epoch_s
    corrected = of.ecc[nodes] + np.floor(of.ecc_per_s[nodes] * np.maximum(since_s, 0))
    none = np.zeros(memory.shape, np.float32)
    return {
        "hbm_bandwidth_bytes_per_s": bandwidth,
        "device_memory_used_bytes": memory,
        "mem_ecc_corrected": corrected.astype(np.float32),
        "mem_ecc_uncorrected": none,
        "sram_ecc_corrected": none.copy(),
        "sram_ecc_uncorrected": none.copy(),
    }


def load_ratio(script: Script, rows: TimelineRows, ticks: Ticks) -> FloatArray:
    """Sequences per worker of the step in progress, over the usual number: (n_ticks, 1)."""
    return _load(script, rows)[rows_at(rows, ticks)][:, None]


def _load(script: Script, rows: TimelineRows) -> FloatArray:
    """Sequences per worker of each row, over the usual number: (n_rows,)."""
    n_active = np.maximum(rows.active.sum(axis=1), 1)
    return np.asarray(rows.tokens / n_active * (script.run.nodes / script.step_plan.tokens))


def node_values(
    script: Script, spent: Occupancy, noise: TickNoise, load: FloatArray
) -> dict[str, Floats]:
    """Values of the host and the runtime: (n_ticks, n_nodes, 1).

    More sequences in a step are more micro-batches, each of which is executed for itself.
    """
    plan, instance = script.step_plan, script.instance
    wobble = 1 + 0.06 * noise.normal(1)[..., 0]
    training = spent.compute + spent.wait + spent.transfer
    vcpu = (
        HOST_IDLE
        + HOST_TRAINING * training
        + HOST_INPUT * spent.input
        + HOST_CHECKPOINT * spent.writing
        + HOST_TRAINING * (spent.checkpoint - spent.writing)
        + HOST_TRAINING * spent.evaluation
        + _in_gaps(spent, HOST_IN)
    )
    held = HOST_MEMORY + HOST_MEMORY_COMPILING * _in_gaps(
        spent, {"compiling": 1.0, "training": 1.0}
    )
    memory = held * instance.host_memory_bytes * (1 + 0.02 * noise.drift(every=120))
    per_step = instance.n_cores * (plan.layout.micro_batches * load + 1)
    values = {
        "vcpu_usage_ratio": np.clip(vcpu * wobble, 0, 1),
        "host_memory_used_bytes": memory,
        "executions_completed_per_s": per_step * spent.computed,
        "executions_failed_per_s": np.zeros_like(spent.compute),
        "execution_errors_per_s": np.zeros_like(spent.compute),
    }
    return {name: value.astype(np.float32)[..., None] for name, value in values.items()}


# Probes take 15 to 17 µs one way on this fabric; each device has its own place in the racks.
PROBE_S, PROBE_SPREAD_S = 16.0e-6, 0.35e-6
LOAD_COST = 0.10  # a busy link answers that much later
PACKET_BYTES = 8192.0
IDLE_BYTES_PER_S = 2.0e3
RETRANSMIT_RATIO = 2.0e-6


def efa_values(
    script: Script, spent: Occupancy, noise: TickNoise, nodes: slice
) -> dict[str, Floats]:
    """Latency, traffic and errors of EFA devices: (n_ticks, n_nodes, n_efa).

    Gradients are striped over all devices of a node. What computing hides of the exchange
    flows while it computes, the rest while it transfers.
    """
    n, of = script.instance.n_efa, nature(script).efa[nodes]
    sent = (script.step_plan.efa_bytes / n * exchanged(script, spent) + IDLE_BYTES_PER_S).astype(
        np.float32
    )[..., None]
    tx = sent * (1 + 0.01 * noise.normal(n))
    rx = sent * (1 + 0.01 * noise.normal(n))
    packets = tx * np.float32(1 / PACKET_BYTES)
    # Packets are whole: a second has none of these, or now and then one.
    retransmits = np.floor(packets * np.float32(RETRANSMIT_RATIO) + noise.uniform(n))
    base = (PROBE_S + PROBE_SPREAD_S * of).astype(np.float32)
    load = (1 + LOAD_COST * spent.transfer).astype(np.float32)
    latency = noise.latency(n)
    latency *= base
    latency *= load[..., None]
    none = np.zeros(tx.shape, np.float32)
    return {
        "efa_latency_s": latency,
        "efa_tx_bytes_per_s": tx,
        "efa_rx_bytes_per_s": rx,
        "efa_tx_packets_per_s": packets,
        "efa_retransmits_per_s": retransmits,
        "efa_drops_per_s": none,
        "efa_impaired_per_s": none.copy(),
        "efa_unresponsive_per_s": none.copy(),
    }


# Share of its maximum power that a device draws in each phase. No figure is published: all of
# these are assumed. An engine that computes draws for its clock and for its work; one that waits
# in a collective polls a semaphore.
IDLE_POWER, WAITING_POWER, TRANSFERRING_POWER = 0.10, 0.30, 0.40
CLOCKED_POWER, COMPUTING_POWER = 0.45, 0.80
POWER_NOISE, FLOPS_NOISE, LATENCY_NOISE = 0.01, 0.002, 0.004


def device_power(
    script: Script, spent: Occupancy, ticks: Ticks, noise: TickNoise, nodes: slice
) -> Floats:
    """Power of each device over its maximum: (n_ticks, n_nodes, n_devices).

    A slow part does the same work in more time, so its work draws less. But it is clocked all
    the time, while the other devices of its node wait for it after each layer. What it draws
    more than they do is ``(CLOCKED_POWER - WAITING_POWER) * (1 - 1 / slowdown)`` while its node
    computes.
    """
    plan = script.step_plan
    work_s = plan.work_s
    engines = (plan.compute_s + plan.optimizer_s) / work_s * spent.compute
    level = (
        IDLE_POWER
        + (COMPUTING_POWER - IDLE_POWER) * (engines + 0.6 * spent.evaluation)
        + (WAITING_POWER - IDLE_POWER) * (plan.bubble_s / work_s * spent.compute + spent.wait)
        + (TRANSFERRING_POWER - IDLE_POWER)
        * (plan.tp_collective_s / work_s * spent.compute + spent.transfer)
    )
    power = np.repeat(level.astype(np.float32)[..., None], script.instance.n_devices, axis=2)
    for act in script.acts:
        rows = act.rows[(act.rows >= nodes.start) & (act.rows < nodes.stop)] - nodes.start
        when = window_of(act, ticks)
        if act.kind in SLOW_COMPUTE and len(rows) and when.start < when.stop:
            # The most that each device of a slow node saves.
            waiting, slow = COMPUTING_POWER - WAITING_POWER, COMPUTING_POWER - CLOCKED_POWER
            most = np.full(script.instance.n_devices, waiting, np.float32)
            if act.kind == "slow_core" and isinstance(act.parts, int):
                per_device = script.instance.chip.cores_logical
                most[act.parts // per_device] += (slow - waiting) / per_device
            else:
                most[act.parts] = slow
            saved = engines[when][:, rows] * (1 - 1 / core_factor(script, act))
            power[when, rows] -= saved.astype(np.float32)[..., None] * most
    power *= nature(script).power[nodes] + POWER_NOISE * noise.normal(script.instance.n_devices)
    return np.clip(power, 0, 1, out=power)


def core_flops(
    script: Script, spent: Occupancy, rows: TimelineRows, at: IntArray, noise: TickNoise
) -> Floats:
    """FLOPs that each core executes per second: (n_ticks, n_nodes, n_cores).

    In a synchronous step all cores do the same work in the same time, so it falls for all alike.
    """
    plan, n_cores = script.step_plan, script.instance.n_cores
    n_active = np.maximum(1, rows.active.sum(axis=1))
    per_core = plan.executed_flops / plan.tokens * rows.tokens / n_active / n_cores
    flops = (per_core[at][:, None] * spent.computed).astype(np.float32)[..., None]
    return np.asarray(flops * (1 + FLOPS_NOISE * noise.normal(n_cores)))


def execution_latencies(
    script: Script, run: TimelineRows, nodes: slice, ticks: Ticks, noise: TickNoise
) -> dict[str, Floats]:
    """Median and longest latency of the executions of each node: (n_ticks, n_nodes, 1).

    Parameters
    ----------
    run : rows of all nodes of the run
    ticks : (n_ticks,) Unix seconds

    Notes
    -----
    Each micro-batch is an execution; the last one of a step exchanges the gradients and updates
    the weights. Where the exchange is inside every execution (one micro-batch, sharded weights,
    pipeline stages) a node's latency holds its waiting for others, and is alike for all. NaN
    where nothing was executed.
    """
    plan = script.step_plan
    n = max(1, plan.layout.micro_batches)
    # More sequences in a step are more micro-batches.
    n_executed = np.maximum(1.0, n * _load(script, run))[:, None]
    rows, at = run.of(nodes), rows_at(run, ticks)
    whole_s = rows.ready_s[:, None] - rows.pause_s[:, None] - rows.input_s
    exchange_s = rows.wait_s + rows.transfer_s[:, None] + plan.optimizer_s
    is_masked = n == 1 or plan.layout.is_fully_sharded or script.run.pp > 1
    each_s = whole_s + rows.transfer_s[:, None] if is_masked else rows.compute_s
    each_s = each_s / n_executed
    longest_s = each_s if is_masked else np.maximum(each_s, exchange_s)
    exchanged_s = rows.start_s + rows.ready_s + rows.transfer_s
    # The newest exchange that was over at the end of the tick, and whether that was in this tick.
    last = np.searchsorted(np.where(rows.is_step, exchanged_s, np.inf), ticks, side="right") - 1
    is_over = (last >= 0) & (exchanged_s[np.maximum(last, 0)] > ticks - 1)
    computes = rows.is_step[at] & (ticks > (rows.start_s + rows.pause_s)[at])
    nothing = np.full(each_s[at].shape, np.nan)
    median_s = np.where((is_over if n == 1 else computes | is_over)[:, None], each_s[at], nothing)
    slowest_s = np.where(is_over[:, None], longest_s[np.maximum(last, 0)], median_s)
    scatter = (1 + LATENCY_NOISE * noise.normal(2)).astype(np.float32)
    is_active = rows.active[at]
    return {
        name: (np.where(is_active, value, np.nan).astype(np.float32) * scatter[..., i])[..., None]
        for i, (name, value) in enumerate(
            (("execution_latency_p50_s", median_s), ("execution_latency_p100_s", slowest_s))
        )
    }
