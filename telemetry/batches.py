"""The newest blocks of nodes, still packed, those that are alike side by side."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from telemetry.blocks import METRICS, FloatArray
from telemetry.slabs import Rows
from telemetry.store.gathering import Packed
from telemetry.store.packing import Codes, Column, Layout, decode, unpack

# Nodes read together: enough to be quick, few enough to need little memory.
MOST_NODES = 64
# Metrics that come through one door: those of EFA, and those of a report.
EFA = frozenset(name for name in METRICS if name.startswith("efa_"))
REPORT = frozenset(METRICS) - EFA
# A report always tells of its cores, if only that nobody holds them.
SIGN = "core_utilization_ratio"


@dataclass(frozen=True, slots=True)
class Piece:
    """A shard's block, and of which metrics it is to be asked."""

    shard: str
    packed: Packed
    of: frozenset[str] = frozenset(METRICS)


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks of as many nodes and of the same metrics; ``nodes`` are those that report."""

    shards: tuple[str, ...]
    packed: tuple[Packed, ...]
    of: frozenset[str]
    nodes: tuple[str, ...]
    is_up: tuple[bool, ...]
    rows: Rows

    def codes(self, name: str) -> Codes | None:
        """Return the codes of one metric: (n_nodes, n_parts); None where no node has it."""
        if name not in self.of:
            return None
        _, layout, _ = self.packed[0]
        codes = unpack([blob for _, _, blob in self.packed], layout, name)
        if codes is None or not codes.size:
            return None
        whole: Codes = codes.reshape(-1, codes.shape[2])
        return whole if all(self.is_up) else whole[list(self.is_up)]

    def values(self, name: str) -> FloatArray | None:
        """Return one metric: (n_nodes, n_parts), NaN where absent; None where no node has it."""
        codes, (_, layout, _) = self.codes(name), self.packed[0]
        place = layout.column(name)
        if codes is None or place is None:
            return None
        return np.asarray(decode(codes, layout.columns[place].packing), float)


def batches(pieces: Iterable[Piece], up: Collection[str]) -> tuple[Batch, ...]:
    """Put blocks beside those that are like them, in order of shards."""
    alike: dict[tuple[tuple[Column, ...], int, frozenset[str]], list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.shard):
        _, layout, _ = piece.packed
        key = (layout.columns, len(layout.nodes), piece.of)
        alike.setdefault(key, []).append(piece)
    found = []
    for (_, n_nodes, _), members in alike.items():
        step = max(1, MOST_NODES // n_nodes)
        found += [_batch(members[i : i + step], up) for i in range(0, len(members), step)]
    return tuple(batch for batch in found if batch.nodes)


def _batch(members: Sequence[Piece], up: Collection[str]) -> Batch:
    packed = tuple(piece.packed for piece in members)
    every = [node for _, layout, _ in packed for node in layout.nodes]
    is_up = tuple(node in up for node in every)
    nodes = tuple(node for node, reports in zip(every, is_up, strict=True) if reports)
    shards = tuple(piece.shard for piece in members)
    return Batch(shards, packed, members[0].of, nodes, is_up, Rows({"node": nodes}))


def pieces(shard: str, recent: Sequence[Packed]) -> Iterator[Piece]:
    """Yield the newest block of a real node, and before it what another door last told.

    A report may come every five seconds and EFA every second, or the other way round: the
    newest second then holds but one of them.
    """
    yield Piece(shard, recent[-1])
    there = _names(recent[-1])
    for door, is_told in ((REPORT, SIGN in there), (EFA, bool(there & EFA))):
        if not is_told:
            signs = {SIGN} if door is REPORT else EFA
            earlier = (packed for packed in reversed(recent) if _names(packed) & signs)
            if (packed := next(earlier, None)) is not None:
                yield Piece(shard, packed, door - there)


def _names(packed: Packed) -> frozenset[str]:
    """Return the metrics that a block has."""
    return _named(packed[1])


@lru_cache(maxsize=8192)
def _named(layout: Layout) -> frozenset[str]:
    return frozenset(column.name for column in layout.columns)
