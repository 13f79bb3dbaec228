"""Ingest of real nodes: from the lines a node sent to blocks in the store and its row."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec

from fleet.ingest.named_runs import SESSION, assign_run, run_in_tags, update_runs
from fleet.ingest.rows import (
    MAX_NODES,
    NAME,
    NAME_RULE,
    is_other_machine,
    row_shape,
    store_labels,
    store_row,
)
from fleet.ingest.samples import RecordedAnswer, record_answer
from fleet.models import Node
from fleet.runs.agent_requests import is_allowed
from telemetry.blocks import Block, join_partial
from telemetry.ingest import neuron_monitor
from telemetry.ingest.columns import BEGINS, ReportTable, read_columns
from telemetry.ingest.lines import Refusal, Refusals, RefusedError
from telemetry.ingest.neuron_monitor import NodeIdentity, Reading, Shape, decode_line, read_line
from telemetry.ingest.timing import BlockBuilder, NodeClock
from telemetry.store.connection import Command, Connection
from telemetry.store.durable import forget_late, save_late
from telemetry.store.hot import HotStore
from telemetry.store.node_state import (
    NodeReport,
    RequestKind,
    note_stopping,
    read_agent_requests,
    save_reports,
    save_sidecars,
)
from telemetry.store.reading import SCRAPES
from telemetry.template_report import TemplateReport
from telemetry.units import DAY_S

# Redis, by node: seconds between reports, clock skew, and the state of the clock estimate, so that
# a web process that starts does not mistake queueing for a wrong clock.
TIMINGS = "ingest:manners"
# A line format besides the plain one, and an encoding besides gzip; responses list them, and
# senders use only those listed.
TAKES = ("columns", "zstd")

# A node's newest report is stored at most this often, or when its processes change: its values
# change slowly, and packing it costs more than reading it.
KEEP_EVERY_S = 5.0
# A node's row is read again after this time, because it may have been changed.
REFRESH_S = 60.0
# Two machines may not use one name within this time.
IN_USE_S = 60.0
MAX_KNOWN = MAX_NODES
MAX_REPORTS = 10_000
# Redis, by node: the last number of each of its streams.
STREAMS = "ingest:streams:"
# Redis, by node: where the lines of its last requests were stored. A sender repeats at most these.
PLACEMENTS = "ingest:placements"
MAX_PLACEMENTS = 512
MAX_STREAMS = 16
KEEP_S = 30 * DAY_S
# Redis, by node: what its agent last said of its size, for what else is heard of the node.
SIZE = "ingest:size:"
SIZE_KEEP_S = DAY_S
# Many nodes in one command: the client takes longer for a command than Redis does.
LAST_NUMBERS = """
local numbers = {}
for i = 1, #ARGV, 2 do
  numbers[#numbers + 1] = redis.call('ZSCORE', ARGV[i], ARGV[i + 1])
end
return numbers
"""
# Numbers start at the time, so the lowest belong to the oldest streams.
REMEMBER_NUMBERS = """
for i = 3, #ARGV, 3 do
  redis.call('ZADD', ARGV[i], 'GT', ARGV[i + 1], ARGV[i + 2])
  redis.call('ZREMRANGEBYRANK', ARGV[i], 0, -1 - ARGV[1])
  redis.call('EXPIRE', ARGV[i], ARGV[2])
end
"""
# A repeat that is placed this far from the first copy moves it.
MOVED_S = 1.0


class Placement(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The seconds of a stored line, and the estimate of the sender's clock that placed it."""

    stream: str
    seq: int
    end_s: float
    first_tick: int
    n_ticks: int
    offset_s: float

    def is_improved_by(self, repeat: "Placement") -> bool:
        """Whether a repeat is placed elsewhere, by a better estimate.

        A delay is never shorter than the clock's offset, so the smaller estimate is better.
        """
        is_moved = abs(repeat.end_s - self.end_s) >= MOVED_S
        return is_moved and repeat.offset_s < self.offset_s

    @property
    def ticks(self) -> range:
        return range(self.first_tick, self.first_tick + self.n_ticks)


_PLACEMENTS = msgspec.msgpack.Decoder(list[Placement])


class NumberedLine(msgspec.Struct, frozen=True, gc=False):
    """One numbered line: its blocks, its report, and its end by the sender's corrected clock.

    ``end_s`` is None for a line without a time: a repeat is not placed any better.
    """

    stream: str
    seq: int
    blocks: Sequence[Block]
    report: NodeReport | None
    end_s: float | None = None
    offset_s: float = math.inf

    @property
    def placement(self) -> Placement | None:
        if self.end_s is None or not self.blocks:
            return None
        n, first = len(self.blocks), self.blocks[0].tick
        return Placement(self.stream, self.seq, self.end_s, first, n, self.offset_s)


@dataclass(slots=True)
class NewLines:
    new: list[NumberedLine] = field(default_factory=list)
    n_repeated: int = 0


@dataclass(slots=True)
class NodeLines:
    last: dict[str, float] = field(default_factory=dict)
    placements: dict[tuple[str, int], Placement] = field(default_factory=dict)
    # New lines of this batch: the request they came with, and their index in it.
    new: dict[tuple[str, int], tuple[NewLines, int]] = field(default_factory=dict)
    # Stored lines that a repeat places better: their first placement, and the repeat.
    moved: dict[tuple[str, int], tuple[Placement, NumberedLine]] = field(default_factory=dict)

    def add(self, lines: Iterable[NumberedLine]) -> NewLines:
        """Separate the lines of a request; improve the placement of repeated ones."""
        new_lines = NewLines()
        for line in lines:
            key = (line.stream, line.seq)
            if line.seq > self.last.get(line.stream, -1.0):
                self.last[line.stream] = line.seq
                self.new[key] = new_lines, len(new_lines.new)
                new_lines.new.append(line)
            else:
                new_lines.n_repeated += 1
                before, better = self.placements.get(key), line.placement
                if before is None or better is None or not before.is_improved_by(better):
                    continue
                if key in self.new:
                    request, place = self.new[key]
                    request.new[place] = line
                else:
                    stored = self.moved[key][0] if key in self.moved else before
                    self.moved[key] = stored, line
            if (placement := line.placement) is not None:
                self.placements[key] = placement
        return new_lines

    def blocks_before_move(self) -> list[Block]:
        """Return the blocks of moved lines at their first placement.

        Seconds that another line was stored at are left out.
        """
        others = self.placements.keys() - self.moved.keys() - self.new.keys()
        taken = {tick for key in others for tick in self.placements[key].ticks}
        return [
            Block(line.blocks[0].shard, tick, line.blocks[0].nodes, line.blocks[0].values)
            for before, line in self.moved.values()
            for tick in before.ticks
            if tick not in taken
        ]

    def blocks_after_move(self) -> list[Block]:
        return [block for _, line in self.moved.values() for block in line.blocks]


@dataclass(slots=True)
class IngestBatch(Refusals):
    """Lines of one node: counts, refusals, and the blocks and reports to store."""

    node: str = ""
    n_accepted: int = 0
    n_late: int = 0
    n_repeated: int = 0
    skew_s: float = 0.0
    period_s: float = 0.0
    clock: str = ""
    # Whether the node's agent was asked to end.
    is_stopping: bool = False
    # Devices, cores and EFA devices, where an agent said them and its row was stored.
    size: tuple[int, int, int] | None = None
    blocks: list[Block] = field(default_factory=list)
    reports: list[NodeReport] = field(default_factory=list)
    numbered: list[NumberedLine] = field(default_factory=list)
    sidecars: list[Mapping[str, object]] = field(default_factory=list)
    # What the node's agent is asked for, by kind.
    requests: Mapping[str, Any] = field(default_factory=dict)
    answers: list[RecordedAnswer] = field(default_factory=list)

    def absorb(self, later: "IngestBatch") -> None:
        self.node = later.node or self.node
        self.n_accepted += later.n_accepted
        self.n_late += later.n_late
        self.n_repeated += later.n_repeated
        self.skew_s, self.clock = later.skew_s, later.clock
        self.is_stopping |= later.is_stopping
        self.period_s = later.period_s or self.period_s
        self.requests = later.requests
        self.absorb_refused(later)


def response_of(delivery: IngestBatch) -> dict[str, Any]:
    return dict(delivery.requests) | {
        "node": delivery.node or None,
        "accepted": delivery.n_accepted,
        "repeated": delivery.n_repeated,
        "late": delivery.n_late,
        "clock_skew_s": round(delivery.skew_s, 3),
        "n_refused": delivery.n_refused,
        "refused": msgspec.to_builtins(delivery.refused),
        "takes": TAKES,
    }


def store_batches(hot: HotStore, deliveries: Sequence[IngestBatch]) -> None:
    """Store batches of nodes and count them in the service's own counters."""
    with_numbered = [d for d in deliveries if d.numbered]
    known = known_lines(hot, [(d.node, d.numbered) for d in with_numbered])
    separated = [(d, known[d.node].add(d.numbered)) for d in with_numbered]
    for delivery, separate in separated:
        delivery.numbered = []
        delivery.n_repeated += separate.n_repeated
        delivery.n_accepted += len(separate.new)
        delivery.blocks += chain.from_iterable(line.blocks for line in separate.new)
        delivery.reports += [line.report for line in separate.new if line.report]
    now_s = hot.now()
    # A first copy that was placed worse leaves its seconds before others may take them.
    moved = [block for lines in known.values() for block in lines.blocks_after_move()]
    if moved:
        wrong = [block for lines in known.values() for block in lines.blocks_before_move()]
        hot.remove(wrong)
        forget_late(hot, wrong, now_s=now_s)
        # Totals have them from the first copy.
        hot.merge((b for b in moved if b.tick > now_s - hot.keep_s), is_counted=False)
    blocks = join_partial(block for delivery in deliveries for block in delivery.blocks)
    hot.merge(block for block in blocks if block.tick > now_s - hot.keep_s)
    save_late(hot, [*moved, *blocks], now_s=now_s)
    save_reports(hot, (note for delivery in deliveries for note in delivery.reports))
    save_sidecars(hot, [(d.node, content) for d in deliveries for content in d.sidecars])
    counts = {
        "ingest_reports": sum(d.n_accepted for d in deliveries),
        "ingest_repeated": sum(d.n_repeated for d in deliveries),
        "ingest_skewed": sum(d.n_accepted for d in deliveries if d.skew_s),
        "ingest_late": sum(d.n_late for d in deliveries),
        "ingest_lines_refused": sum(d.n_refused for d in deliveries),
        "ingest_errors": sum(
            bool(d.n_refused) and not d.n_accepted + d.n_repeated for d in deliveries
        ),
    }
    key = "service:counters"
    commands: list[tuple[object, ...]] = [
        ("HINCRBYFLOAT", key, name, n) for name, n in counts.items() if n
    ]
    timings = {
        d.node: f"{d.period_s:.3f} {d.skew_s:.3f} {d.clock}" for d in deliveries if d.n_accepted
    }
    if timings:
        commands.append(("HSET", TIMINGS, *chain.from_iterable(timings.items())))
    commands += [
        ("SET", SIZE + d.node, msgspec.msgpack.encode(d.size), "EX", SIZE_KEEP_S)
        for d in deliveries
        if d.size is not None
    ]
    commands += note_stopping((d.node for d in deliveries if d.is_stopping), now_s=now_s)
    # They have an agent.
    if clocked := [d.node for d in deliveries if d.n_accepted and d.clock]:
        commands.append(("HDEL", SCRAPES, *clocked))
    # Remember lines as known only after they are stored.
    hot.execute_all([*commands, *remember_commands(known)])
    for answer in chain.from_iterable(delivery.answers for delivery in deliveries):
        answer.update_request(hot, now=datetime.now(UTC))
    kinds: list[RequestKind] = [kind for kind in ("probe", "sample") if is_allowed(kind)]
    requested = read_agent_requests(hot, kinds, {d.node for d in deliveries if d.node})
    for delivery in deliveries:
        delivery.requests = requested.get(delivery.node, {})


def known_lines(
    hot: Connection, lines: Sequence[tuple[str, Sequence[NumberedLine]]]
) -> dict[str, NodeLines]:
    asked = [*{(node, line.stream): None for node, of_node in lines for line in of_node}]
    names = [name for node, stream in asked for name in (STREAMS + node, stream)]
    scores = hot.execute("EVAL", LAST_NUMBERS, 0, *names) if names else []
    known = {node: NodeLines() for node, _ in asked}
    for (node, stream), score in zip(asked, scores, strict=True):
        if score is not None:
            known[node].last[stream] = float(score)
    repeating = [
        *{
            node: None
            for node, of_node in lines
            if any(line.seq <= known[node].last.get(line.stream, -1.0) for line in of_node)
        }
    ]
    if repeating:
        packed_placements = hot.execute("HMGET", PLACEMENTS, *repeating)
        for node, packed in zip(repeating, packed_placements, strict=True):
            placements = _PLACEMENTS.decode(packed) if packed else []
            known[node].placements = {(p.stream, p.seq): p for p in placements}
    return known


def remember_commands(known: dict[str, NodeLines]) -> list[Command]:
    """Return the commands that mark lines as known; run them after storing."""
    placements: list[object] = []
    numbers: list[object] = []
    for node, lines in known.items():
        if not lines.new and not lines.moved:
            continue
        newest = sorted(lines.placements.values(), key=lambda p: p.seq)[-MAX_PLACEMENTS:]
        placements += [node, msgspec.msgpack.encode(newest)]
        for stream, seq in lines.last.items():
            numbers += [STREAMS + node, int(seq), stream]
    if not placements:
        return []
    return [
        ("EVAL", REMEMBER_NUMBERS, 0, MAX_STREAMS, KEEP_S, *numbers),
        ("HSET", PLACEMENTS, *placements),
    ]


@dataclass(frozen=True, slots=True)
class ReportTiming:
    """A node's report interval, and its clock's skew (0: correct)."""

    period_s: float
    skew_s: float

    def __str__(self) -> str:
        often = max(1, round(self.period_s))
        text = f"Reports every {often} s" if often > 1 else "Reports every second"
        if often > 1:
            text += "; each figure covers all of them"
        if self.skew_s:
            off = "behind" if self.skew_s > 0 else "ahead of"
            text += f". Its clock is {abs(self.skew_s):,.0f} s {off} ours, and corrected"
        return text + "."


def timing_of(hot: HotStore, node: str) -> ReportTiming | None:
    packed: bytes | None = hot.execute("HGET", TIMINGS, node)
    if packed is None:
        return None
    period_s, skew_s = packed.split()[:2]
    return ReportTiming(float(period_s), float(skew_s))


def clock_of(hot: HotStore, node: str) -> str:
    """Return a node's stored clock estimate, for ``ClockOffset.restore``."""
    packed: bytes | None = hot.execute("HGET", TIMINGS, node)
    words = packed.decode().split(" ", 2) if packed is not None else []
    return words[2] if len(words) > 2 else ""


@dataclass(slots=True)
class LastStored:
    kept_s: float = -KEEP_EVERY_S
    processes: frozenset[str] | None = None

    def reports(
        self, node: str, accepted: Sequence[tuple[Reading, float]], *, now_s: float
    ) -> list[NodeReport]:
        """Return a note per report; the last one keeps its line if due or if processes changed."""
        notes = [
            NodeReport(
                node, end_s, end_s if reading.at_s is None else reading.at_s, reading.executed
            )
            for reading, end_s in accepted
        ]
        if not accepted:
            return notes
        reading, end_s = accepted[-1]
        processes = frozenset(reading.executed)
        if now_s - self.kept_s >= KEEP_EVERY_S or processes != self.processes:
            self.kept_s, self.processes = now_s, processes
            line = reading.line
            kept = line.packed() if isinstance(line, TemplateReport) else line
            notes[-1] = NodeReport(node, end_s, notes[-1].made_s, reading.executed, kept)
        return notes


@dataclass(slots=True)
class KnownNode:
    clock: NodeClock = field(default_factory=NodeClock)
    builder: BlockBuilder = field(default_factory=BlockBuilder)
    shape: Shape | None = None
    identity: NodeIdentity | None = None
    seen_s: float = -REFRESH_S
    stored_s: float = -REFRESH_S
    last_stored: LastStored = field(default_factory=LastStored)
    is_restored: bool = False
    n_efa: int = 0
    # The run that tags of its processes name, and when they last did; None: to be read.
    run: str | None = None
    named_s: float = -math.inf
    followed_s: float = -math.inf


class NodeIngest:
    """Reads nodes' lines into batches; caches what it knows of each node."""

    def __init__(
        self,
        *,
        keep_s: int,
        late_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
        restore_clock: Callable[[str], str] | None = None,
    ) -> None:
        """Refuse reports older than ``keep_s``, or ``late_s`` for numbered lines.

        ``restore_clock`` returns a node's clock estimate from before this process started.
        """
        self._keep_s = keep_s
        self._late_s = late_s
        self._monotonic = monotonic
        self._restore_clock = restore_clock
        self._known: dict[str, KnownNode] = {}
        self._rows: dict[str, Node] = {}
        # By name of a run, when it was updated.
        self._updated_s: dict[str, float] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Read the rows that are due of these nodes, whose lines are delivered next, together."""
        due_s = self._monotonic() - REFRESH_S
        due = [n for n in names if (known := self._known.get(n)) and known.stored_s < due_s]
        self._rows = {}
        if due:
            self._rows = {row.name: row for row in Node.objects.filter(name__in=due)}

    def deliver(
        self,
        lines: Iterable[bytes | ReportTable],
        *,
        node: str | None,
        arrived_s: float,
        sent_s: float | None = None,
        now_s: float | None = None,
        first_line: int = 1,
        up_s: float | None = None,
        alone: bool = False,
    ) -> IngestBatch:
        """Read lines that arrived together, and create or update the node's row.

        The caller stores the batch. All lines are of one node: ``node``, else the first that
        a line names; one of columns may be read already. ``now_s`` is given if the lines are a
        replay. ``up_s``, with ``sent_s``, is the sender's time since boot. Lines that come
        ``alone`` have no report.
        """
        delivery = IngestBatch(node=node or "")
        good: list[tuple[int, bytes, Reading]] = []
        shapes: dict[str, Shape | None] = {"": None}
        for number, line in enumerate(lines, first_line):
            if isinstance(line, ReportTable) or line.strip():
                self._read(line, number, delivery, good, alone=alone, shapes=shapes)
        if good:
            known = self._known[delivery.node]
            if not known.is_restored and self._restore_clock is not None:
                known.clock.offset.restore(self._restore_clock(delivery.node), arrived_s)
            known.is_restored = True
            readings = [reading for _, _, reading in good]
            ends = known.clock.ends(readings, arrived_s=arrived_s, sent_s=sent_s, up_s=up_s)
            self._place(good, ends, delivery, arrived_s if now_s is None else now_s)
            if (newest := readings[-1]).line:
                try:
                    self._follow_run(delivery.node, newest, now_s=arrived_s)
                except RefusedError as error:
                    delivery.refuse(error.at(good[-1][0]))
        return delivery

    def _follow_run(self, node: str, reading: Reading, *, now_s: float) -> None:
        """Assign the node to the run that the tags of its processes name, if they do.

        A job that restarts has no process for a moment.
        """
        known, name = self._known[node], run_in_tags(reading.executed)
        if known.run is None:
            before = Node.objects.filter(name=node, run__session=SESSION, run__finished_at=None)
            known.run = before.values_list("run__name", flat=True).first() or ""
            known.named_s = now_s
        if name:
            known.named_s = now_s
        elif not known.run or now_s - known.named_s < REFRESH_S:
            return
        if name == known.run and now_s - known.followed_s < REFRESH_S:
            return
        row = Node.objects.select_related("run").filter(name=node).first()
        if row is None:
            # Someone deleted it; a later report brings it back.
            return
        is_other, now = name != known.run, datetime.fromtimestamp(now_s, UTC)
        known.run, known.followed_s = name, now_s
        assign_run(row, {name: 1} if name else {}, now=now)
        if is_other or now_s - self._updated_s.get(name, -math.inf) >= REFRESH_S:
            self._updated_s[name] = now_s
            update_runs([node], now=now)

    def forget(self, node: str) -> None:
        """Drop the cache of a node whose blocks could not be stored: it can resend them."""
        self._known.pop(node, None)

    def _read(
        self,
        line: bytes | ReportTable,
        number: int,
        delivery: IngestBatch,
        good: list[tuple[int, bytes, Reading]],
        *,
        alone: bool,
        shapes: dict[str, Shape | None],
    ) -> None:
        """Read one line, or many in columns, and check that it is of the batch's node."""
        try:
            if isinstance(line, ReportTable) or line.startswith(BEGINS):
                # Columns: all reports at once, or one by one if the template is unusual.
                table = line if isinstance(line, ReportTable) else read_columns(line)
                line = b""
                if len(good) + len(table.numbers) > MAX_REPORTS:
                    reason = f"more than {MAX_REPORTS:,} reports at a time; send fewer"
                    raise RefusedError("columns.seq", reason)
                found = None if alone else table.readings()
                if found is None:
                    for one in table.expanded():
                        self._read(one, number, delivery, good, alone=alone, shapes=shapes)
                    return
                readings = found
            elif alone:
                # A line without a report: the node's row may have its shape.
                sent = decode_line(line)
                node = delivery.node or (sent.instance and sent.instance.instance_id) or ""
                known = self._known.get(node)
                if known is None and node not in shapes:
                    # All lines are of one node: another name is not asked for.
                    shapes[node] = row_shape(node) if len(shapes) == 1 else None
                shape = known.shape if known else shapes[node]
                readings = [neuron_monitor.read_sidecar_line(sent, shape=shape)]
            else:
                known = self._known.get(delivery.node)
                readings = [read_line(line, shape=known.shape if known else None)]
            self._admit(readings[0], delivery)
        except RefusedError as error:
            delivery.refuse(error.at(number))
        else:
            good += [(number, line, reading) for reading in readings]

    def _admit(self, reading: Reading, delivery: IngestBatch) -> None:
        """Give a delivery the name of the reading's node; create or update its row."""
        identity = reading.identity
        name = delivery.node or identity.instance_id or identity.instance_name
        if not name:
            raise RefusedError("instance_info.instance_id", "is empty: name the node (node=NAME)")
        if not NAME.fullmatch(name):
            raise RefusedError("node", f"{name[:40]!r} is no name for a node: {NAME_RULE}")
        known = self._known.get(name) or KnownNode()
        now_s = self._monotonic()
        # Two machines must not report under one name.
        before = known.identity.instance_id if known.identity else ""
        if is_other_machine(name, before, identity.instance_id):
            ago_s = now_s - known.seen_s
            if ago_s < IN_USE_S:
                reason = f"{name} is {before}, which reported {ago_s:.0f} s ago; use another name"
                raise RefusedError("instance_info.instance_id", reason)
            # Clock, counters and place are the machine's.
            known = KnownNode(is_restored=True)
        identity = identity.completed_by(known.identity)
        n_efa = max(known.n_efa, reading.n_efa)
        news = (reading.shape, identity, n_efa)
        same = (known.shape, known.identity, known.n_efa) == news
        if not same or now_s - known.stored_s > REFRESH_S:
            store_row(name, identity, reading.shape, n_efa, row=self._rows.pop(name, None))
            known.stored_s, known.n_efa = now_s, n_efa
            delivery.size = (reading.shape.n_devices, reading.shape.n_cores, n_efa)
        known.shape, known.identity, known.seen_s = reading.shape, identity, now_s
        self._known[name] = known
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        delivery.node = name

    def _place(
        self,
        good: Sequence[tuple[int, bytes, Reading]],
        ends: Sequence[float],
        delivery: IngestBatch,
        now_s: float,
    ) -> None:
        """Refuse old readings, skip repeated ones, and accept the rest."""
        known = self._known[delivery.node]
        clock = known.clock
        delivery.skew_s, delivery.clock = clock.correction_s, clock.offset.dump()
        delivery.period_s = max(reading.period_s for _, _, reading in good)
        accepted: list[tuple[int, Reading, float]] = []
        for (number, line, reading), end_s in zip(good, ends, strict=True):
            most_s = max(self._keep_s, self._late_s if reading.is_numbered else 0.0)
            if end_s <= now_s - most_s:
                ago = f"{now_s - end_s:.0f} s old; only the last {most_s:.0f} s are kept"
                delivery.refuse(Refusal(number, "at", ago))
                delivery.n_late += 1
            elif not reading.is_numbered and clock.is_repeated(reading, line):
                delivery.n_repeated += 1
            else:
                accepted.append((number, reading, end_s))
        # Numbered readings wait for the check against Redis.
        reports = [(reading, end_s) for _, reading, end_s in accepted if reading.line]
        moment_s, offset_s = self._monotonic(), clock.offset.offset_s
        notes = iter(known.last_stored.reports(delivery.node, reports, now_s=moment_s))
        for number, reading, end_s in accepted:
            made = known.builder.blocks(delivery.node, reading, clock, end_s)
            note = next(notes) if reading.line else None
            if reading.sidecars:
                delivery.sidecars.append(reading.sidecars)
                agent = reading.sidecars.get("agent")
                delivery.is_stopping |= isinstance(agent, dict) and bool(agent.get("stopping"))
                if isinstance(agent, dict) and (labels := agent.pop("labels", None)):
                    store_labels(delivery.node, labels)
                if isinstance(agent, dict) and (sample := agent.pop("sample", None)) is not None:
                    recorded = record_answer(delivery.node, sample)
                    delivery.answers.append(recorded)
                    if recorded.refused is not None:
                        # The line itself is accepted.
                        delivery.refuse(recorded.refused.at(number))
            if reading.stream is not None and reading.seq is not None:
                placed_s = None if reading.at_s is None else end_s
                numbered = NumberedLine(
                    reading.stream, reading.seq, made, note, placed_s, offset_s
                )
                delivery.numbered.append(numbered)
            else:
                delivery.blocks += made
                delivery.reports += [note] if note else []
                delivery.n_accepted += 1
