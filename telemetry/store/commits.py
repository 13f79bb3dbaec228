"""The write path of the hot tier: blocks and steps as arguments of the commit script."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from telemetry.blocks import COUNTED_RATES, Block
from telemetry.steps import StepBatch
from telemetry.store.packing import (
    DIGEST_BYTES,
    STEPS_PER_CHAPTER,
    PackedLayout,
    layout_of,
    pack,
    pack_all,
    pack_steps,
)
from telemetry.store.reading import Packed, Reader

MINUTE_S = 60
WEEK_S = 7 * 24 * 3600
# Beyond these limits the store refuses, and counts refusals, so that memory stays bounded.
AHEAD_S = 120
MAX_NAMES = 4096
MAX_STEPS_PER_MINUTE = 6000
BLOCKS_PER_PART = 60

# Parts per call of the script: few enough that a call does not block Redis for long.
PARTS_AT_ONCE = 32


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

    ``over`` is the digest of the layout of the blocks that they replace; each block's values
    are then only those that it adds. Blocks that are not counted leave the totals unchanged.
    """
    layout = members[0][1]
    names = members[0][0].values if over else [c.name for c in layout.columns]
    counted = [c.name for c in layout.columns if c.name in COUNTED_RATES and c.name in names]
    counted = counted if is_counted else []
    return {
        "over": raw(over),
        "shard": shard,
        "nodes": "\n".join(layout.nodes),
        "counted": "\n".join(counted),
        "layout": _layout(layout.digest, layout.encoded),
        "blocks": [_block(block, blob, counted) for block, _, blob in members],
    }


def _block(block: Block, blob: bytes, counted: Sequence[str]) -> dict[str, Any]:
    minute = block.tick - block.tick % MINUTE_S
    reported = block.reported
    return {
        "tick": block.tick,
        "minute": minute,
        "second": block.tick - minute,
        "blob": raw(blob),
        "reported": raw(b"" if reported.all() else reported.astype("u1").tobytes()),
        "sums": _sums(block, counted),
    }


def _sums(block: Block, counted: Sequence[str]) -> list[float]:
    """Sum rates over each node's parts, which is the count of one tick (1 s).

    The list is (metric, node), flat; NaN adds nothing.
    """
    sums: list[float] = []
    for _, names in groupby(counted, key=lambda name: block.values[name].shape[1]):
        values = np.stack([block.values[name] for name in names])
        totals = values.sum(axis=2, dtype="f8")
        if not np.isfinite(totals).all():
            totals = np.where(np.isfinite(values), values, 0.0).sum(axis=2, dtype="f8")
        sums += totals.ravel().tolist()
    return sums


def steps_part(batch: StepBatch, *, amends: bool = False) -> dict[str, Any]:
    """Return a run's steps as the script's argument."""
    digest, names, records = pack_steps(batch)
    return {
        "run": batch.run,
        "amends": amends,
        "layout": _layout(digest, names),
        "rows": [
            _row(int(step), float(ended_at_s), float(tokens), record)
            for step, ended_at_s, tokens, record in zip(
                batch.step, batch.ended_at_s, np.nan_to_num(batch.tokens), records, strict=True
            )
        ],
    }


def _row(step: int, ended_at_s: float, tokens: float, record: bytes) -> dict[str, Any]:
    minute = int(ended_at_s // MINUTE_S) * MINUTE_S
    return {
        "chapter": step // STEPS_PER_CHAPTER,
        "place": step % STEPS_PER_CHAPTER,
        "minute": minute,
        "ended_at_s": ended_at_s,
        "tokens": tokens,
        "record": raw(record),
    }


def _layout(digest: bytes, encoded: bytes) -> dict[str, Any]:
    return {"digest": raw(digest), "encoded": raw(encoded)}


def raw(data: bytes) -> msgspec.Raw:
    """Encode bytes as a msgpack string, because Redis' Lua cannot read msgpack binaries."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def encode_change(*, now_s: float, keep_s: int, **parts: Any) -> bytes:
    """Encode a change, with its limits, as the script's argument."""
    limits = {
        "keep_s": keep_s,
        "latest": now_s + AHEAD_S,
        "remember_s": WEEK_S,
        "most_names": MAX_NAMES,
        "most_steps": MAX_STEPS_PER_MINUTE,
    }
    return msgspec.msgpack.encode(limits | parts)


MergedBlock = tuple[Block, PackedLayout, bytes, bytes]


class BlockMerger(Reader):
    """Merges blocks of one node and second from several senders, such as a report and EFA data.

    The first value of a metric in a second is kept; repeats change nothing.
    """

    def merge(self, blocks: Iterable[Block], *, is_counted: bool = True) -> int:
        """Merge blocks into those of the same node and second; return how many added something.

        Blocks that are not counted leave the totals unchanged.
        """
        wanted = tuple(blocks)
        # Nearly always the second is new: one round trip, and nothing is read.
        parts = list(block_parts(wanted, is_counted=is_counted))
        changes = [
            self._change(parts=parts[i : i + PARTS_AT_ONCE])
            for i in range(0, len(parts), PARTS_AT_ONCE)
        ]
        n_new = sum(n for _, n, _ in self.commit_all(changes))
        if n_new == len(wanted):
            return n_new
        laid = [piece for block in wanted for piece in self._laid(block)]
        laid.sort(key=_layouts_of)
        changes = []
        for (shard, _, over), pieces in groupby(laid, key=_layouts_of):
            members = [piece[:3] for piece in pieces]
            part = blocks_part(shard, members, over=over, is_counted=is_counted)
            changes.append(self._change(parts=[part]))
        return n_new + sum(n for _, n, _ in self.commit_all(changes))

    def remove(self, blocks: Iterable[Block]) -> None:
        """Remove blocks, where exactly they are stored; totals stay unchanged."""
        self.commit_all([self._change(removed=[part]) for part in block_parts(blocks)])

    def _laid(self, block: Block) -> list[MergedBlock]:
        """Merge a block with the stored one of its second; empty if it adds no metric."""
        held: list[Packed] = self._held([(block.shard, block.tick, block.tick)])[block.shard]
        if not held or held[0][1].nodes != block.nodes:
            return []
        _, layout, blob = held[0]
        new = {name: v for name, v in block.values.items() if layout.column(name) is None}
        if not new:
            return []
        more = Block(block.shard, block.tick, block.nodes, new)
        return [(more, *merge_packed((layout, blob), pack(more)), layout.digest)]

    def _change(self, **parts: Any) -> bytes:
        return encode_change(now_s=self.now(), keep_s=self.keep_s, **parts)


def _layouts_of(merged: MergedBlock) -> tuple[str, bytes, bytes]:
    """Return the shard, and the layouts after and before merging."""
    return merged[0].shard, merged[1].digest, merged[3]


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
        bodies.append(blob[start:])
    return layout, b"".join([layout.digest, *heads, *bodies])
