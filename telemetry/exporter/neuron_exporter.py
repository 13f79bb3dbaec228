"""The families of neuron-monitor's exporter for all nodes, simulated and real, in one page."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.exporter import neuron_exporter_names as names
from telemetry.exporter.exposition import (
    ArrayFamily,
    LabelRows,
    SeriesArray,
    Spec,
    format_codes,
    format_values,
    has_value,
)
from telemetry.exporter.hardware import HotSnapshot, NodeBatch
from telemetry.exporter.neuron_exporter_names import NodeLabels, region_of, rows_of
from telemetry.ingest import schemas
from telemetry.ingest.neuron_monitor import read_last_report, tag_of
from telemetry.store.node_state import LastReportState
from telemetry.store.packing import Codes


@dataclass(frozen=True)
class SimulatedBatch:
    """Simulated nodes of one instance type; ``places`` are their rows in the batch."""

    batch: NodeBatch
    places: NDArray[np.int64]
    machine: catalog.Instance
    rows: LabelRows
    totals: Mapping[str, Mapping[str, float]]

    def codes(self, name: str) -> Codes | None:
        """Return encoded values (n_nodes, n_parts); None where no node has the metric."""
        codes = self.batch.codes(name)
        return None if codes is None else np.asarray(codes[self.places])

    def values(self, name: str) -> FloatArray:
        """Values (n_nodes, n_parts), NaN where absent; one part where no node has the metric."""
        values = self.batch.values(name)
        if values is None:
            return np.full((len(self.places), 1), np.nan)
        return np.asarray(values[self.places])

    def counted(self, name: str) -> FloatArray:
        """Sum of a rate so far: (n_nodes, 1), NaN without any."""
        by_node = self.totals.get(name, {})
        total = [by_node.get(self.batch.nodes[place], np.nan) for place in self.places.tolist()]
        return np.asarray(np.floor(total))[:, None]

    @cached_property
    def runs_process(self) -> NDArray[np.bool_]:
        """Whether a process holds the node's cores, which are those with memory in use."""
        used_bytes = self.values("device_memory_used_bytes")
        return np.asarray((used_bytes > 0).any(axis=1, keepdims=True))

    @property
    def n_cores(self) -> int:
        return self.machine.n_cores


Parts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """The series of one family of a node or of one of its processes: values by part."""

    tag: str
    parts: Parts
    values: FloatArray


@dataclass(frozen=True, slots=True)
class ReportedSeries:
    """All series of a real node, by family."""

    node: str
    base: tuple[str, ...]
    by_spec: dict[Spec, list[NodeSeries]] = field(default_factory=dict)

    def add(self, spec: Spec, parts: Parts, values: Iterable[float | None], tag: str = "") -> None:
        """Add series; None is absent. The first of repeated series wins."""
        figures = np.array([*values], float)
        known = self.by_spec.get(spec, ())
        earlier = {part for each in known if each.tag == tag for part in each.parts}
        if earlier:
            figures = np.where([part in earlier for part in parts], np.nan, figures)
        if np.isfinite(figures).any():
            self.by_spec.setdefault(spec, []).append(NodeSeries(tag, parts, figures))


def neuron_families(
    snapshot: HotSnapshot,
    identities: Mapping[str, NodeLabels],
    kept: Mapping[str, LastReportState],
    *,
    is_alone: bool = False,
) -> list[ArrayFamily]:
    """Return the families of neuron-monitor's exporter for every node that is up.

    Parameters
    ----------
    snapshot : what the hot tier holds
    identities : the machine behind each node
    kept : the last report of each real node
    is_alone : the page is about one node, so series do not name it
    """
    simulated = tuple(simulated_batches(snapshot, identities))
    up = (node for node in sorted(kept) if node in snapshot.up)
    nodes = (reported(node, kept[node], identities.get(node)) for node in up)
    real = tuple(each for each in nodes if each is not None)
    return [
        ArrayFamily(
            spec if is_alone else names.of_many(spec), partial(_arrays, spec, simulated, real)
        )
        for spec in names.ALL
    ]


