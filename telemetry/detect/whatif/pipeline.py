"""The pipeline's own dependencies: computations in order, and what stages send each other."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from telemetry.blocks import IntArray
from telemetry.detect.whatif.grid import Grid
from telemetry.trace import CODE, BoolArray, is_kind

# Clocks of a node's streams differ by as much.
CLOCK_S = 5e-5

Edges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Sent:
    """One direction of the pipeline: what carries it on, and to which stage."""

    compute: str
    kind: str
    towards: int

    @property
    def is_send(self) -> bool:
        """Whether it gives away, rather than takes."""
        return self.kind.endswith("send")


_WAYS = (
    _Sent("forward-compute", "forward-send", +1),
    _Sent("forward-compute", "forward-recv", -1),
    _Sent("backward-compute", "backward-send", -1),
    _Sent("backward-compute", "backward-recv", +1),
)
_PAIRED = (("forward-send", "forward-recv", +1), ("backward-send", "backward-recv", -1))


def pipeline_edges(grid: Grid) -> tuple[Edges, Edges]:
    """Return who waits for whom in the pipeline, and who sends to whom.

    Notes
    -----
    A worker computes in the order it was seen to; each of its four streams (send and receive,
    forward and backward) keeps its own order. A computation waits for what it receives, what
    it sends waits for it, and a receive is posted when the computation before is over.
    """
    edges: Edges = []
    real: dict[tuple[str, int], IntArray] = {}
    for stage in range(grid.n_stages):
        own = np.flatnonzero(grid.stage == stage)
        own = own[np.lexsort((grid.kind[own], grid.seq[own], grid.order_s[own]))]
        compute = own[is_kind(grid.kind[own], "forward-compute", "backward-compute")]
        edges += pairwise(compute.tolist())
        for way in _WAYS:
            stream = own[grid.kind[own] == CODE[way.kind]]
            edges += pairwise(stream.tolist())
            done = compute[grid.kind[compute] == CODE[way.compute]]
            of, by = _matched(grid, way, stream, done)
            edges += _carried(way, of, by, done)
            real[way.kind, stage] = of[_has_peer(grid, way, by)]
        edges += _first_backward(grid, compute, own)
    return edges, _pairs(grid, real)


def _matched(
    grid: Grid, way: _Sent, stream: IntArray, done: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the sends or receives that belong to a computation, and which.

    A profiler may also record calls that had nothing to carry: receives after the last
    computation has begun, sends before the first is over. Each computation has its call, or
    each that has something to carry; else, the first receive is missing.
    """
    if not len(done) or not len(stream):
        return stream[:0], done[:0]
    if way.is_send:
        kept = stream[grid.over_s[stream] >= grid.over_s[done].min() - CLOCK_S]
    else:
        kept = stream[grid.order_s[stream] <= grid.order_s[done].max() + CLOCK_S]
    real = done[_has_peer(grid, way, done)]
    if len(kept) != len(done) and len(kept) == len(real):
        return kept, real
    n = min(len(kept), len(done))
    return kept[:n], done[:n] if way.is_send else done[len(done) - n :]


def _carried(way: _Sent, of: IntArray, by: IntArray, done: IntArray) -> Edges:
    """Return what a stream and the computations it serves wait for."""
    if way.is_send:
        return list(zip(by.tolist(), of.tolist(), strict=True))
    place = {row: i for i, row in enumerate(done.tolist())}
    edges: Edges = []
    for received, row in zip(of.tolist(), by.tolist(), strict=True):
        edges.append((received, row))
        if place[row]:
            edges.append((int(done[place[row] - 1]), received))
    return edges


def _has_peer(grid: Grid, way: _Sent, by: IntArray) -> BoolArray:
    """Return which of them another stage takes part in: the model's two ends do not."""
    part = grid.chunk[by] * grid.n_stages + grid.stage[by]
    n_parts = (int(grid.chunk.max()) + 1) * grid.n_stages
    peer = part + way.towards
    return np.asarray((peer >= 0) & (peer < n_parts))


def _pairs(grid: Grid, real: dict[tuple[str, int], IntArray]) -> Edges:
    """Return sender and receiver of everything that is sent, in order."""
    pairs: Edges = []
    for sends, receives, towards in _PAIRED:
        for stage in range(grid.n_stages):
            out = real[sends, stage]
            into = real[receives, (stage + towards) % grid.n_stages]
            if len(out) != len(into):
                out = out[np.isin(grid.seq[out], grid.seq[into])]
                into = into[np.isin(grid.seq[into], grid.seq[out])]
            pairs += zip(out.tolist(), into.tolist(), strict=True)
    return pairs


def _first_backward(grid: Grid, compute: IntArray, own: IntArray) -> Edges:
    """Keep the first backward exchange from beginning before the warm-up is nearly over."""
    at = np.flatnonzero(grid.kind[compute] == CODE["backward-compute"])
    if not len(at) or at[0] < 2:
        return []
    rows = own[is_kind(grid.kind[own], "backward-send", "backward-recv") & (grid.seq[own] == 0)]
    return [(int(compute[at[0] - 2]), row) for row in rows.tolist()]
