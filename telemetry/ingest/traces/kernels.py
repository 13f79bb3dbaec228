"""Kernels of each rank, made a Trace: work, the idle time in it, and the collectives between."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.ingest.traces.kineto import RankEvents
from telemetry.ingest.traces.table import UNIX_S
from telemetry.trace import CODE, BoolArray, Trace, TraceError

# Less work than this share of the step between two collectives: a worker waited for both.
RESUMED_RATIO = 0.01

# A collective that shows less than this of itself is hidden behind work and holds nobody up.
VISIBLE_RATIO = 0.05
COLUMNS = ("step", "dp", "stage", "rank", "kind", "seq", "start_s", "duration_s")
# Work before a collective, work beside it, idle time, what is to be seen of the collective.
SEGMENT_KINDS = ("compute", "compute", "idle", "collective")


@dataclass(frozen=True, slots=True)
class StepSegments:
    """What a rank did up to the end of each collective, and in the rest of the step.

    Each (n_collectives + 1,) seconds: work before the collective began and beside it, idle
    time, how long nothing but the collective ran, and how long it ran in all. Together, all
    but the last make up the step.
    """

    before: FloatArray
    beside: FloatArray
    idle: FloatArray
    shown: FloatArray
    whole: FloatArray

    def joined(self, kept: IntArray) -> FloatArray:
        """Return the pieces up to each collective that is kept: (n_kept + 1, 4) seconds.

        Collectives that are not kept are hidden behind work; the little that is to be seen of
        them is idle time.
        """
        ends = np.append(kept[kept < len(self.shown) - 1], len(self.shown) - 1)
        firsts = np.append(0, ends[:-1] + 1)
        work = np.add.reduceat(self.before + self.beside, firsts)
        before, shown = self.before[firsts], self.shown[ends]
        idle = np.add.reduceat(self.idle + self.shown, firsts) - shown
        return np.stack([before, work - before, idle, shown], axis=1)


def segments_of(
    collectives: tuple[FloatArray, FloatArray],
    work: tuple[FloatArray, FloatArray],
    span: tuple[float, float],
) -> StepSegments:
    """Cut a step at the end of every collective.

    Parameters
    ----------
    collectives, work : when each began and ended, (n,) seconds; collectives in order of end
    span : when the step began and ended

    Notes
    -----
    A worker that has done its work waits through several collectives in a row; only at the
    end of the last does it go on. All that it waited belongs to that one.
    """
    begin, until = span
    start_s, end_s = collectives
    knots, done = busy_time(*work)
    cuts = np.concatenate([[begin], np.minimum(end_s, until), [until]])
    starts = np.append(np.maximum(start_s, cuts[:-2]), until)
    by_start, by_end = (np.interp(moments, knots, done) for moments in (starts, cuts))
    before, beside = by_start - by_end[:-1], by_end[1:] - by_start
    shown = np.maximum(cuts[1:] - starts - beside, 0.0)
    idle = np.maximum(np.diff(cuts) - before - beside - shown, 0.0)
    resumed = (before + beside)[1:] > RESUMED_RATIO * (until - begin)
    whole = np.append(end_s - start_s, 0.0)
    return StepSegments(before, beside, idle, _wait_to_last(shown, resumed), whole)


def _wait_to_last(shown: FloatArray, resumed: BoolArray) -> FloatArray:
    """Give what is seen of collectives to the last before work goes on."""
    if len(shown) < 2:
        return shown
    # Whatever comes after the last collective, its wait ends with it.
    lasts = np.append(np.flatnonzero(resumed[:-1]), len(shown) - 2)
    firsts = np.append(0, lasts[:-1] + 1)
    moved = np.zeros_like(shown)
    moved[lasts] = np.add.reduceat(shown[:-1], firsts)
    return moved


def busy_time(start_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return moments, and how long some kernel had run by then; streams overlap."""
    if not len(start_s):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(start_s)
    start_s, reach = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate([[True], start_s[1:] > reach[:-1]])
    opens, closes = start_s[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(reach) - 1)]
    knots = np.stack([opens, closes], axis=1).ravel()
    run = np.stack([np.zeros_like(opens), closes - opens], axis=1).ravel()
    return knots, np.cumsum(run)


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
        ((number, *places[each.rank], each.rank), _step_segments(each, groups[each.rank], span))
        for each in ranks
        for number, span in _spans(each).items()
    ]
    kept = _visible_collectives([pieces for _, pieces in steps])
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


def _step_segments(
    each: RankEvents, members: tuple[int, ...], span: tuple[float, float]
) -> StepSegments:
    """Cut one step at the end of every gradient collective."""
    begin, until = span
    inside = (each.start_s >= begin) & (each.start_s < until)
    mine = each.is_collective & (each.group == each.groups.index(members))
    mine = np.flatnonzero(mine & inside)
    mine = mine[np.argsort(each.end_s[mine])]
    work = inside & ~each.is_exchange
    work[mine] = False
    return segments_of(
        (each.start_s[mine], each.end_s[mine]), (each.start_s[work], each.end_s[work]), span
    )


def _visible_collectives(steps: Sequence[StepSegments]) -> IntArray:
    """Return which collectives of a step hold somebody up, by their place in it."""
    n = max(len(pieces.shown) for pieces in steps) - 1
    ratio = np.full((len(steps), n), np.nan)
    for row, pieces in zip(ratio, steps, strict=True):
        whole = np.where(pieces.whole > 0, pieces.whole, 1.0)
        row[: len(whole) - 1] = (pieces.shown / whole)[:-1]
    return np.flatnonzero(np.nanmedian(ratio, axis=0) >= VISIBLE_RATIO) if n else np.zeros(0, int)


def _rows(pieces: StepSegments, kept: IntArray, head: tuple[int, int, int, int]) -> FloatArray:
    """Return one step of one rank as operations: (n, 8) in the order of COLUMNS."""
    took_s = pieces.joined(kept).ravel()[:-1]
    place = np.arange(len(took_s))
    rows = np.empty((len(took_s), len(COLUMNS)))
    rows[:, :4] = head
    rows[:, 4] = np.resize([CODE[name] for name in SEGMENT_KINDS], len(took_s))
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
