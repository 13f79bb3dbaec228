"""One reading of a node, and how each metric is computed from neuron-monitor's groups."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import SupportsBytes

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest import schemas
from telemetry.ingest.lines import RefusedError

PERCENT = 100.0

LATENCIES = {"execution_latency_p50_s": "p50", "execution_latency_p100_s": "p100"}
# How the values of processes become one of the node.
OVER_PROCESSES: Mapping[str, Callable[..., FloatArray]] = {
    "executions_completed_per_s": np.sum,
    "executions_failed_per_s": np.sum,
    "execution_errors_per_s": np.sum,
    "execution_latency_p50_s": np.median,
    "execution_latency_p100_s": np.max,
}

_UTILIZATION = attrgetter("neuroncore_utilization")
_BUSY = attrgetter("user", "nice", "system", "io_wait", "irq", "soft_irq")
_ECC_KINDS = schemas.DeviceCounters.__struct_fields__[1:]
_ECC = attrgetter(*_ECC_KINDS)
_ENDINGS = attrgetter(*schemas.ExecutionSummary.__struct_fields__)
_ERRORS = attrgetter(*schemas.ErrorSummary.__struct_fields__)


def core_utilization(groups: Iterable[schemas.NeuroncoreCounters], *, n_cores: int) -> FloatArray:
    """Return the utilization of each core: (n_cores,), 0 to 1.

    A core that no process holds is NaN, not 0. If two processes used a core within the
    period, their shares add up.
    """
    percent = [math.nan] * n_cores
    for group in groups:
        in_use = group.neuroncores_in_use or {}
        _check_index(in_use, n_cores, "neuroncores_in_use", "core")
        for core, use in in_use.items():
            share = use.neuroncore_utilization
            if share is None:
                share = _physical_mean(use.v3d or {})
            before = percent[core]
            percent[core] = share if math.isnan(before) else before + share
    return np.minimum(np.array(percent) / PERCENT, 1.0, dtype=float)


def core_flops(
    groups: Iterable[schemas.NeuroncoreCounters], utilization: FloatArray
) -> FloatArray | None:
    """Return the FLOPs per second of each core: (n_cores,); None if none is reported.

    neuron-monitor reports a rate, so that the period does not matter. Versions differ in whether
    they call it ``flops`` or ``effective_flops``.
    """
    rates, is_known = [math.nan] * len(utilization), False
    for group in groups:
        for core, use in (group.neuroncores_in_use or {}).items():
            rate = use.effective_flops if use.flops is None else use.flops
            if rate is not None:
                before = rates[core]
                rates[core] = rate if math.isnan(before) else before + rate
                is_known = True
    return counted_flops(np.array(rates), utilization) if is_known else None


def flops_of(use: schemas.CoreUse) -> float | None:
    return use.effective_flops if use.flops is None else use.flops


def counted_flops(flops: FloatArray, utilization: FloatArray) -> FloatArray:
    """Replace the zeros of cores that are not idle by NaN: nothing was counted there."""
    return np.where((flops == 0) & (utilization != 0), np.nan, flops)


def device_memory(
    groups: Iterable[schemas.MemoryUsed], *, n_devices: int, n_cores: int
) -> FloatArray | None:
    """Return the memory used on each device: (n_devices,) bytes; None if none is reported.

    It is the sum over the device's cores and over processes. A device that no process holds
    is NaN.
    """
    used: dict[int, float] = {}
    per_device = n_cores // n_devices
    for group in groups:
        total = group.neuron_runtime_used_bytes or schemas.RuntimeUsedBytes()
        breakdown = total.usage_breakdown or schemas.UsageBreakdown()
        cores = breakdown.neuroncore_memory_usage or {}
        _check_index(cores, n_cores, "neuroncore_memory_usage", "core")
        for core, purposes in cores.items():
            device = core // per_device
            used[device] = used.get(device, 0.0) + _all_purposes(purposes)
        if not cores and n_devices == 1 and total.neuron_device is not None:
            used[0] = used.get(0, 0.0) + total.neuron_device
    if not used:
        return None
    return np.array([used.get(device, math.nan) for device in range(n_devices)])


def _all_purposes(memory: schemas.CoreMemory) -> float:
    """Sum a core's memory over all purposes; a loop over the fields costs five times as much."""
    return (
        (memory.constants or 0.0)
        + (memory.model_code or 0.0)
        + (memory.model_shared_scratchpad or 0.0)
        + (memory.runtime_memory or 0.0)
        + (memory.tensors or 0.0)
    )


def ecc(group: schemas.HwCounters | None, *, n_devices: int) -> Mapping[str, FloatArray]:
    """Return the ECC counts of each device, (n_devices,), for each kind reported."""
    devices = (group and group.neuron_devices) or []
    by_device = {device.neuron_device_index: _ECC(device) for device in devices}
    _check_index(by_device, n_devices, "neuron_devices", "device")
    nothing = (None,) * len(_ECC_KINDS)
    columns = zip(*(by_device.get(device, nothing) for device in range(n_devices)), strict=True)
    return {
        kind: np.array(column, float)
        for kind, column in zip(_ECC_KINDS, columns, strict=True)
        if column.count(None) < n_devices
    }


