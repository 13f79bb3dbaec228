"""The dependency graph of a recorded step: which operation waits for which."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from importers.traces.trace import CODE, KERNEL_KINDS, KINDS, BoolArray, Trace, TraceError, is_kind
from telemetry.blocks import FloatArray, IntArray

# A step without more than this share of its operations was not recorded completely.
MISSING_LIMIT_RATIO = 0.05
# An operation in a smaller share of replicas and steps happens only at times: where missing, it
# took 0 s.
REGULAR_RATIO = 0.5
# The grid takes about 100 bytes per operation.
MOST_CELLS = 50_000_000
SPARSE_CELLS, SPARSE_RATIO = 100_000, 10


@dataclass(frozen=True, slots=True)
class Grid:
    """Operations of a replica's pipeline as rows, its steps and replicas as lanes."""

    # kind, stage, seq, chunk, microbatch: (n_ops,)
    kind: IntArray
    stage: IntArray
    seq: IntArray
    chunk: IntArray
    microbatch: IntArray
    steps: IntArray  # (n_steps,) step numbers
    ranks: IntArray  # (n_dp, n_stages) rank of each worker
    # (n_ops, n_steps, n_dp) seconds from the start of the step; NaN where missing
    start_s: FloatArray
    duration_s: FloatArray  # (n_ops, n_steps, n_dp) seconds; NaN where missing
    # order_s, over_s: (n_ops,) when an operation usually begins and ends: medians over lanes
    order_s: FloatArray
    over_s: FloatArray
    has_common_clock: bool  # whether the starts of different workers can be compared
    n_left_out: int  # steps that were not recorded whole
    n_missing: int  # operations that were not recorded, of the steps that count

    @property
    def n_stages(self) -> int:
        return int(self.ranks.shape[1])

    @property
    def n_dp(self) -> int:
        return int(self.ranks.shape[0])

    @property
    def n_workers(self) -> int:
        return int(self.ranks.size)


def grid_of(trace: Trace) -> Grid:
    """Arrange a trace as a grid, without incompletely recorded steps."""
    if not len(trace):
        raise TraceError("the trace holds no operation; record at least one whole step")
    n_stages, n_seq = int(trace.stage.max()) + 1, int(trace.seq.max()) + 1
    key = (trace.kind.astype("i8") * n_stages + trace.stage) * n_seq + trace.seq
    key, head, op = np.unique(key, return_index=True, return_inverse=True)
    ranks = _ranks(trace)
    steps, step = np.unique(trace.step, return_inverse=True)
    shape = (len(key), len(steps), int(trace.dp.max()) + 1)
    n_rows = len(trace)
    n_cells = math.prod(shape)
    if n_cells > SPARSE_CELLS and n_cells > SPARSE_RATIO * n_rows:
        raise TraceError(
            "optype, seq_id: steps and workers have next to nothing in common; an operation "
            "must have the same number in every step"
        )
    if n_cells > MOST_CELLS:
        raise TraceError(f"{n_cells:,} operations are too many at once; give fewer steps")
    start_s, end_s = _laid_out(trace, np.ravel_multi_index((op, step, trace.dp), shape), shape)
    start_s, end_s = (a - np.nanmin(start_s, axis=(0, 2), keepdims=True) for a in (start_s, end_s))
    missing = np.isnan(start_s)
    # Operations that happen only at times take 0 s where they are missing.
    irregular = missing.mean(axis=(1, 2)) > REGULAR_RATIO
    gaps = missing & ~irregular[:, None, None]
    whole = gaps.mean(axis=(0, 2)) <= MISSING_LIMIT_RATIO
    if not whole.any():
        raise TraceError(
            f"no step is recorded whole: each misses more than {MISSING_LIMIT_RATIO:.0%} of the "
            "operations that the others have; record whole steps of every worker"
        )
    start_s, duration_s = start_s[:, whole], (end_s - start_s)[:, whole]
    duration_s[irregular] = np.nan_to_num(duration_s[irregular])
    return Grid(
        kind=trace.kind[head],
        stage=trace.stage[head],
        seq=trace.seq[head],
        chunk=np.maximum(trace.chunk[head], 0),
        microbatch=trace.microbatch[head],
        steps=steps[whole],
        ranks=ranks,
        start_s=start_s,
        duration_s=duration_s,
        order_s=np.nanmedian(start_s, axis=(1, 2)),
        has_common_clock=trace.has_common_clock,
        over_s=np.nanmedian(end_s[:, whole], axis=(1, 2)),
        n_left_out=int((~whole).sum()),
        n_missing=int(gaps[:, whole].sum()),
    )


