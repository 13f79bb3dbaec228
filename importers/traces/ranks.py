"""From the device's events of each rank to a trace: steps cut at their collectives."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from importers.traces.trace import CODE, BoolArray, RankFigures, Trace, TraceError
from telemetry.blocks import FloatArray, IntArray

# What an event of the device is. Gradients and parameters travel by EXCHANGE.
WORK, EXCHANGE, OTHER, SEND = range(4)
# NCCL, RCCL, PyTorch and Neuron use the same names, with other case and hyphens. The first
# pattern that occurs in a name counts.
KINDS = (
    (SEND, r"send[-_ ]?recv|permute|kernel_(?:send|recv)|^(?:send|recv)"),
    (OTHER, r"all[-_ ]?to[-_ ]?all"),
    (EXCHANGE, r"all[-_ ]?reduce|reduce[-_ ]?scatter|all[-_ ]?gather|broadcast"),
    (EXCHANGE, r"kernel_reduce(?![a-z])|^reduce$"),
    (OTHER, r"^(?:gather|scatter|barrier)"),
)
NAMES = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS)
UNIX_S = 1e9
MAX_EVENT_S = 86_400.0
# Less work than this share of the step between two collectives: a worker waited for both.
RESUMED_RATIO = 0.01
# A collective of which less than this is visible is hidden behind work and delays no worker. What
# is visible of it in a few steps counts with the next that delays one.
VISIBLE_RATIO = 0.05
# The pieces of a segment: work before a collective and during it, then the rest.
PIECES = ("compute", "compute", "idle", "other-communication", "collective")
OTHER_PIECE = PIECES.index("other-communication")
# A piece with less other communication than this has none.
NONE_S = 1e-6
# A shard that works longer by this ratio names its worker.
SLOWER_RATIO = 1.05

Intervals = tuple[FloatArray, FloatArray]
Members = tuple[int, ...]
Call = tuple[str, int]


class Hardware(TypedDict, total=False):
    hbm_bytes_per_s: float
    hbm_peak_bytes_per_s: float
    throttled_ratio: float


@dataclass(slots=True)
class RankEvents:
    """The device's events (n,) and the steps of one rank.

    ``start_s`` and ``end_s`` are seconds on the rank's own clock. ``kind`` is WORK, EXCHANGE,
    OTHER or SEND. ``names`` are those of collectives, such as "allreduce"; empty: all the same.
    ``group`` is an index into ``groups``, the participants, empty if unknown. ``apart`` are the
    groups that exchange no gradients, by their name. ``steps`` maps the numbers of steps to their
    spans. ``cuts`` are the events of EXCHANGE that end a segment, by default all. ``waits`` are
    times known to be spent waiting for peers, None if unknown. ``hardware`` are figures for
    RankFigures.
    """

    rank: int
    world: int | None
    start_s: FloatArray
    end_s: FloatArray
    kind: IntArray
    group: IntArray
    groups: list[Members] = field(default_factory=list)
    apart: frozenset[Members] = frozenset()
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    began_at_s: float = 0.0
    cuts: BoolArray | None = None
    waits: Intervals | None = None
    hardware: Hardware = field(default_factory=Hardware)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        took_s = self.end_s - self.start_s
        if not (np.isfinite(self.start_s).all() and (took_s >= 0).all()):
            raise TraceError(f"rank {self.rank}: an event has no start, or ends before it starts")
        if took_s.max(initial=0.0) >= MAX_EVENT_S:
            raise TraceError(f"rank {self.rank}: an event is longer than a day; check units")

    def spans(self) -> dict[int, tuple[float, float]]:
        """Return the steps, each until the next begins; without marks, all is one step."""
        if not self.steps:
            return {0: (float(self.start_s.min()), float(self.end_s.max()))}
        numbers = sorted(self.steps)
        begins = [self.steps[number][0] for number in numbers]
        ends = [*begins[1:], self.steps[numbers[-1]][1]]
        return dict(zip(numbers, zip(begins, ends, strict=True), strict=True))

    def gradient_group(self) -> Members | None:
        """Return the largest group that exchanges gradients; None without any."""
        used = {self.groups[i] for i in np.unique(self.group[self.kind == EXCHANGE]).tolist()}
        used = used - self.apart or used
        return max(used, key=lambda members: (len(members), members), default=None)


@dataclass(frozen=True, slots=True)
class StepSegments:
    """A rank's step, cut at the end of each collective: (n_collectives + 1,) seconds each.

    ``before`` and ``parallel`` are work before and during the collective. ``visible`` is gradient
    exchange without work in parallel, ``other`` is other communication without either. These and
    ``idle`` add up to the step. ``waited`` is the exchange by the collective that it delays: a
    worker may wait through several. ``whole`` is the length of the collective. ``calls`` are the
    (n_collectives,) names, each with the how manieth of its name in the step it is.
    """

    before: FloatArray
    parallel: FloatArray
    idle: FloatArray
    other: FloatArray
    visible: FloatArray
    waited: FloatArray
    whole: FloatArray
    calls: tuple[Call, ...] = ()

    @property
    def work_s(self) -> float:
        return float(self.before.sum() + self.parallel.sum())

    def joined(self, kept: Sequence[Call]) -> FloatArray:
        """Return the segments up to each collective that is kept: (n_kept + 1, 5) seconds.

        One that this step does not have takes no time, and has no segment of its own. The last
        row is what follows the last collective that is kept.
        """
        at = {call: place for place, call in enumerate(self.calls)}
        pieces = np.zeros((len(kept) + 1, 5))
        rows = [row for row, call in enumerate(kept) if call in at]
        # Streams may end in another order: the collective still has the time before it.
        rows.sort(key=lambda row: at[kept[row]])
        first = 0
        for row, last in [*((row, at[kept[row]]) for row in rows), (len(kept), len(self.calls))]:
            own = slice(first, last + 1)
            work, before = (self.before + self.parallel)[own].sum(), self.before[first]
            visible = self.waited[own].sum()
            pieces[row] = (
                before,
                work - before,
                self.idle[own].sum(),
                self.other[own].sum(),
                visible,
            )
            first = last + 1
        return pieces


def trace_of_ranks(ranks: Sequence[RankEvents], *, shows_overlap: bool = True) -> Trace:
    """Return the ranks' steps as segments of work and communication.

    Clocks of different ranks are not compared. Ranks that share a group for gradients are
    replicas. Several such groups are pipeline stages if kernels send to each other, else shards
    of one tensor-parallel worker. Of these the busiest counts, because the others wait for it.
    """
    numbers = Counter(each.rank for each in ranks)
    if twice := [rank for rank, n in numbers.items() if n > 1]:
        raise TraceError(f"rank {twice[0]}: occurs twice; give each rank's file once")
    if not any((each.kind != WORK).any() for each in ranks):
        raise TraceError(
            f"rank {ranks[0].rank}: has no communication (all-reduce, all-gather, send and "
            "receive …); record a distributed job, with the kernels of its communication"
        )
    groups = {each.rank: each.gradient_group() for each in ranks}
    sends = any((each.kind == SEND).any() for each in ranks)
    places = _places(groups, is_pipeline=sends)
    segments_at: dict[tuple[int, int, int], list[StepSegments]] = {}
    figures = []
    for each in sorted(ranks, key=lambda each: each.rank):
        steps = {n: _step_segments(each, groups[each.rank], s) for n, s in each.spans().items()}
        figures.append(_figures(each, list(steps.values())))
        for number, segments in steps.items():
            segments_at.setdefault((number, *places[each.rank]), []).append(segments)
    names = _names(places, figures)
    keys = [(*key, names[key[1:]]) for key in segments_at]
    table = _rows(
        keys, [max(shards, key=lambda one: one.work_s) for shards in segments_at.values()]
    )
    step, dp, stage, rank, kind, seq = table[:, :6].astype("i8").T
    began_at_s = min(each.began_at_s for each in ranks)
    world = max((each.world or 0 for each in ranks), default=0)
    return Trace(
        kind=kind,
        step=step,
        dp=dp,
        stage=stage,
        rank=rank,
        seq=seq,
        chunk=np.zeros_like(seq),
        microbatch=np.full_like(seq, -1),
        start_s=table[:, 6],
        duration_s=table[:, 7],
        has_common_clock=False,
        n_ranks_missing=max(0, world - len(ranks)),
        began_at_s=began_at_s if began_at_s > UNIX_S else None,
        figures=tuple(figures),
        shows_overlap=shows_overlap,
    )


def _places(groups: dict[int, Members | None], *, is_pipeline: bool) -> dict[int, tuple[int, int]]:
    """Return replica and stage of each rank.

    Ranks that send to each other are stages of one pipeline if none exchange gradients, or if
    stages have different numbers of replicas, such as where not all were recorded.
    """
    sizes = Counter(groups.values())
    if is_pipeline and (set(sizes) == {None} or len(set(sizes.values())) > 1):
        return {rank: (0, stage) for stage, rank in enumerate(sorted(groups))}
    columns = sorted({members or () for members in groups.values()})
    places = {}
    for rank, members in groups.items():
        same = [other for other in sorted(groups) if groups[other] == members]
        places[rank] = (same.index(rank), columns.index(members or ()) if is_pipeline else 0)
    return places


def _names(
    places: dict[int, tuple[int, int]], figures: Sequence[RankFigures]
) -> dict[tuple[int, int], int]:
    """Return the rank that names each worker: its first, or one that works clearly longer."""
    work_s = {figure.rank: figure.work_s for figure in figures}
    names: dict[tuple[int, int], int] = {}
    for rank, place in sorted(places.items()):
        first = names.setdefault(place, rank)
        if work_s[rank] > SLOWER_RATIO * work_s[first]:
            names[place] = rank
    return names


def _step_segments(
    each: RankEvents, members: Members | None, span: tuple[float, float]
) -> StepSegments:
    """Cut one step at the end of every gradient collective."""
    begin, until = span
    inside = (each.end_s > begin) & (each.start_s < until)
    exchange = each.kind == EXCHANGE
    if members is not None:
        exchange &= each.group == each.groups.index(members)
    other = (each.kind != WORK) & ~exchange
    cuts = exchange & (each.start_s >= begin) & (each.start_s < until)
    cuts = np.flatnonzero(cuts if each.cuts is None else cuts & each.cuts)
    cuts = cuts[np.argsort(each.end_s[cuts])]
    masks = (exchange, each.kind == WORK, other)
    return segments_of(
        *((each.start_s[mask & inside], each.end_s[mask & inside]) for mask in masks),
        cuts=(each.start_s[cuts], each.end_s[cuts]),
        span=span,
        calls=_calls([each.names[i] if each.names else "" for i in cuts.tolist()]),
    )


def _calls(names: Sequence[str]) -> tuple[Call, ...]:
    seen = Counter[str]()
    calls = []
    for name in names:
        calls.append((name, seen[name]))
        seen[name] += 1
    return tuple(calls)


def _figures(each: RankEvents, steps: Sequence[StepSegments]) -> RankFigures:
    """Return the mean step of a rank. What work hides of its waits is not waiting."""
    sums = [
        float(np.mean([getattr(segments, name).sum() for segments in steps]))
        for name in ("visible", "other", "idle")
    ]
    work_s = float(np.mean([segments.work_s for segments in steps]))
    wait_s = None
    if each.waits is not None:
        work = each.kind == WORK
        busy = each.start_s[work], each.end_s[work]
        both = tuple(np.concatenate(part) for part in zip(busy, each.waits, strict=True))
        spans = np.array(list(each.spans().values())).T
        length_s = [np.diff(np.interp(spans, *busy_time(*some)), axis=0) for some in (both, busy)]
        wait_s = float(np.mean(length_s[0] - length_s[1]))
    exchange_s, other_s, idle_s = sums
    return RankFigures(
        each.rank, work_s, exchange_s, other_s, idle_s, wait_s=wait_s, **each.hardware
    )


def communication_kind(name: str) -> int | None:
    return next((kind for kind, pattern in NAMES if pattern.search(name)), None)


def _rows(keys: Sequence[tuple[int, int, int, int]], found: Sequence[StepSegments]) -> FloatArray:
    """Return steps as operations, (n, 8).

    Columns are step, replica, stage, rank, kind, sequence number, start and duration in seconds.
    """
    kept = _visible_calls(found)
    joined = [segments.joined(kept) for segments in found]
    # Nothing waits for a collective after the last one, unless it is visible.
    n_cut = int(not any(pieces[-1, -1] > NONE_S for pieces in joined))
    unpaired = _unpaired(keys, joined)
    rows = []
    for key, pieces in zip(keys, joined, strict=True):
        took_s = pieces.ravel()[: pieces.size - n_cut]
        row = np.empty((len(took_s), 8))
        row[:, :4] = key
        row[:, 4] = np.resize([CODE[name] for name in PIECES], len(took_s))
        alone = [i for i in range(len(pieces)) if (key[2], i) in unpaired]
        row[np.array(alone, int) * len(PIECES) + OTHER_PIECE, 4] = CODE["point-to-point"]
        row[:, 5] = np.arange(len(took_s))
        row[:, 6] = np.concatenate([[0.0], np.cumsum(took_s)[:-1]])
        row[:, 7] = took_s
        rows.append(row)
    return np.concatenate(rows)


def _visible_calls(found: Sequence[StepSegments]) -> list[Call]:
    """Return the collectives that usually delay their workers, in the order in which they end.

    Collectives of steps and ranks are the same by name and sequence, not by position: a step may
    have more of one kind than another step has.
    """
    ratios: dict[Call, list[float]] = defaultdict(list)
    places: dict[Call, list[float]] = defaultdict(list)
    for segments in found:
        whole = np.where(segments.whole > 0, segments.whole, 1.0)
        visible = (segments.waited / whole)[:-1].tolist()
        for place, (call, ratio) in enumerate(zip(segments.calls, visible, strict=True)):
            ratios[call].append(ratio)
            places[call].append((place + 1) / (len(visible) + 1))
    kept = [call for call, values in ratios.items() if np.median(values) >= VISIBLE_RATIO]
    return sorted(kept, key=lambda call: (float(np.mean(places[call])), call))


def _unpaired(
    keys: Sequence[tuple[int, int, int, int]], joined: Sequence[FloatArray]
) -> set[tuple[int, int]]:
    """Return stage and number of the pieces whose other communication has unknown partners.

    Replicas that all usually have other communication in a piece wait there for each other.
    Otherwise it is unknown what part of it is waiting.
    """
    other_s: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for (_, dp, stage, _), pieces in zip(keys, joined, strict=True):
        for i, value in enumerate(pieces[:, OTHER_PIECE].tolist()):
            other_s[stage, i, dp].append(value)
    return {place[:2] for place, values in other_s.items() if np.median(values) <= NONE_S}


def segments_of(
    exchange: Intervals,
    work: Intervals,
    other: Intervals,
    *,
    cuts: Intervals,
    span: tuple[float, float],
    calls: tuple[Call, ...] | None = None,
) -> StepSegments:
    """Cut a step at the end of every collective.

    Parameters
    ----------
    exchange, work, other : start and end, (n,) seconds each
    cuts : those of ``exchange`` that belong to the step, in order of end
    span : start and end of the step
    calls : of the cuts; None: by their number

    Notes
    -----
    A worker may wait through several collectives in a row, and continue only after the last.
    All of its waiting belongs to that one.
    """
    begin, until = span
    start_s, end_s = cuts
    at = np.concatenate([[begin], np.minimum(end_s, until), [until]])
    # Collectives of several streams overlap: the earliest to start that has not ended counts.
    starts = np.minimum.accumulate(np.append(start_s, until)[::-1])[::-1]
    starts = np.maximum(starts, at[:-1])
    busy_s, done_s, all_s = (
        np.interp(at, *busy_time(*(np.concatenate(part) for part in zip(*some, strict=True))))
        for some in ((work,), (work, exchange), (work, exchange, other))
    )
    by_start_s = np.interp(starts, *busy_time(*work))
    visible = np.diff(done_s - busy_s)
    resumed = np.diff(busy_s)[1:] > RESUMED_RATIO * (until - begin)
    waited = visible.copy()
    if len(visible) > 1:
        # The wait of the last collective ends with it, whatever follows.
        lasts = np.append(np.flatnonzero(resumed[:-1]), len(visible) - 2)
        firsts = np.append(0, lasts[:-1] + 1)
        waited[:-1] = 0.0
        waited[lasts] = np.add.reduceat(visible[:-1], firsts)
    return StepSegments(
        before=by_start_s - busy_s[:-1],
        parallel=busy_s[1:] - by_start_s,
        idle=np.maximum(np.diff(at - all_s), 0.0),
        other=np.maximum(np.diff(all_s - done_s), 0.0),
        visible=np.maximum(visible, 0.0),
        waited=np.maximum(waited, 0.0),
        whole=np.append(end_s - start_s, 0.0),
        calls=_calls([""] * len(end_s)) if calls is None else calls,
    )


def busy_time(start_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return times, and for how long any kernel had run by then; streams overlap."""
    if not len(start_s):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(start_s)
    start_s, reach = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate([[True], start_s[1:] > reach[:-1]])
    opens, closes = start_s[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(reach) - 1)]
    knots = np.stack([opens, closes], axis=1).ravel()
    run = np.stack([np.zeros_like(opens), closes - opens], axis=1).ravel()
    return knots, np.cumsum(run)
