"""What a template makes of its numbers: worked out once, then used for many reports.

A template is a report with a hole for each number that measures. What the numbers of a hole
mean, and what they are held to, is read off the same types that a report is read with.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest import beside_wire as bw
from telemetry.ingest import wire
from telemetry.ingest.beside import LEAST_PERIOD_S, RATES, n_efa
from telemetry.ingest.last_report import tag_of
from telemetry.ingest.neuron_monitor import Groups, decoded, identity_of, shape_of
from telemetry.ingest.reading import Shape
from telemetry.ingest.recipe import Part, Recipe, indices, laid_out
from telemetry.ingest.refusal import RefusedError
from telemetry.ingest.values import PERCENT

HOLE = "\x7f"
# Holes are told apart by numbers so small that they are within every bound.
MARK = 1e-6
MOST_HOLES = 8_000
LINE_TYPE = msgspec.inspect.type_info(wire.Line)
ERRORS = wire.ErrorSummary.__struct_fields__
ENDINGS = wire.ExecutionSummary.__struct_fields__
PURPOSES = wire.CoreMemory.__struct_fields__
BUSY = ("user", "nice", "system", "io_wait", "irq", "soft_irq")
ECC = wire.DeviceCounters.__struct_fields__[1:]


class UnusualError(Exception):
    """A template with something in it that is better read report by report."""


@lru_cache(maxsize=1024)
def recipe_of(template: str) -> Recipe | None:
    """Return what to make of a template's numbers; None where it must be read as text."""
    n_holes = template.count(HOLE)
    if n_holes > MOST_HOLES:
        return None
    marks = [f"{(hole + 1) * MARK:.6f}" for hole in range(n_holes)]
    pieces = template.split(HOLE)
    text = "".join(piece + mark for piece, mark in zip(pieces, [*marks, ""], strict=True))
    try:
        return _Making(decoded(text.encode()), marks).recipe(msgspec.json.decode(text))
    except (UnusualError, RefusedError):
        return None


