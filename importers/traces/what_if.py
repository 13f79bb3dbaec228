"""What-if analysis of a recorded trace: replay with other durations, find the cause."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from importers.traces.trace import KERNEL_KINDS, KINDS, BoolArray, Trace, is_kind
from importers.traces.trace_graph import DependencyGraph, Grid, graph_of, grid_of
from importers.traces.trace_steps import EXCHANGE, per_worker, steps_of, transfers
from telemetry.blocks import FloatArray, IntArray
from telemetry.steps import StepBatch

PASSES = ("forward-compute", "backward-compute")


def ideal_durations(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Replace each duration by that of its peers: mean of work, median of transfers.

    Peers are all operations of a kind, in all steps, replicas and stages. Pieces of kernels have
    no kind; their peers are the same piece of other steps and replicas. Communication without
    known partners has no peers and stays as recorded.
    """
    like = np.empty_like(took_s)
    for code, kind in enumerate(KINDS.values()):
        rows = np.flatnonzero(grid.kind == code)
        if not len(rows):
            continue
        average = np.nanmedian if kind.is_comm else np.nanmean
        if kind.name in KERNEL_KINDS:
            like[rows] = average(took_s[rows], axis=(1, 2), keepdims=True)
            if kind.scope == "worker" and kind.is_comm:
                like[rows] = np.where(np.isnan(took_s[rows]), like[rows], took_s[rows])
        else:
            like[rows] = average(took_s[rows])
    return like


