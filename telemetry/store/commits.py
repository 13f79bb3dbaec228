"""The hot tier in one Redis: the last 15 minutes of every metric and step, per second."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
import numpy as np

from telemetry.blocks import COUNTED_RATES, Block, added, join_partial
from telemetry.steps import StepBatch
from telemetry.store.packing import (
    DIGEST_BYTES,
    STEPS_PER_HASH,
    PackedLayout,
    checked,
    layout_of,
    pack,
    pack_all,
    pack_steps,
    unpack_block,
)
from telemetry.store.reading import Missing, Reader
from telemetry.units import DAY_S, MINUTE_S

WEEK_S = 7 * DAY_S
# Beyond these limits the store refuses, and counts refusals, so that memory stays bounded.
AHEAD_S = 120
# Each real node is a shard: twice the nodes of the largest known fleet.
MAX_NAMES = 65_536
MAX_STEPS_PER_MINUTE = 6000
BLOCKS_PER_PART = 60

# Parts per call of the script: few enough that a call does not block Redis for long.
PARTS_AT_ONCE = 32
# Processes that add to one second at the same time try again this often.
MAX_TRIES = 20
T = TypeVar("T")


def block_parts(blocks: Iterable[Block], *, is_counted: bool = True) -> Iterator[dict[str, Any]]:
    """Yield blocks as parts of a change, by shard and layout."""
    given = list(blocks)
    packed = [(b, *parts) for b, parts in zip(given, pack_all(given), strict=True)]
    packed.sort(key=lambda p: (p[0].shard, p[1].digest, p[0].tick))
    for (shard, _), group in groupby(packed, key=lambda p: (p[0].shard, p[1].digest)):
        members = list(group)
        for i in range(0, len(members), BLOCKS_PER_PART):
            some = members[i : i + BLOCKS_PER_PART]
            yield blocks_part(shard, some, is_counted=is_counted)


def blocks_part(
    shard: str,
    members: Sequence[tuple[Block, PackedLayout, bytes]],
    *,
    over: bytes = b"",
    is_counted: bool = True,
) -> dict[str, Any]:
    """Return blocks of one shard and layout as the script's argument.

    ``over`` is how the blocks that they replace begin: the digest of their layout, or all of a
    block; each block's values are then only those that it adds. Blocks that are not counted
    leave the totals unchanged.
    """
    layout = members[0][1]
    names = members[0][0].values if over else [c.name for c in layout.columns]
    counted = [c.name for c in layout.columns if c.name in COUNTED_RATES and c.name in names]
    counted = counted if is_counted else []
    # Seconds of one report share its values.
    distinct = [*{id(block.values): block for block, _, _ in members}.values()]
    places = {id(block.values): i for i, block in enumerate(distinct)}
    of_each = [places[id(block.values)] for block, _, _ in members]
    reported, sums = _reported(distinct), _sums(distinct, counted)
    return {
        "over": raw(over),
        "shard": shard,
        "nodes": "\n".join(layout.nodes),
        "counted": "\n".join(counted),
        "layout": _layout(layout.digest, layout.encoded),
        "ticks": [block.tick for block, _, _ in members],
        "blobs": [raw(blob) for _, _, blob in members],
        "reported": [reported[i] for i in of_each],
        "sums": [sums[i] for i in of_each],
    }


def _reported(blocks: Sequence[Block]) -> list[msgspec.Raw]:
    """Return which nodes of each block reported, a byte each; empty: all of them."""
    if first := next(iter(blocks[0].values), ""):
        known = np.isfinite(np.concatenate([block.values[first] for block in blocks]))
        if known.any(axis=1).all():
            return [raw(b"")] * len(blocks)
    seen = [block.reported for block in blocks]
    return [raw(b"" if each.all() else each.astype("u1").tobytes()) for each in seen]


def _sums(blocks: Sequence[Block], counted: Sequence[str]) -> list[list[float]]:
    """Sum rates over each node's parts, which is the count of one tick (1 s), by block.

    Each list is (metric, node), flat; NaN adds nothing. Blocks have the same layout.
    """
    sums: list[list[float]] = [[] for _ in blocks]
    for _, group in groupby(counted, key=lambda name: blocks[0].values[name].shape[1]):
        names = [*group]
        values = np.concatenate([block.values[name] for block in blocks for name in names])
        totals = values.sum(axis=1, dtype="f8")
        if not np.isfinite(totals).all():
            totals = np.where(np.isfinite(values), values, 0.0).sum(axis=1, dtype="f8")
        for row, of_block in zip(totals.reshape(len(blocks), -1).tolist(), sums, strict=True):
            of_block.extend(row)
    return sums


def steps_part(batch: StepBatch, *, amends: bool = False) -> dict[str, Any]:
    """Return a run's steps as the script's argument."""
    digest, names, records = pack_steps(batch)
    return {
        "run": batch.run,
        "amends": amends,
        "layout": _layout(digest, names),
        "rows": [
            {
                "chapter": step // STEPS_PER_HASH,
                "place": step % STEPS_PER_HASH,
                "minute": int(ended_at_s // MINUTE_S) * MINUTE_S,
                "ended_at_s": ended_at_s,
                "tokens": tokens,
                "record": raw(record),
            }
            for step, ended_at_s, tokens, record in zip(
                batch.step.tolist(),
                batch.ended_at_s.tolist(),
                np.nan_to_num(batch.tokens).tolist(),
                records,
                strict=True,
            )
        ],
    }


def _layout(digest: bytes, encoded: bytes) -> dict[str, Any]:
    return {"digest": raw(digest), "encoded": raw(encoded)}


def raw(data: bytes) -> msgspec.Raw:
    """Encode bytes as a msgpack string, because Redis' Lua cannot read msgpack binaries."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def merge_packed(
    first: tuple[PackedLayout, bytes], second: tuple[PackedLayout, bytes]
) -> tuple[PackedLayout, bytes]:
    """Join two packed blocks of the same nodes without decoding; no metric may be in both."""
    columns = [*first[0].columns, *second[0].columns]
    layout = layout_of(first[0].nodes, tuple((c.name, c.n_parts) for c in columns))
    heads, bodies = [], []
    for each, blob in (first, second):
        start = DIGEST_BYTES + 4 * len(each.columns)
        heads.append(blob[DIGEST_BYTES:start])
        bodies.append(blob[start : len(blob) - each.n_check_bytes])
    return layout, checked(b"".join([layout.digest, *heads, *bodies]))


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A shard's clock before and after some ticks, and what these report."""

    shard: str
    before: bytes | None
    after: bytes
    blocks: Sequence[Block]
    steps: StepBatch | None


