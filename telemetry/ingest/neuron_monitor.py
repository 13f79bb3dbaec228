"""Parsing neuron-monitor reports and the agent's lines into readings in our units."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.ingest import schemas
from telemetry.ingest.limits import MAX_LINE_VALUES, count_values
from telemetry.ingest.lines import Refusal, RefusedError, explain
from telemetry.ingest.schemas import MAX_CORES, MAX_LINE_BYTES
from telemetry.template_report import TemplateReport

PERCENT = 100.0

LATENCIES = {
    "execution_latency_p50_s": "p50",
    "execution_latency_p99_s": "p99",
    "execution_latency_p100_s": "p100",
}
# How the values of processes become one of the node.
OVER_PROCESSES: Mapping[str, Callable[..., FloatArray]] = {
    "executions_completed_per_s": np.sum,
    "executions_failed_per_s": np.sum,
    "execution_errors_per_s": np.sum,
    "execution_latency_p50_s": np.median,
    "execution_latency_p99_s": np.max,
    "execution_latency_p100_s": np.max,
}

_UTILIZATION = attrgetter("neuroncore_utilization")
_BUSY = attrgetter("user", "nice", "system", "io_wait", "irq", "soft_irq")
_ECC_KINDS = schemas.DeviceCounters.__struct_fields__[1:]
_ECC = attrgetter(*_ECC_KINDS)
_ENDINGS = attrgetter(*schemas.ExecutionSummary.__struct_fields__)
_ERRORS = attrgetter(*schemas.ErrorSummary.__struct_fields__)
RATES = {
    "efa_tx_bytes_per_s": "tx_bytes",
    "efa_rx_bytes_per_s": "rx_bytes",
    "efa_tx_packets_per_s": "tx_pkts",
    "efa_retransmits_per_s": "retrans_pkts",
    "efa_drops_per_s": "rx_drops",
    "efa_impaired_per_s": "impaired_remote_conn_events",
    "efa_unresponsive_per_s": "unresponsive_remote_events",
}
POWER = "device_power_ratio"
# What the Neuron driver may name as unhealthy: health_status/unhealthy_components, by the release
# notes of its runtime.
COMPONENTS = frozenset(
    {
        *("hbm", "sram", "firmware_service_api", "firmware_service_processor", "axi_fabric"),
        *(f"link_{to}" for to in ("intraserver", "interserver", "host", "efa", "switch")),
    }
)

_NO_ERRORS, _NO_ENDINGS = schemas.ErrorSummary(), schemas.ExecutionSummary()
_LINE = msgspec.json.Decoder(schemas.MonitorLine)
_LAST_LINE = msgspec.json.Decoder(schemas.LastLine)
G = TypeVar("G", bound=schemas.MetricGroup)


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
    ultraserver_id: str = ""

    def completed_by(self, known: "NodeIdentity | None") -> "NodeIdentity":
        """Fill empty fields from what is known."""
        if known is None or self == known:
            return self
        pairs = zip(astuple(self), astuple(known), strict=True)
        return NodeIdentity(*(mine or before for mine, before in pairs))


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One report: ``values[name]`` is (1, n_parts) as in a Block; it covers ``period_s``.

    ``at_s`` is when it was made by the node's clock, None if unknown. ``executed`` counts what
    each process did in the period. ``line`` is the report as received, or as a
    template; empty if the line had no report. ``seq`` rises within a ``stream``. ``n_efa`` is
    0 without EFA data. ``sidecars`` is what came along with the report, by kind. ``power_at_s``
    is when each device's power was measured, by the node's clock, NaN if unknown; empty without
    new power. ``rejected`` says which values are left out, and why.
    """

    identity: NodeIdentity
    shape: Shape
    period_s: float
    values: Mapping[str, FloatArray]
    at_s: float | None = None
    seq: int | None = None
    executed: Mapping[str, list[float]] = {}
    line: bytes | TemplateReport = b""
    stream: str | None = None
    n_efa: int = 0
    sidecars: Mapping[str, object] = {}
    power_at_s: tuple[float, ...] = ()
    rejected: tuple[str, ...] = ()

    @property
    def is_numbered(self) -> bool:
        """Whether stream and number identify the report, so that repeats are recognised."""
        return self.stream is not None and self.seq is not None


