"""What neuron-monitor's exporter would show of a simulated node, derived from its newest block.

A process of a simulated node is one per node, named after its run. Where a block says less than
the exporter shows, the rest follows from it by the shares below: estimates, and said to be.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.dropin import neuron_names as names
from telemetry.dropin.played import Played
from telemetry.families import Spec
from telemetry.numbers import numbers, present, written
from telemetry.slabs import Slab

MIB = 2.0**20
# What a core holds beside tensors, if there is room; as neuron-monitor shows it of a trn2.
CORE_BYTES = {
    "constants": 0.1875 * MIB,
    "model_code": 96.0 * MIB,
    "model_shared_scratchpad": 0.0,
    "runtime_memory": 6.0 * MIB,
}
# Host memory of a process for each of its cores, and at most this share of what is in use.
HOST_BYTES_PER_CORE, HOST_SHARE = 293.0 * MIB, 0.5
# Of the vCPU time in use: what the process takes, and how much of either is the kernel's.
PROCESS_SHARE, KERNEL_SHARE = 0.9, 0.07
# Percentiles of the execution latency, over its mean.
SPREAD = {"p0": 0.95, "p1": 0.97, "p25": 0.99, "p50": 1.0, "p75": 1.01, "p99": 1.05, "p100": 1.2}

Derived = Callable[[Played], Slab | None]


def _slab(
    nodes: Played, labels: tuple[str, ...], parts: Sequence[tuple[str, ...]], values: FloatArray
) -> Slab:
    """Return values of the nodes, (n_nodes, n_parts); what is NaN is absent."""
    return Slab(nodes.rows, labels, parts, written(values), np.isfinite(values))


def _of_process(
    nodes: Played, labels: tuple[str, ...], parts: Sequence[tuple[str, ...]], values: FloatArray
) -> Slab:
    """Return values of the nodes' processes; a node without one shows none."""
    return _slab(nodes, labels, parts, np.where(nodes.runs_process, values, np.nan))


def _parts(*values: str) -> list[tuple[str, ...]]:
    return [(value,) for value in values]


def utilization(nodes: Played) -> Slab | None:
    """Return how busy each core is, as it was reported."""
    codes = nodes.codes("core_utilization_ratio")
    if codes is None:
        return None
    there = present(codes, "ratio") & nodes.runs_process
    cores = _parts(*map(str, range(codes.shape[1])))
    return Slab(nodes.rows, ("neuroncore",), cores, numbers(codes, "ratio"), there)


def core_memory(nodes: Played, *, purpose: str) -> Slab | None:
    """Return each core's even share of its device's memory, by purpose."""
    device = np.where(nodes.runs_process, nodes.values("device_memory_used_bytes"), np.nan)
    per_device = nodes.n_cores // nodes.machine.n_devices
    core = device / per_device
    beside = sum(CORE_BYTES.values())
    if purpose in CORE_BYTES:
        held = CORE_BYTES[purpose] * np.minimum(core / beside, 1.0)
    else:
        held = np.maximum(core - beside, 0.0)
    held = np.rint(held)
    parts = [(str(i), names.NOWHERE) for i in range(held.shape[1] * per_device)]
    texts = np.repeat(written(held), per_device, axis=1)
    there = np.repeat(np.isfinite(held), per_device, axis=1)
    return Slab(nodes.rows, ("neuroncore", "memory_location"), parts, texts, there)


def runtime_memory(nodes: Played) -> Slab:
    """Return the memory of the process, on the host and on all devices."""
    device = np.nansum(nodes.values("device_memory_used_bytes"), axis=1, keepdims=True)
    used = nodes.values("host_memory_used_bytes")
    host = np.rint(np.minimum(nodes.n_cores * HOST_BYTES_PER_CORE, HOST_SHARE * used))
    parts = _parts("host", "neuron_device")
    return _of_process(nodes, ("memory_location",), parts, np.hstack([host, np.rint(device)]))


def vcpu(nodes: Played, *, of_process: bool) -> Slab:
    """Return the vCPU time in use, by kind."""
    used = nodes.values("vcpu_usage_ratio") * (PROCESS_SHARE if of_process else 1.0)
    values = np.round(np.hstack([used * (1 - KERNEL_SHARE), used * KERNEL_SHARE]), 4)
    make = _of_process if of_process else _slab
    return make(nodes, ("usage_type",), _parts("user", "system"), values)


