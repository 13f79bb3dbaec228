"""What became of the lines that a node sent together; stored in one go with those of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from fleet.intake.streams import Piece, remembering, sifted
from telemetry.blocks import Block
from telemetry.ingest.refusal import Refusal
from telemetry.store.beside import keep_beside
from telemetry.store.hot import HotStore
from telemetry.store.last_reports import Note, keep_reports
from telemetry.store.late import keep_late

# Refusals named; the rest are counted.
MAX_REFUSALS = 100
# Redis: by node, seconds between its reports, by how many its clock is off, and what else is
# known of its clock: a web process that starts must not mistake waiting for a wrong clock.
MANNERS = "ingest:manners"
# Forms of lines beside the plain one: senders use only what they are told is understood.
TAKES = ("columns",)


@dataclass(slots=True)
class Delivery:
    """Some lines of one node: how many were taken, which were not and why, and their blocks."""

    node: str = ""
    n_accepted: int = 0
    n_late: int = 0
    n_repeated: int = 0
    n_refused: int = 0
    skew_s: float = 0.0
    period_s: float = 0.0
    clock: str = ""
    refused: list[Refusal] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    beside: list[tuple[float, Mapping[str, object]]] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        """Note a line that was not taken; of very many only the first are kept."""
        self.n_refused += 1
        if len(self.refused) < MAX_REFUSALS:
            self.refused.append(refusal)

    def absorb(self, later: "Delivery") -> None:
        """Add what became of a later delivery of the same stream."""
        self.node = later.node or self.node
        self.n_accepted += later.n_accepted
        self.n_late += later.n_late
        self.n_repeated += later.n_repeated
        self.n_refused += later.n_refused
        self.skew_s, self.clock = later.skew_s, later.clock
        self.period_s = later.period_s or self.period_s
        self.refused += later.refused[: MAX_REFUSALS - len(self.refused)]


def told(delivery: Delivery) -> dict[str, Any]:
    """Return what the sender is told became of the lines."""
    return {
        "node": delivery.node or None,
        "accepted": delivery.n_accepted,
        "repeated": delivery.n_repeated,
        "late": delivery.n_late,
        "clock_skew_s": round(delivery.skew_s, 3),
        "n_refused": delivery.n_refused,
        "refused": msgspec.to_builtins(delivery.refused),
        "takes": TAKES,
    }


def store(hot: HotStore, deliveries: Sequence[Delivery], *, n_refused_whole: int = 0) -> None:
    """Store what nodes brought, and count it for whoever watches the service itself.

    ``n_refused_whole`` is how many deliveries did not even come to be read.
    """
    numbered = _take_new(hot, deliveries)
    now_s = hot.now()
    blocks = [block for delivery in deliveries for block in delivery.blocks]
    hot.append_beside(block for block in blocks if block.tick > now_s - hot.keep_s)
    keep_late(hot, blocks, now_s=now_s)
    keep_reports(hot, (note for delivery in deliveries for note in delivery.notes))
    keep_beside(hot, [(d.node, *told) for d in deliveries for told in d.beside])
    unread = sum(bool(d.n_refused) and not d.n_accepted + d.n_repeated for d in deliveries)
    counts = {
        "ingest_reports": sum(d.n_accepted for d in deliveries),
        "ingest_repeated": sum(d.n_repeated for d in deliveries),
        "ingest_skewed": sum(d.n_accepted for d in deliveries if d.skew_s),
        "ingest_late": sum(d.n_late for d in deliveries),
        "ingest_lines_refused": sum(d.n_refused for d in deliveries),
        "ingest_errors": n_refused_whole + unread,
    }
    key = "service:counters"
    commands: list[tuple[object, ...]] = [
        ("HINCRBYFLOAT", key, name, n) for name, n in counts.items() if n
    ]
    manners = {
        d.node: f"{d.period_s:.3f} {d.skew_s:.3f} {d.clock}" for d in deliveries if d.n_accepted
    }
    if manners:
        commands.append(("HSET", MANNERS, *chain.from_iterable(manners.items())))
    # Only now that they are stored may lines be taken for repeated when they come again.
    hot.ask_all([*commands, *chain.from_iterable(remembering(*lines) for lines in numbered)])


def _take_new(hot: HotStore, deliveries: Sequence[Delivery]) -> list[tuple[str, Sequence[Piece]]]:
    """Give deliveries the blocks of their numbered lines, those aside that were taken before."""
    numbered: list[tuple[str, Sequence[Piece]]] = [
        (d.node, d.pieces) for d in deliveries if d.pieces
    ]
    with_pieces = [d for d in deliveries if d.pieces]
    for delivery, found in zip(with_pieces, sifted(hot, numbered), strict=True):
        delivery.pieces = []
        delivery.n_repeated += found.n_repeated
        delivery.n_accepted += len(found.new)
        delivery.blocks += chain.from_iterable(piece.blocks for piece in found.new)
        delivery.notes += [piece.note for piece in found.new if piece.note]
    return numbered


@dataclass(frozen=True, slots=True)
class Manner:
    """How a real node reports: how often, and how far its clock was off ours (0: right)."""

    period_s: float
    skew_s: float

    def __str__(self) -> str:
        often = max(1, round(self.period_s))
        text = f"Reports every {often} s" if often > 1 else "Reports every second"
        if often > 1:
            text += "; each figure stands for all of them"
        if self.skew_s:
            off = "behind" if self.skew_s > 0 else "ahead of"
            text += f". Its clock is {abs(self.skew_s):,.0f} s {off} ours, and corrected"
        return text + "."


def manner_of(hot: HotStore, node: str) -> Manner | None:
    """Return how a real node reports, None where it never did."""
    held: bytes | None = hot.ask("HGET", MANNERS, node)
    if held is None:
        return None
    period_s, skew_s = held.split()[:2]
    return Manner(float(period_s), float(skew_s))


def clock_of(hot: HotStore, node: str) -> str:
    """Return what was kept of a node's clock, as `ClockOffset.recall` takes it."""
    held: bytes | None = hot.ask("HGET", MANNERS, node)
    return held.decode().split(" ", 2)[2] if held is not None and held.count(b" ") > 1 else ""
