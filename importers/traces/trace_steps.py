"""The steps of a trace, as every other source reports them."""

import numpy as np

from importers.traces.trace import KINDS, BoolArray, is_kind
from importers.traces.trace_graph import DependencyGraph, Grid
from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch

# Work of a single worker; tensor-parallel collectives count as such.
WORK = (
    "forward-compute",
    "backward-compute",
    "optimizer",
    "gc",
    "compute",
    "layernorm-grads-all-reduce",
)
# Exchange of gradients and of updated parameters.
EXCHANGE = (
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "params-all-gather",
    "embedding-grads-all-reduce",
    "collective",
)


def transfers(grid: Grid, graph: DependencyGraph) -> FloatArray:
    """Durations once all participants are present: (n_ops, n_steps, n_dp) seconds.

    NaN where missing. Communication counts from the arrival of the last participant. Without a
    common clock, the last to arrive is the one with the shortest duration.
    """
    if grid.has_common_clock:
        latest_s = _among_members(np.maximum, grid.start_s, graph)
        return np.asarray(np.maximum(grid.start_s + grid.duration_s - latest_s, 0.0))
    shortest_s = _among_members(np.minimum, grid.duration_s, graph)
    return np.asarray(np.where(np.isnan(grid.duration_s), np.nan, shortest_s))


def _among_members(extreme: np.ufunc, values: FloatArray, graph: DependencyGraph) -> FloatArray:
    """Maximum or minimum over all participants of each operation, without those missing."""
    worst = -np.inf if extreme is np.maximum else np.inf
    known = np.where(np.isnan(values), worst, values)
    extremes = np.full_like(known, worst)
    extreme.at(extremes, graph.joint, known)
    extremes = extremes[graph.joint]
    extremes[graph.across] = extreme.reduce(extremes[graph.across], axis=2, keepdims=True)
    return extremes


def steps_of(grid: Grid, graph: DependencyGraph, *, run: str) -> StepBatch:
    """Split each step of each worker into compute, wait, transfer and other.

    The first step begins at second 0, each other one where the previous one ends. Wait and
    transfer are the gradient exchange that compute does not hide, before and after the last peer
    has arrived. The rest, such as waiting for another stage, is ``other_s``. Of that, other
    communication that compute does not hide is ``other_comm_s``, if the trace has any.
    """
    took_s = transfers(grid, graph)
    end_s = grid.start_s + grid.duration_s
    step_s = np.nanmax(end_s, axis=(0, 2))
    work, exchange = is_kind(grid.kind, *WORK), is_kind(grid.kind, *EXCHANGE)
    compute_s = per_worker(grid, np.where(work[:, None, None], grid.duration_s, 0.0))
    moving_s = np.minimum(np.nan_to_num(took_s[exchange]), grid.duration_s[exchange])
    hidden_s = _hidden(grid, work, exchange)
    exposed_s = np.maximum(grid.duration_s[exchange] - hidden_s, 0.0)
    transfer_s, wait_s = np.zeros_like(grid.start_s), np.zeros_like(grid.start_s)
    transfer_s[exchange] = np.minimum(moving_s, exposed_s)
    wait_s[exchange] = exposed_s - transfer_s[exchange]
    phases = {"compute_s": compute_s}
    phases["transfer_s"] = per_worker(grid, transfer_s)
    phases["wait_s"] = per_worker(grid, wait_s)
    known_s = np.sum(list(phases.values()), axis=0)
    phases["other_s"] = np.maximum(step_s[:, None] - known_s, 0.0)
    none = np.zeros_like(compute_s)
    other = np.array([kind.is_comm for kind in KINDS.values()])[grid.kind] & ~exchange
    other_s = np.zeros_like(grid.start_s)
    other_s[other] = np.maximum(grid.duration_s[other] - _hidden(grid, work, other), 0.0)
    return StepBatch(
        run=run,
        workers=worker_names(grid),
        step=grid.steps,
        ended_at_s=np.cumsum(step_s),
        phases={phase: phases.get(phase, none) for phase in PHASES},
        tokens=np.full(len(step_s), np.nan),
        reported_other_comm_s=per_worker(grid, other_s).mean(axis=1) if other.any() else None,
    )


def worker_names(grid: Grid) -> tuple[str, ...]:
    """By replica, then stage."""
    return tuple(
        f"rank{rank}-dp{dp}-stage{stage}"
        for dp, ranks in enumerate(grid.ranks.tolist())
        for stage, rank in enumerate(ranks)
    )


def per_worker(grid: Grid, values: FloatArray) -> FloatArray:
    """Sum operations by worker: (n_ops, n_steps, n_dp) to (n_steps, n_dp * n_stages)."""
    sums = np.zeros((grid.n_stages, *values.shape[1:]))
    np.add.at(sums, grid.stage, np.nan_to_num(values))
    return np.asarray(sums.transpose(1, 2, 0).reshape(values.shape[1], -1))


def _hidden(grid: Grid, work: BoolArray, exchange: BoolArray) -> FloatArray:
    """Compute time that overlaps each exchange: (n_exchanges, n_steps, n_dp) seconds.

    Work done until a moment is a piecewise linear function. All workers and steps share one, set
    far apart.
    """
    _, n_steps, n_dp = grid.start_s.shape
    apart_s = 2 * np.nanmax(grid.start_s + grid.duration_s) + 1
    lane = np.arange(n_steps * n_dp).reshape(n_steps, n_dp) * grid.n_stages
    offset = (lane[None] + grid.stage[:, None, None]) * apart_s
    start_s, length_s = (grid.start_s + offset)[work].ravel(), grid.duration_s[work].ravel()
    order = np.argsort(start_s)
    order = order[np.isfinite(start_s[order] + length_s[order])]
    start_s, length_s = start_s[order], length_s[order]
    if not len(start_s):
        return np.zeros_like(grid.start_s[exchange])
    knots = np.stack([start_s, start_s + length_s], axis=1).ravel()
    done = np.cumsum(np.stack([np.zeros_like(length_s), length_s], axis=1).ravel())
    knots = np.maximum.accumulate(knots)
    begin = (grid.start_s + offset)[exchange]
    until = begin + grid.duration_s[exchange]
    return np.asarray(np.interp(until, knots, done) - np.interp(begin, knots, done))