def _arrays(
    spec: Spec, simulated: Sequence[SimulatedBatch], real: Sequence[ReportedSeries]
) -> Iterator[SeriesArray]:
    for nodes in simulated:
        array = DERIVED[spec](nodes)
        if array is not None:
            yield array
    yield from _real(spec, real)


def _real(spec: Spec, nodes: Sequence[ReportedSeries]) -> Iterator[SeriesArray]:
    """Yield the series of real nodes, grouped by equal parts."""
    alike: dict[Parts, list[tuple[ReportedSeries, NodeSeries]]] = {}
    for node in nodes:
        for series in node.by_spec.get(spec, ()):
            alike.setdefault(series.parts, []).append((node, series))
    for parts, members in alike.items():
        for i in range(0, len(members), MAX_ROWS):
            some = members[i : i + MAX_ROWS]
            values = np.stack([series.values for _, series in some])
            rows = rows_of((node.node, node.base, series.tag) for node, series in some)
            yield SeriesArray(
                rows, names.own_labels(spec), parts, format_values(values), np.isfinite(values)
            )


def simulated_batches(
    snapshot: HotSnapshot, identities: Mapping[str, NodeLabels]
) -> Iterator[SimulatedBatch]:
    """Yield the simulated AWS nodes that are up, by instance type."""
    for batch in snapshot.batches:
        kinds: dict[str, list[int]] = {}
        for place, node in enumerate(batch.nodes):
            known = identities.get(node)
            if known and known.is_simulated and known.machine:
                kinds.setdefault(known.instance_type, []).append(place)
        for kind, places in kinds.items():
            known_of = ((batch.nodes[place], identities[batch.nodes[place]]) for place in places)
            rows = rows_of((node, member.base, member.runtime_tag) for node, member in known_of)
            machine = catalog.instances()[kind]
            yield SimulatedBatch(batch, np.array(places), machine, rows, snapshot.totals)


MIB = 2.0**20
# Memory of a core except tensors, if there is room; values of neuron-monitor on a trn2.
CORE_BYTES = {
    "constants": 0.1875 * MIB,
    "model_code": 96.0 * MIB,
    "model_shared_scratchpad": 0.0,
    "runtime_memory": 6.0 * MIB,
}
# Host memory of a process per core, limited to this share of the memory in use.
HOST_BYTES_PER_CORE, HOST_SHARE = 293.0 * MIB, 0.5
# Shares of the vCPU time in use: of the process, and of the kernel.
PROCESS_SHARE, KERNEL_SHARE = 0.9, 0.07
# Percentiles of the execution latency, relative to its mean.
SPREAD = {"p0": 0.95, "p1": 0.97, "p25": 0.99, "p50": 1.0, "p75": 1.01, "p99": 1.05, "p100": 1.2}
Derived = Callable[[SimulatedBatch], SeriesArray | None]


def _of_node(
    nodes: SimulatedBatch,
    labels: tuple[str, ...],
    parts: Sequence[tuple[str, ...]],
    values: FloatArray,
    *,
    of_process: bool = False,
) -> SeriesArray:
    """Series of the nodes or of their processes (n_nodes, n_parts); NaN is absent.

    A node without a process has no series of a process.
    """
    if of_process:
        values = np.where(nodes.runs_process, values, np.nan)
    return SeriesArray(nodes.rows, labels, parts, format_values(values), np.isfinite(values))


def _parts(*values: str) -> list[tuple[str, ...]]:
    return [(value,) for value in values]


def utilization(nodes: SimulatedBatch) -> SeriesArray | None:
    codes = nodes.codes("core_utilization_ratio")
    if codes is None:
        return None
    there = has_value(codes, "ratio") & nodes.runs_process
    cores = _parts(*map(str, range(codes.shape[1])))
    return SeriesArray(nodes.rows, ("neuroncore",), cores, format_codes(codes, "ratio"), there)