def read_line(line: bytes, *, shape: Shape | None = None) -> Reading:
    """Read one report; ``shape`` is the node's known hardware, for reports without it.

    Raises RefusedError, naming the field, if the line is invalid.
    """
    sent = decode_line(line)
    report = sent.report or sent
    if report.neuron_runtime_data is None and report.system_data is None:
        raise RefusedError("", "is not a report: has neither neuron_runtime_data nor system_data")
    shape = shape_of(report, shape)
    groups = Groups(report)
    utilization = core_utilization(groups.counters, n_cores=shape.n_cores)
    values = {
        "core_utilization_ratio": utilization,
        "core_flops_per_s": core_flops(groups.counters, utilization),
        "device_memory_used_bytes": device_memory(
            groups.memory, n_devices=shape.n_devices, n_cores=shape.n_cores
        ),
        **ecc(groups.hardware, n_devices=shape.n_devices),
        "vcpu_usage_ratio": vcpu_usage(groups.vcpu),
        "host_memory_used_bytes": host_memory(groups.host_memory),
        **executions(groups.executions, report_s=groups.period_s),
        "hbm_bandwidth_bytes_per_s": hbm_bandwidth(sent, n_devices=shape.n_devices),
    }
    present = {name: array for name, array in values.items() if array is not None}
    present |= sidecar_values(sent, shape, present, report_s=groups.period_s)
    rows = {name: array[None, :] for name, array in present.items()}
    identity = identity_of(report.instance_info, report.neuron_hardware_info, sent.neuron)
    done = executed(report.neuron_runtime_data)
    more = (sent.stream, n_efa(sent.efa), sidecars_of(sent), power_times(sent, shape))
    return Reading(identity, shape, groups.period_s, rows, sent.at, sent.seq, done, line, *more)


def decode_line(line: bytes) -> schemas.MonitorLine:
    """Decode a line; raises RefusedError, naming the field, if it is invalid."""
    if len(line) > MAX_LINE_BYTES:
        raise RefusedError("", f"{len(line):,} bytes; a line has at most {MAX_LINE_BYTES:,}")
    # Each value that is counted has a byte of its own.
    if len(line) > MAX_LINE_VALUES and count_values(line) > MAX_LINE_VALUES:
        raise RefusedError("", f"has more than {MAX_LINE_VALUES:,} values; report fewer")
    try:
        return _LINE.decode(line)
    except msgspec.MsgspecError as error:
        raise explain(error, line, schemas.MonitorLine) from error
    except UnicodeDecodeError as error:
        raise RefusedError("", "is not UTF-8") from error
    except RecursionError as error:
        raise RefusedError("", "is nested too deeply") from error


def read_lines(
    lines: Iterable[bytes], *, shape: Shape | None = None, first: int = 1
) -> tuple[list[tuple[int, Reading]], list[Refusal]]:
    """Read many reports; return readings with their line numbers, and refusals."""
    readings: list[tuple[int, Reading]] = []
    refusals: list[Refusal] = []
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            reading = read_line(line, shape=shape)
        except RefusedError as error:
            refusals.append(error.at(number))
        else:
            shape = reading.shape
            readings.append((number, reading))
    return readings, refusals


class Groups:
    """The groups of a report by kind, over all processes; failed groups are left out."""

    def __init__(self, report: schemas.MonitorReport) -> None:
        reports = [process.report for process in report.neuron_runtime_data or ()]
        known = [each for each in reports if each is not None]
        system = report.system_data or schemas.SystemData()
        self.counters = _without_errors(each.neuroncore_counters for each in known)
        self.memory = _without_errors(each.memory_used for each in known)
        self.executions = _without_errors(each.execution_stats for each in known)
        self.hardware = next(iter(_without_errors([system.neuron_hw_counters])), None)
        self.vcpu = next(iter(_without_errors([system.vcpu_usage])), None)
        self.host_memory = next(iter(_without_errors([system.memory_info])), None)
        everything: list[schemas.MetricGroup] = [*self.counters, *self.memory, *self.executions]
        everything += _without_errors([self.hardware, self.vcpu, self.host_memory])
        self.periods = [group.period for group in everything if group.period is not None]
        self.period_s = max(self.periods, default=0.0)


def _without_errors(groups: Iterable[G | None]) -> list[G]:
    return [group for group in groups if group is not None and not group.error]


