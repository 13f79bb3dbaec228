"""What each EFA device of simulated nodes has counted: rates of ticks, each added up once.

Nobody needs it but who scrapes, so it is brought up to the newest tick when somebody does, from
the seconds that the hot tier still has. The state of a shard is one key, moved on by
compare-and-set: processes that scrape at once count nothing twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.store.commits import raw
from telemetry.store.connection import Connection
from telemetry.store.packing import codec
from telemetry.store.reading import Reader

Kind = Literal["efa", "neuron", "agent"]


@dataclass(frozen=True, slots=True)
class SidecarLine:
    """What a node said of one kind, and when, by our clock."""

    at: float
    said: Any


def save_sidecars(
    hot: Connection, told: Iterable[tuple[str, float, Mapping[str, object]]]
) -> None:
    """Keep the newest of each kind, given as (node, Unix seconds, what it said by kind)."""
    commands = [
        ("HSET", f"beside:{kind}", node, msgspec.json.encode(SidecarLine(at_s, said)))
        for node, at_s, kinds in told
        for kind, said in kinds.items()
    ]
    if commands:
        hot.ask_all(commands)


def read_sidecars(hot: Connection, kind: Kind, nodes: Collection[str]) -> dict[str, SidecarLine]:
    """Return what nodes said last of a kind; those that never did are left out."""
    if not nodes:
        return {}
    held: list[bytes | None] = hot.ask("HMGET", f"beside:{kind}", *nodes)
    return {
        node: msgspec.json.decode(said, type=SidecarLine)
        for node, said in zip(nodes, held, strict=True)
        if said is not None
    }


SCRIPT = Path(__file__).with_suffix(".lua").read_text()
MINUTE_S = 60
MS = 1000
# A report that is sent again within this time is known to have come before.
DEDUPLICATE_S = 15 * MINUTE_S
REMEMBER_S = 24 * 3600
# A longer line is no report worth keeping; what it executed is counted all the same.
MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeReport:
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
class LastReportState:
    """What is known of a node by its last report, and its counts by process."""

    at_s: float
    packed: bytes
    executed: Mapping[str, Sequence[float]]

    @property
    def line(self) -> bytes:
        """The report as it came."""
        return codec.decompress(self.packed)


def save_reports(
    hot: Connection, notes: Iterable[NodeReport], *, keep_s: int = DEDUPLICATE_S
) -> None:
    """Keep what reports said, each once: what comes again changes nothing."""
    told = [_told(note) for note in notes]
    if told:
        change = {"notes": told, "keep_s": keep_s, "remember_s": REMEMBER_S}
        hot.ask("EVAL", SCRIPT, 0, msgspec.msgpack.encode(change))


def _told(note: NodeReport) -> dict[str, object]:
    """Return a note as the script wants it."""
    minute, second = divmod(note.made_s, MINUTE_S)
    line = codec.compress(note.line) if 0 < len(note.line) <= MAX_BYTES else b""
    return {
        "node": note.node,
        "at": note.at_s,
        "minute": int(minute),
        "ms": int(second * MS),
        "counts": {tag: [*counts] for tag, counts in note.executed.items()},
        "line": raw(line),
    }


def last_reports(hot: Connection, nodes: Collection[str]) -> dict[str, LastReportState]:
    """Return the last reports of those of the nodes that have one."""
    if not nodes:
        return {}
    keys = [f"{kind}:{node}" for kind in ("last", "counts") for node in nodes]
    held: list[bytes | None] = hot.ask("MGET", *keys)
    pairs = zip(nodes, held, held[len(nodes) :], strict=False)
    return {node: _kept(last, counts) for node, last, counts in pairs if last is not None}


def _kept(last: bytes, counts: bytes | None) -> LastReportState:
    at_s, _, packed = last.partition(b"\n")
    known = msgspec.msgpack.decode(counts) if counts else {}
    # Of no process at all Redis' Lua makes an empty list.
    return LastReportState(float(at_s), packed, known.get("of") or {})


RATES = (
    "efa_tx_bytes_per_s",
    "efa_rx_bytes_per_s",
    "efa_tx_packets_per_s",
    "efa_retransmits_per_s",
    "efa_drops_per_s",
    "efa_impaired_per_s",
    "efa_unresponsive_per_s",
)
SWAP = """
local held = redis.call('GET', KEYS[1])
if (held and string.match(held, '^%d+') or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""
# Ticks read at once, so that a long pause between scrapes needs little memory.
READ_AT_ONCE_S = 60


class _State(msgspec.Struct, array_like=True):
    """The counts of a shard as they are kept."""

    nodes: tuple[str, ...]
    n_ticks: int
    sums: bytes


@dataclass(frozen=True, slots=True)
class EfaCounts:
    """Counts of a shard up to a tick: ``sums`` is (n_rates, n_nodes, n_efa)."""

    tick: int
    nodes: tuple[str, ...]
    n_ticks: int
    sums: FloatArray

    def of(self) -> Mapping[str, FloatArray]:
        """Return each node's counts: (n_rates, n_efa)."""
        return {node: self.sums[:, row] for row, node in enumerate(self.nodes)}

    def and_then(self, span: Span) -> "EfaCounts":
        """Return the counts with the ticks of a span added; nodes that join begin at zero."""
        rates = np.stack([np.nan_to_num(span.values[name]).sum(axis=0) for name in RATES])
        more = rates.astype(float)
        if self.nodes != span.nodes or self.sums.shape != more.shape:
            known = {node: row for row, node in enumerate(self.nodes)}
            for row, node in enumerate(span.nodes):
                if node in known and self.sums.shape[2] == more.shape[2]:
                    more[:, row] += self.sums[:, known[node]]
        else:
            more += self.sums
        end = int(span.ticks[-1])
        return EfaCounts(end, span.nodes, self.n_ticks + len(span.ticks), more)


def efa_counts(hot: Reader, shards: Mapping[str, int]) -> dict[str, EfaCounts]:
    """Return the counts of shards up to the tick given for each; none where a shard has no EFA."""
    found = {}
    for shard, tick in shards.items():
        counts = _advance(hot, shard, tick)
        if counts.sums.size:
            found[shard] = counts
    return found


def _advance(hot: Reader, shard: str, tick: int) -> EfaCounts:
    """Count on to a tick, and keep it unless somebody else was quicker."""
    key = f"efa:counted:{shard}"
    held: bytes | None = hot.ask("GET", key)
    before = _decode_counts(held)
    # Counting begins with the newest tick.
    after = before or EfaCounts(tick - 1, (), 0, np.zeros((len(RATES), 0, 0)))
    start = max(after.tick + 1, tick - hot.keep_s + 1)
    for begin in range(start, tick + 1, READ_AT_ONCE_S):
        end = min(begin + READ_AT_ONCE_S - 1, tick)
        span = hot.window(shard, RATES, start=begin, end=end)
        if span.nodes:
            after = after.and_then(span)
    if after is not before:
        was = b"" if before is None else b"%d" % before.tick
        hot.ask("EVAL", SWAP, 1, key, was, _encode_counts(after), REMEMBER_S)
    return after


def _encode_counts(counts: EfaCounts) -> bytes:
    state = _State(counts.nodes, counts.n_ticks, np.asarray(counts.sums, "<f8").tobytes())
    return b"%d\n" % counts.tick + msgspec.msgpack.encode(state)


def _decode_counts(held: bytes | None) -> EfaCounts | None:
    if held is None:
        return None
    tick, _, packed = held.partition(b"\n")
    state = msgspec.msgpack.decode(packed, type=_State)
    n_nodes = len(state.nodes)
    sums = np.frombuffer(state.sums, "<f8")
    shape: Sequence[int] = (len(RATES), n_nodes, sums.size // (len(RATES) * max(1, n_nodes)))
    return EfaCounts(int(tick), state.nodes, state.n_ticks, sums.reshape(shape))
