"""Deduplication of numbered lines, shared by all processes through Redis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from telemetry.blocks import Block
from telemetry.store.connection import Command, Connection
from telemetry.store.node_state import NodeReport

# Redis, by node: the last number of each of its streams.
STREAMS = "ingest:streams:"
# Redis, by node: where the lines of its last requests were stored. A sender repeats at most these.
PLACEMENTS = "ingest:placements"
MAX_PLACEMENTS = 512
MAX_STREAMS = 16
KEEP_S = 30 * 24 * 3600
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


@dataclass(frozen=True, slots=True)
class NumberedLine:
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
    """The new lines of one request, and how many were repeated."""

    new: list[NumberedLine] = field(default_factory=list)
    n_repeated: int = 0


@dataclass(slots=True)
class NodeLines:
    """What is known of one node's lines: last numbers, placements, and lines to move."""

    last: dict[str, float] = field(default_factory=dict)
    placements: dict[tuple[str, int], Placement] = field(default_factory=dict)
    # New lines of this batch: the request they came with, and their index in it.
    new: dict[tuple[str, int], tuple[NewLines, int]] = field(default_factory=dict)
    # Stored lines that a repeat places better: their first placement, and the repeat.
    moved: dict[tuple[str, int], tuple[Placement, NumberedLine]] = field(default_factory=dict)

    def add(self, lines: Iterable[NumberedLine]) -> NewLines:
        """Separate the lines of a request; improve the placement of repeated ones."""
        found = NewLines()
        for line in lines:
            key = (line.stream, line.seq)
            if line.seq > self.last.get(line.stream, -1.0):
                self.last[line.stream] = line.seq
                self.new[key] = found, len(found.new)
                found.new.append(line)
            else:
                found.n_repeated += 1
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
        return found

    def wrong_blocks(self) -> list[Block]:
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

    def right_blocks(self) -> list[Block]:
        """Return the blocks of moved lines."""
        return [block for _, line in self.moved.values() for block in line.blocks]


def known_lines(
    hot: Connection, lines: Sequence[tuple[str, Sequence[NumberedLine]]]
) -> dict[str, NodeLines]:
    """Return what is known of the nodes of some lines, by node."""
    asked = [*{(node, line.stream): None for node, of_node in lines for line in of_node}]
    scores = hot.execute_all(("ZSCORE", STREAMS + node, stream) for node, stream in asked)
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
        held = hot.execute("HMGET", PLACEMENTS, *repeating)
        for node, packed in zip(repeating, held, strict=True):
            placements = _PLACEMENTS.decode(packed) if packed else []
            known[node].placements = {(p.stream, p.seq): p for p in placements}
    return known


def remember_commands(known: dict[str, NodeLines]) -> list[Command]:
    """Return the commands that mark lines as known; run them after storing."""
    commands: list[Command] = []
    placements: list[object] = []
    for node, lines in known.items():
        if not lines.new and not lines.moved:
            continue
        newest = sorted(lines.placements.values(), key=lambda p: p.seq)[-MAX_PLACEMENTS:]
        placements += [node, msgspec.msgpack.encode(newest)]
        key = STREAMS + node
        commands += [("ZADD", key, "GT", int(seq), stream) for stream, seq in lines.last.items()]
        # Numbers start at the time, so the lowest belong to the oldest streams.
        commands += [("ZREMRANGEBYRANK", key, 0, -1 - MAX_STREAMS), ("EXPIRE", key, KEEP_S)]
    return [*commands, ("HSET", PLACEMENTS, *placements)] if placements else commands