def errors(nodes: Played) -> Slab:
    """Return errors by kind: whatever fails in a simulated node fails for its hardware."""
    total = nodes.counted("execution_errors_per_s")
    return _kinds(nodes, "error_type", names.ERRORS, {"hardware": total}, known=total)


def status(nodes: Played) -> Slab:
    """Return executions by how they ended."""
    done, failed = (nodes.counted(f"executions_{how}_per_s") for how in ("completed", "failed"))
    ended = {"completed": done, "completed_with_err": failed}
    return _kinds(nodes, "status_type", names.ENDINGS, ended, known=done)


def _kinds(
    nodes: Played,
    label: str,
    kinds: tuple[str, ...],
    counts: Mapping[str, FloatArray],
    *,
    known: FloatArray,
) -> Slab:
    """Return counts by kind; those of other kinds are zero where there are any counts."""
    none = np.where(np.isfinite(known), 0.0, np.nan)
    values = np.hstack([counts.get(kind, none) for kind in kinds])
    return _of_process(nodes, (label,), _parts(*kinds), values)


def latency(nodes: Played) -> Slab:
    """Return how long executions take: a core's busy time over what it executes, if it does."""
    busy = np.nanmean(np.nan_to_num(nodes.values("core_utilization_ratio")), axis=1, keepdims=True)
    per_s = nodes.values("executions_completed_per_s") / nodes.n_cores
    mean_s = np.divide(busy, per_s, out=np.full(busy.shape, np.nan), where=per_s > 0)
    values = np.round(mean_s * np.array([list(SPREAD.values())]), 6)
    return _of_process(nodes, ("percentile",), _parts(*SPREAD), values)


def ecc_events(nodes: Played) -> Slab:
    """Return ECC counts by kind and device, as reported."""
    n_devices = nodes.machine.n_devices
    shape = (len(nodes.rows), n_devices)
    values = np.hstack([np.broadcast_to(nodes.values(kind), shape) for kind in names.ECC])
    parts = [(kind, str(device)) for kind in names.ECC for device in range(n_devices)]
    return _slab(nodes, ("event_type", "neuron_device_index"), parts, values)


def memory_used(nodes: Played) -> Slab:
    """Return the host memory in use, as reported."""
    return _slab(nodes, (), [()], np.rint(nodes.values("host_memory_used_bytes")))


def constant(nodes: Played, *, figure: Callable[[Played], float]) -> Slab:
    """Return what is the same for all nodes of a kind."""
    return _slab(nodes, (), [()], np.full((len(nodes.rows), 1), float(figure(nodes))))


def hardware(nodes: Played) -> Slab:
    """Return how many devices and cores there are."""
    n_devices = nodes.machine.n_devices
    labels = ("neuron_device_count", "neuroncore_per_device_count")
    parts = [(str(n_devices), str(nodes.n_cores // n_devices))]
    return _slab(nodes, labels, parts, np.ones((len(nodes.rows), 1)))


DERIVED: Mapping[Spec, Derived] = {
    names.UTILIZATION: utilization,
    **{spec: partial(core_memory, purpose=p) for p, spec in names.CORE_MEMORY.items()},
    names.RUNTIME_MEMORY: runtime_memory,
    names.RUNTIME_VCPU: partial(vcpu, of_process=True),
    names.EXECUTION_ERRORS: errors,
    names.EXECUTION_STATUS: status,
    names.LATENCY: latency,
    names.ECC_EVENTS: ecc_events,
    names.MEMORY_TOTAL: partial(constant, figure=lambda n: n.machine.host_memory_bytes),
    names.MEMORY_USED: memory_used,
    names.SWAP_TOTAL: partial(constant, figure=lambda _: 0.0),
    names.SWAP_USED: partial(constant, figure=lambda _: 0.0),
    names.VCPU_COUNT: partial(constant, figure=lambda n: n.machine.vcpus),
    names.VCPU_USAGE: partial(vcpu, of_process=False),
    names.INSTANCE: partial(constant, figure=lambda _: 1.0),
    names.HARDWARE: hardware,
}