def stage_weight(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Weight of each computation relative to an average stage: (n_ops, 1, 1).

    A stage takes as long as its fastest replica: a slow machine does not make a stage heavy.
    """
    weight = np.ones((len(grid.kind), 1, 1))
    for name in PASSES:
        rows = is_kind(grid.kind, name)
        if not rows.any():
            continue
        light = np.array(
            [
                took_s[own].mean(axis=(0, 1)).min() if own.any() else np.nan
                for own in (rows & (grid.stage == stage) for stage in range(grid.n_stages))
            ]
        )
        weight[rows, 0, 0] = (light / np.nanmean(light))[grid.stage[rows]]
    return np.nan_to_num(weight, nan=1.0)


def sequence_weight(grid: Grid, took_s: FloatArray) -> FloatArray:
    """Duration of each computation relative to the usual one of its worker.

    (n_ops, n_steps, n_dp); 1 for everything else.
    """
    weight = np.ones_like(took_s)
    for rows in same_work_rows(grid):
        axes = (0, 1) if len(rows) > 1 else (1,)
        usual = took_s[rows].mean(axis=axes, keepdims=True)
        weight[rows] = took_s[rows] / np.where(usual > 0, usual, 1.0)
    return weight


def same_work_rows(grid: Grid) -> list[IntArray]:
    """Rows by what they do: passes of one stage and chunk, or one kind of work."""
    groups = []
    for stage in range(grid.n_stages):
        for name in PASSES:
            rows = np.flatnonzero(is_kind(grid.kind, name) & (grid.stage == stage))
            groups += [rows[grid.chunk[rows] == c] for c in np.unique(grid.chunk[rows])]
    return groups + [np.array([row]) for row in np.flatnonzero(is_kind(grid.kind, "compute"))]


def pass_correlation(grid: Grid, took_s: FloatArray) -> float:
    """Correlation of backward with forward passes, by micro-batch: the median over workers.

    NaN where there is nothing to compare. A long sequence is slow in both passes, on every worker;
    noise, pauses and slow workers do not raise the correlation within a worker.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713, section 5.3.
    """
    by_stage = [_stage_correlation(grid, took_s, stage) for stage in range(grid.n_stages)]
    known = np.concatenate(by_stage)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else float("nan")


def _stage_correlation(grid: Grid, took_s: FloatArray, stage: int) -> FloatArray:
    """Correlation for each replica of a stage: (n_dp,)."""
    own = np.flatnonzero(grid.stage == stage)
    label = grid.chunk[own] * (grid.seq.max() + 1)
    label += np.where(grid.microbatch[own] >= 0, grid.microbatch[own], grid.seq[own])
    forward, backward = (is_kind(grid.kind[own], name) for name in PASSES)
    _, first, second = np.intersect1d(label[forward], label[backward], return_indices=True)
    if not len(first):
        # Where passes are unlabelled, work before and during collectives alternates.
        work_s = took_s[own[is_kind(grid.kind[own], "compute")]]
        if len(work_s) < 2:
            return np.full(took_s.shape[2], np.nan)
        return _correlation(work_s[::2].sum(axis=0), work_s[1::2].sum(axis=0))
    rows = own[forward][first], own[backward][second]
    return _correlation(*(took_s[row].reshape(-1, took_s.shape[2]) for row in rows))


def _correlation(one: FloatArray, other: FloatArray) -> FloatArray:
    """Pearson's correlation of columns: (n, n_columns) to (n_columns,)."""
    if len(one) < 3:
        return np.full(one.shape[1], np.nan)
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    norm = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
    return np.asarray((one * other).sum(axis=0) / np.where(norm > 0, norm, np.nan))


def replay(graph: DependencyGraph, took_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute start and end of all operations, seconds from the start of the step.

    ``took_s`` and both results are (n_ops, n_steps, n_dp). An operation begins when the last that
    it waits for is over; communication transfers when its last member has begun.
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


def step_time_s(graph: DependencyGraph, took_s: FloatArray) -> float:
    return float(replay(graph, took_s)[1].max(axis=(0, 2)).mean())


WORST_WORKERS_RATIO = 0.03
# Up to this many workers are replayed separately; of more, the most likely ones.
EXACT_WORKERS = 64
# A smaller gap between real and ideal needs no explanation.
LEAST_GAP_RATIO = 0.005
# So many suspects are tried one after the other; of more, all together.
MOST_SUSPECTS = 8
# More suspects must explain clearly more than fewer.
ENOUGH_RATIO = 0.9
# One of several suspects is slower than its peers by this ratio, in this share of the steps.
SLOWER_RATIO, STEADY_RATIO = 1.05, 0.75

Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded step, and the step with every operation like its peers."""

    grid: Grid
    graph: DependencyGraph
    real: FloatArray
    ideal: FloatArray
    real_s: float
    ideal_s: float

    @property
    def gap_s(self) -> float:
        """What stragglers cost per step: seconds."""
        return self.real_s - self.ideal_s

    def step_s(self, took_s: FloatArray) -> float:
        return step_time_s(self.graph, took_s)

    def only(self, mask: BoolArray) -> float:
        """Step time if all other operations were like their peers."""
        return self.step_s(np.where(mask, self.real, self.ideal))

    def without(self, mask: BoolArray) -> float:
        """Step time if these operations were like their peers."""
        return self.step_s(np.where(mask, self.ideal, self.real))

    def share(self, *, without_s: float, only_s: float) -> float:
        """Share of the slowdown that a cause explains: the mean of removed and alone.

        Of two causes that hide each other, each explains little if removed and all if alone.
        """
        return ((self.real_s - without_s) + (only_s - self.ideal_s)) / (2 * self.gap_s)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What makes a recorded step slow."""

    # real_s, ideal_s: mean step time, as replayed and with every operation like its peers
    real_s: float
    ideal_s: float
    # m_w, m_s: share of the slowdown that goes away with the worst 3 % of workers, and with the
    # last stage; None where there is none to go away, or only one stage
    m_w: float | None
    m_s: float | None
    # (n_dp, n_stages) step time over ideal with only this worker as recorded
    worker_slowdown: FloatArray
    stage_slowdown: FloatArray  # (n_stages,) the same of stages
    # The workers of ``several_workers``, else the worst one; empty without a slowdown
    suspects: Sequence[Worker]
    # Share of the slowdown that each of CAUSES explains; several_workers where some are slow in
    # most steps
    shares: dict[str, float]
    # communication_ratio, other_comm_ratio: share of the step that would be saved if transfers
    # took no time; of all, and of those that exchange no gradients
    communication_ratio: float
    other_comm_ratio: float
    correlation: float  # how closely backward passes follow forward passes; NaN where unknown

    @property
    def slowdown_ratio(self) -> float:
        """Step time over ideal step time."""
        return self.real_s / self.ideal_s


def explain(grid: Grid, graph: DependencyGraph) -> Explanation:
    """Replay a trace as recorded, ideally, and with one change at a time.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713: slowdown (1), M_W and M_S (section 5).
    """
    known = transfers(grid, graph)
    ideal = ideal_durations(grid, known)
    real = np.where(np.isnan(known), ideal, known)
    whatif = WhatIf(grid, graph, real, ideal, step_time_s(graph, real), step_time_s(graph, ideal))
    n = (grid.n_dp, grid.n_stages)
    by_dp = np.array([whatif.only(np.asarray(np.arange(grid.n_dp) == dp)) for dp in range(n[0])])
    by_stage = np.array([whatif.only(_stage(grid, stage)) for stage in range(n[1])])
    likely = np.minimum(by_dp[:, None], by_stage[None, :])
    ranked, exact = _by_rank(grid, likely), likely.copy()
    for dp, stage in ranked[:EXACT_WORKERS]:
        exact[dp, stage] = whatif.only(_workers(grid, [(dp, stage)]))
    worst = ranked[: int(np.ceil(grid.n_workers * WORST_WORKERS_RATIO))]
    has_gap = whatif.gap_s > LEAST_GAP_RATIO * whatif.ideal_s
    suspects, shares = _suspects(whatif, exact) if has_gap else ([], {})
    comm = np.array([kind.is_comm for kind in KINDS.values()])[grid.kind]
    other = comm & ~is_kind(grid.kind, *EXCHANGE)
    return Explanation(
        whatif.real_s,
        whatif.ideal_s,
        m_w=_share_removed(whatif, _workers(grid, worst)) if has_gap else None,
        m_s=_share_removed(whatif, _stage(grid, n[1] - 1)) if has_gap and n[1] > 1 else None,
        worker_slowdown=exact / whatif.ideal_s,
        stage_slowdown=by_stage / whatif.ideal_s,
        suspects=suspects,
        shares=shares | _shares(whatif, comm) if has_gap else {},
        communication_ratio=_free(whatif, comm),
        other_comm_ratio=_free(whatif, other),
        correlation=pass_correlation(grid, whatif.real),
    )


def _stage(grid: Grid, stage: int) -> BoolArray:
    return np.asarray((grid.stage == stage)[:, None, None])


def _workers(grid: Grid, workers: Sequence[Worker]) -> BoolArray:
    """Mask of the operations of some workers: (n_ops, 1, n_dp)."""
    chosen = np.zeros((grid.n_stages, grid.n_dp), bool)
    for dp, stage in workers:
        chosen[stage, dp] = True
    return np.asarray(chosen[grid.stage][:, None, :])


def _share_removed(whatif: WhatIf, mask: BoolArray) -> float:
    """Share of the slowdown that disappears without some operations."""
    return (whatif.real_s - whatif.without(mask)) / whatif.gap_s


def _by_rank(grid: Grid, score: FloatArray) -> list[Worker]:
    """Workers by score, highest first; of equals the lower rank first."""
    order = np.lexsort((grid.ranks.ravel(), -score.ravel()))
    return [(int(i) // grid.n_stages, int(i) % grid.n_stages) for i in order]


def _suspects(whatif: WhatIf, exact: FloatArray) -> tuple[list[Worker], dict[str, float]]:
    """Return the fewest workers that explain what workers can, and the shares they explain.

    Several are suspects only if each is slow in most steps: of many workers that are slow by
    chance, the worst few always explain something.
    """
    ranked = _by_rank(whatif.grid, exact)
    one = _explained(whatif, ranked[:1])
    slow = _slow_in_most_steps(whatif)
    steady = [worker for worker in ranked if slow[worker]]
    if not 1 < len(steady) <= whatif.grid.n_workers // 2:
        return ranked[:1], {"one_worker": one}
    sizes = sorted({*range(2, min(MOST_SUSPECTS, len(steady)) + 1), len(steady)})
    shares = {n: _explained(whatif, steady[:n]) for n in sizes}
    most = max(shares.values())
    n = next(n for n in sizes if shares[n] >= most - (1 - ENOUGH_RATIO) * abs(most))
    return steady[:n], {"one_worker": one, "several_workers": shares[n]}


def _explained(whatif: WhatIf, workers: Sequence[Worker]) -> float:
    mask = _workers(whatif.grid, workers)
    return whatif.share(without_s=whatif.without(mask), only_s=whatif.only(mask))


def _slow_in_most_steps(whatif: WhatIf) -> BoolArray:
    """Workers whose own work takes longer than that of their stage's peers: (n_dp, n_stages)."""
    grid = whatif.grid
    is_work = ~np.array([kind.is_comm for kind in KINDS.values()])[grid.kind]
    work_s = per_worker(grid, np.where(is_work[:, None, None], whatif.real, 0.0))
    work_s = work_s.reshape(-1, grid.n_dp, grid.n_stages)
    usual_s = np.sort(work_s, axis=1)[:, (grid.n_dp - 1) // 2, None]
    return np.asarray((work_s > SLOWER_RATIO * usual_s).mean(axis=0) >= STEADY_RATIO)


def _free(whatif: WhatIf, ops: BoolArray) -> float:
    """Share of the step that is saved if some operations take no time."""
    return 1.0 - whatif.step_s(np.where(ops[:, None, None], 0.0, whatif.real)) / whatif.real_s


def _shares(whatif: WhatIf, comm: BoolArray) -> dict[str, float]:
    """Shares that uneven stages, uneven sequences and communication explain."""
    mask = comm[:, None, None]
    shares = {
        "communication": whatif.share(without_s=whatif.without(mask), only_s=whatif.only(mask))
    }
    for cause, weight in (
        ("stage_imbalance", stage_weight(whatif.grid, whatif.real)),
        ("sequence_imbalance", sequence_weight(whatif.grid, whatif.real)),
    ):
        safe = np.where(weight > 0, weight, 1.0)
        shares[cause] = whatif.share(
            without_s=whatif.step_s(whatif.real / safe),
            only_s=whatif.step_s(whatif.ideal * weight),
        )
    return shares


# From here on the paper calls a job straggling.
STRAGGLING_RATIO = 1.10
# Below this, differences are noise. Up to STRAGGLING_RATIO a cause must explain most.
SLOW_RATIO = 1.05
MOST_RATIO = 0.5
LARGEST_RATIO = 0.3
# Several suspects need more proof.
SEVERAL_RATIO = 0.7
# Passes this closely correlated differ by their sequences. The paper requires 0.9 over the passes
# of all workers, where slow stages help; this is per worker.
CORRELATED_RATIO = 0.8
# Workers are accused only if they explain clearly more than their work does.
CLEARLY_RATIO = 0.1
EXPOSED_RATIO = 0.25

# Fewer steps show no pattern.
LEAST_STEPS = 3

# Of two causes that explain about as much, the earlier one wins: work before workers.
CAUSES = (
    "sequence_imbalance",
    "stage_imbalance",
    "communication",
    "one_worker",
    "several_workers",
)


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """Why a recorded run was slow."""

    cause: str  # one of CAUSES, ``too_short`` or ``none``
    # The accused workers, the worst first; empty if the cause is not a worker
    culprits: tuple[Worker, ...] = ()
    stage: int | None = None  # the stage that is too heavy, where stages are uneven
    # Share of the slowdown that the cause explains; None where that says nothing
    share_ratio: float | None = None


def judge_trace(found: Explanation, *, n_steps: int) -> TraceVerdict:
    """Name the cause that explains most, and workers only if they are the cause.

    Transfers that are slow for all workers make none slower than its peers: they count by their
    share of the step.
    """
    if n_steps < LEAST_STEPS:
        return TraceVerdict("too_short")
    is_slow = found.slowdown_ratio >= SLOW_RATIO
    cause, share = _largest(found) if is_slow else ("none", None)
    # Accusing workers requires the most.
    is_mild = found.slowdown_ratio < STRAGGLING_RATIO or cause == "one_worker"
    needed = MOST_RATIO if is_mild else LARGEST_RATIO
    if cause == "several_workers":
        needed = SEVERAL_RATIO
    if share is None or share < needed:
        is_exposed = found.communication_ratio > EXPOSED_RATIO
        return (
            TraceVerdict("communication") if is_exposed else TraceVerdict("none", (), None, share)
        )
    if cause in ("one_worker", "several_workers"):
        n = 1 if cause == "one_worker" else len(found.suspects)
        return TraceVerdict(cause, culprits=tuple(found.suspects[:n]), share_ratio=share)
    stage = int(found.stage_slowdown.argmax()) if cause == "stage_imbalance" else None
    return TraceVerdict(cause, stage=stage, share_ratio=share)


def _largest(found: Explanation) -> tuple[str, float]:
    """Return the cause that explains most; of about equal ones, the first in CAUSES."""
    possible = {
        cause: min(1.0, found.shares.get(cause, 0.0))
        for cause in CAUSES
        if cause != "sequence_imbalance" or found.correlation >= CORRELATED_RATIO
    }
    most = max(possible.values())
    return next(
        (cause, share) for cause, share in possible.items() if share >= most - CLEARLY_RATIO
    )


@dataclass(frozen=True, slots=True)
class Analysis:
    grid: Grid
    steps: StepBatch
    found: Explanation
    verdict: TraceVerdict

    @property
    def culprits(self) -> tuple[str, ...]:
        """Names of the accused workers, the worst first."""
        return tuple(
            self.steps.workers[dp * self.grid.n_stages + stage]
            for dp, stage in self.verdict.culprits
        )


def analyse_trace(trace: Trace, *, run: str) -> Analysis:
    """Derive steps and the cause of the slowdown from a trace."""
    grid = grid_of(trace)
    graph = graph_of(grid)
    steps = steps_of(grid, graph, run=run)
    explained = explain(grid, graph)
    return Analysis(grid, steps, explained, judge_trace(explained, n_steps=len(steps)))
