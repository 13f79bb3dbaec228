"""Column lines: reports that differ only in numbers, sent as one template and a table of numbers.

``ReportTable.expanded`` gives the single reports. ``ReportTable.readings`` gives the same readings
in a fraction of the time, where the template contains nothing unusual; ``compute`` prepares those
of many nodes at once. A *hole* is the place of a number in a template.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct, structs
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.ingest import schemas
from telemetry.ingest.lines import RefusedError, explain
from telemetry.ingest.neuron_monitor import (
    LATENCIES,
    OVER_PROCESSES,
    PERCENT,
    RATES,
    Groups,
    NodeIdentity,
    Reading,
    Shape,
    counted_flops,
    counted_processes,
    decode_line,
    flops_of,
    identity_of,
    latency_of,
    n_efa,
    shape_of,
    tag_of,
)
from telemetry.ingest.schemas import AgentState, SequenceNumber, StreamName, UnixSeconds
from telemetry.template_report import HOLE, TemplateReport

SHARES = frozenset({"core_utilization_ratio", "vcpu_usage_ratio"})

# Each hole is filled with its own multiple of this, small enough for every bound.
MARK = 1e-6
MAX_HOLES = 8_000
# Strings and numbers that name a node or a process: templates of like nodes differ in these.
NAMES = re.compile(
    r'("(?:pid|neuron_runtime_tag|instance_(?:id|name|type|availability_zone)|ultraserver_id)":)'
    r'(?:("[^"\\\x7f]*")|[0-9]+)'
)
# By process: a template of each of the 31,250 nodes of the largest cluster, and as many again
# after jobs were restarted. Those of like nodes and processes share a layout.
MAX_TEMPLATES, MAX_LAYOUTS = 65_536, 1_024
LINE_TYPE = msgspec.inspect.type_info(schemas.MonitorLine)
ERRORS = schemas.ErrorSummary.__struct_fields__
ENDINGS = schemas.ExecutionSummary.__struct_fields__
PURPOSES = schemas.CoreMemory.__struct_fields__
BUSY = ("user", "nice", "system", "io_wait", "irq", "soft_irq")
ECC = schemas.DeviceCounters.__struct_fields__[1:]
# How such a line begins, to the letter.
BEGINS = b'{"columns":'
MAX_ROWS = 1000
# The numbers of all reports together, and the bytes of their templates: a report of a large node
# has some 700 numbers in 60 kB.
MAX_NUMBERS, MAX_EXPANDED_BYTES = 2_000_000, 128_000_000
# Whole numbers up to here are the same as 64-bit floats.
MAX_EXACT = 2.0**53


@dataclass(frozen=True, slots=True)
class PartSum:
    """One part's value: the sum of some holes, divided by ``over`` and by the hole ``period``.

    A period under a second counts as the whole report, one second at least.
    """

    holes: tuple[int, ...]
    over: float = 1.0
    period: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How to compute values from a template's numbers, and the bounds of each number.

    Templates that differ in names alone share it. ``executed`` has the holes of each process.
    """

    shape: Shape
    n_efa: int
    lowest: FloatArray
    highest: FloatArray
    periods: IntArray
    executed: Sequence[IntArray]
    places: Mapping[str, slice]
    # Parts by their number of holes: which parts, and their holes (n_holes, n_parts).
    sums: Sequence[tuple[IntArray, IntArray]]
    over: FloatArray
    # The parts that are rates, and the hole of each one's period.
    rates: IntArray
    rate_periods: IntArray

    def fits(self, numbers: FloatArray) -> NDArray[np.bool_]:
        """Which rows of numbers, (n_rows, n_holes), are within the schema's bounds."""
        within: NDArray[np.bool_] = (numbers >= self.lowest) & (numbers <= self.highest)
        return np.asarray(within.all(axis=1))

    def apply(
        self, numbers: FloatArray
    ) -> tuple[dict[str, FloatArray], list[float], list[FloatArray]]:
        """Return values (n_rows, n_parts) by name, seconds covered, and counts by process."""
        n_rows = len(numbers)
        constants = np.repeat([[0.0], [math.nan]], n_rows, axis=1)
        known = np.concatenate([numbers.T, constants])
        # numpy adds along the first axis in order, as a loop over a report does: same rounding.
        report_s = known[self.periods].max(axis=0, initial=0.0)
        flat: FloatArray = np.empty((len(self.over), n_rows))
        for places, holes in self.sums:
            flat[places] = known[holes].sum(axis=0)
        flat /= self.over[:, None]
        period_s = known[self.rate_periods]
        flat[self.rates] /= np.where(period_s < 1.0, np.maximum(report_s, 1.0), period_s)
        values: dict[str, FloatArray] = {}
        for name, place in self.places.items():
            parts = flat[place]
            if name in OVER_PROCESSES and len(parts) > 1:
                parts = OVER_PROCESSES[name](parts, axis=0, keepdims=True)
            elif name in SHARES:
                parts = np.minimum(parts, 1.0)
            values[name] = np.ascontiguousarray(parts.T)
        if (flops := values.get("core_flops_per_s")) is not None:
            flops = counted_flops(flops, values["core_utilization_ratio"])
            values["core_flops_per_s"] = flops
        return values, report_s.tolist(), [known[holes].sum(axis=0).T for holes in self.executed]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is read from a template: its layout, its node, and the tag of each process."""

    layout: Layout
    identity: NodeIdentity
    tags: tuple[str, ...]


def part_layout(
    parts: Mapping[str, Sequence[PartSum]], *, n_holes: int
) -> tuple[dict[str, slice], list[tuple[IntArray, IntArray]], FloatArray, IntArray, IntArray]:
    """Return what a layout knows of its parts, in the order of its fields."""
    places: dict[str, slice] = {}
    flat: list[PartSum] = []
    for name, some in parts.items():
        places[name] = slice(len(flat), len(flat) + len(some))
        flat += some
    absent = n_holes + 1
    by_size: dict[int, list[tuple[int, Sequence[int]]]] = {}
    for place, part in enumerate(flat):
        holes = part.holes or (absent,)
        by_size.setdefault(len(holes), []).append((place, holes))
    sums: list[tuple[IntArray, IntArray]] = [
        (np.array([place for place, _ in some], dtype=np.intp), np.array([h for _, h in some]).T)
        for some in by_size.values()
    ]
    over = np.array([part.over for part in flat])
    periods = [(i, part.period) for i, part in enumerate(flat) if part.period is not None]
    rates, rate_periods = np.array(periods, dtype=np.intp).reshape(-1, 2).T
    return places, sums, over, rates, rate_periods


def hole_indices(rows: Sequence[Sequence[int]], *, n_holes: int) -> IntArray:
    """Return lists of holes as columns, padded with the constant hole that is 0."""
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *[n_holes] * (width - len(row))] for row in rows]
    return np.array(filled, dtype=np.intp).reshape(len(rows), width).T


class UnusualError(Exception):
    """A template that has to be read report by report."""


_recipes: dict[bytes, Recipe | None] = {}


def recipe_of(template: str) -> Recipe | None:
    """Return the recipe of a template; None if its reports must be read one by one."""
    # A template is forty times as large as its recipe, so that only its digest is kept.
    key = hashlib.blake2b(template.encode(), digest_size=16).digest()
    if key not in _recipes:
        while len(_recipes) >= MAX_TEMPLATES:
            _recipes.pop(next(iter(_recipes)), None)
        _recipes[key] = _new_recipe(template)
    return _recipes[key]


def _new_recipe(template: str) -> Recipe | None:
    if template.count(HOLE) > MAX_HOLES:
        return None
    layout = _layout_of(NAMES.sub(lambda found: found[1] + ('""' if found[2] else "0"), template))
    if layout is None:
        return None
    try:
        report = decode_line(_marked(template)[0].encode()).report
    except RefusedError:
        return None
    if report is None:
        return None
    identity = identity_of(report.instance_info, report.neuron_hardware_info)
    tags = [tag_of(process) for process, _ in counted_processes(report.neuron_runtime_data)]
    return Recipe(layout, identity, tuple(tags))


@lru_cache(maxsize=MAX_LAYOUTS)
def _layout_of(template: str) -> Layout | None:
    """Return the layout of a template without names."""
    text, marks = _marked(template)
    try:
        return _LayoutBuilder(decode_line(text.encode()), marks).layout(msgspec.json.decode(text))
    except (UnusualError, RefusedError):
        return None


def _marked(template: str) -> tuple[str, list[str]]:
    """Fill the holes of a template with their marks; also return the marks."""
    pieces = template.split(HOLE)
    marks = [f"{hole * MARK:.6f}" for hole in range(1, len(pieces))]
    return "".join(
        [part for pair in zip(pieces, [*marks, ""], strict=True) for part in pair]
    ), marks


@dataclass(slots=True)
class _LayoutBuilder:
    """Builds a layout from a parsed template in which each number is the mark of its hole."""

    sent: schemas.MonitorLine
    marks: Sequence[str]
    by_mark: dict[float, int] = field(init=False)
    parts: dict[str, list[PartSum]] = field(default_factory=dict)
    executed: list[list[list[int]]] = field(default_factory=list)
    least: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_mark = {float(mark): hole for hole, mark in enumerate(self.marks)}

    def layout(self, document: Any) -> Layout:
        """Return the layout; raises UnusualError if there is none."""
        sent, report = self.sent, self._usual()
        shape, groups = shape_of(report, None), Groups(report)
        self._cores(groups.counters, shape)
        self._memory(groups.memory, shape)
        self._machine(groups, shape)
        self._executions(groups.executions)
        self._count(report.neuron_runtime_data)
        if sent.efa:
            self._efa(sent.efa)
        lowest = np.full(len(self.marks), -math.inf)
        highest = np.full(len(self.marks), math.inf)
        for kind, number in _bounded_numbers(LINE_TYPE, document):
            hole = self.hole(number)
            lowest[hole] = max(-math.inf if kind.ge is None else kind.ge, lowest[hole])
            if kind.gt is not None:
                lowest[hole] = math.nextafter(kind.gt, math.inf)
            highest[hole] = math.inf if kind.le is None else kind.le
        for hole, least in self.least.items():
            lowest[hole] = max(least, lowest[hole])
        periods = [self.hole(p) for p in groups.periods]
        n_holes = len(self.marks)
        return Layout(
            shape,
            n_efa(sent.efa),
            lowest,
            highest,
            np.array(periods, dtype=np.intp),
            [hole_indices(holes, n_holes=n_holes) for holes in self.executed],
            *part_layout(self.parts, n_holes=n_holes),
        )

    def _usual(self) -> schemas.MonitorReport:
        """Return the report if the line has nothing else; raises UnusualError otherwise."""
        sent, report = self.sent, self.sent.report
        if report is None or sent.neuron or sent.hbm_bytes_per_step or sent.steps_per_s:
            raise UnusualError
        if sent.at is not None or sent.seq is not None or sent.agent is not None:
            raise UnusualError
        counted = report.neuron_hardware_info or schemas.HardwareInfo()
        if not (counted.neuron_device_count and counted.neuroncore_per_device_count):
            raise UnusualError
        return report

    def hole(self, number: float) -> int:
        if number not in self.by_mark:
            raise UnusualError
        return self.by_mark[number]

    def known(self, numbers: Iterable[float | None]) -> tuple[int, ...]:
        return tuple(self.hole(number) for number in numbers if number is not None)

    def _cores(self, groups: Sequence[schemas.NeuroncoreCounters], shape: Shape) -> None:
        parts = [PartSum(()) for _ in range(shape.n_cores)]
        flops = list(parts)
        for group in groups:
            for core, use in (group.neuroncores_in_use or {}).items():
                if core >= shape.n_cores or use.neuroncore_utilization is None:
                    raise UnusualError
                holes = (*parts[core].holes, self.hole(use.neuroncore_utilization))
                parts[core] = PartSum(holes, over=PERCENT)
                flops[core] = PartSum((*flops[core].holes, *self.known([flops_of(use)])))
        self.parts["core_utilization_ratio"] = parts
        if any(part.holes for part in flops):
            self.parts["core_flops_per_s"] = flops

    def _memory(self, groups: Sequence[schemas.MemoryUsed], shape: Shape) -> None:
        devices: list[tuple[int, ...]] = [()] * shape.n_devices
        for group in groups:
            total = group.neuron_runtime_used_bytes or schemas.RuntimeUsedBytes()
            breakdown = total.usage_breakdown or schemas.UsageBreakdown()
            cores = breakdown.neuroncore_memory_usage or {}
            if not cores and shape.n_devices == 1 and total.neuron_device is not None:
                devices[0] += (self.hole(total.neuron_device),)
            for core, memory in cores.items():
                holes = self.known(getattr(memory, purpose) for purpose in PURPOSES)
                if core >= shape.n_cores or not holes:
                    raise UnusualError
                devices[core // (shape.n_cores // shape.n_devices)] += holes
        if any(devices):
            self.parts["device_memory_used_bytes"] = [PartSum(holes) for holes in devices]

    def _machine(self, groups: Groups, shape: Shape) -> None:
        devices = (groups.hardware and groups.hardware.neuron_devices) or []
        by_device = {device.neuron_device_index: device for device in devices}
        if max(by_device, default=0) >= shape.n_devices:
            raise UnusualError
        for kind in ECC:
            numbers = [getattr(by_device.get(i), kind, None) for i in range(shape.n_devices)]
            if any(number is not None for number in numbers):
                self.parts[kind] = [PartSum(self.known([number])) for number in numbers]
        usage = groups.vcpu and groups.vcpu.average_usage
        busy = self.known(getattr(usage, share) for share in BUSY) if usage else ()
        if busy:
            self.parts["vcpu_usage_ratio"] = [PartSum(busy, over=PERCENT)]
        memory = groups.host_memory or schemas.MemoryInfo()
        if memory.memory_used_bytes is not None:
            self.parts["host_memory_used_bytes"] = [
                PartSum(self.known([memory.memory_used_bytes]))
            ]

    def _executions(self, groups: Sequence[schemas.ExecutionStats]) -> None:
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
        for name, percentile in LATENCIES.items():
            for group in groups:
                for hole in self.known([latency_of(group, percentile)]):
                    self.parts.setdefault(name, []).append(PartSum((hole,)))
                    # Zero means nothing executed.
                    self.least[hole] = math.nextafter(0, 1)

    def _rate(self, name: str, counts: Iterable[float | None], period_s: float) -> None:
        holes, period = self.known(counts), self.hole(period_s)
        if holes:
            self.parts.setdefault(name, []).append(PartSum(holes, period=period))
        self.least[period] = MARK

    def _count(self, processes: list[schemas.Runtime] | None) -> None:
        for _, stats in counted_processes(processes):
            errors = stats.error_summary or schemas.ErrorSummary()
            endings = stats.execution_summary or schemas.ExecutionSummary()
            counts = [getattr(errors, name) for name in ERRORS]
            counts += [getattr(endings, name) for name in ENDINGS]
            self.executed.append([[*self.known([count])] for count in counts])

    def _efa(self, efa: schemas.EfaLine) -> None:
        if len({port.index for port in efa.devices}) < len(efa.devices):
            raise UnusualError
        size = n_efa(efa)
        rows = {name: [PartSum(()) for _ in range(size)] for name in (*RATES, "efa_latency_s")}
        for port in efa.devices:
            if port.counters is not None:
                raise UnusualError
            if efa.period is not None and port.increase is not None:
                period = self.hole(efa.period)
                self.least[period] = MARK
                for name, counter in RATES.items():
                    grown = self.known([getattr(port.increase, counter)])
                    rows[name][port.index] = PartSum(grown, period=period)
            if port.latency_s is not None:
                rows["efa_latency_s"][port.index] = PartSum(self.known([port.latency_s]))
        self.parts |= {
            name: parts for name, parts in rows.items() if any(part.holes for part in parts)
        }


def _bounded_numbers(
    kind: msgspec.inspect.Type, value: Any
) -> Iterator[tuple[msgspec.inspect.FloatType, float]]:
    """Yield each number of a document with its type, which has the bounds."""
    if isinstance(kind, msgspec.inspect.UnionType):
        if value is None:
            return
        [kind] = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
    if isinstance(kind, msgspec.inspect.FloatType):
        yield kind, value
    elif isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            if each.encode_name in value:
                yield from _bounded_numbers(each.type, value[each.encode_name])
    elif isinstance(kind, msgspec.inspect.DictType):
        for inner in value.values():
            yield from _bounded_numbers(kind.value_type, inner)
    elif isinstance(kind, msgspec.inspect.ListType):
        for inner in value:
            yield from _bounded_numbers(kind.item_type, inner)


Rows = Meta(min_length=1, max_length=MAX_ROWS)


class Columns(Struct, gc=False):
    """Reports of one stream; ``template`` has U+007F instead of each number.

    ``once`` has the numbers of the first report. ``more`` has, for each later report, the
    numbers at the indices in ``varies``. Both are little-endian 64-bit floats, in JSON as Base64.
    ``agent`` is the sender's health.
    """

    stream: StreamName
    seq: Annotated[list[SequenceNumber], Rows]
    at: Annotated[list[UnixSeconds], Rows]
    template: str
    once: bytes
    varies: list[Annotated[int, Meta(ge=0)]]
    more: bytes
    agent: AgentState | None = None


class ColumnsLine(Struct, gc=False):
    columns: Columns


_LINE = msgspec.json.Decoder(ColumnsLine)


@dataclass(slots=True)
class ReportTable:
    """A decoded column line and its numbers (n_rows, n_holes).

    ``found`` are its readings once they are computed, None if there are none.
    """

    sent: Columns
    numbers: FloatArray
    is_computed: bool = False
    found: list[Reading] | None = None

    def expanded(self) -> Iterator[bytes]:
        """Yield the reports as single lines."""
        last = len(self.numbers) - 1
        for row, (at_s, seq) in enumerate(zip(self.sent.at, self.sent.seq, strict=True)):
            head: dict[str, object] = {"at": at_s, "seq": seq, "stream": self.sent.stream}
            if row == last and self.sent.agent is not None:
                head["agent"] = self.sent.agent
            text = bytes(TemplateReport(self.sent.template, self.numbers[row]))
            yield msgspec.json.encode(head)[:-1] + b"," + text[1:]

    @property
    def node(self) -> str:
        """The instance id in its computed readings; empty without."""
        return self.found[0].identity.instance_id if self.found else ""

    def readings(self) -> list[Reading] | None:
        """Return a reading for each report; None if they must be read one by one."""
        if not self.is_computed:
            compute([self])
        return self.found


def compute(tables: Iterable[ReportTable]) -> None:
    """Compute the readings of tables; those of one layout in one pass."""
    groups: dict[int, list[tuple[ReportTable, Recipe]]] = {}
    for table in tables:
        table.is_computed = True
        if (recipe := recipe_of(table.sent.template)) is not None:
            groups.setdefault(id(recipe.layout), []).append((table, recipe))
    for group in groups.values():
        layout = group[0][1].layout
        numbers = np.concatenate([table.numbers for table, _ in group])
        fits, (values, periods_s, executed) = layout.fits(numbers), layout.apply(numbers)
        start = 0
        for table, recipe in group:
            rows = range(start, start + len(table.numbers))
            start = rows.stop
            if not fits[rows.start : rows.stop].all():
                continue
            by_tag: dict[str, FloatArray] = {}
            for tag, counts in zip(recipe.tags, executed, strict=True):
                some = counts[rows.start : rows.stop]
                by_tag[tag] = by_tag[tag] + some if tag in by_tag else some
            of_each = {tag: some.tolist() for tag, some in by_tag.items()}
            sent = table.sent
            table.found = [
                Reading(
                    recipe.identity,
                    layout.shape,
                    periods_s[row],
                    {name: array[row : row + 1] for name, array in values.items()},
                    sent.at[i],
                    sent.seq[i],
                    {tag: counts[i] for tag, counts in of_each.items()},
                    TemplateReport(sent.template, table.numbers[i]),
                    sent.stream,
                    layout.n_efa,
                )
                for i, row in enumerate(rows)
            ]
            if sent.agent is not None:
                agent = {"agent": msgspec.to_builtins(sent.agent)}
                table.found[-1] = structs.replace(table.found[-1], sidecars=agent)


def read_columns(line: bytes) -> ReportTable:
    """Decode a column line; raises RefusedError, naming the field, if it is invalid."""
    try:
        sent = _LINE.decode(line).columns
    except msgspec.MsgspecError as error:
        raise explain(error, line, ColumnsLine) from error
    except UnicodeDecodeError as error:
        raise RefusedError("", "is not UTF-8") from error
    n_rows, n_holes = len(sent.seq), sent.template.count(HOLE)
    if len(sent.at) != n_rows:
        raise RefusedError("columns.at", f"has {len(sent.at)} moments for {n_rows} numbers in seq")
    if not sent.template.startswith("{") or "\n" in sent.template:
        raise RefusedError("columns.template", "is not a JSON object on one line")
    if sent.varies and max(sent.varies) >= n_holes:
        reason = f"names hole {max(sent.varies)}; the template has {n_holes}"
        raise RefusedError("columns.varies", reason)
    if n_rows * n_holes > MAX_NUMBERS or n_rows * len(sent.template) > MAX_EXPANDED_BYTES:
        raise RefusedError(
            "columns.template",
            f"has {n_holes:,} numbers in {len(sent.template):,} characters, for {n_rows:,} "
            f"reports; at most {MAX_NUMBERS:,} numbers and {MAX_EXPANDED_BYTES:,} characters in "
            "all. Send fewer reports in a line",
        )
    once = _floats("columns.once", sent.once, n_holes)
    more = _floats("columns.more", sent.more, (n_rows - 1) * len(sent.varies))
    numbers = np.repeat(once[None, :], n_rows, axis=0)
    varies = np.array(sent.varies, dtype=np.intp)
    numbers[1:, varies] = more.reshape(n_rows - 1, len(varies))
    return ReportTable(sent, numbers)


def _floats(field: str, data: bytes, n_wanted: int) -> FloatArray:
    if len(data) != 8 * n_wanted:
        raise RefusedError(field, f"has {len(data):,} bytes for {n_wanted:,} numbers of 8 bytes")
    floats = np.frombuffer(data, "<f8")
    if not (np.abs(floats) <= MAX_EXACT).all():
        raise RefusedError(field, "has a number that is NaN or above 2^53")
    return floats