def core_memory(nodes: SimulatedBatch, *, purpose: str) -> SeriesArray | None:
    """Each core's even share of its device's memory, by purpose."""
    device = np.where(nodes.runs_process, nodes.values("device_memory_used_bytes"), np.nan)
    per_device = nodes.n_cores // nodes.machine.n_devices
    core = device / per_device
    others = sum(CORE_BYTES.values())
    if purpose in CORE_BYTES:
        used_bytes = CORE_BYTES[purpose] * np.minimum(core / others, 1.0)
    else:
        used_bytes = np.maximum(core - others, 0.0)
    used_bytes = np.rint(used_bytes)
    parts = [(str(i), names.NO_LOCATION) for i in range(used_bytes.shape[1] * per_device)]
    texts = np.repeat(format_values(used_bytes), per_device, axis=1)
    there = np.repeat(np.isfinite(used_bytes), per_device, axis=1)
    return SeriesArray(nodes.rows, ("neuroncore", "memory_location"), parts, texts, there)


def runtime_memory(nodes: SimulatedBatch) -> SeriesArray:
    device = np.nansum(nodes.values("device_memory_used_bytes"), axis=1, keepdims=True)
    used = nodes.values("host_memory_used_bytes")
    host = np.rint(np.minimum(nodes.n_cores * HOST_BYTES_PER_CORE, HOST_SHARE * used))
    parts = _parts("host", "neuron_device")
    return _of_node(
        nodes, ("memory_location",), parts, np.hstack([host, np.rint(device)]), of_process=True
    )


def vcpu(nodes: SimulatedBatch, *, of_process: bool) -> SeriesArray:
    used = nodes.values("vcpu_usage_ratio") * (PROCESS_SHARE if of_process else 1.0)
    values = np.round(np.hstack([used * (1 - KERNEL_SHARE), used * KERNEL_SHARE]), 4)
    parts = _parts("user", "system")
    return _of_node(nodes, ("usage_type",), parts, values, of_process=of_process)


def errors(nodes: SimulatedBatch) -> SeriesArray:
    """Count errors by kind; all errors of a simulated node are hardware errors."""
    total = nodes.counted("execution_errors_per_s")
    return _kinds(nodes, "error_type", names.ERRORS, {"hardware": total}, known=total)


def status(nodes: SimulatedBatch) -> SeriesArray:
    done, failed = (nodes.counted(f"executions_{how}_per_s") for how in ("completed", "failed"))
    ended = {"completed": done, "completed_with_err": failed}
    return _kinds(nodes, "status_type", names.ENDINGS, ended, known=done)


def _kinds(
    nodes: SimulatedBatch,
    label: str,
    kinds: tuple[str, ...],
    counts: Mapping[str, FloatArray],
    *,
    known: FloatArray,
) -> SeriesArray:
    """Show counts by kind; other kinds are zero where there are any counts."""
    none = np.where(np.isfinite(known), 0.0, np.nan)
    values = np.hstack([counts.get(kind, none) for kind in kinds])
    return _of_node(nodes, (label,), _parts(*kinds), values, of_process=True)


def latency(nodes: SimulatedBatch) -> SeriesArray:
    """Divide a core's busy time by its executions."""
    busy = np.nanmean(np.nan_to_num(nodes.values("core_utilization_ratio")), axis=1, keepdims=True)
    per_s = nodes.values("executions_completed_per_s") / nodes.n_cores
    mean_s = np.divide(busy, per_s, out=np.full(busy.shape, np.nan), where=per_s > 0)
    values = np.round(mean_s * np.array([list(SPREAD.values())]), 6)
    return _of_node(nodes, ("percentile",), _parts(*SPREAD), values, of_process=True)