def vcpu_usage(group: schemas.VcpuUsage | None) -> FloatArray | None:
    """Return the share of the host's vCPUs in use: (1,), 0 to 1; None if not reported."""
    if group is None or group.average_usage is None:
        return None
    shares = [share for share in _BUSY(group.average_usage) if share is not None]
    return np.array([min(1.0, sum(shares) / PERCENT)]) if shares else None


def host_memory(group: schemas.MemoryInfo | None) -> FloatArray | None:
    """Return the host memory in use: (1,) bytes; None if not reported."""
    if group is None or group.memory_used_bytes is None:
        return None
    return np.array([group.memory_used_bytes])


def executions(groups: Sequence[schemas.ExecutionStats]) -> Mapping[str, FloatArray]:
    """Return executions, errors and latencies, each (1,).

    Counts are summed over processes; every ending except ``completed`` counts as failed.
    Of the processes' latencies the median and the longest are kept.
    """
    rates: dict[str, float] = {}
    for group in groups:
        if not group.period:
            continue
        if group.execution_summary is not None:
            completed, *failed = _ENDINGS(group.execution_summary)
            _add_rate(rates, "executions_completed_per_s", [completed], group.period)
            _add_rate(rates, "executions_failed_per_s", failed, group.period)
        if group.error_summary is not None:
            kinds = _ERRORS(group.error_summary)
            _add_rate(rates, "execution_errors_per_s", kinds, group.period)
    values = {name: np.array([rate]) for name, rate in rates.items()}
    for name, percentile in LATENCIES.items():
        known = [s for group in groups if (s := latency_of(group, percentile)) is not None]
        if known:
            whole = OVER_PROCESSES[name](known) if len(known) > 1 else known[0]
            values[name] = np.array([whole])
    return values


def latency_of(group: schemas.ExecutionStats, percentile: str) -> float | None:
    """Return a latency as the runtime measured it, in seconds; None where nothing was executed."""
    latencies = (group.latency_stats and group.latency_stats.total_latency) or {}
    # Zero is no latency.
    return latencies.get(percentile) or None


def hbm_bandwidth(sent: schemas.MonitorLine, *, n_devices: int) -> FloatArray | None:
    """Estimate each device's HBM bandwidth: (n_devices,) bytes/s; None without a profile.

    neuron-monitor does not measure it. The estimate is the bytes per step and device, from a
    profile, times the steps per second; it is the same for all devices.
    """
    if sent.hbm_bytes_per_step is None or sent.steps_per_s is None:
        return None
    return np.full(n_devices, sent.hbm_bytes_per_step * sent.steps_per_s)


def _check_index(parts: Mapping[int, object], n_parts: int, field: str, word: str) -> None:
    """Refuse an index beyond the node's hardware."""
    if parts and (index := max(parts)) >= n_parts:
        reason = f"{word} {index}, but the node counts {n_parts} (neuron_hardware_info)"
        raise RefusedError(field, reason)


def _physical_mean(cores: Mapping[str, schemas.PhysicalCoreUse]) -> float:
    """Average the physical cores of a logical core, in percent."""
    known = [use for use in map(_UTILIZATION, cores.values()) if use is not None]
    return sum(known) / len(known) if known else math.nan


def _add_rate(
    rates: dict[str, float], name: str, counts: Sequence[float | None], period_s: float
) -> None:
    """Add counts of a period to a rate per second; missing counts add nothing.

    What was counted in part of a second is all that is known of it: it is not extrapolated.
    """
    known = [count for count in counts if count is not None]
    if known:
        rates[name] = rates.get(name, 0.0) + sum(known) / max(period_s, 1.0)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many devices a node has, and cores as the runtime counts them."""

    n_devices: int
    n_cores: int


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The machine of a report; unknown fields are empty."""

    instance_id: str = ""
    instance_name: str = ""
    instance_type: str = ""
    zone: str = ""

    def completed_by(self, known: "NodeIdentity | None") -> "NodeIdentity":
        """Fill empty fields from what is known."""
        if known is None or self == known:
            return self
        return NodeIdentity(
            self.instance_id or known.instance_id,
            self.instance_name or known.instance_name,
            self.instance_type or known.instance_type,
            self.zone or known.zone,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One report: ``values[name]`` is (1, n_parts) as in a Block; it covers ``period_s``.

    ``at_s`` is when it was made by the node's clock, None if unknown. ``executed`` counts what
    each process did in the period. ``line`` is the report as received, or an object that
    builds it; empty if the line had no report. ``seq`` rises within a ``stream``. ``n_efa`` is
    0 without EFA data. ``sidecars`` is what came along with the report, by kind. ``power_at_s``
    is when each device's power was measured, by the node's clock, NaN if unknown; empty without
    new power.
    """

    identity: NodeIdentity
    shape: Shape
    period_s: float
    values: Mapping[str, FloatArray]
    at_s: float | None = None
    seq: int | None = None
    executed: Mapping[str, list[float]] = field(default_factory=dict)
    line: bytes | SupportsBytes = b""
    stream: str | None = None
    n_efa: int = 0
    sidecars: Mapping[str, object] = field(default_factory=dict)
    power_at_s: tuple[float, ...] = ()

    @property
    def is_numbered(self) -> bool:
        """Whether stream and number identify the report, so that repeats are recognised."""
        return self.stream is not None and self.seq is not None
