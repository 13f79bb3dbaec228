"""Other durations than were recorded: like the peers', or without one cause of being slow."""

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.whatif.grid import Grid
from telemetry.trace import KINDS, is_kind

PASSES = ("forward-compute", "backward-compute")


def like_peers(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Give every operation what its peers take: the mean of work, the median of transfers.

    Notes
    -----
    Peers are all operations of a kind, in all steps, replicas and stages: a balanced job
    gives each the same. Work and collectives between kernels have no such kind; there, the
    peers are the same piece of other steps and replicas.
    """
    like = np.empty_like(took_s)
    for code, kind in enumerate(KINDS.values()):
        rows = np.flatnonzero(grid.kind == code)
        if not len(rows):
            continue
        average = np.nanmedian if kind.is_comm else np.nanmean
        if kind.name in ("compute", "idle", "collective"):
            like[rows] = average(took_s[rows], axis=(1, 2), keepdims=True)
        else:
            like[rows] = average(took_s[rows])
    return like


def stage_weight(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Return how much heavier each computation is than an average stage's: (n_ops, 1, 1).

    Notes
    -----
    What a stage takes is what its quickest replica takes: all that every replica shares, and
    nothing that one slow machine adds.
    """
    weight = np.ones((len(grid.kind), 1, 1))
    for name in PASSES:
        rows = is_kind(grid.kind, name)
        if not rows.any():
            continue
        light = np.array([_quickest(took_s[rows & (grid.stage == s)]) for s in _stages(grid)])
        weight[rows, 0, 0] = (light / np.nanmean(light))[grid.stage[rows]]
    return np.nan_to_num(weight, nan=1.0)


def _stages(grid: Grid) -> range:
    return range(grid.n_stages)


def _quickest(took_s: FloatArray) -> float:
    """Return the mean of the replica that takes least: (n, n_steps, n_dp) to seconds."""
    return float(took_s.mean(axis=(0, 1)).min()) if len(took_s) else float("nan")


def sequence_weight(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Return how much longer each computation took than this worker's usually do.

    (n_ops, n_steps, n_dp); 1 for all that is no computation.
    """
    weight = np.ones_like(took_s)
    for rows in alike(grid):
        axes = (0, 1) if len(rows) > 1 else (1,)
        usual = took_s[rows].mean(axis=axes, keepdims=True)
        weight[rows] = took_s[rows] / np.where(usual > 0, usual, 1.0)
    return weight


def alike(grid: Grid) -> list[IntArray]:
    """Return rows by what they do: passes of one stage and chunk, or one piece of work."""
    groups = []
    for stage in _stages(grid):
        for name in PASSES:
            rows = np.flatnonzero(is_kind(grid.kind, name) & (grid.stage == stage))
            groups += [rows[grid.chunk[rows] == c] for c in np.unique(grid.chunk[rows])]
    return groups + [np.array([row]) for row in np.flatnonzero(is_kind(grid.kind, "compute"))]


def pass_correlation(grid: Grid, took_s: FloatArray) -> float:
    """Return how closely backward passes follow forward passes, micro-batch by micro-batch.

    Returns
    -------
    Pearson's correlation of the two within each worker, the median over workers; NaN where
    there is nothing to compare.

    Notes
    -----
    A long sequence takes long in both passes, on every worker; noise and pauses do not. A
    worker that is slow throughout is slow in all micro-batches alike, which correlates nothing.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713, section 5.3.
    """
    found = [_stage_correlation(grid, took_s, stage) for stage in _stages(grid)]
    known = np.concatenate(found)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else float("nan")


def _stage_correlation(grid: Grid, took_s: FloatArray, stage: int) -> FloatArray:
    """Return the correlation of each replica's worker of a stage: (n_dp,)."""
    own = np.flatnonzero(grid.stage == stage)
    label = grid.chunk[own] * (grid.seq.max() + 1)
    label += np.where(grid.microbatch[own] >= 0, grid.microbatch[own], grid.seq[own])
    forward, backward = (is_kind(grid.kind[own], name) for name in PASSES)
    _, first, second = np.intersect1d(label[forward], label[backward], return_indices=True)
    if not len(first):
        return _beside_correlation(took_s[own[is_kind(grid.kind[own], "compute")]])
    rows = own[forward][first], own[backward][second]
    return _correlation(*(took_s[each].reshape(-1, took_s.shape[2]) for each in rows))


def _beside_correlation(took_s: FloatArray) -> FloatArray:
    """Compare work before collectives with work beside them, where passes are not told apart.

    In the order of kernels' pieces, the two take turns; the latter is of the backward pass.
    """
    if len(took_s) < 2:
        return np.full(took_s.shape[2], np.nan)
    return _correlation(took_s[::2].sum(axis=0), took_s[1::2].sum(axis=0))


def _correlation(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return Pearson's correlation of each column: (n, n_columns) to (n_columns,)."""
    if len(one) < 3:
        return np.full(one.shape[1], np.nan)
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    norm = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
    return np.asarray((one * other).sum(axis=0) / np.where(norm > 0, norm, np.nan))
