"""Two doors, one second: what another sender said of the same node and tick is laid beside."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from telemetry.blocks import Block
from telemetry.store.changes import block_parts, change, part_of
from telemetry.store.gathering import Packed
from telemetry.store.packing import DIGEST_BYTES, Layout, layout_of, pack
from telemetry.store.reading import Reader

# Small parts of many nodes share a call of the script, but none that holds Redis up.
PARTS_AT_ONCE = 32

Laid = tuple[Block, Layout, bytes, bytes]


class Layered(Reader):
    """Blocks that may come in pieces: a node's report through one door, its EFA through another.

    A second's first word on a metric holds, whoever says it and however often.
    """

    def append_beside(self, blocks: Iterable[Block]) -> int:
        """Keep blocks beside those of the same node and second; return how many told anew."""
        wanted = tuple(blocks)
        # Nearly always the second is new: one trip, and nothing is read.
        parts = list(block_parts(wanted))
        changes = [
            self._change(parts=parts[i : i + PARTS_AT_ONCE])
            for i in range(0, len(parts), PARTS_AT_ONCE)
        ]
        n_new = sum(n for _, n, _ in self.commit_all(changes))
        if n_new == len(wanted):
            return n_new
        laid = [piece for block in wanted for piece in self._laid(block)]
        laid.sort(key=lambda piece: (piece[0].shard, piece[1].digest, piece[3]))
        changes = [
            self._change(parts=[part_of(shard, [piece[:3] for piece in pieces], over=over)])
            for (shard, _, over), pieces in _alike(laid)
        ]
        return n_new + sum(n for _, n, _ in self.commit_all(changes))

    def _laid(self, block: Block) -> list[Laid]:
        """Return a block laid beside what is held of its second, if it tells anything new."""
        held: list[Packed] = self._held([(block.shard, block.tick, block.tick)])[block.shard]
        if not held or held[0][1].nodes != block.nodes:
            return []
        _, layout, blob = held[0]
        new = {name: v for name, v in block.values.items() if layout.column(name) is None}
        if not new:
            return []
        more = Block(block.shard, block.tick, block.nodes, new)
        return [(more, *beside((layout, blob), pack(more)), layout.digest)]

    def _change(self, **parts: Any) -> bytes:
        return change(now_s=self.now(), keep_s=self.keep_s, **parts)


def _alike(laid: Sequence[Laid]) -> list[tuple[tuple[str, bytes, bytes], list[Laid]]]:
    """Group pieces by shard, new layout and old layout."""
    groups = groupby(laid, key=lambda piece: (piece[0].shard, piece[1].digest, piece[3]))
    return [(key, list(pieces)) for key, pieces in groups]


def beside(first: tuple[Layout, bytes], second: tuple[Layout, bytes]) -> tuple[Layout, bytes]:
    """Return two packed blocks of the same nodes as one; no metric may be in both."""
    columns = [*first[0].columns, *second[0].columns]
    layout = layout_of(first[0].nodes, tuple((c.name, c.n_parts) for c in columns))
    heads, bodies = [], []
    for each, blob in (first, second):
        start = DIGEST_BYTES + 4 * len(each.columns)
        heads.append(blob[DIGEST_BYTES:start])
        bodies.append(blob[start:])
    return layout, b"".join([layout.digest, *heads, *bodies])
