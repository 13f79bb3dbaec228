"""The timeline of a step, from the durations of its operations and who waits for whom."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.whatif.graph import Graph
from telemetry.detect.whatif.grid import Grid


def transfers(grid: Grid, graph: Graph) -> FloatArray:
    """Return how long each operation takes once everyone it needs is there.

    Returns
    -------
    (n_ops, n_steps, n_dp) seconds. For work it is the duration; for communication it counts
    from the moment the last peer has arrived: where workers share no clock, who came last is
    who took least. NaN where missing.
    """
    if not grid.has_common_clock:
        return _least(grid, graph)
    start_s = np.where(np.isnan(grid.start_s), -np.inf, grid.start_s)
    latest = np.full_like(start_s, -np.inf)
    np.maximum.at(latest, graph.joint, start_s)
    latest = latest[graph.joint]
    latest[graph.across] = latest[graph.across].max(axis=2, keepdims=True)
    return np.asarray(np.maximum(grid.start_s + grid.duration_s - latest, 0.0))


def _least(grid: Grid, graph: Graph) -> FloatArray:
    """Return the shortest duration among those who take part in an operation."""
    duration_s = np.where(np.isnan(grid.duration_s), np.inf, grid.duration_s)
    least = np.full_like(duration_s, np.inf)
    np.minimum.at(least, graph.joint, duration_s)
    least = least[graph.joint]
    least[graph.across] = least[graph.across].min(axis=2, keepdims=True)
    return np.asarray(np.where(np.isnan(grid.duration_s), np.nan, least))


def replayed(graph: Graph, took_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Play a step with operations of these durations, nothing waiting without a reason.

    Parameters
    ----------
    took_s : (n_ops, n_steps, n_dp) seconds, of communication the transfer alone

    Returns
    -------
    start_s, end_s : (n_ops, n_steps, n_dp) seconds from the start of the step

    Notes
    -----
    An operation begins when the last that it waits for is over. Communication moves its bytes
    when its last member has begun. All steps and replicas are played side by side, and so are
    all operations of a round.
    """
    n_ops, n_steps, n_dp = took_s.shape
    start_s = np.zeros_like(took_s)
    end_s = np.zeros((n_ops + 1, n_steps, n_dp))
    for rows, before, first, member in zip(
        graph.levels, graph.before, graph.groups, graph.member_of, strict=True
    ):
        begun = end_s[before].max(axis=1)
        start_s[rows] = begun
        if len(first) < len(rows):
            begun = np.maximum.reduceat(begun, first, axis=0)[member]
        across = graph.across[rows]
        if across.any():
            begun = np.where(across[:, None, None], begun.max(axis=2, keepdims=True), begun)
        end_s[rows] = begun + took_s[rows]
    return start_s, end_s[:-1]


def step_time_s(graph: Graph, took_s: FloatArray) -> float:
    """Return the mean step time with these durations: seconds."""
    return float(replayed(graph, took_s)[1].max(axis=(0, 2)).mean())
