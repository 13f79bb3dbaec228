"""Deduplication of numbered lines, shared by all processes through Redis."""

from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.blocks import Block
from telemetry.store.connection import Command, Connection
from telemetry.store.node_state import NodeReport

# Redis, by node: the last number of each of its streams.
STREAMS = "ingest:streams:"
MAX_STREAMS = 16
KEEP_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """One numbered line: its blocks and its report."""

    stream: str
    seq: int
    blocks: Sequence[Block]
    report: NodeReport | None


@dataclass(slots=True)
class NewLines:
    """The new numbered lines of one batch, and how many were repeated."""

    new: list[NumberedLine]
    n_repeated: int


def new_lines(
    hot: Connection, lines: Sequence[tuple[str, Sequence[NumberedLine]]]
) -> list[NewLines]:
    """Separate new lines from repeated ones, for each (node, lines in order)."""
    asked = [
        (node, stream)
        for node, lines_of_node in lines
        for stream in {p.stream for p in lines_of_node}
    ]
    scores = hot.execute_all(("ZSCORE", STREAMS + node, stream) for node, stream in asked)
    last = {key: float(s) for key, s in zip(asked, scores, strict=True) if s is not None}
    return [_new_lines_of(node, lines_of_node, last) for node, lines_of_node in lines]


def _new_lines_of(
    node: str, lines_of_node: Sequence[NumberedLine], last: dict[tuple[str, str], float]
) -> NewLines:
    new = []
    for line in lines_of_node:
        key = (node, line.stream)
        if line.seq > last.get(key, -1.0):
            last[key] = line.seq
            new.append(line)
    return NewLines(new, len(lines_of_node) - len(new))


def remember_commands(node: str, lines_of_node: Sequence[NumberedLine]) -> list[Command]:
    """Return the commands that mark lines as known; run them after storing."""
    key = STREAMS + node
    newest: dict[str, int] = {}
    for line in lines_of_node:
        newest[line.stream] = max(line.seq, newest.get(line.stream, 0))
    commands: list[Command] = [("ZADD", key, "GT", seq, s) for s, seq in newest.items()]
    if commands:
        # Numbers start at the time, so the lowest belong to the oldest streams.
        commands += [("ZREMRANGEBYRANK", key, 0, -1 - MAX_STREAMS), ("EXPIRE", key, KEEP_S)]
    return commands
