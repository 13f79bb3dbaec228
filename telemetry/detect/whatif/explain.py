"""How much slower than without stragglers, and how much of that each cause explains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.whatif.graph import Graph
from telemetry.detect.whatif.grid import Grid
from telemetry.detect.whatif.ideal import (
    like_peers,
    pass_correlation,
    sequence_weight,
    stage_weight,
)
from telemetry.detect.whatif.replay import step_time_s, transfers
from telemetry.trace import KINDS, BoolArray

WORST_WORKERS_RATIO = 0.03
# Of so many workers each is looked at by itself; of more, only as many of the likeliest.
EXACT_WORKERS = 64
# With less between the timelines than this, there is nothing to explain.
LEAST_GAP_RATIO = 0.005
FEWEST_PER_SUSPECT = 8
MOST_SUSPECTS = 4
# A longer list of suspects must explain noticeably more than a shorter one.
ENOUGH_RATIO = 0.9

Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recorded step, and the step in which no operation is slower than its peers."""

    grid: Grid
    graph: Graph
    real: FloatArray
    ideal: FloatArray
    real_s: float
    ideal_s: float

    @property
    def gap_s(self) -> float:
        """What stragglers cost per step: seconds."""
        return self.real_s - self.ideal_s

    def step_s(self, took_s: FloatArray) -> float:
        """Return the mean step time with other durations."""
        return step_time_s(self.graph, took_s)

    def only(self, mask: BoolArray) -> float:
        """Return the step time if all but these operations were like their peers."""
        return self.step_s(np.where(mask, self.real, self.ideal))

    def without(self, mask: BoolArray) -> float:
        """Return the step time if these operations were like their peers."""
        return self.step_s(np.where(mask, self.ideal, self.real))

    def share(self, *, without_s: float, only_s: float) -> float:
        """Return how much of the slowdown a cause explains, taken away and put back.

        Notes
        -----
        Where two causes hide behind each other, taking one away changes little and putting
        one back changes all; the mean of both is fair to either.
        """
        return ((self.real_s - without_s) + (only_s - self.ideal_s)) / (2 * self.gap_s)


@dataclass(frozen=True, slots=True)
class Explained:
    """What makes a recorded step slow.

    Parameters
    ----------
    real_s, ideal_s : mean step time, as replayed and with every operation like its peers
    m_w, m_s : share of the slowdown that goes away with the worst 3 % of workers, and with
        the last stage; None where there is none to go away, or only one stage
    worker_slowdown : (n_dp, n_stages) step time over ideal if only this worker was as it was
    stage_slowdown : (n_stages,) the same of stages
    suspects : the fewest workers that explain what workers can
    shares : share of the slowdown that each cause explains: one_worker, stage_imbalance,
        sequence_imbalance, communication
    correlation : how closely backward passes follow forward passes; NaN where unknown
    """

    real_s: float
    ideal_s: float
    m_w: float | None
    m_s: float | None
    worker_slowdown: FloatArray
    stage_slowdown: FloatArray
    suspects: Sequence[Worker]
    shares: dict[str, float]
    correlation: float

    @property
    def slowdown_ratio(self) -> float:
        """Step time over ideal step time."""
        return self.real_s / self.ideal_s


def explained(grid: Grid, graph: Graph) -> Explained:
    """Replay a trace as it was, as it should have been, and with one thing changed at a time.

    References
    ----------
    J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
    OSDI 2025, arXiv:2505.05713: slowdown (1), M_W and M_S (section 5).
    """
    whatif = _whatif(grid, graph)
    n = (grid.n_dp, grid.n_stages)
    by_dp = np.array([whatif.only(_replica(grid, dp)) for dp in range(n[0])])
    by_stage = np.array([whatif.only(_stage(grid, stage)) for stage in range(n[1])])
    likely = np.minimum(by_dp[:, None], by_stage[None, :])
    exact = _exact(whatif, likely)
    has_gap = whatif.gap_s > LEAST_GAP_RATIO * whatif.ideal_s
    suspects, share = _suspects(whatif, exact) if has_gap else ([], 0.0)
    return Explained(
        whatif.real_s,
        whatif.ideal_s,
        m_w=_gone(whatif, _workers(grid, _worst(grid, likely))) if has_gap else None,
        m_s=_gone(whatif, _stage(grid, n[1] - 1)) if has_gap and n[1] > 1 else None,
        worker_slowdown=exact / whatif.ideal_s,
        stage_slowdown=by_stage / whatif.ideal_s,
        suspects=suspects,
        shares={"one_worker": share, **_shares(whatif)} if has_gap else {},
        correlation=pass_correlation(grid, whatif.real),
    )