@dataclass(slots=True)
class _Making:
    """A recipe in the making: a template as it is read, each number the mark of its hole."""

    sent: wire.Line
    marks: Sequence[str]
    by_mark: dict[float, int] = field(init=False)
    parts: dict[str, list[Part]] = field(default_factory=dict)
    executed: dict[str, list[list[int]]] = field(default_factory=dict)
    least: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_mark = {float(mark): hole for hole, mark in enumerate(self.marks)}

    def recipe(self, document: Any) -> Recipe:
        """Return the recipe; raises UnusualError where there is none."""
        sent, report = self.sent, self._usual()
        shape, groups = shape_of(report, None), Groups(report)
        self._cores(groups.counters, shape)
        self._memory(groups.memory, shape)
        self._machine(groups, shape)
        self._executions(groups.executions)
        self._count(report.neuron_runtime_data or [])
        if sent.efa:
            self._efa(sent.efa)
        lowest, highest = self._bounds(document)
        periods = [self.hole(p) for p in groups.periods]
        identity = identity_of(report.instance_info)
        n_holes = len(self.marks)
        executed = {tag: indices(holes, n_holes=n_holes) for tag, holes in self.executed.items()}
        return Recipe(
            shape,
            identity,
            n_efa(sent.efa),
            lowest,
            highest,
            np.array(periods, dtype=np.intp),
            executed,
            *laid_out(self.parts, n_holes=n_holes),
        )

    def _usual(self) -> wire.Report:
        """Return the report, where nothing stands beside it that only a whole line can tell."""
        sent, report = self.sent, self.sent.report
        if report is None or sent.neuron or sent.hbm_bytes_per_step or sent.steps_per_s:
            raise UnusualError
        if sent.at is not None or sent.seq is not None or sent.agent is not None:
            raise UnusualError
        counted = report.neuron_hardware_info or wire.HardwareInfo()
        if not (counted.neuron_device_count and counted.neuroncore_per_device_count):
            raise UnusualError
        return report

    def hole(self, number: float) -> int:
        """Return the hole that a number marks."""
        if number not in self.by_mark:
            raise UnusualError
        return self.by_mark[number]

    def known(self, numbers: Iterable[float | None]) -> tuple[int, ...]:
        """Return the holes of the numbers that are there."""
        return tuple(self.hole(number) for number in numbers if number is not None)

    def _cores(self, groups: Sequence[wire.NeuroncoreCounters], shape: Shape) -> None:
        parts = [Part(()) for _ in range(shape.n_cores)]
        for group in groups:
            for core, use in (group.neuroncores_in_use or {}).items():
                if core >= shape.n_cores or use.neuroncore_utilization is None:
                    raise UnusualError
                holes = (*parts[core].holes, self.hole(use.neuroncore_utilization))
                parts[core] = Part(holes, over=PERCENT)
        self.parts["core_utilization_ratio"] = parts

    def _memory(self, groups: Sequence[wire.MemoryUsed], shape: Shape) -> None:
        devices: list[tuple[int, ...]] = [()] * shape.n_devices
        for group in groups:
            total = group.neuron_runtime_used_bytes or wire.RuntimeUsedBytes()
            breakdown = total.usage_breakdown or wire.UsageBreakdown()
            cores = breakdown.neuroncore_memory_usage or {}
            if not cores and shape.n_devices == 1 and total.neuron_device is not None:
                devices[0] += (self.hole(total.neuron_device),)
            for core, memory in cores.items():
                holes = self.known(getattr(memory, purpose) for purpose in PURPOSES)
                if core >= shape.n_cores or not holes:
                    raise UnusualError
                devices[core // (shape.n_cores // shape.n_devices)] += holes
        if any(devices):
            self.parts["device_memory_used_bytes"] = [Part(holes) for holes in devices]

    def _machine(self, groups: Groups, shape: Shape) -> None:
        told = (groups.hardware and groups.hardware.neuron_devices) or []
        by_device = {device.neuron_device_index: device for device in told}
        if max(by_device, default=0) >= shape.n_devices:
            raise UnusualError
        for kind in ECC:
            found = [getattr(by_device.get(i), kind, None) for i in range(shape.n_devices)]
            if any(number is not None for number in found):
                self.parts[kind] = [Part(self.known([number])) for number in found]
        usage = groups.vcpu and groups.vcpu.average_usage
        busy = self.known(getattr(usage, share) for share in BUSY) if usage else ()
        if busy:
            self.parts["vcpu_usage_ratio"] = [Part(busy, over=PERCENT)]
        memory = groups.host_memory or wire.MemoryInfo()
        if memory.memory_used_bytes is not None:
            self.parts["host_memory_used_bytes"] = [Part(self.known([memory.memory_used_bytes]))]

    def _executions(self, groups: Sequence[wire.ExecutionStats]) -> None:
        for group in groups:
            summary, errors = group.execution_summary, group.error_summary
            if group.period is None:
                continue
            if summary is not None:
                completed, *failed = (getattr(summary, name) for name in ENDINGS)
                self._rate("executions_completed_per_s", [completed], group.period)
                self._rate("executions_failed_per_s", failed, group.period)
            if errors is not None:
                kinds = [getattr(errors, name) for name in ERRORS]
                self._rate("execution_errors_per_s", kinds, group.period)

    def _rate(self, name: str, counts: Iterable[float | None], period_s: float) -> None:
        holes, period = self.known(counts), self.hole(period_s)
        if holes:
            self.parts.setdefault(name, []).append(Part(holes, period=period))
        self.least[period] = MARK

    def _count(self, processes: Iterable[wire.Runtime]) -> None:
        for process in processes:
            stats = process.report and process.report.execution_stats
            if not stats or stats.error:
                continue
            errors = stats.error_summary or wire.ErrorSummary()
            endings = stats.execution_summary or wire.ExecutionSummary()
            counts = [getattr(errors, name) for name in ERRORS]
            counts += [getattr(endings, name) for name in ENDINGS]
            into = self.executed.setdefault(tag_of(process), [[] for _ in counts])
            for holes, count in zip(into, counts, strict=True):
                holes.extend(self.known([count]))

    def _efa(self, efa: bw.Efa) -> None:
        if len({port.index for port in efa.devices}) < len(efa.devices):
            raise UnusualError
        size = n_efa(efa)
        rows = {name: [Part(()) for _ in range(size)] for name in (*RATES, "efa_latency_s")}
        for port in efa.devices:
            if port.counters is not None:
                raise UnusualError
            if efa.period is not None and port.increase is not None:
                period = self.hole(efa.period)
                self.least[period] = LEAST_PERIOD_S
                for name, counter in RATES.items():
                    grown = self.known([getattr(port.increase, counter)])
                    rows[name][port.index] = Part(grown, period=period)
            if port.latency_s is not None:
                rows["efa_latency_s"][port.index] = Part(self.known([port.latency_s]))
        self.parts |= {
            name: parts for name, parts in rows.items() if any(part.holes for part in parts)
        }

    def _bounds(self, document: Any) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and highest number of each hole."""
        lowest = np.full(len(self.marks), -math.inf)
        highest = np.full(len(self.marks), math.inf)
        for kind, number in _numbers(LINE_TYPE, document):
            hole = self.hole(number)
            lowest[hole] = max(-math.inf if kind.ge is None else kind.ge, lowest[hole])
            if kind.gt is not None:
                lowest[hole] = math.nextafter(kind.gt, math.inf)
            highest[hole] = math.inf if kind.le is None else kind.le
        for hole, least in self.least.items():
            lowest[hole] = max(least, lowest[hole])
        return lowest, highest


def _numbers(
    kind: msgspec.inspect.Type, value: Any
) -> Iterator[tuple[msgspec.inspect.FloatType, float]]:
    """Yield each number of a document that some type holds to bounds, with its type."""
    if isinstance(kind, msgspec.inspect.UnionType):
        if value is None:
            return
        [kind] = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
    if isinstance(kind, msgspec.inspect.FloatType):
        yield kind, value
    elif isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            if each.encode_name in value:
                yield from _numbers(each.type, value[each.encode_name])
    elif isinstance(kind, msgspec.inspect.DictType):
        for inner in value.values():
            yield from _numbers(kind.value_type, inner)
    elif isinstance(kind, msgspec.inspect.ListType):
        for inner in value:
            yield from _numbers(kind.item_type, inner)
