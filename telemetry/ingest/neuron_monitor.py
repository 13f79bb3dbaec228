"""From neuron-monitor's JSON to readings in our units: the door for real Trainium nodes."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from telemetry import catalog
from telemetry.ingest import beside, wire
from telemetry.ingest.bounds import MAX_CORES
from telemetry.ingest.last_report import executed
from telemetry.ingest.reading import Identity, Reading, Shape
from telemetry.ingest.refusal import Refusal, RefusedError, explain
from telemetry.ingest.values import (
    core_utilization,
    device_memory,
    ecc,
    executions,
    hbm_bandwidth,
    host_memory,
    vcpu_usage,
)

__all__ = [
    "Groups",
    "Identity",
    "Reading",
    "Shape",
    "decoded",
    "identity_of",
    "read_line",
    "read_lines",
    "shape_of",
]

MAX_LINE_BYTES = 8_000_000

_LINE = msgspec.json.Decoder(wire.Line)


def read_line(line: bytes, *, shape: Shape | None = None) -> Reading:
    """Read one report; ``shape`` is what the node is known to have, should the report not say.

    Raises RefusedError, naming the field, for whatever is no report or cannot be true.
    """
    sent = decoded(line)
    return _reading(sent, sent.report or sent, shape, line)


def decoded(line: bytes) -> wire.Line:
    """Return a line as it was sent; raises RefusedError, naming the field, if it is none."""
    if len(line) > MAX_LINE_BYTES:
        raise RefusedError(
            "", f"{len(line):,} bytes in a line; at most {MAX_LINE_BYTES:,} are read"
        )
    try:
        return _LINE.decode(line)
    except msgspec.MsgspecError as error:
        raise explain(error, line, wire.Line) from error
    except UnicodeDecodeError as error:
        raise RefusedError("", "is not UTF-8") from error
    except RecursionError as error:
        raise RefusedError("", "nested too deeply to be a report") from error


def read_lines(
    lines: Iterable[bytes], *, shape: Shape | None = None, first: int = 1
) -> tuple[list[tuple[int, Reading]], list[Refusal]]:
    """Read many reports: those that are good, each with its line number, and the refusals."""
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


def _reading(sent: wire.Line, report: wire.Report, known: Shape | None, line: bytes) -> Reading:
    """Read the groups of a decoded report."""
    if report.neuron_runtime_data is None and report.system_data is None:
        raise RefusedError("", "no report: neither neuron_runtime_data nor system_data is there")
    shape = shape_of(report, known)
    groups = Groups(report)
    values = {
        "core_utilization_ratio": core_utilization(groups.counters, n_cores=shape.n_cores),
        "device_memory_used_bytes": device_memory(
            groups.memory, n_devices=shape.n_devices, n_cores=shape.n_cores
        ),
        **ecc(groups.hardware, n_devices=shape.n_devices),
        "vcpu_usage_ratio": vcpu_usage(groups.vcpu),
        "host_memory_used_bytes": host_memory(groups.host_memory),
        **executions(groups.executions),
        "hbm_bandwidth_bytes_per_s": hbm_bandwidth(sent, n_devices=shape.n_devices),
    }
    told = {name: array for name, array in values.items() if array is not None}
    told |= beside.values_beside(sent, shape, told)
    rows = {name: array[None, :] for name, array in told.items()}
    identity = identity_of(report.instance_info)
    done = executed(report.neuron_runtime_data)
    more = (sent.stream, beside.n_efa(sent.efa), beside.kept(sent))
    return Reading(identity, shape, groups.period_s, rows, sent.at, sent.seq, done, line, *more)


class Groups:
    """The groups of a report by kind, over all its processes; one that failed is left out."""

    def __init__(self, report: wire.Report) -> None:
        reports = [process.report for process in report.neuron_runtime_data or ()]
        known = [each for each in reports if each is not None]
        system = report.system_data or wire.SystemData()
        self.counters = _sound(each.neuroncore_counters for each in known)
        self.memory = _sound(each.memory_used for each in known)
        self.executions = _sound(each.execution_stats for each in known)
        self.hardware = next(iter(_sound([system.neuron_hw_counters])), None)
        self.vcpu = next(iter(_sound([system.vcpu_usage])), None)
        self.host_memory = next(iter(_sound([system.memory_info])), None)
        everything: list[wire.Group] = [*self.counters, *self.memory, *self.executions]
        everything += _sound([self.hardware, self.vcpu, self.host_memory])
        self.periods = [group.period for group in everything if group.period is not None]
        self.period_s = max(self.periods, default=0.0)


G = TypeVar("G", bound=wire.Group)


def _sound(groups: Iterable[G | None]) -> list[G]:
    """Keep the groups that are there and report no error: what failed is absent, not zero."""
    return [group for group in groups if group is not None and not group.error]


def shape_of(report: wire.Report, known: Shape | None) -> Shape:
    """Return the shape that the report gives, or else what is known, catalogued or apparent."""
    hardware = report.neuron_hardware_info or wire.HardwareInfo()
    n_devices = hardware.neuron_device_count or 0
    per_device = hardware.neuroncore_per_device_count or 0
    if n_devices * per_device > MAX_CORES:
        reason = f"{n_devices} devices of {per_device} cores; at most {MAX_CORES} cores fit"
        raise RefusedError("neuron_hardware_info", reason)
    if n_devices and per_device:
        return Shape(n_devices, n_devices * per_device)
    shape = known or _catalogued(report.instance_info) or _apparent(report)
    if shape is None:
        reason = "counts no devices or cores, and nothing else in the report does"
        raise RefusedError("neuron_hardware_info", reason)
    return shape


def _catalogued(info: wire.InstanceInfo | None) -> Shape | None:
    """Return the shape that the catalogue gives the instance type, None if it has none."""
    kind = catalog.instances().get((info and info.instance_type) or "")
    return Shape(kind.n_devices, kind.n_cores) if kind else None


def _apparent(report: wire.Report) -> Shape | None:
    """Return the least shape with every device and core that the report speaks of."""
    groups = Groups(report)
    devices = (groups.hardware and groups.hardware.neuron_devices) or []
    cores = [core for group in groups.counters for core in group.neuroncores_in_use or ()]
    if not devices or not cores:
        return None
    n_devices = 1 + max(device.neuron_device_index for device in devices)
    per_device = -(-(1 + max(cores)) // n_devices)
    return Shape(n_devices, n_devices * per_device)


def identity_of(info: wire.InstanceInfo | None) -> Identity:
    """Return which machine speaks; empty where the report does not say."""
    info = info or wire.InstanceInfo()
    return Identity(
        instance_id=info.instance_id or "",
        instance_name=info.instance_name or "",
        instance_type=info.instance_type or "",
        zone=info.instance_availability_zone or "",
    )