def _whatif(grid: Grid, graph: Graph) -> WhatIf:
    known = transfers(grid, graph)
    ideal = like_peers(grid, known)
    real = np.where(np.isnan(known), ideal, known)
    return WhatIf(grid, graph, real, ideal, step_time_s(graph, real), step_time_s(graph, ideal))


def _replica(grid: Grid, dp: int) -> BoolArray:
    return np.asarray(np.arange(grid.n_dp) == dp)


def _stage(grid: Grid, stage: int) -> BoolArray:
    return np.asarray((grid.stage == stage)[:, None, None])


def _workers(grid: Grid, workers: Sequence[Worker]) -> BoolArray:
    """Return the mask of the operations of some workers: (n_ops, 1, n_dp)."""
    chosen = np.zeros((grid.n_stages, grid.n_dp), bool)
    for dp, stage in workers:
        chosen[stage, dp] = True
    return np.asarray(chosen[grid.stage][:, None, :])


def _gone(whatif: WhatIf, mask: BoolArray) -> float:
    """Return the share of the slowdown that goes away with some operations."""
    return (whatif.real_s - whatif.without(mask)) / whatif.gap_s


def _by_rank(grid: Grid, score: FloatArray) -> list[Worker]:
    """Return the workers, the highest score first, the lower rank of equals before."""
    order = np.lexsort((grid.ranks.ravel(), -score.ravel()))
    return [(int(i) // grid.n_stages, int(i) % grid.n_stages) for i in order]


def _worst(grid: Grid, likely: FloatArray) -> list[Worker]:
    """Return the worst 3 % of workers, at least one, by their replica and stage."""
    return _by_rank(grid, likely)[: int(np.ceil(grid.n_workers * WORST_WORKERS_RATIO))]


def _exact(whatif: WhatIf, likely: FloatArray) -> FloatArray:
    """Replay each worker by itself, or the likeliest where there are many."""
    exact = likely.copy()
    for dp, stage in _by_rank(whatif.grid, likely)[:EXACT_WORKERS]:
        exact[dp, stage] = whatif.only(_workers(whatif.grid, [(dp, stage)]))
    return exact


def _suspects(whatif: WhatIf, exact: FloatArray) -> tuple[list[Worker], float]:
    """Return the fewest workers that explain nearly as much as a few can, and how much."""
    few = max(1, min(MOST_SUSPECTS, whatif.grid.n_workers // FEWEST_PER_SUSPECT))
    ranked = _by_rank(whatif.grid, exact)
    shares = []
    for n in range(1, few + 1):
        mask = _workers(whatif.grid, ranked[:n])
        shares.append(whatif.share(without_s=whatif.without(mask), only_s=whatif.only(mask)))
    enough = max(shares) - (1 - ENOUGH_RATIO) * abs(max(shares))
    n = next(i for i, share in enumerate(shares) if share >= enough)
    return ranked[: n + 1], shares[n]


def _shares(whatif: WhatIf) -> dict[str, float]:
    """Return how much uneven stages, uneven sequences and communication explain."""
    comm = np.array([kind.is_comm for kind in KINDS.values()])[whatif.grid.kind][:, None, None]
    shares = {
        "communication": whatif.share(without_s=whatif.without(comm), only_s=whatif.only(comm))
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