def shape_of(report: schemas.MonitorReport, known: Shape | None) -> Shape:
    """Return the shape: reported, else known, else from the catalog, else apparent."""
    hardware = report.neuron_hardware_info or schemas.HardwareInfo()
    n_devices = hardware.neuron_device_count or 0
    per_device = hardware.neuroncore_per_device_count or 0
    if n_devices * per_device > MAX_CORES:
        reason = f"{n_devices} devices of {per_device} cores; at most {MAX_CORES} cores fit"
        raise RefusedError("neuron_hardware_info", reason)
    if n_devices and per_device:
        return Shape(n_devices, n_devices * per_device)
    if known:
        return known
    info = report.instance_info or schemas.InstanceInfo()
    if kind := catalog.instances().get(info.instance_type or ""):
        return Shape(kind.n_devices, kind.n_cores)
    # The minimum shape with every device and core that the report names.
    groups = Groups(report)
    devices = (groups.hardware and groups.hardware.neuron_devices) or []
    cores = [core for group in groups.counters for core in group.neuroncores_in_use or ()]
    if not devices or not cores:
        reason = "has no device or core count, and the report shows none"
        raise RefusedError("neuron_hardware_info", reason)
    n_devices = 1 + max(device.neuron_device_index for device in devices)
    per_device = -(-(1 + max(cores)) // n_devices)
    return Shape(n_devices, n_devices * per_device)


def identity_of(
    info: schemas.LineInstance | None, *others: schemas.HardwareInfo | schemas.NeuronLine | None
) -> NodeIdentity:
    """Return the machine; the id of its UltraServer is in the first that has one."""
    info = info or schemas.LineInstance()
    ids = [each.ultraserver_id or "" for each in (info, *others) if each is not None]
    return NodeIdentity(
        instance_id=info.instance_id or "",
        instance_name=info.instance_name or "",
        instance_type=info.instance_type or "",
        zone=info.instance_availability_zone or "",
        # The driver writes zeros where there is none.
        ultraserver_id=next(
            (ultraserver for each in ids if (ultraserver := each.strip()).strip("0")), ""
        ),
    )


def read_sidecar_line(sent: schemas.MonitorLine, *, shape: Shape | None) -> Reading:
    """Return the reading of a line without a report; ``shape`` is the node's known hardware.

    Raises RefusedError if the line is empty or invalid.
    """
    if sent.efa is None and sent.neuron is None:
        raise RefusedError("", "is empty: has neither efa nor neuron")
    if shape is None:
        # As the driver counts.
        devices = (sent.neuron and sent.neuron.devices) or []
        per_device = max((device.cores or 0 for device in devices), default=0)
        if not per_device:
            reason = "counts no cores, and the node is unknown: send a neuron-monitor report first"
            raise RefusedError("neuron.devices", reason)
        n_devices = 1 + max(device.index for device in devices)
        shape = Shape(n_devices, n_devices * per_device)
    periods = [part.period or 0.0 for part in (sent.efa, sent.neuron) if part is not None]
    period_s = max(periods)
    rows = sidecar_values(sent, shape, {}, report_s=period_s)
    values = {name: row[None, :] for name, row in rows.items()}
    return Reading(
        identity_of(sent.instance, sent.neuron),
        shape,
        period_s,
        values,
        sent.at,
        sent.seq,
        stream=sent.stream,
        n_efa=n_efa(sent.efa),
        sidecars=sidecars_of(sent),
        power_at_s=power_times(sent, shape),
    )


def n_efa(efa: schemas.EfaLine | None) -> int:
    return 1 + max((port.index for port in efa.devices), default=-1) if efa else 0


def sidecar_values(
    sent: schemas.MonitorLine, shape: Shape, known: Mapping[str, FloatArray], *, report_s: float
) -> dict[str, FloatArray]:
    """Return the EFA and driver values of a line that its report does not have.

    ``report_s`` is what the whole line covers.
    """
    values = efa_values(sent.efa, report_s=report_s) if sent.efa else {}
    if sent.neuron:
        values |= neuron_values(sent.neuron, shape)
    return {name: row for name, row in values.items() if name not in known}


def efa_values(efa: schemas.EfaLine, *, report_s: float = 0.0) -> dict[str, FloatArray]:
    """Return rates and probed latencies of EFA devices: (n_efa,) each, NaN where unknown.

    The rates of a device's ports add up; the highest of their latencies counts.
    """
    _check_unique(
        [(port.device, port.port) for port in efa.devices], "efa.devices", "device and port"
    )
    size = n_efa(efa)
    rows = {name: [math.nan] * size for name in (*RATES, "efa_latency_s")}
    for port in efa.devices:
        grown = port.increase or schemas.Increase()
        for name, counter in RATES.items():
            more: float | None = getattr(grown, counter)
            if more is not None and efa.period:
                _add(rows[name], port.index, more / counted_over_s(efa.period, report_s))
        if port.latency_s is not None:
            latency_s = rows["efa_latency_s"]
            latency_s[port.index] = float(np.fmax(latency_s[port.index], port.latency_s))
    return {name: np.array(row) for name, row in rows.items() if np.isfinite(row).any()}


def neuron_values(neuron: schemas.NeuronLine, shape: Shape) -> dict[str, FloatArray]:
    """Return the driver's values of devices, (n_devices,), and cores, (n_cores,)."""
    devices, power = neuron.devices or [], neuron.power or []
    for place, indices in (
        ("neuron.devices", [device.index for device in devices]),
        ("neuron.power", [each.device for each in power]),
    ):
        _check_unique(indices, place, "device")
        if indices and (index := max(indices)) >= shape.n_devices:
            reason = f"device {index}, but the node has {shape.n_devices}"
            raise RefusedError(place, reason)
    counted = schemas.HwCounters(
        neuron_devices=[schemas.DeviceCounters(device.index, *_ECC(device)) for device in devices]
    )
    values = dict(ecc(counted, n_devices=shape.n_devices))
    for name, key in (("device_memory_used_bytes", "memory_used_bytes"), (POWER, "power_ratio")):
        row = [math.nan] * shape.n_devices
        for device in devices:
            row[device.index] = math.nan if (n := getattr(device, key)) is None else n
        if name == POWER:
            for each in power:
                row[each.device] = min(each.ratio, 1.0)
        if np.isfinite(row).any():
            values[name] = np.array(row)
    if any(device.unhealthy is not None for device in devices):
        states = np.full(shape.n_devices, np.nan)
        for device in devices:
            if device.unhealthy is not None:
                states[device.index] = not COMPONENTS.isdisjoint(device.unhealthy)
        values["device_unhealthy"] = states
    if neuron.cores:
        busy, flops = (physical_cores(neuron.cores, shape, key) for key in ("busy", "flops"))
        known = np.isfinite(busy).sum(axis=1)
        mean = np.where(known > 0, np.nansum(busy, axis=1), np.nan) / np.maximum(known, 1)
        utilization = np.minimum(mean, 1.0, dtype=float)
        values["core_utilization_ratio"] = utilization
        if neuron.period and np.isfinite(flops).any():
            # Unless all physical cores count, the sum is not that of the logical one.
            per_s = flops.sum(axis=1) / neuron.period
            values["core_flops_per_s"] = counted_flops(per_s, utilization)
    return values


def power_times(sent: schemas.MonitorLine, shape: Shape) -> tuple[float, ...]:
    """Return when the power in a line was measured; see ``Reading.power_at_s``."""
    power = (sent.neuron and sent.neuron.power) or []
    if not power:
        return ()
    times = [math.nan] * shape.n_devices
    for each in power:
        times[each.device] = each.at
    return tuple(times)


def physical_cores(cores: Sequence[schemas.CoreBusy], shape: Shape, key: str) -> FloatArray:
    """Return a value of the driver's physical cores by logical core: (n_cores, n_physical).

    NaN where unknown.
    """
    per_device = shape.n_cores // shape.n_devices
    n_physical = max(per_device, 1 + max(core.core for core in cores))
    if n_physical % per_device or max(core.device for core in cores) >= shape.n_devices:
        reason = f"do not fit a node of {shape.n_devices} devices with {per_device} cores each"
        raise RefusedError("neuron.cores", reason)
    values = np.full((shape.n_devices, n_physical), np.nan)
    for core in cores:
        value = getattr(core, key)
        values[core.device, core.core] = math.nan if value is None else value
    return values.reshape(shape.n_cores, -1)


def sidecars_of(sent: schemas.MonitorLine) -> dict[str, object]:
    """Return the parts of a line that pages and /metrics show apart from values, by kind."""
    sidecars: dict[str, object] = {}
    if sent.efa:
        ports = [port for port in sent.efa.devices if port.counters is not None]
        if ports:
            names = ("device", "index", "port", "counters")
            sidecars["efa"] = [{name: getattr(port, name) for name in names} for port in ports]
    if sent.neuron and sent.neuron.devices:
        sidecars["neuron"] = msgspec.to_builtins(sent.neuron.devices)
    if sent.agent:
        sidecars["agent"] = msgspec.to_builtins(sent.agent)
    return sidecars


def _add(row: list[float], place: int, more: float) -> None:
    row[place] = more if math.isnan(row[place]) else row[place] + more


def _check_unique(keys: Sequence[object], field: str, what: str) -> None:
    if len(set(keys)) < len(keys):
        raise RefusedError(field, f"names a {what} twice")


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
                uses = map(_UTILIZATION, (use.v3d or {}).values())
                known = [one for one in uses if one is not None]
                share = sum(known) / len(known) if known else math.nan
            _add(percent, core, share)
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
            rate = flops_of(use)
            if rate is not None:
                _add(rates, core, rate)
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
            # A loop over the fields costs five times as much.
            used[device] = used.get(device, 0.0) + (
                (purposes.constants or 0.0)
                + (purposes.model_code or 0.0)
                + (purposes.model_shared_scratchpad or 0.0)
                + (purposes.runtime_memory or 0.0)
                + (purposes.tensors or 0.0)
            )
        if not cores and n_devices == 1 and total.neuron_device is not None:
            used[0] = used.get(0, 0.0) + total.neuron_device
    if not used:
        return None
    return np.array([used.get(device, math.nan) for device in range(n_devices)])


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


def counted_over_s(period_s: float, report_s: float) -> float:
    """Return the seconds that a count is divided by for its rate: its period.

    A count of less than a second is not extrapolated: it is the count of the whole report, which
    covers ``report_s``, and one second at least.
    """
    return period_s if period_s >= 1.0 else max(report_s, 1.0)


def executions(
    groups: Sequence[schemas.ExecutionStats], *, report_s: float
) -> Mapping[str, FloatArray]:
    """Return executions, errors and latencies, each (1,).

    Counts are summed over processes; every ending except ``completed`` counts as failed.
    Of several processes' latencies: the median of their medians, the highest of the others.
    """
    rates: dict[str, float] = {}
    for group in groups:
        if not group.period:
            continue
        over_s = counted_over_s(group.period, report_s)
        if group.execution_summary is not None:
            completed, *failed = _ENDINGS(group.execution_summary)
            _add_rate(rates, "executions_completed_per_s", [completed], over_s)
            _add_rate(rates, "executions_failed_per_s", failed, over_s)
        if group.error_summary is not None:
            kinds = _ERRORS(group.error_summary)
            _add_rate(rates, "execution_errors_per_s", kinds, over_s)
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


def _add_rate(
    rates: dict[str, float], name: str, counts: Sequence[float | None], over_s: float
) -> None:
    """Add counts to a rate per second; missing counts add nothing."""
    known = [count for count in counts if count is not None]
    if known:
        rates[name] = rates.get(name, 0.0) + sum(known) / over_s


def read_last_report(line: bytes) -> schemas.LastReport:
    """Decode a report that was accepted before."""
    sent = _LAST_LINE.decode(line)
    return sent.report or sent


def tag_of(process: schemas.Runtime) -> str:
    """Return the exporter's name of a process: its tag, else its pid."""
    return process.neuron_runtime_tag or str(process.pid or "")


def counted_processes(
    processes: list[schemas.Runtime] | None,
) -> list[tuple[schemas.Runtime, schemas.ExecutionStats]]:
    """Return the processes that count what they execute, with their statistics."""
    return [
        (process, stats)
        for process in processes or ()
        if process.report and (stats := process.report.execution_stats) and not stats.error
    ]


def executed(processes: list[schemas.Runtime] | None) -> Mapping[str, list[float]]:
    """Return what each process executed in the period, by its tag.

    Each list has the errors by kind, then the executions by ending, in the schema's order.
    Processes whose statistics failed are left out.
    """
    counts: dict[str, list[float]] = {}
    for process, stats in counted_processes(processes):
        errors = _ERRORS(stats.error_summary or _NO_ERRORS)
        now = [n or 0.0 for n in (*errors, *_ENDINGS(stats.execution_summary or _NO_ENDINGS))]
        tag = tag_of(process)
        before = counts.get(tag)
        counts[tag] = now if before is None else [*map(sum, zip(before, now, strict=True))]
    return counts
