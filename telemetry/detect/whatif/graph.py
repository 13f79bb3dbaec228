"""Which operation waits for which: the dependencies of one step of one replica's pipeline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from telemetry.blocks import IntArray
from telemetry.detect.whatif.grid import Grid
from telemetry.detect.whatif.pipeline import pipeline_edges
from telemetry.trace import CODE, KINDS, BoolArray, TraceError, is_kind

# After the last computation, a worker does these one after the other.
TAIL = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
)


@dataclass(frozen=True, slots=True)
class Graph:
    """What must be over before an operation begins, and who takes part in it.

    Parameters
    ----------
    levels : rows of the grid in rounds; every round only waits for earlier ones, and all
        members of a group are in the same round, side by side
    before : for each round, (n_rows, n_most) rows that each waits for, padded with ``n_ops``
    groups : for each round, where each group begins among its rows
    member_of : for each round, which group each row is of
    joint : (n_ops,) group of every row
    across : (n_ops,) whether all replicas take part
    """

    levels: Sequence[IntArray]
    before: Sequence[IntArray]
    groups: Sequence[IntArray]
    member_of: Sequence[IntArray]
    joint: IntArray
    across: BoolArray


def graph_of(grid: Grid) -> Graph:
    """Return the dependencies of a step, from kinds, stages and usual order."""
    edges, pairs = pipeline_edges(grid)
    for stage in range(grid.n_stages):
        edges += _stage_edges(grid, stage)
    joint = _joint(grid, pairs)
    scopes = np.array([kind.scope in ("replicas", "all") for kind in KINDS.values()])
    return _levelled(len(grid.kind), edges, joint, scopes[grid.kind])


def chained(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Return the edges that make each row wait for the one before it."""
    return list(pairwise(rows))


def _stage_edges(grid: Grid, stage: int) -> list[tuple[int, int]]:
    """Return what a worker's own order demands: gather, compute, reduce, optimize."""
    own = np.flatnonzero(grid.stage == stage)
    own = own[np.lexsort((grid.kind[own], grid.seq[own], grid.order_s[own]))]
    loose = own[is_kind(grid.kind[own], "compute", "idle", "collective")]
    compute = own[is_kind(grid.kind[own], "forward-compute", "backward-compute")]
    gathered = own[is_kind(grid.kind[own], "params-all-gather")]
    reduced = own[is_kind(grid.kind[own], "grads-reduce-scatter")]
    edges = chained(loose.tolist()) + chained([*gathered.tolist(), *reduced.tolist()])
    edges += _gather_edges(grid, compute, gathered)
    overlaps = bool((grid.kind == CODE["separate-grads-all-reduce"]).any())
    names = [name for name in TAIL if not (overlaps and name == "grads-reduce-scatter")]
    tail = [row for name in names for row in own[grid.kind[own] == CODE[name]].tolist()]
    last = compute[-1:].tolist() or loose[-1:].tolist()
    edges += chained(last + tail)
    if overlaps:
        edges += _overlapped_edges(grid, compute, reduced)
        after = [row for row in tail if grid.kind[row] != CODE["gc"]][:1]
        edges += [(int(row), first) for row in reduced[-1:] for first in after]
    return edges


def _gather_edges(grid: Grid, compute: IntArray, gathered: IntArray) -> list[tuple[int, int]]:
    """Let a chunk's first forward pass wait for the last gathering of its parameters."""
    edges = []
    forward = compute[is_kind(grid.kind[compute], "forward-compute")]
    for chunk in np.unique(grid.chunk[gathered]):
        first = forward[grid.chunk[forward] == chunk][:1]
        edges += [(int(gathered[grid.chunk[gathered] == chunk][-1]), int(row)) for row in first]
    return edges


def _overlapped_edges(grid: Grid, compute: IntArray, reduced: IntArray) -> list[tuple[int, int]]:
    """Let a chunk's first reduction wait for the last backward pass of that chunk."""
    edges = []
    backward = compute[is_kind(grid.kind[compute], "backward-compute")]
    for chunk in np.unique(grid.chunk[reduced]):
        last = backward[grid.chunk[backward] == chunk][-1:]
        edges += [(int(row), int(reduced[grid.chunk[reduced] == chunk][0])) for row in last]
    return edges


def _joint(grid: Grid, pairs: Sequence[tuple[int, int]]) -> IntArray:
    """Return the group of each row: sender with receiver, stages that reduce together."""
    joint = np.arange(len(grid.kind))
    for one, other in pairs:
        joint[[one, other]] = min(one, other)
    for name, kind in KINDS.items():
        if kind.scope in ("stages", "all"):
            rows = np.flatnonzero(grid.kind == CODE[name])
            for seq in np.unique(grid.seq[rows]):
                same = rows[grid.seq[rows] == seq]
                joint[same] = same.min()
    return joint


def _levelled(
    n_ops: int,
    edges: Sequence[tuple[int, int]],
    joint: IntArray,
    across: BoolArray,
) -> Graph:
    """Sort rows into rounds: each a longest path from the start of the step."""
    source, target = np.array(sorted(set(edges)), int).reshape(-1, 2).T
    level = _rounds(joint, joint[source], joint[target])[joint]
    levels, before, groups, member_of = [], [], [], []
    for number in range(int(level.max()) + 1):
        rows = np.flatnonzero(level == number)
        rows = rows[np.argsort(joint[rows], kind="stable")]
        needs = [source[target == row] for row in rows]
        padded = np.full((len(rows), max(1, *map(len, needs), 1)), n_ops)
        for i, need in enumerate(needs):
            padded[i, : len(need)] = need
        first = np.flatnonzero(np.diff(joint[rows], prepend=-1))
        levels.append(rows)
        before.append(padded)
        groups.append(first)
        member_of.append(np.cumsum(np.isin(np.arange(len(rows)), first)) - 1)
    return Graph(levels, before, groups, member_of, joint, across)


def _rounds(joint: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Return the round of each group: one more than the latest it waits for."""
    level = np.zeros(len(joint), int)
    for _ in range(len(joint) + 1):
        new = level.copy()
        np.maximum.at(new, target, level[source] + 1)
        if (new == level).all():
            return level
        level = new
    raise TraceError(
        "operations wait for each other in a circle; do start_ts and seq_id of the trace agree?"
    )
