"""Kernels of each rank, made a Trace: work, the idle time in it, and the collectives between."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.ingest.traces.kineto import RankEvents
from telemetry.ingest.traces.pieces import Pieces, pieces_of
from telemetry.ingest.traces.table import UNIX_S
from telemetry.trace import CODE, Trace, TraceError

# A collective that shows less than this of itself is hidden behind work and holds nobody up.
SHOWN_RATIO = 0.05
COLUMNS = ("step", "dp", "stage", "rank", "kind", "seq", "start_s", "duration_s")
# Work before a collective, work beside it, idle time, what is to be seen of the collective.
PIECES = ("compute", "compute", "idle", "collective")


def trace_of_ranks(ranks: Sequence[RankEvents]) -> Trace:
    """Return the ranks' steps as pieces of work and collectives, one after the other.

    Notes
    -----
    Each collective ends a piece: the time since the one before is work where a kernel ran
    before or beside it, collective where only that ran, idle where nothing did. Clocks of
    different ranks are not compared. Ranks that share a group for gradients are replicas;
    several such groups side by side are pipeline stages where kernels send to each other, and
    else shards of one tensor-parallel worker. Collectives within these count as work.
    """
    numbers = Counter(each.rank for each in ranks)
    if twice := [rank for rank, n in numbers.items() if n > 1]:
        raise TraceError(f"rank {twice[0]}: comes twice; give each rank's file once")
    groups = {each.rank: _gradient_group(each) for each in ranks}
    places = _places(groups, is_pipeline=any(each.is_exchange.any() for each in ranks))
    steps = [
        ((number, *places[each.rank], each.rank), _pieces(each, groups[each.rank], span))
        for each in ranks
        for number, span in _spans(each).items()
    ]
    kept = _shown([pieces for _, pieces in steps])
    return _trace(np.concatenate([_rows(pieces, kept, head) for head, pieces in steps]), ranks)


def _gradient_group(each: RankEvents) -> tuple[int, ...]:
    """Return the ranks that a rank exchanges gradients with: the largest group it belongs to."""
    if not each.is_collective.any():
        raise TraceError(
            f"rank {each.rank}: has no collective (all-reduce, reduce-scatter, all-gather …); "
            "record a distributed job, with the kernels of its communication"
        )
    used = {each.groups[i] for i in np.unique(each.group[each.is_collective]).tolist()}
    return max(used, key=lambda members: (len(members), members))


def _places(
    groups: dict[int, tuple[int, ...]], *, is_pipeline: bool
) -> dict[int, tuple[int, int]]:
    """Return replica and stage of each rank."""
    columns = sorted(set(groups.values()))
    places = {}
    for rank, members in groups.items():
        there = [other for other in sorted(groups) if groups[other] == members]
        places[rank] = (there.index(rank), columns.index(members) if is_pipeline else 0)
    return places


def _spans(each: RankEvents) -> dict[int, tuple[float, float]]:
    """Return the steps of a rank, each until the next begins; without marks, all is one."""
    if not each.steps:
        return {0: (float(each.start_s.min()), float(each.end_s.max()))}
    numbers = sorted(each.steps)
    begins = [each.steps[number][0] for number in numbers]
    return {
        number: (begin, end)
        for number, begin, end in zip(
            numbers, begins, [*begins[1:], each.steps[numbers[-1]][1]], strict=True
        )
    }


def _pieces(each: RankEvents, members: tuple[int, ...], span: tuple[float, float]) -> Pieces:
    """Cut one step at the end of every gradient collective."""
    begin, until = span
    inside = (each.start_s >= begin) & (each.start_s < until)
    mine = each.is_collective & (each.group == each.groups.index(members))
    mine = np.flatnonzero(mine & inside)
    mine = mine[np.argsort(each.end_s[mine])]
    work = inside & ~each.is_exchange
    work[mine] = False
    return pieces_of(
        (each.start_s[mine], each.end_s[mine]), (each.start_s[work], each.end_s[work]), span
    )


def _shown(steps: Sequence[Pieces]) -> IntArray:
    """Return which collectives of a step hold somebody up, by their place in it."""
    n = max(len(pieces.shown) for pieces in steps) - 1
    ratio = np.full((len(steps), n), np.nan)
    for row, pieces in zip(ratio, steps, strict=True):
        whole = np.where(pieces.whole > 0, pieces.whole, 1.0)
        row[: len(whole) - 1] = (pieces.shown / whole)[:-1]
    return np.flatnonzero(np.nanmedian(ratio, axis=0) >= SHOWN_RATIO) if n else np.zeros(0, int)


def _rows(pieces: Pieces, kept: IntArray, head: tuple[int, int, int, int]) -> FloatArray:
    """Return one step of one rank as operations: (n, 8) in the order of COLUMNS."""
    took_s = pieces.joined(kept).ravel()[:-1]
    place = np.arange(len(took_s))
    rows = np.empty((len(took_s), len(COLUMNS)))
    rows[:, :4] = head
    rows[:, 4] = np.resize([CODE[name] for name in PIECES], len(took_s))
    rows[:, 5] = place
    rows[:, 6] = np.concatenate([[0.0], np.cumsum(took_s)[:-1]])
    rows[:, 7] = took_s
    return rows


def _trace(rows: FloatArray, ranks: Sequence[RankEvents]) -> Trace:
    """Return rows as a Trace of ranks whose clocks differ."""
    step, dp, stage, rank, kind, seq = rows[:, :6].astype("i8").T
    began_at_s = min(each.began_at_s for each in ranks)
    worlds = [each.world for each in ranks if each.world]
    missing = max(worlds, default=0) - len(ranks)
    return Trace(
        kind=kind,
        step=step,
        dp=dp,
        stage=stage,
        rank=rank,
        seq=seq,
        chunk=np.zeros_like(seq),
        microbatch=np.full_like(seq, -1),
        start_s=rows[:, 6],
        duration_s=rows[:, 7],
        has_common_clock=False,
        n_ranks_missing=max(0, missing),
        began_at_s=began_at_s if began_at_s > UNIX_S else None,
    )
