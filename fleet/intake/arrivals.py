"""Real nodes coming in: from the lines a node sent to blocks in the store and a row of its own."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.intake.deliveries import Delivery
from fleet.models import Node
from telemetry import catalog
from telemetry.ingest.neuron_monitor import Identity, Reading, Shape, read_line
from telemetry.ingest.refusal import Refusal, RefusedError
from telemetry.ingest.timing import NodeClock, blocks, shard_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
NAME_RULE = "letters, digits, dots, dashes and underscores, at most 80"
# A node is looked up in the database again after so long, should somebody have changed it.
LOOK_AGAIN_S = 60.0
# Two machines may not use one name at the same time.
IN_USE_S = 60.0
MAX_KNOWN = 20_000
# A token cannot fill the database with nodes that do not exist.
MAX_NODES = 4_000
UNKNOWN_TYPE = "unknown"


@dataclass(slots=True)
class Known:
    """What this process remembers of a node that reports."""

    clock: NodeClock = field(default_factory=NodeClock)
    shape: Shape | None = None
    identity: Identity | None = None
    seen_s: float = -LOOK_AGAIN_S
    stored_s: float = -LOOK_AGAIN_S


class Arrivals:
    """The nodes that report to this process, and how their lines become blocks."""

    def __init__(self, *, keep_s: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take nothing that is older than ``keep_s``; the store would not keep it."""
        self._keep_s = keep_s
        self._monotonic = monotonic
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
    ) -> Delivery:
        """Read what arrived together, and make room in the fleet for the node it speaks of.

        Nothing is stored but the node's row: the caller appends ``blocks``. The lines of one
        delivery are one node's, ``node`` or else the first one that names itself. ``now_s`` is
        given where what is read was not sent just now.
        """
        delivery = Delivery(node=node or "")
        good: list[tuple[int, int, Reading]] = []
        for number, line in enumerate(lines, first_line):
            if line.strip():
                self._read(line, number, delivery, good)
        if good:
            clock = self._known[delivery.node].clock
            readings = [reading for _, _, reading in good]
            ends = clock.ends(readings, arrived_s=arrived_s, sent_s=sent_s)
            self._place(good, ends, delivery, arrived_s if now_s is None else now_s)
        return delivery

    def forget(self, node: str) -> None:
        """Forget a node whose blocks could not be stored, so that it may send them again."""
        self._known.pop(node, None)

    def _read(
        self, line: bytes, number: int, delivery: Delivery, good: list[tuple[int, int, Reading]]
    ) -> None:
        """Read one line, and hold it to the delivery's node."""
        try:
            known = self._known.get(delivery.node)
            reading = read_line(line, shape=known.shape if known else None)
            delivery.node = self._admit(reading, delivery.node)
        except RefusedError as error:
            delivery.refuse(error.at(number))
        else:
            good.append((number, hash(line), reading))

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
        same = known.shape == reading.shape and known.identity == identity
        if not same or now_s - known.stored_s > LOOK_AGAIN_S:
            _store(name, identity, reading.shape)
            known.stored_s = now_s
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
        good: Sequence[tuple[int, int, Reading]],
        ends: Sequence[float],
        delivery: Delivery,
        now_s: float,
    ) -> None:
        """Find out which seconds each reading covers, and make its blocks."""
        clock = self._known[delivery.node].clock
        delivery.skew_s = clock.correction_s
        delivery.period_s = max(reading.period_s for _, _, reading in good)
        for (number, content, reading), end_s in zip(good, ends, strict=True):
            if end_s <= now_s - self._keep_s:
                ago = f"{now_s - end_s:.0f} s old; only the last {self._keep_s} s are kept"
                delivery.refuse(Refusal(number, "at", ago))
                delivery.n_late += 1
            elif clock.is_repeated(reading, content):
                delivery.n_repeated += 1
            else:
                ticks = clock.ticks(end_s, reading.period_s)
                delivery.blocks += blocks(delivery.node, reading, ticks)
                delivery.n_accepted += 1


def _store(name: str, identity: Identity, shape: Shape) -> None:
    """Create the node's row, or bring it up to date; what a report does not say stays."""
    kind = catalog.instances().get(identity.instance_type)
    said: dict[str, str | int] = {
        "instance_type": identity.instance_type[:40],
        "instance_id": identity.instance_id[:40],
        "zone": identity.zone[:40],
        "n_cores": shape.n_cores,
        "n_devices": shape.n_devices,
        # neuron-monitor does not speak of them; the catalogue knows how many there are.
        "n_efa": kind.n_efa if kind else 0,
    }
    facts = {fact: value for fact, value in said.items() if value}
    node = Node.objects.filter(name=name).first() or _create(name, facts)
    if node.source != Node.Source.NEURON_MONITOR:
        raise RefusedError("node", f"{name} is a simulated node; use another name (node=NAME)")
    if any(getattr(node, fact) != value for fact, value in facts.items()):
        Node.objects.filter(pk=node.pk).update(**facts)


def _create(name: str, facts: Mapping[str, str | int]) -> Node:
    """Create the node's row, if the fleet has room for it."""
    real = Node.objects.filter(source=Node.Source.NEURON_MONITOR)
    if real.count() >= MAX_NODES:
        raise RefusedError("node", f"{name} is new, and {MAX_NODES:,} real nodes are all we take")
    new = {
        "instance_type": UNKNOWN_TYPE,
        "source": Node.Source.NEURON_MONITOR,
        "shard": shard_of(name),
        "first_seen_at": datetime.now(UTC),
    }
    node, _ = Node.objects.get_or_create(name=name, defaults=new | dict(facts))
    return node