class HotStore(Reader):
    """Blocks, steps and simulation clocks of the last minutes.

    A minute of a shard is a hash with a field per second. A second is written once: repeats
    change nothing, and late seconds are accepted. Minutes expire, so that memory stays bounded.
    Every method raises StoreUnavailable during an outage of Redis.

    It may be one of several (``telemetry/store/hot.py``): of a single one, it has all shards.
    """

    @property
    def parts(self) -> tuple["HotStore", ...]:
        """The stores that have samples."""
        return (self,)

    def of(self, shard: str) -> "HotStore":
        """Return the store that has the samples of a shard."""
        return self

    def divide(
        self,
        given: Iterable[T],
        shard_of: Callable[[T], str],
    ) -> list[tuple["HotStore", list[T]]]:
        """Divide what belongs to shards by the stores that have them."""
        return [(self, [*given])]

    def missing(self) -> Mapping[str, Missing]:
        """Return the stores, of several, whose shards are not known now, by name."""
        return {}

    def store_of(self, shard: str) -> str:
        """Return the name of the store of a shard, of several."""
        return ""

    def append(self, blocks: Iterable[Block]) -> int:
        """Store blocks and return how many were new."""
        changes = [self._change(parts=[part]) for part in block_parts(blocks)]
        return sum(n_new for _, n_new, _ in self.commit_all(changes))

    def append_steps(self, batch: StepBatch, *, amends: bool = False) -> int:
        """Store a run's steps and return how many were new.

        With ``amends`` stored steps are replaced, because reports of more workers arrived.
        """
        changes = [self._change(steps=steps_part(batch, amends=amends))] if len(batch) else []
        return sum(n_new for _, _, n_new in self.commit_all(changes))

    def clock(self, shard: str) -> bytes | None:
        """Return the state of a shard's simulation."""
        return self.clocks([shard])[shard]

    def clocks(self, shards: Sequence[str]) -> dict[str, bytes | None]:
        """Return the state of each shard's simulation."""
        clocks = self.execute("HMGET", "clocks", *shards) if shards else []
        return dict(zip(shards, clocks, strict=True))

    def commit(
        self,
        shard: str,
        *,
        before: bytes | None,
        after: bytes,
        blocks: Sequence[Block],
        steps: StepBatch | None,
    ) -> bool:
        """Advance a shard's clock and store the tick's blocks and steps, atomically.

        Returns False, with nothing written, if the clock is no longer ``before``.
        """
        return self.commit_ticks([ClockChange(shard, before, after, blocks, steps)])[0]

    def commit_ticks(self, ticks: Sequence[ClockChange]) -> list[bool]:
        """Do what ``commit`` does for shards of different names, in one round trip.

        Blocks of the same shape are packed together.
        """
        parts: dict[str, list[dict[str, Any]]] = {tick.shard: [] for tick in ticks}
        for tick in ticks:
            if others := {block.shard for block in tick.blocks} - {tick.shard}:
                msg = f"blocks: are of {sorted(others)}, but the clock is of {tick.shard!r}"
                raise ValueError(msg)
        for part in block_parts(block for tick in ticks for block in tick.blocks):
            parts[part["shard"]].append(part)
        changes = []
        for tick in ticks:
            made: dict[str, Any] = {"parts": parts[tick.shard]}
            if tick.steps is not None and len(tick.steps):
                made["steps"] = steps_part(tick.steps)
            before, after = raw(tick.before or b""), raw(tick.after)
            clock = {"shard": tick.shard, "before": before, "after": after}
            changes.append(self._change(clock=clock, **made))
        return [bool(written) for written, _, _ in self.commit_all(changes)]

    def merge(self, blocks: Iterable[Block], *, is_counted: bool = True) -> int:
        """Merge blocks into those of the same node and second; return how many added something.

        Partial blocks are added to what their second has; otherwise the first value of a metric
        holds. Blocks that are not counted leave the totals unchanged.
        """
        given = tuple(blocks)
        wanted = tuple(block for block in given if not block.is_partial)
        n_partial = 0
        if len(wanted) < len(given):
            partial = join_partial(block for block in given if block.is_partial)
            n_partial = sum(self._add(block, is_counted=is_counted) for block in partial)
        # Nearly always the second is new: one round trip, and nothing is read.
        n_new = self.put(block_parts(wanted, is_counted=is_counted))
        if n_new == len(wanted):
            return n_new + n_partial
        minutes: dict[tuple[str, int], list[int]] = {}
        for block in wanted:
            minutes.setdefault((block.shard, block.tick // MINUTE_S), []).append(block.tick)
        by_shard = self.held([(shard, min(ts), max(ts)) for (shard, _), ts in minutes.items()])
        stored = {(shard, p[0]): p[1:] for shard, packed in by_shard.items() for p in packed}
        # The metrics that a stored second does not have.
        news: list[tuple[Block, tuple[PackedLayout, bytes]]] = []
        for block in wanted:
            before = stored.get((block.shard, block.tick))
            if before is None or before[0].nodes != block.nodes:
                continue
            known = {column.name for column in before[0].columns}
            if new := {name: v for name, v in block.values.items() if name not in known}:
                news.append((Block(block.shard, block.tick, block.nodes, new), before))
        # By the layouts after and before.
        merged_into: dict[tuple[str, bytes, bytes], list[tuple[Block, PackedLayout, bytes]]] = {}
        for (more, before), packed in zip(news, pack_all([m for m, _ in news]), strict=True):
            layout, blob = merge_packed(before, packed)
            key = (more.shard, layout.digest, before[0].digest)
            merged_into.setdefault(key, []).append((more, layout, blob))
        merged = sorted(merged_into.items(), key=itemgetter(0))
        return (
            n_new
            + n_partial
            + self.put(
                blocks_part(shard, some, over=over, is_counted=is_counted)
                for (shard, _, over), some in merged
            )
        )

    def put(self, parts: Iterable[dict[str, Any]]) -> int:
        """Commit parts, several per call of the script; return how many blocks were stored."""
        given = list(parts)
        starts = range(0, len(given), PARTS_AT_ONCE)
        changes = [self._change(parts=given[i : i + PARTS_AT_ONCE]) for i in starts]
        return sum(n for _, n, _ in self.commit_all(changes))

    def _add(self, block: Block, *, is_counted: bool) -> int:
        """Add a partial block to its second; return whether it was stored."""
        [part] = block_parts([block], is_counted=is_counted)
        for _ in range(MAX_TRIES):
            [(_, n_new, _)] = self.commit_all([self._change(parts=[part])])
            if n_new:
                return 1
            packed = self.held([(block.shard, block.tick, block.tick)])[block.shard]
            if not packed or packed[0][1].nodes != block.nodes:
                return 0
            # Another process may add to the same second: the stored block is replaced only if
            # it is still the one that was read.
            tick, layout, blob = packed[0]
            before = unpack_block(block.shard, tick, blob, layout).values
            news = {n: v for n, v in block.values.items() if n in COUNTED_RATES or n not in before}
            more = Block(block.shard, tick, block.nodes, news)
            whole = pack(Block(block.shard, tick, block.nodes, added(before, news)))
            part = blocks_part(block.shard, [(more, *whole)], over=blob, is_counted=is_counted)
        return 0

    def remove(self, blocks: Iterable[Block]) -> None:
        """Remove blocks, where exactly they are stored; totals stay unchanged."""
        self.commit_all([self._change(removed=[part]) for part in block_parts(blocks)])

    def _change(self, **parts: Any) -> bytes:
        """Encode a change, with its limits, as the script's argument."""
        now_s = self.now()
        limits = {
            "keep_s": self.keep_s,
            "now": now_s,
            "latest": now_s + AHEAD_S,
            "remember_s": WEEK_S,
            "most_names": MAX_NAMES,
            "most_steps": MAX_STEPS_PER_MINUTE,
        }
        return msgspec.msgpack.encode(limits | parts)
