"""A trace as a grid: the same operation of every step and replica in one row."""

import math
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.trace import BoolArray, Trace, TraceError

# A step that misses more of its operations than this was not recorded whole.
MISSING_LIMIT_RATIO = 0.05
# An operation that fewer lanes have than this happens now and then: where absent, it took 0 s.
REGULAR_RATIO = 0.5
# What is laid out takes about 100 bytes per operation.
MOST_CELLS = 50_000_000
SPARSE_CELLS, SPARSE_RATIO = 100_000, 10


@dataclass(frozen=True, slots=True)
class Grid:
    """Operations of a replica's pipeline as rows, its steps and replicas as lanes.

    Parameters
    ----------
    kind, stage, seq, chunk, microbatch : (n_ops,)
    steps : (n_steps,) step numbers
    ranks : (n_dp, n_stages) rank of each worker
    start_s : (n_ops, n_steps, n_dp) seconds from the start of the step; NaN where missing
    duration_s : (n_ops, n_steps, n_dp) seconds; NaN where missing
    order_s, over_s : (n_ops,) when an operation usually begins and ends: medians over lanes
    has_common_clock : whether the starts of different workers can be compared
    n_left_out : steps that were not recorded whole
    n_missing : operations that were not recorded, of the steps that count
    """

    kind: IntArray
    stage: IntArray
    seq: IntArray
    chunk: IntArray
    microbatch: IntArray
    steps: IntArray
    ranks: IntArray
    start_s: FloatArray
    duration_s: FloatArray
    order_s: FloatArray
    over_s: FloatArray
    has_common_clock: bool
    n_left_out: int
    n_missing: int

    @property
    def n_stages(self) -> int:
        """Pipeline stages."""
        return int(self.ranks.shape[1])

    @property
    def n_dp(self) -> int:
        """Data-parallel replicas."""
        return int(self.ranks.shape[0])

    @property
    def n_workers(self) -> int:
        """Workers: one per replica and stage."""
        return int(self.ranks.size)


def gridded(trace: Trace) -> Grid:
    """Lay a trace out; steps that were not recorded whole are left out."""
    if not len(trace):
        raise TraceError("the trace holds no operation; record at least one whole step")
    key, head, op = _operations(trace)
    ranks = _ranks(trace)
    steps, step = np.unique(trace.step, return_inverse=True)
    shape = (len(key), len(steps), int(trace.dp.max()) + 1)
    _check_size(len(trace), shape)
    start_s, end_s = _laid_out(trace, np.ravel_multi_index((op, step, trace.dp), shape), shape)
    start_s, end_s = (a - np.nanmin(start_s, axis=(0, 2), keepdims=True) for a in (start_s, end_s))
    gaps, irregular = _gaps(start_s)
    whole = _recorded_whole(gaps)
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


def _gaps(start_s: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return what is missing, and which operations (n_ops,) only happen now and then."""
    missing = np.isnan(start_s)
    irregular = missing.mean(axis=(1, 2)) > REGULAR_RATIO
    return missing & ~irregular[:, None, None], irregular


def _recorded_whole(gaps: BoolArray) -> BoolArray:
    """Return which steps were recorded whole, or nearly so: (n_steps,)."""
    whole = gaps.mean(axis=(0, 2)) <= MISSING_LIMIT_RATIO
    if not whole.any():
        raise TraceError(
            f"no step is recorded whole: each misses more than {MISSING_LIMIT_RATIO:.0%} of the "
            "operations that the others have; record whole steps of every worker"
        )
    return np.asarray(whole)


def _check_size(n_rows: int, shape: tuple[int, int, int]) -> None:
    """Refuse what does not fit into memory, or would be mostly empty."""
    n_cells = math.prod(shape)
    if n_cells > SPARSE_CELLS and n_cells > SPARSE_RATIO * n_rows:
        raise TraceError(
            "optype, seq_id: steps and workers have next to nothing in common; an operation "
            "must have the same number in every step"
        )
    if n_cells > MOST_CELLS:
        raise TraceError(f"{n_cells:,} operations are too many at once; give fewer steps")


def _operations(trace: Trace) -> tuple[IntArray, IntArray, IntArray]:
    """Return the distinct operations of a replica, a row that has each, and each row's own."""
    n_stages, n_seq = int(trace.stage.max()) + 1, int(trace.seq.max()) + 1
    key = (trace.kind.astype("i8") * n_stages + trace.stage) * n_seq + trace.seq
    found: tuple[IntArray, IntArray, IntArray] = np.unique(
        key, return_index=True, return_inverse=True
    )
    return found


def _laid_out(
    trace: Trace, place: IntArray, shape: tuple[int, int, int]
) -> tuple[FloatArray, FloatArray]:
    """Return when each operation began and ended; tensor-parallel ranks count as one worker."""
    start_s = np.full(shape, np.inf)
    end_s = np.full(shape, -np.inf)
    np.minimum.at(start_s.reshape(-1), place, trace.start_s)
    np.maximum.at(end_s.reshape(-1), place, trace.start_s + trace.duration_s)
    absent = np.isinf(start_s)
    start_s[absent] = end_s[absent] = np.nan
    return start_s, end_s


def _ranks(trace: Trace) -> IntArray:
    """Return the lowest rank of each worker: (n_dp, n_stages)."""
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
