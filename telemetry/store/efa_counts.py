"""What each EFA device of simulated nodes has counted: rates of ticks, each added up once.

Nobody needs it but who scrapes, so it is brought up to the newest tick when somebody does, from
the seconds that the hot tier still has. The state of a shard is one key, moved on by
compare-and-set: processes that scrape at once count nothing twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.store.reading import Reader

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
STRETCH_S = 60
REMEMBER_S = 24 * 3600


class _State(msgspec.Struct, array_like=True):
    """The counts of a shard as they are kept."""

    nodes: tuple[str, ...]
    n_ticks: int
    sums: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a shard up to a tick: ``sums`` is (n_rates, n_nodes, n_efa)."""

    tick: int
    nodes: tuple[str, ...]
    n_ticks: int
    sums: FloatArray

    def of(self) -> Mapping[str, FloatArray]:
        """Return each node's counts: (n_rates, n_efa)."""
        return {node: self.sums[:, row] for row, node in enumerate(self.nodes)}

    def and_then(self, span: Span) -> "Counts":
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
        return Counts(end, span.nodes, self.n_ticks + len(span.ticks), more)


def efa_counts(hot: Reader, shards: Mapping[str, int]) -> dict[str, Counts]:
    """Return the counts of shards up to the tick given for each; none where a shard has no EFA."""
    found = {}
    for shard, tick in shards.items():
        counts = _advanced(hot, shard, tick)
        if counts.sums.size:
            found[shard] = counts
    return found


def _advanced(hot: Reader, shard: str, tick: int) -> Counts:
    """Count on to a tick, and keep it unless somebody else was quicker."""
    key = f"efa:counted:{shard}"
    held: bytes | None = hot.ask("GET", key)
    before = _read(held)
    # Counting begins with the newest tick.
    after = before or Counts(tick - 1, (), 0, np.zeros((len(RATES), 0, 0)))
    start = max(after.tick + 1, tick - hot.keep_s + 1)
    for begin in range(start, tick + 1, STRETCH_S):
        end = min(begin + STRETCH_S - 1, tick)
        span = hot.window(shard, RATES, start=begin, end=end)
        if span.nodes:
            after = after.and_then(span)
    if after is not before:
        was = b"" if before is None else b"%d" % before.tick
        hot.ask("EVAL", SWAP, 1, key, was, _written(after), REMEMBER_S)
    return after


def _written(counts: Counts) -> bytes:
    state = _State(counts.nodes, counts.n_ticks, np.asarray(counts.sums, "<f8").tobytes())
    return b"%d\n" % counts.tick + msgspec.msgpack.encode(state)


def _read(held: bytes | None) -> Counts | None:
    if held is None:
        return None
    tick, _, packed = held.partition(b"\n")
    state = msgspec.msgpack.decode(packed, type=_State)
    n_nodes = len(state.nodes)
    sums = np.frombuffer(state.sums, "<f8")
    shape: Sequence[int] = (len(RATES), n_nodes, sums.size // (len(RATES) * max(1, n_nodes)))
    return Counts(int(tick), state.nodes, state.n_ticks, sums.reshape(shape))
