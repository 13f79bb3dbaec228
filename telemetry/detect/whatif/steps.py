"""A trace as steps: what each worker computed, waited and transferred, as steps report it."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.whatif.graph import Graph
from telemetry.detect.whatif.grid import Grid
from telemetry.detect.whatif.replay import transfers
from telemetry.steps import PHASES, StepBatch
from telemetry.trace import BoolArray, is_kind

# What a worker does by itself; tensor-parallel collectives count as its own work.
WORK = (
    "forward-compute",
    "backward-compute",
    "optimizer",
    "gc",
    "compute",
    "layernorm-grads-all-reduce",
)
# The exchange of gradients, and of the parameters they make.
EXCHANGE = (
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "params-all-gather",
    "embedding-grads-all-reduce",
    "collective",
)


def steps_of(grid: Grid, graph: Graph, *, run: str) -> StepBatch:
    """Split each step of each worker into computing, waiting, transferring and the rest.

    The first step begins at second 0, each other where the one before ends.

    Notes
    -----
    Of the gradient exchange counts what is not hidden behind computing. Its transfer begins
    when the last peer has arrived; until then a worker waits. What is left of the step, such
    as waiting for a neighbouring stage, is ``other_s``.
    """
    took_s = transfers(grid, graph)
    end_s = grid.start_s + grid.duration_s
    step_s = np.nanmax(end_s, axis=(0, 2))
    work, exchange = is_kind(grid.kind, *WORK), is_kind(grid.kind, *EXCHANGE)
    compute_s = _per_worker(grid, np.where(work[:, None, None], grid.duration_s, 0.0))
    moving_s = np.minimum(np.nan_to_num(took_s[exchange]), grid.duration_s[exchange])
    hidden_s = _hidden(grid, work, exchange)
    exposed_s = np.maximum(grid.duration_s[exchange] - hidden_s, 0.0)
    transfer_s, wait_s = np.zeros_like(grid.start_s), np.zeros_like(grid.start_s)
    transfer_s[exchange] = np.minimum(moving_s, exposed_s)
    wait_s[exchange] = exposed_s - transfer_s[exchange]
    phases = {"compute_s": compute_s}
    phases["transfer_s"] = _per_worker(grid, transfer_s)
    phases["wait_s"] = _per_worker(grid, wait_s)
    known_s = np.sum(list(phases.values()), axis=0)
    phases["other_s"] = np.maximum(step_s[:, None] - known_s, 0.0)
    none = np.zeros_like(compute_s)
    return StepBatch(
        run=run,
        workers=worker_names(grid),
        step=grid.steps,
        ended_at_s=np.cumsum(step_s),
        phases={phase: phases.get(phase, none) for phase in PHASES},
        tokens=np.full(len(step_s), np.nan),
    )


def worker_names(grid: Grid) -> tuple[str, ...]:
    """Return the names of workers, by replica, then stage."""
    return tuple(
        f"rank{rank}-dp{dp}-stage{stage}"
        for dp, ranks in enumerate(grid.ranks.tolist())
        for stage, rank in enumerate(ranks)
    )


def _per_worker(grid: Grid, values: FloatArray) -> FloatArray:
    """Sum operations by worker: (n_ops, n_steps, n_dp) to (n_steps, n_dp * n_stages)."""
    sums = np.zeros((grid.n_stages, *values.shape[1:]))
    np.add.at(sums, grid.stage, np.nan_to_num(values))
    return np.asarray(sums.transpose(1, 2, 0).reshape(values.shape[1], -1))


def _hidden(
    grid: Grid,
    work: BoolArray,
    exchange: BoolArray,
) -> FloatArray:
    """Return how long computing went on beside each exchange: (n_exchanges, n_steps, n_dp).

    Notes
    -----
    Work of a worker does not overlap itself, so the work done by a moment is a piecewise
    linear function, and all workers and steps can share one by setting them far apart.
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
