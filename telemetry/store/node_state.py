"""Per-node state in Redis: last reports, data sent along with them, EFA counters of simulation."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.store.connection import Connection
from telemetry.store.hot import raw
from telemetry.store.packing import codec
from telemetry.store.reading import STOPPING, Reader
from telemetry.template_report import text_of
from telemetry.units import DAY_S, MINUTE_S

SCRIPT = Path(__file__).with_suffix(".lua").read_text()
MS, MINUTE_MS = 1000, 60_000
# A report that is sent again within this time is recognised as a repeat.
DEDUPLICATE_S = 15 * MINUTE_S
REMEMBER_S = DAY_S
# A longer report is not stored; its executions are still counted.
MAX_BYTES = 1_000_000
RATES = (
    "efa_tx_bytes_per_s",
    "efa_rx_bytes_per_s",
    "efa_tx_packets_per_s",
    "efa_retransmits_per_s",
    "efa_drops_per_s",
    "efa_impaired_per_s",
    "efa_unresponsive_per_s",
)
# Ticks read at once, so that a long pause between scrapes needs little memory.
READ_AT_ONCE_S = 60
SWAP = """
local held = redis.call('GET', KEYS[1])
if (held and string.match(held, '^%d+') or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""

# By kind, and node or run: what its agent or its workers are asked for.
AGENT_REQUEST = "agent:request:{kind}:{subject}"
# By kind: who is asked, scored by when the request expires.
REQUESTED = "agent:requested:{kind}"

Kind = Literal["efa", "neuron", "agent"]
RequestKind = Literal["probe", "sample", "trace"]


def save_sidecars(hot: Connection, sidecars: Iterable[tuple[str, Mapping[str, object]]]) -> None:
    """Store what nodes sent along with their reports, as (node, content by kind)."""
    by_kind: dict[str, list[str | bytes]] = {}
    for node, kinds in sidecars:
        for kind, content in kinds.items():
            by_kind.setdefault(kind, []).extend((node, msgspec.json.encode(content)))
    if by_kind:
        hot.execute_all(("HSET", f"sidecar:{kind}", *pairs) for kind, pairs in by_kind.items())


def read_sidecars(hot: Connection, kind: Kind, nodes: Collection[str]) -> dict[str, Any]:
    """Return the newest content of one kind by node; nodes without any are left out."""
    if not nodes:
        return {}
    stored: list[bytes | None] = hot.execute("HMGET", f"sidecar:{kind}", *nodes)
    return {
        node: msgspec.json.decode(content)
        for node, content in zip(nodes, stored, strict=True)
        if content is not None
    }


def note_stopping(nodes: Iterable[str], *, now_s: float) -> list[tuple[object, ...]]:
    """Return the commands that note that the agents of these nodes were asked to end."""
    pairs = [part for node in nodes for part in (now_s, node)]
    return [("ZADD", STOPPING, *pairs)] if pairs else []


def save_agent_request(
    hot: Connection, subject: str, kind: RequestKind, request: Mapping[str, object], *, wait_s: int
) -> None:
    """Request something of a node's agent, or of a run's workers, with their next report."""
    key, requested = AGENT_REQUEST.format(kind=kind, subject=subject), REQUESTED.format(kind=kind)
    now_s = time.time()
    hot.execute_all(
        [
            ("ZREMRANGEBYSCORE", requested, "-inf", now_s),
            ("ZADD", requested, now_s + wait_s, subject),
            ("SET", key, msgspec.json.encode(request), "EX", wait_s),
        ]
    )


def read_agent_requests(
    hot: Connection, kinds: Collection[RequestKind], nodes: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return by node what is requested of its agent, by kind; nodes without any are left out."""
    asked = [(node, kind) for node in nodes for kind in kinds]
    if not asked:
        return {}
    keys = [AGENT_REQUEST.format(kind=kind, subject=node) for node, kind in asked]
    stored: list[bytes | None] = hot.execute("MGET", *keys)
    requests: dict[str, dict[str, Any]] = {}
    for (node, kind), request in zip(asked, stored, strict=True):
        if request is not None:
            requests.setdefault(node, {})[kind] = msgspec.json.decode(request)
    return requests


def forget_agent_request(hot: Connection, subject: str, kind: RequestKind) -> None:
    hot.execute_all(
        [
            ("DEL", AGENT_REQUEST.format(kind=kind, subject=subject)),
            ("ZREM", REQUESTED.format(kind=kind), subject),
        ]
    )


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """One report: its node, when it ended, and what each process executed in its period.

    ``made_s`` identifies it among the node's reports. ``line`` is the report as received, or
    packed (``TemplateReport``); empty if it need not be stored.
    """

    node: str
    at_s: float
    made_s: float
    executed: Mapping[str, Sequence[float]]
    line: bytes = b""


@dataclass(frozen=True, slots=True)
class LastReportState:
    """A node's last report, compressed, and its execution counts by process."""

    at_s: float
    packed: bytes
    executed: Mapping[str, Sequence[float]]

    @property
    def line(self) -> bytes:
        """The report as received."""
        return text_of(codec.decompress(self.packed))


def save_reports(
    hot: Connection, reports: Iterable[NodeReport], *, keep_s: int = DEDUPLICATE_S
) -> None:
    """Store last reports and count executions; a repeated report changes nothing."""
    packed = []
    for report in reports:
        ms = int(MS * report.made_s)
        line = codec.compress(report.line) if 0 < len(report.line) <= MAX_BYTES else b""
        packed.append(
            {
                "node": report.node,
                "at": report.at_s,
                "minute": ms // MINUTE_MS,
                "ms": ms % MINUTE_MS,
                "counts": report.executed,
                "line": raw(line) if line else "",
            }
        )
    if packed:
        change = {"reports": packed, "keep_s": keep_s, "remember_s": REMEMBER_S}
        hot.execute("EVAL", SCRIPT, 0, msgspec.msgpack.encode(change))


def last_reports(hot: Connection, nodes: Collection[str]) -> dict[str, LastReportState]:
    if not nodes:
        return {}
    keys = [f"{kind}:{node}" for kind in ("last", "counts") for node in nodes]
    stored: list[bytes | None] = hot.execute("MGET", *keys)
    reports = {}
    for node, last, counts in zip(nodes, stored, stored[len(nodes) :], strict=False):
        if last is not None:
            at_s, _, packed = last.partition(b"\n")
            known = msgspec.msgpack.decode(counts) if counts else {}
            # Redis' Lua encodes an empty table as an empty list.
            reports[node] = LastReportState(float(at_s), packed, known.get("of") or {})
    return reports


class _State(msgspec.Struct, array_like=True):
    nodes: tuple[str, ...]
    n_ticks: int
    sums: bytes


@dataclass(frozen=True, slots=True)
class EfaCounts:
    """EFA counters of a simulated shard up to a tick: ``sums`` is (n_rates, n_nodes, n_efa)."""

    tick: int
    nodes: tuple[str, ...]
    n_ticks: int
    sums: FloatArray

    def by_node(self) -> Mapping[str, FloatArray]:
        """Return the counts of each node: (n_rates, n_efa)."""
        return {node: self.sums[:, row] for row, node in enumerate(self.nodes)}

    def plus(self, span: Span) -> "EfaCounts":
        """Return the counts with the ticks of a span added; nodes that join start at zero."""
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
    """Return the counts of each shard up to a tick; shards without EFA devices are left out.

    Counts are advanced only when scraped, from the seconds that the hot tier still has.
    """
    counts = {}
    for shard, tick in shards.items():
        key = f"efa:counted:{shard}"
        stored: bytes | None = hot.execute("GET", key)
        # The first scrape counts the newest tick alone.
        after, was = EfaCounts(tick - 1, (), 0, np.zeros((len(RATES), 0, 0))), b""
        if stored is not None:
            was, _, packed = stored.partition(b"\n")
            state = msgspec.msgpack.decode(packed, type=_State)
            sums = np.frombuffer(state.sums, "<f8")
            n_nodes = len(state.nodes)
            sums = sums.reshape(len(RATES), n_nodes, sums.size // (len(RATES) * max(1, n_nodes)))
            after = EfaCounts(int(was), state.nodes, state.n_ticks, sums)
        before = after if stored is not None else None
        for begin in range(max(after.tick, tick - hot.keep_s) + 1, tick + 1, READ_AT_ONCE_S):
            end = min(begin + READ_AT_ONCE_S - 1, tick)
            span = hot.window(shard, RATES, start=begin, end=end)
            if span.nodes:
                after = after.plus(span)
        if after is not before:
            state = _State(after.nodes, after.n_ticks, np.asarray(after.sums, "<f8").tobytes())
            new = b"%d\n" % after.tick + msgspec.msgpack.encode(state)
            # Compare-and-set makes parallel scrapes count once.
            hot.execute("EVAL", SWAP, 1, key, was, new, REMEMBER_S)
        if after.sums.size:
            counts[shard] = after
    return counts
