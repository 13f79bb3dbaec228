"""What neuron-monitor's exporter would show of a real node, from its last report."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.dropin import neuron_names as names
from telemetry.dropin.who import Who, region_of
from telemetry.families import Spec
from telemetry.ingest import wire
from telemetry.ingest.last_report import LastReport, read_last_report, tag_of
from telemetry.store.last_reports import Kept

PERCENT = 100.0
Parts = tuple[tuple[str, ...], ...]
G = TypeVar("G", bound=wire.Group)

_UTILIZATION = attrgetter("neuroncore_utilization")
_PURPOSES = attrgetter(*names.PURPOSES)
_ERRORS, _ENDINGS = attrgetter(*names.ERRORS), attrgetter(*names.ENDINGS)
_ECC = attrgetter(*names.ECC)
_USER = attrgetter("user", "nice")
_KERNEL = attrgetter("system", "io_wait", "irq", "soft_irq")


@dataclass(frozen=True, slots=True)
class Shown:
    """The series of one family that a node, or one process of it, has: values by part."""

    tag: str
    parts: Parts
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Reported:
    """Everything that the exporter would show of a node, by family."""

    base: tuple[str, ...]
    series: dict[Spec, list[Shown]] = field(default_factory=dict)

    def show(
        self, spec: Spec, parts: Parts, values: Iterable[float | None], tag: str = ""
    ) -> None:
        """Add series; what is None is absent. Of series told twice the first holds."""
        found = np.array([*values], float)
        known = self.series.get(spec, ())
        told = {part for each in known if each.tag == tag for part in each.parts}
        if told:
            found = np.where([part in told for part in parts], np.nan, found)
        if np.isfinite(found).any():
            self.series.setdefault(spec, []).append(Shown(tag, parts, found))


def reported(node: str, kept: Kept, who: Who | None) -> Reported | None:
    """Return what the exporter would show of a node; None where the report cannot be read."""
    try:
        report = read_last_report(kept.line)
    except msgspec.MsgspecError:
        return None
    shown = Reported(_base(node, report, who))
    for process in report.neuron_runtime_data or ():
        if process.report is not None:
            _process(shown, process, kept.executed.get(tag_of(process)))
    _machine(shown, report)
    return shown


def _base(node: str, report: LastReport, who: Who | None) -> tuple[str, ...]:
    """Return the labels on everything; a node always has a name, lest two be taken for one."""
    info = report.instance_info or wire.InstanceInfo()
    zone = info.instance_availability_zone or (who.availability_zone if who else "")
    name = who.instance_name if who and who.instance_name else info.instance_name or node
    return (
        name,
        info.instance_id or (who.instance_id if who else ""),
        info.instance_type or (who.instance_type if who else ""),
        zone,
        getattr(info, "instance_region", None) or region_of(zone),
        getattr(info, "subnet_id", None) or "",
    )


@lru_cache(maxsize=4096)
def _cores(cores: tuple[int, ...], *more: str) -> Parts:
    return tuple((str(core), *more) for core in cores)


@lru_cache(maxsize=256)
def _named(*values: str) -> Parts:
    return tuple((value,) for value in values)


@lru_cache(maxsize=1024)
def _of_devices(devices: tuple[int, ...]) -> Parts:
    return tuple((kind, str(device)) for device in devices for kind in names.ECC)


def _sound(group: G | None) -> G | None:
    """Return a group that is there and reports no error."""
    return None if group is None or group.error else group


def _process(shown: Reported, process: wire.Runtime, executed: Sequence[float] | None) -> None:
    """Show the groups of one process."""
    report, tag = process.report or wire.RuntimeReport(), tag_of(process)
    if counters := _sound(report.neuroncore_counters):
        cores = counters.neuroncores_in_use or {}
        shares = map(_UTILIZATION, cores.values())
        ratios = [None if share is None else share / PERCENT for share in shares]
        shown.show(names.UTILIZATION, _cores(tuple(cores)), ratios, tag)
    if memory := _sound(report.memory_used):
        _memory(shown, memory.neuron_runtime_used_bytes or wire.RuntimeUsedBytes(), tag)
    if (vcpu := _sound(report.neuron_runtime_vcpu_usage)) and vcpu.vcpu_usage:
        used = (vcpu.vcpu_usage.user, vcpu.vcpu_usage.system)
        shown.show(names.RUNTIME_VCPU, _named("user", "system"), map(_ratio, used), tag)
    if stats := _sound(report.execution_stats):
        _executions(shown, stats, executed, tag)


def _memory(shown: Reported, used: wire.RuntimeUsedBytes, tag: str) -> None:
    """Show the memory of one process."""
    held = (used.host, used.neuron_device)
    shown.show(names.RUNTIME_MEMORY, _named("host", "neuron_device"), held, tag)
    breakdown = used.usage_breakdown or wire.UsageBreakdown()
    cores = breakdown.neuroncore_memory_usage or {}
    parts = _cores(tuple(cores), names.NOWHERE)
    rows = [_PURPOSES(core) for core in cores.values()]
    for spec, values in zip(names.CORE_MEMORY.values(), zip(*rows, strict=True), strict=False):
        shown.show(spec, parts, values, tag)


def _executions(
    shown: Reported, stats: wire.ExecutionStats, executed: Sequence[float] | None, tag: str
) -> None:
    """Show what a process has executed since it was first heard of, and how long it took."""
    counts = executed or (math.nan,) * (len(names.ERRORS) + len(names.ENDINGS))
    if stats.error_summary:
        values = _told(counts, _ERRORS(stats.error_summary))
        shown.show(names.EXECUTION_ERRORS, _named(*names.ERRORS), values, tag)
    if stats.execution_summary:
        values = _told(counts[len(names.ERRORS) :], _ENDINGS(stats.execution_summary))
        shown.show(names.EXECUTION_STATUS, _named(*names.ENDINGS), values, tag)
    latency = (stats.latency_stats and stats.latency_stats.total_latency) or {}
    percentiles = [latency.get(name) for name in names.PERCENTILES]
    shown.show(names.LATENCY, _named(*names.PERCENTILES), percentiles, tag)


def _told(counts: Iterable[float], told: Iterable[float | None]) -> Iterator[float | None]:
    """Keep the counts of what a report tells of."""
    pairs = zip(counts, told, strict=False)
    return (None if now is None else count for count, now in pairs)


def _machine(shown: Reported, report: LastReport) -> None:
    """Show the groups of the machine: there even where no process runs."""
    system = report.system_data
    if system and (hardware := _sound(system.neuron_hw_counters)):
        devices = {each.neuron_device_index: each for each in hardware.neuron_devices or ()}
        values = [count for each in devices.values() for count in _ECC(each)]
        shown.show(names.ECC_EVENTS, _of_devices(tuple(devices)), values)
    if system and (memory := _sound(system.memory_info)):
        _single(shown, names.MEMORY_TOTAL, memory.memory_total_bytes)
        _single(shown, names.MEMORY_USED, memory.memory_used_bytes)
        _single(shown, names.SWAP_TOTAL, memory.swap_total_bytes)
        _single(shown, names.SWAP_USED, memory.swap_used_bytes)
    if system and (vcpu := _sound(system.vcpu_usage)):
        if vcpu.usage_data:
            _single(shown, names.VCPU_COUNT, len(vcpu.usage_data))
        if used := vcpu.average_usage:
            shares = (_sum(_USER(used)), _sum(_KERNEL(used)))
            shown.show(names.VCPU_USAGE, _named("user", "system"), map(_ratio, shares))
    _single(shown, names.INSTANCE, 1.0)
    info = report.neuron_hardware_info
    if info and info.neuron_device_count and not info.error:
        counts = (str(info.neuron_device_count), str(info.neuroncore_per_device_count or ""))
        shown.show(names.HARDWARE, (counts,), [1.0])


def _single(shown: Reported, spec: Spec, value: float | None) -> None:
    shown.show(spec, ((),), [value])


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else round(percent / PERCENT, 6)


def _sum(shares: Iterable[float | None]) -> float | None:
    """Add up what is told; None where nothing is."""
    known = [share for share in shares if share is not None]
    return sum(known) if known else None