def _laid_out(
    trace: Trace, place: IntArray, shape: tuple[int, int, int]
) -> tuple[FloatArray, FloatArray]:
    """Start and end of each operation; tensor-parallel ranks count as one worker."""
    start_s = np.full(shape, np.inf)
    end_s = np.full(shape, -np.inf)
    np.minimum.at(start_s.reshape(-1), place, trace.start_s)
    np.maximum.at(end_s.reshape(-1), place, trace.start_s + trace.duration_s)
    absent = np.isinf(start_s)
    start_s[absent] = end_s[absent] = np.nan
    return start_s, end_s


def _ranks(trace: Trace) -> IntArray:
    """Lowest rank of each worker: (n_dp, n_stages)."""
    shape = int(trace.dp.max()) + 1, int(trace.stage.max()) + 1
    if math.prod(shape) > len(trace):
        raise TraceError(
            "dp_rank, stage: there are fewer operations than workers; both must count on from 0"
        )
    ranks = np.full(shape, np.iinfo("i8").max)
    np.minimum.at(ranks, (trace.dp, trace.stage), trace.rank)
    if (ranks == np.iinfo("i8").max).any():
        dp, stage = np.argwhere(ranks == np.iinfo("i8").max)[0]
        raise TraceError(
            f"no operation of replica {dp}, stage {stage} is in the trace; "
            "record every worker of the job"
        )
    return ranks


# Clock difference between the streams of a node.
CLOCK_S = 5e-5

Edges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction of the pipeline: its operations, and the next stage."""

    compute: str
    kind: str
    towards: int

    @property
    def is_send(self) -> bool:
        return self.kind.endswith("send")


_WAYS = (
    _Direction("forward-compute", "forward-send", +1),
    _Direction("forward-compute", "forward-recv", -1),
    _Direction("backward-compute", "backward-send", -1),
    _Direction("backward-compute", "backward-recv", +1),
)
_PAIRED = (("forward-send", "forward-recv", +1), ("backward-send", "backward-recv", -1))


def pipeline_edges(grid: Grid) -> tuple[Edges, Edges]:
    """Dependencies within the pipeline, and pairs of sender and receiver.

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
        at = np.flatnonzero(grid.kind[compute] == CODE["backward-compute"])
        if len(at) and at[0] > 1:
            # The first backward exchange waits until the warm-up is nearly complete.
            first = is_kind(grid.kind[own], "backward-send", "backward-recv")
            rows = own[first & (grid.seq[own] == 0)]
            edges += [(int(compute[at[0] - 2]), row) for row in rows.tolist()]
    return edges, _pairs(grid, real)


