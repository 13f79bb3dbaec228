"""The last report of each real node, and what its processes executed: beside the hot tier."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from telemetry.store.changes import raw
from telemetry.store.connection import Connection
from telemetry.store.packing import codec

SCRIPT = Path(__file__).with_suffix(".lua").read_text()
MINUTE_S = 60
MS = 1000
# A report that is sent again within this time is known to have come before.
KEEP_S = 15 * MINUTE_S
REMEMBER_S = 24 * 3600
# A longer line is no report worth keeping; what it executed is counted all the same.
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Note:
    """One report: whose, when it ended, and what each process executed in its period.

    ``made_s`` tells it from the node's other reports. ``line`` is the report as it came, empty
    where it need not be kept.
    """

    node: str
    at_s: float
    made_s: float
    executed: Mapping[str, Sequence[float]]
    line: bytes = b""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a node by its last report, and its counts by process."""

    at_s: float
    packed: bytes
    executed: Mapping[str, Sequence[float]]

    @property
    def line(self) -> bytes:
        """The report as it came."""
        return codec.decompress(self.packed)


def keep_reports(hot: Connection, notes: Iterable[Note], *, keep_s: int = KEEP_S) -> None:
    """Keep what reports said, each once: what comes again changes nothing."""
    told = [_told(note) for note in notes]
    if told:
        change = {"notes": told, "keep_s": keep_s, "remember_s": REMEMBER_S}
        hot.ask("EVAL", SCRIPT, 0, msgspec.msgpack.encode(change))


def _told(note: Note) -> dict[str, object]:
    """Return a note as the script wants it."""
    minute, second = divmod(note.made_s, MINUTE_S)
    line = codec.compress(note.line) if 0 < len(note.line) <= MOST_BYTES else b""
    return {
        "node": note.node,
        "at": note.at_s,
        "minute": int(minute),
        "ms": int(second * MS),
        "counts": {tag: [*counts] for tag, counts in note.executed.items()},
        "line": raw(line),
    }


def kept_reports(hot: Connection, nodes: Collection[str]) -> dict[str, Kept]:
    """Return the last reports of those of the nodes that have one."""
    if not nodes:
        return {}
    keys = [f"{kind}:{node}" for kind in ("last", "counts") for node in nodes]
    held: list[bytes | None] = hot.ask("MGET", *keys)
    pairs = zip(nodes, held, held[len(nodes) :], strict=False)
    return {node: _kept(last, counts) for node, last, counts in pairs if last is not None}


def _kept(last: bytes, counts: bytes | None) -> Kept:
    at_s, _, packed = last.partition(b"\n")
    known = msgspec.msgpack.decode(counts) if counts else {}
    # Of no process at all Redis' Lua makes an empty list.
    return Kept(float(at_s), packed, known.get("of") or {})
