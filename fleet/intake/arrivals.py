"""Real nodes coming in: from the lines a node sent to blocks in the store and a row of its own."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fleet.intake.deliveries import Delivery
from fleet.intake.noting import Notebook
from fleet.intake.rows import row_shape, store_row
from fleet.intake.streams import Piece
from telemetry.ingest import beside
from telemetry.ingest.columns import BEGINS, read_columns
from telemetry.ingest.neuron_monitor import decoded, read_line
from telemetry.ingest.reading import Identity, Reading, Shape
from telemetry.ingest.refusal import Refusal, RefusedError
from telemetry.ingest.timing import NodeClock, blocks

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
NAME_RULE = "letters, digits, dots, dashes and underscores, at most 80"
# A node is looked up in the database again after so long, should somebody have changed it.
LOOK_AGAIN_S = 60.0
# Two machines may not use one name at the same time.
IN_USE_S = 60.0
MAX_KNOWN = 20_000
MAX_REPORTS = 10_000


@dataclass(slots=True)
class Known:
    """What this process remembers of a node that reports."""

    clock: NodeClock = field(default_factory=NodeClock)
    shape: Shape | None = None
    identity: Identity | None = None
    seen_s: float = -LOOK_AGAIN_S
    stored_s: float = -LOOK_AGAIN_S
    notebook: Notebook = field(default_factory=Notebook)
    is_recalled: bool = False
    n_efa: int = 0


class Arrivals:
    """The nodes that report to this process, and how their lines become blocks."""

    def __init__(
        self,
        *,
        keep_s: int,
        late_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
        recall_clock: Callable[[str], str] | None = None,
    ) -> None:
        """Take nothing that is older than ``keep_s``, or ``late_s`` where lines are numbered.

        The store would not keep it, by the second or by the minute. ``recall_clock`` tells what
        is known of a node's clock from before this process started.
        """
        self._keep_s = keep_s
        self._late_s = late_s
        self._monotonic = monotonic
        self._recall_clock = recall_clock
        self._known: dict[str, Known] = {}

    def deliver(
        self,
        lines: Iterable[bytes],
        *,
        node: str | None,
        arrived_s: float,
        sent_s: float | None = None,
        now_s: float | None = None,
        first_line: int = 1,
        up_s: float | None = None,
        alone: bool = False,
    ) -> Delivery:
        """Read what arrived together, and make room in the fleet for the node it speaks of.

        Nothing is stored but the node's row: the caller appends ``blocks``. The lines of one
        delivery are one node's, ``node`` or else the first one that names itself. ``now_s`` is
        given where what is read was not sent just now; ``up_s`` with ``sent_s``, where the
        sender knows how long its machine has been up. Lines that come ``alone`` have no report.
        """
        delivery = Delivery(node=node or "")
        good: list[tuple[int, bytes, Reading]] = []
        for number, line in enumerate(lines, first_line):
            if line.strip():
                self._read(line, number, delivery, good, alone=alone)
        if good:
            clock = self._clock_of(delivery.node, now_s=arrived_s)
            readings = [reading for _, _, reading in good]
            ends = clock.ends(readings, arrived_s=arrived_s, sent_s=sent_s, up_s=up_s)
            self._place(good, ends, delivery, arrived_s if now_s is None else now_s)
        return delivery

    def forget(self, node: str) -> None:
        """Forget a node whose blocks could not be stored, so that it may send them again."""
        self._known.pop(node, None)

    def _clock_of(self, node: str, *, now_s: float) -> NodeClock:
        """Return what is known of a node's clock, from earlier processes too."""
        known = self._known[node]
        if not known.is_recalled:
            if self._recall_clock is not None:
                known.clock.offset.recall(self._recall_clock(node), now_s)
            known.is_recalled = True
        return known.clock

    def _read(
        self,
        line: bytes,
        number: int,
        delivery: Delivery,
        good: list[tuple[int, bytes, Reading]],
        *,
        alone: bool,
    ) -> None:
        """Read one line, and hold it to the delivery's node."""
        try:
            if line.startswith(BEGINS):
                self._read_many(line, number, delivery, good, alone=alone)
                return
            if alone:
                reading = self._read_alone(line, delivery.node)
            else:
                known = self._known.get(delivery.node)
                reading = read_line(line, shape=known.shape if known else None)
            delivery.node = self._admit(reading, delivery.node)
        except RefusedError as error:
            delivery.refuse(error.at(number))
        else:
            good.append((number, line, reading))

    def _read_many(
        self,
        line: bytes,
        number: int,
        delivery: Delivery,
        good: list[tuple[int, bytes, Reading]],
        *,
        alone: bool,
    ) -> None:
        """Read a line of many reports: at once, or one by one where something is unusual."""
        table = read_columns(line)
        if len(good) + len(table.numbers) > MAX_REPORTS:
            reason = f"more than {MAX_REPORTS:,} reports at a time; send fewer"
            raise RefusedError("columns.seq", reason)
        readings = None if alone else table.readings()
        if readings is None:
            for one in table.expanded():
                self._read(one, number, delivery, good, alone=alone)
            return
        delivery.node = self._admit(readings[0], delivery.node)
        good += [(number, line, reading) for reading in readings]

    def _read_alone(self, line: bytes, name: str) -> Reading:
        """Read a line without a report; the node's row may know what the node has."""
        sent = decoded(line)
        name = name or (sent.instance and sent.instance.instance_id) or ""
        known = self._known.get(name)
        shape = known.shape if known else row_shape(name)
        return beside.reading(sent, shape=shape)

    def _admit(self, reading: Reading, name: str) -> str:
        """Return the name of the node that a reading is of, with a row in the database."""
        identity = reading.identity
        name = name or identity.instance_id or identity.instance_name
        if not name:
            raise RefusedError("instance_info.instance_id", "is empty: name the node (node=NAME)")
        if not NAME.fullmatch(name):
            raise RefusedError("node", f"{name[:40]!r} is no name for a node: {NAME_RULE}")
        known = self._known.get(name) or Known()
        now_s = self._monotonic()
        self._one_machine(name, known, identity, now_s)
        identity = identity.completed_by(known.identity)
        n_efa = max(known.n_efa, reading.n_efa)
        news = (reading.shape, identity, n_efa)
        same = (known.shape, known.identity, known.n_efa) == news
        if not same or now_s - known.stored_s > LOOK_AGAIN_S:
            store_row(name, identity, reading.shape, n_efa)
            known.stored_s, known.n_efa = now_s, n_efa
        known.shape, known.identity, known.seen_s = reading.shape, identity, now_s
        self._remember(name, known)
        return name

    def _one_machine(self, name: str, known: Known, identity: Identity, now_s: float) -> None:
        """Refuse a second machine under the name of one that reported just now."""
        before = known.identity.instance_id if known.identity else ""
        if before and identity.instance_id and before != identity.instance_id:
            ago_s = now_s - known.seen_s
            if ago_s < IN_USE_S:
                reason = f"{name} is {before}, which reported {ago_s:.0f} s ago; use another name"
                raise RefusedError("instance_info.instance_id", reason)

    def _remember(self, name: str, known: Known) -> None:
        """Keep what is known, and at most so much."""
        self._known[name] = known
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _place(
        self,
        good: Sequence[tuple[int, bytes, Reading]],
        ends: Sequence[float],
        delivery: Delivery,
        now_s: float,
    ) -> None:
        """Find out which seconds each reading covers, and make its blocks."""
        clock = self._known[delivery.node].clock
        delivery.skew_s, delivery.clock = clock.correction_s, clock.offset.packed()
        delivery.period_s = max(reading.period_s for _, _, reading in good)
        accepted: list[tuple[Reading, float]] = []
        for (number, line, reading), end_s in zip(good, ends, strict=True):
            most_s = max(self._keep_s, self._late_s if reading.is_numbered else 0.0)
            if end_s <= now_s - most_s:
                ago = f"{now_s - end_s:.0f} s old; only the last {most_s:.0f} s are kept"
                delivery.refuse(Refusal(number, "at", ago))
                delivery.n_late += 1
            elif not reading.is_numbered and clock.is_repeated(reading, line):
                delivery.n_repeated += 1
            else:
                accepted.append((reading, end_s))
        self._take(accepted, delivery)

    def _take(self, accepted: Sequence[tuple[Reading, float]], delivery: Delivery) -> None:
        """Make the blocks of readings; whether numbered ones are new, the store knows."""
        known = self._known[delivery.node]
        reports = [(reading, end_s) for reading, end_s in accepted if reading.line]
        moment_s = self._monotonic()
        notes = iter(known.notebook.notes(delivery.node, reports, now_s=moment_s))
        for reading, end_s in accepted:
            made = blocks(delivery.node, reading, known.clock.ticks(end_s, reading.period_s))
            note = next(notes) if reading.line else None
            if reading.kept:
                delivery.beside.append((end_s, reading.kept))
            if reading.stream is not None and reading.seq is not None:
                delivery.pieces.append(Piece(reading.stream, reading.seq, made, note))
            else:
                delivery.blocks += made
                delivery.notes += [note] if note else []
                delivery.n_accepted += 1