def _matched(
    grid: Grid, way: _Direction, stream: IntArray, done: IntArray
) -> tuple[IntArray, IntArray]:
    """Match sends or receives with their computations.

    A profiler may record calls without data: receives after the last computation began, sends
    before the first ended. Each computation has its call, or each with data to transfer; otherwise
    the first receive is missing.
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


def _carried(way: _Direction, of: IntArray, by: IntArray, done: IntArray) -> Edges:
    """Dependencies of a stream and of the computations it serves."""
    if way.is_send:
        return list(zip(by.tolist(), of.tolist(), strict=True))
    place = {row: i for i, row in enumerate(done.tolist())}
    edges: Edges = []
    for received, row in zip(of.tolist(), by.tolist(), strict=True):
        edges.append((received, row))
        if place[row]:
            edges.append((int(done[place[row] - 1]), received))
    return edges


def _has_peer(grid: Grid, way: _Direction, by: IntArray) -> BoolArray:
    """Operations with another stage: not those at the two ends of the model."""
    part = grid.chunk[by] * grid.n_stages + grid.stage[by]
    n_parts = (int(grid.chunk.max()) + 1) * grid.n_stages
    peer = part + way.towards
    return np.asarray((peer >= 0) & (peer < n_parts))


def _pairs(grid: Grid, real: dict[tuple[str, int], IntArray]) -> Edges:
    """Sender and receiver of each transfer, in order."""
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


# A worker does these after its last computation, one after the other.
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
class DependencyGraph:
    """What must be over before an operation begins, and who takes part in it."""

    # Rows of the grid in rounds; every round only waits for earlier ones, and all members of a
    # group are in the same round, side by side
    levels: Sequence[IntArray]
    # For each round, (n_rows, n_most) rows that each waits for, padded with ``n_ops``
    before: Sequence[IntArray]
    groups: Sequence[IntArray]  # for each round, where each group begins among its rows
    member_of: Sequence[IntArray]  # for each round, which group each row is of
    joint: IntArray  # (n_ops,) group of every row
    across: BoolArray  # (n_ops,) whether all replicas take part


def graph_of(grid: Grid) -> DependencyGraph:
    """Derive dependencies from kinds, stages and usual order."""
    edges, pairs = pipeline_edges(grid)
    for stage in range(grid.n_stages):
        edges += _stage_edges(grid, stage)
    joint = _joint_groups(grid, pairs)
    scopes = np.array([kind.scope in ("replicas", "all") for kind in KINDS.values()])
    return _levels(len(grid.kind), edges, joint, scopes[grid.kind])


def _stage_edges(grid: Grid, stage: int) -> Edges:
    """Edges of the order of a worker: gather, compute, reduce, optimize."""
    own = np.flatnonzero(grid.stage == stage)
    own = own[np.lexsort((grid.kind[own], grid.seq[own], grid.order_s[own]))]
    loose = own[is_kind(grid.kind[own], *KERNEL_KINDS)]
    compute = own[is_kind(grid.kind[own], "forward-compute", "backward-compute")]
    gathered = own[is_kind(grid.kind[own], "params-all-gather")]
    reduced = own[is_kind(grid.kind[own], "grads-reduce-scatter")]
    edges = [*pairwise(loose.tolist()), *pairwise([*gathered.tolist(), *reduced.tolist()])]
    # The last parameter gathering of a chunk comes before its first forward pass, its last
    # backward pass before its first reduction.
    forward = compute[is_kind(grid.kind[compute], "forward-compute")]
    edges += _chunk_edges(grid, gathered, forward)
    overlaps = bool((grid.kind == CODE["separate-grads-all-reduce"]).any())
    names = [name for name in TAIL if not (overlaps and name == "grads-reduce-scatter")]
    tail = [row for name in names for row in own[grid.kind[own] == CODE[name]].tolist()]
    last = compute[-1:].tolist() or loose[-1:].tolist()
    edges += pairwise(last + tail)
    if overlaps:
        backward = compute[is_kind(grid.kind[compute], "backward-compute")]
        edges += _chunk_edges(grid, backward, reduced)
        after = [row for row in tail if grid.kind[row] != CODE["gc"]][:1]
        edges += [(int(row), first) for row in reduced[-1:] for first in after]
    return edges


def _chunk_edges(grid: Grid, before: IntArray, after: IntArray) -> Edges:
    """Edges from the last of some operations of a chunk to the first of others."""
    return [
        (int(one[-1]), int(other[0]))
        for chunk in np.unique(grid.chunk[before]).tolist()
        if len(one := before[grid.chunk[before] == chunk])
        and len(other := after[grid.chunk[after] == chunk])
    ]


def _joint_groups(grid: Grid, pairs: Sequence[tuple[int, int]]) -> IntArray:
    """Group of each row: sender with receiver, stages that reduce together."""
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


def _levels(
    n_ops: int, edges: Sequence[tuple[int, int]], joint: IntArray, across: BoolArray
) -> DependencyGraph:
    """Sort rows into rounds by their longest path from the start of the step."""
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
    return DependencyGraph(levels, before, groups, member_of, joint, across)


def _rounds(joint: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Round of each group: one more than the latest it waits for."""
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
