"""What healthy hardware reports while a run lives on it: cores, accelerators, host."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.simulate.noise import Floats, TickNoise
from telemetry.simulate.occupancy import Occupancy
from telemetry.simulate.script import Script

# Sent: read once; received: written, and half of it read and added to what was there.
HBM_BYTES_PER_EFA_BYTE = 3.0
# How busy a core is in each phase. Collectives run on engines of their own beside the cores.
BUSY = 0.97
BUSY_WAITING, BUSY_TRANSFERRING, BUSY_BLOCKED = 0.04, 0.28, 0.02
BUSY_EVALUATING = 0.6
BUSY_IN = {"compiling": 0.012, "warming_up": 0.22, "training": 0.004}
HOST_IN = {"compiling": 0.71, "warming_up": 0.34, "training": 0.66}
EMPTY_IN = {"pending": 1.0, "compiling": 0.97, "warming_up": 0.3, "finished": 1.0, "failed": 1.0}
HOST_IDLE, HOST_TRAINING, HOST_CHECKPOINT, HOST_INPUT = 0.015, 0.10, 0.3, 0.25
HOST_MEMORY, HOST_MEMORY_COMPILING = 0.16, 0.27
CORE_NOISE, DEVICE_NOISE, NODE_NOISE = 0.009, 0.004, 0.006
CORE_SPREAD, DEVICE_SPREAD = 0.006, 0.006
DRIFT_S = 20
ECC_CORRECTED_PER_DAY = 0.5


@dataclass(frozen=True, slots=True)
class Nature:
    """Lasting differences between alike parts: (n_nodes, n_parts) each."""

    core: Floats
    device: Floats
    efa: Floats
    ecc: FloatArray
    ecc_per_s: FloatArray


def nature(script: Script) -> Nature:
    """Return what tells the parts of a run's nodes apart for good."""
    return _nature(int(script.key("nature")), script.run.instance, script.run.nodes)


@lru_cache(maxsize=16)
def _nature(key: int, instance_name: str, n: int) -> Nature:
    instance = catalog.instance(instance_name)
    rng = np.random.Generator(np.random.Philox(key=key))

    def normal(n_parts: int) -> Floats:
        return np.clip(rng.standard_normal((n, n_parts), dtype=np.float32), -3, 3)

    per_day = rng.exponential(ECC_CORRECTED_PER_DAY, (n, instance.n_devices))
    return Nature(
        core=1 + np.float32(CORE_SPREAD) * normal(instance.n_cores),
        device=1 + np.float32(DEVICE_SPREAD) * normal(instance.n_devices),
        efa=normal(instance.n_efa),
        ecc=rng.poisson(0.4, (n, instance.n_devices)).astype(float),
        ecc_per_s=np.where(per_day > 2 * ECC_CORRECTED_PER_DAY, per_day, 0) / 86_400,
    )


def _in_gaps(spent: Occupancy, levels: Mapping[str, float]) -> FloatArray:
    """Return what gaps in training contribute, so much for each kind: (n_ticks, 1)."""
    total = np.zeros((len(spent.compute), 1))
    for life, share in spent.life.items():
        total += levels.get(life, 0.0) * share
    return total


def busy_ratio(script: Script, spent: Occupancy) -> FloatArray:
    """Return how busy the average core of each node is: (n_ticks, n_nodes).

    Notes
    -----
    A core is idle in the pipeline's bubble and half idle in tensor-parallel collectives.
    """
    plan = script.step_plan
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
    """Return how busy every core is: (n_ticks, n_nodes, n_cores), 0 to 1.

    Notes
    -----
    Noise has a part of the node, of the accelerator and of the core, besides what tells the
    cores apart for good.
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
    """Return how much of a step's gradients each node exchanged per second, in steps."""
    plan = script.step_plan
    whole_s = plan.exposed_allreduce_s + plan.hidden_allreduce_s
    exposed = plan.exposed_allreduce_s / whole_s if whole_s else 1.0
    return exposed * spent.transferred + (1 - exposed) * spent.computed


def device_values(
    script: Script, spent: Occupancy, ticks: IntArray, noise: TickNoise, nodes: slice
) -> dict[str, Floats]:
    """Return HBM bandwidth, memory and ECC counts of every accelerator.

    Notes
    -----
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


def node_values(script: Script, spent: Occupancy, noise: TickNoise) -> dict[str, Floats]:
    """Return what the host and the runtime of every node report: (n_ticks, n_nodes, 1)."""
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
    per_step = instance.n_cores * (plan.layout.micro_batches + 1)
    values = {
        "vcpu_usage_ratio": np.clip(vcpu * wobble, 0, 1),
        "host_memory_used_bytes": memory,
        "executions_completed_per_s": per_step * spent.computed,
        "executions_failed_per_s": np.zeros_like(spent.compute),
        "execution_errors_per_s": np.zeros_like(spent.compute),
    }
    return {name: value.astype(np.float32)[..., None] for name, value in values.items()}
