"""Parsing neuron-monitor reports and the agent's lines into readings in our units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.ingest import schemas
from telemetry.ingest.last_report import executed
from telemetry.ingest.lines import Refusal, RefusedError, explain
from telemetry.ingest.readings import (
    NodeIdentity,
    Reading,
    Shape,
    core_flops,
    core_utilization,
    device_memory,
    ecc,
    executions,
    hbm_bandwidth,
    host_memory,
    vcpu_usage,
)
from telemetry.ingest.schemas import MAX_CORES, MAX_LINE_BYTES

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
# Rates over a shorter period are noise.
MIN_PERIOD_S = 0.05

_LINE = msgspec.json.Decoder(schemas.MonitorLine)
G = TypeVar("G", bound=schemas.MetricGroup)


def read_line(line: bytes, *, shape: Shape | None = None) -> Reading:
    """Read one report; ``shape`` is the node's known hardware, for reports without it.

    Raises RefusedError, naming the field, if the line is invalid.
    """
    sent = decode_line(line)
    return _reading(sent, sent.report or sent, shape, line)


def decode_line(line: bytes) -> schemas.MonitorLine:
    """Decode a line; raises RefusedError, naming the field, if it is invalid."""
    if len(line) > MAX_LINE_BYTES:
        raise RefusedError("", f"{len(line):,} bytes; a line has at most {MAX_LINE_BYTES:,}")
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


def _reading(
    sent: schemas.MonitorLine, report: schemas.MonitorReport, known: Shape | None, line: bytes
) -> Reading:
    if report.neuron_runtime_data is None and report.system_data is None:
        raise RefusedError("", "is not a report: has neither neuron_runtime_data nor system_data")
    shape = shape_of(report, known)
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
        **executions(groups.executions),
        "hbm_bandwidth_bytes_per_s": hbm_bandwidth(sent, n_devices=shape.n_devices),
    }
    present = {name: array for name, array in values.items() if array is not None}
    present |= sidecar_values(sent, shape, present)
    rows = {name: array[None, :] for name, array in present.items()}
    identity = identity_of(report.instance_info)
    done = executed(report.neuron_runtime_data)
    more = (sent.stream, n_efa(sent.efa), sidecars_of(sent), power_times(sent, shape))
    return Reading(identity, shape, groups.period_s, rows, sent.at, sent.seq, done, line, *more)


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
    info = report.instance_info or schemas.InstanceInfo()
    kind = catalog.instances().get(info.instance_type or "")
    shape = known or (Shape(kind.n_devices, kind.n_cores) if kind else _apparent(report))
    if shape is None:
        reason = "has no device or core count, and the report shows none"
        raise RefusedError("neuron_hardware_info", reason)
    return shape


def _apparent(report: schemas.MonitorReport) -> Shape | None:
    """Return the smallest shape with every device and core that the report names."""
    groups = Groups(report)
    devices = (groups.hardware and groups.hardware.neuron_devices) or []
    cores = [core for group in groups.counters for core in group.neuroncores_in_use or ()]
    if not devices or not cores:
        return None
    n_devices = 1 + max(device.neuron_device_index for device in devices)
    per_device = -(-(1 + max(cores)) // n_devices)
    return Shape(n_devices, n_devices * per_device)


def identity_of(info: schemas.InstanceInfo | schemas.LineInstance | None) -> NodeIdentity:
    info = info or schemas.LineInstance()
    return NodeIdentity(
        instance_id=info.instance_id or "",
        instance_name=info.instance_name or "",
        instance_type=info.instance_type or "",
        zone=info.instance_availability_zone or "",
    )


def read_sidecar_line(sent: schemas.MonitorLine, *, shape: Shape | None) -> Reading:
    """Return the reading of a line without a report; ``shape`` is the node's known hardware.

    Raises RefusedError if the line is empty or invalid.
    """
    if sent.efa is None and sent.neuron is None:
        raise RefusedError("", "is empty: has neither efa nor neuron")
    shape = shape or _driver_shape(sent.neuron)
    if shape is None:
        reason = "counts no cores, and the node is unknown: send a neuron-monitor report first"
        raise RefusedError("neuron.devices", reason)
    periods = [part.period or 0.0 for part in (sent.efa, sent.neuron) if part is not None]
    values = {name: row[None, :] for name, row in sidecar_values(sent, shape, {}).items()}
    return Reading(
        identity_of(sent.instance),
        shape,
        max(periods),
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
    sent: schemas.MonitorLine, shape: Shape, known: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return the EFA and driver values of a line that its report does not have."""
    values = efa_values(sent.efa) if sent.efa else {}
    if sent.neuron:
        values |= neuron_values(sent.neuron, shape)
    return {name: row for name, row in values.items() if name not in known}