def ecc_events(nodes: SimulatedBatch) -> SeriesArray:
    n_devices = nodes.machine.n_devices
    shape = (len(nodes.rows), n_devices)
    values = np.hstack([np.broadcast_to(nodes.values(kind), shape) for kind in names.ECC])
    parts = [(kind, str(device)) for kind in names.ECC for device in range(n_devices)]
    return _of_node(nodes, ("event_type", "neuron_device_index"), parts, values)


def memory_used(nodes: SimulatedBatch) -> SeriesArray:
    return _of_node(nodes, (), [()], np.rint(nodes.values("host_memory_used_bytes")))


def constant(nodes: SimulatedBatch, *, figure: Callable[[SimulatedBatch], float]) -> SeriesArray:
    return _of_node(nodes, (), [()], np.full((len(nodes.rows), 1), float(figure(nodes))))


def hardware(nodes: SimulatedBatch) -> SeriesArray:
    n_devices = nodes.machine.n_devices
    labels = ("neuron_device_count", "neuroncore_per_device_count")
    parts = [(str(n_devices), str(nodes.n_cores // n_devices))]
    return _of_node(nodes, labels, parts, np.ones((len(nodes.rows), 1)))


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

PERCENT = 100.0
# Nodes or processes written together.
MAX_ROWS = 64
G = TypeVar("G", bound=schemas.MetricGroup)
_UTILIZATION = attrgetter("neuroncore_utilization")
_PURPOSES = attrgetter(*names.PURPOSES)
_ERRORS, _ENDINGS = attrgetter(*names.ERRORS), attrgetter(*names.ENDINGS)
_ECC = attrgetter(*names.ECC)
_USER = attrgetter("user", "nice")
_KERNEL = attrgetter("system", "io_wait", "irq", "soft_irq")


def reported(
    node: str, kept: LastReportState, identities: NodeLabels | None
) -> ReportedSeries | None:
    """Convert a node's last report to series; None where it cannot be read."""
    try:
        report = read_last_report(kept.line)
    except msgspec.MsgspecError:
        return None
    info = report.instance_info or schemas.InstanceInfo()
    known = identities or NodeLabels("", "", "")
    zone = info.instance_availability_zone or known.availability_zone
    series = ReportedSeries(
        node,
        (
            known.instance_name or info.instance_name or node,
            info.instance_id or known.instance_id,
            info.instance_type or known.instance_type,
            zone,
            getattr(info, "instance_region", None) or region_of(zone),
            getattr(info, "subnet_id", None) or "",
        ),
    )
    for process in report.neuron_runtime_data or ():
        if process.report is not None:
            _add_process(series, process, kept.executed.get(tag_of(process)))
    _add_machine(series, report)
    return series


@lru_cache(maxsize=4096)
def _cores(cores: tuple[int, ...], *more: str) -> Parts:
    return tuple((str(core), *more) for core in cores)


@lru_cache(maxsize=256)
def _named(*values: str) -> Parts:
    return tuple((value,) for value in values)


@lru_cache(maxsize=1024)
def _of_devices(devices: tuple[int, ...]) -> Parts:
    return tuple((kind, str(device)) for device in devices for kind in names.ECC)


def _valid(group: G | None) -> G | None:
    """Return a group of the report unless it is missing or reports an error."""
    return None if group is None or group.error else group


def _add_process(
    series: ReportedSeries, process: schemas.Runtime, executed: Sequence[float] | None
) -> None:
    report, tag = process.report or schemas.RuntimeReport(), tag_of(process)
    if counters := _valid(report.neuroncore_counters):
        cores = counters.neuroncores_in_use or {}
        shares = map(_UTILIZATION, cores.values())
        ratios = [None if share is None else share / PERCENT for share in shares]
        series.add(names.UTILIZATION, _cores(tuple(cores)), ratios, tag)
    if memory := _valid(report.memory_used):
        used = memory.neuron_runtime_used_bytes or schemas.RuntimeUsedBytes()
        used_bytes = (used.host, used.neuron_device)
        series.add(names.RUNTIME_MEMORY, _named("host", "neuron_device"), used_bytes, tag)
        breakdown = used.usage_breakdown or schemas.UsageBreakdown()
        by_core = breakdown.neuroncore_memory_usage or {}
        parts = _cores(tuple(by_core), names.NO_LOCATION)
        rows = [_PURPOSES(core) for core in by_core.values()]
        for spec, values in zip(names.CORE_MEMORY.values(), zip(*rows, strict=True), strict=False):
            series.add(spec, parts, values, tag)
    if (vcpu := _valid(report.neuron_runtime_vcpu_usage)) and vcpu.vcpu_usage:
        busy = (vcpu.vcpu_usage.user, vcpu.vcpu_usage.system)
        series.add(names.RUNTIME_VCPU, _named("user", "system"), map(_ratio, busy), tag)
    if stats := _valid(report.execution_stats):
        # Executions and errors since the process was first seen, and latencies.
        counts = executed or (math.nan,) * (len(names.ERRORS) + len(names.ENDINGS))
        if stats.error_summary:
            known = _reported_only(counts, _ERRORS(stats.error_summary))
            series.add(names.EXECUTION_ERRORS, _named(*names.ERRORS), known, tag)
        if stats.execution_summary:
            endings = counts[len(names.ERRORS) :]
            known = _reported_only(endings, _ENDINGS(stats.execution_summary))
            series.add(names.EXECUTION_STATUS, _named(*names.ENDINGS), known, tag)
        latency = (stats.latency_stats and stats.latency_stats.total_latency) or {}
        percentiles = [latency.get(name) for name in names.PERCENTILES]
        series.add(names.LATENCY, _named(*names.PERCENTILES), percentiles, tag)


def _reported_only(
    counts: Iterable[float], report: Iterable[float | None]
) -> Iterator[float | None]:
    """Keep the counts that the latest report has too."""
    return (None if n is None else count for count, n in zip(counts, report, strict=False))


def _add_machine(series: ReportedSeries, report: schemas.LastReport) -> None:
    """Add the host's series, which exist without a process too."""
    system = report.system_data
    if system and (hardware := _valid(system.neuron_hw_counters)):
        devices = {device.neuron_device_index: device for device in hardware.neuron_devices or ()}
        values = [count for device in devices.values() for count in _ECC(device)]
        series.add(names.ECC_EVENTS, _of_devices(tuple(devices)), values)
    if system and (memory := _valid(system.memory_info)):
        series.add(names.MEMORY_TOTAL, ((),), [memory.memory_total_bytes])
        series.add(names.MEMORY_USED, ((),), [memory.memory_used_bytes])
        series.add(names.SWAP_TOTAL, ((),), [memory.swap_total_bytes])
        series.add(names.SWAP_USED, ((),), [memory.swap_used_bytes])
    if system and (vcpu := _valid(system.vcpu_usage)):
        if vcpu.usage_data:
            series.add(names.VCPU_COUNT, ((),), [len(vcpu.usage_data)])
        if used := vcpu.average_usage:
            shares = (_sum(_USER(used)), _sum(_KERNEL(used)))
            series.add(names.VCPU_USAGE, _named("user", "system"), map(_ratio, shares))
    series.add(names.INSTANCE, ((),), [1.0])
    info = report.neuron_hardware_info
    if info and info.neuron_device_count and not info.error:
        counts = (str(info.neuron_device_count), str(info.neuroncore_per_device_count or ""))
        series.add(names.HARDWARE, (counts,), [1.0])


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else round(percent / PERCENT, 6)


def _sum(shares: Iterable[float | None]) -> float | None:
    """Sum the known values; None where none is known."""
    known = [share for share in shares if share is not None]
    return sum(known) if known else None