def efa_values(efa: schemas.EfaLine) -> dict[str, FloatArray]:
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
            if more is not None and efa.period and efa.period >= MIN_PERIOD_S:
                _add(rows[name], port.index, more / max(efa.period, 1.0))
        if port.latency_s is not None:
            latency_s = rows["efa_latency_s"]
            latency_s[port.index] = float(np.fmax(latency_s[port.index], port.latency_s))
    return {name: np.array(row) for name, row in rows.items() if np.isfinite(row).any()}


def neuron_values(neuron: schemas.NeuronLine, shape: Shape) -> dict[str, FloatArray]:
    """Return the driver's values of devices, (n_devices,), and cores, (n_cores,)."""
    devices, power = neuron.devices or [], neuron.power or []
    for field, indices in (
        ("neuron.devices", [device.index for device in devices]),
        ("neuron.power", [each.device for each in power]),
    ):
        _check_unique(indices, field, "device")
        if indices and (index := max(indices)) >= shape.n_devices:
            reason = f"device {index}, but the node has {shape.n_devices}"
            raise RefusedError(field, reason)
    counted = schemas.HwCounters(
        neuron_devices=[
            schemas.DeviceCounters(
                device.index,
                device.mem_ecc_corrected,
                device.mem_ecc_uncorrected,
                device.sram_ecc_corrected,
                device.sram_ecc_uncorrected,
            )
            for device in devices
        ]
    )
    values = dict(ecc(counted, n_devices=shape.n_devices))
    for name, key in (
        ("device_memory_used_bytes", "memory_used_bytes"),
        (POWER, "power_ratio"),
    ):
        row = [math.nan] * shape.n_devices
        for device in devices:
            row[device.index] = math.nan if (n := getattr(device, key)) is None else n
        if name == POWER:
            for each in power:
                row[each.device] = min(each.ratio, 1.0)
        if np.isfinite(row).any():
            values[name] = np.array(row)
    if neuron.cores:
        values["core_utilization_ratio"] = physical_core_utilization(neuron.cores, shape)
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


def physical_core_utilization(cores: Sequence[schemas.CoreBusy], shape: Shape) -> FloatArray:
    """Return the utilization of each core: (n_cores,), 0 to 1; NaN where unknown.

    The driver counts physical cores; a logical core is the mean of its physical ones.
    """
    per_device = shape.n_cores // shape.n_devices
    n_physical = max(per_device, 1 + max(core.core for core in cores))
    if n_physical % per_device or max(core.device for core in cores) >= shape.n_devices:
        reason = f"do not fit a node of {shape.n_devices} devices with {per_device} cores each"
        raise RefusedError("neuron.cores", reason)
    busy = np.full((shape.n_devices, n_physical), np.nan)
    for core in cores:
        busy[core.device, core.core] = core.busy
    groups = busy.reshape(shape.n_cores, -1)
    n_known = np.isfinite(groups).sum(axis=1)
    total = np.where(np.isfinite(groups), groups, 0.0).sum(axis=1)
    mean: FloatArray = np.where(n_known > 0, total, np.nan) / np.maximum(n_known, 1)
    return np.minimum(mean, 1.0, dtype=float)


def sidecars_of(sent: schemas.MonitorLine) -> dict[str, object]:
    """Return the parts of a line that pages and /metrics show apart from values, by kind."""
    sidecars: dict[str, object] = {}
    if sent.efa:
        ports = [port for port in sent.efa.devices if port.counters is not None]
        if ports:
            sidecars["efa"] = [
                {"device": port.device, "port": port.port, "counters": port.counters}
                for port in ports
            ]
    if sent.neuron and sent.neuron.devices:
        sidecars["neuron"] = msgspec.to_builtins(sent.neuron.devices)
    if sent.agent:
        sidecars["agent"] = msgspec.to_builtins(sent.agent)
    return sidecars


def _driver_shape(neuron: schemas.NeuronLine | None) -> Shape | None:
    """Return the shape that the driver counts, None if it does not."""
    devices = (neuron and neuron.devices) or []
    per_device = max((device.cores or 0 for device in devices), default=0)
    n_devices = 1 + max((device.index for device in devices), default=-1)
    return Shape(n_devices, n_devices * per_device) if per_device else None


def _add(row: list[float], place: int, more: float) -> None:
    row[place] = more if math.isnan(row[place]) else row[place] + more


def _check_unique(keys: Sequence[object], field: str, what: str) -> None:
    if len(set(keys)) < len(keys):
        raise RefusedError(field, f"names a {what} twice")
