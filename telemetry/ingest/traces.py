"""Ingest of recorded traces: Parquet files of operations, and PyTorch profiler's Chrome traces."""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.trace import CODE, KERNEL_KINDS, KINDS, BoolArray, Trace, TraceError

PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
ENDINGS = (".json", ".json.gz", ".parquet")


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read one Parquet file, or the JSON files of one job; of a folder, all its files."""
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
        if not found:
            raise TraceError(f"{path.name}: holds no file that ends in {', '.join(ENDINGS)}")
        files += found
    heads = {file: _head(file) for file in files}
    if empty := [file.name for file, head in heads.items() if not head]:
        raise TraceError(f"{empty[0]}: is empty; copy it again")
    parquet = [file for file, head in heads.items() if head == PARQUET]
    if parquet and len(files) > 1:
        raise TraceError(f"{parquet[0].name}: a Parquet trace is one file; give it alone")
    if parquet:
        return read_parquet(parquet[0])
    for file, head in heads.items():
        if head[:2] != GZIP and head.lstrip()[:1] not in (b"{", b"["):
            raise TraceError(
                f"{file.name}: is neither Parquet nor JSON (gzipped or not); give a trace of "
                "one row per operation, or PyTorch profiler's Chrome trace"
            )
    return trace_of_ranks([each for file in files for each in read_kineto(file)])


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


# Columns of a Parquet trace. Times are Unix seconds, or count from any origin.
WHOLE = ("dp_rank", "stage", "step", "seq_id")
REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
COLUMNS = (*REQUIRED, "rank", "mc", "mb_id")
LAYOUT = re.compile(r"^(\w+)\s*:\s*(\d{1,6})\s*$", re.MULTILINE)
MAX_TRACE_S = 86_400.0
UNIX_S = 1e9
MAX_INTEGER = 10_000_000
Columns = Mapping[str, NDArray[np.generic]]


def read_parquet(path: Path) -> Trace:
    """Read a Parquet file; ``<name>.yaml`` next to it may have the tensor-parallel degree.

    Each row is one operation of the first tensor-parallel rank of a worker, or of all of them,
    which then count as one. Unknown columns are ignored.
    """
    try:
        names = pq.read_schema(path).names
        if missing := [name for name in REQUIRED if name not in names]:
            raise TraceError(
                f"{path.name}: has no column {', '.join(missing)}; required are "
                f"{', '.join(REQUIRED)}, optional {', '.join(COLUMNS[len(REQUIRED) :])}"
            )
        table = pq.read_table(path, columns=[name for name in COLUMNS if name in names])
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path.name}: is not a complete Parquet file; copy it again") from error
    if not table.num_rows:
        raise TraceError(f"{path.name}: has no operations; record at least one complete step")
    for name in REQUIRED:
        if table[name].null_count:
            raise TraceError(f"{name}: has {table[name].null_count} empty rows; fill them")
    try:
        coded = table["optype"].cast(pa.string()).combine_chunks().dictionary_encode()
    except pa.ArrowException as error:
        raise TraceError("optype: must be names of operations") from error
    kinds = kinds_of(coded.dictionary.to_pylist(), coded.indices.to_numpy().astype("i8"))
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "optype"}
    layout: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError):
        layout = dict(LAYOUT.findall(path.with_suffix(".yaml").read_text()))
    return trace_of(columns, kinds, tp=int(layout["tp_size"]) if "tp_size" in layout else None)


def trace_of(columns: Columns, kinds: IntArray, *, tp: int | None) -> Trace:
    """Check columns and return them as a Trace; ``kinds`` are indexes into KINDS."""
    start_s, duration_s = (_seconds(columns, name) for name in ("start_ts", "duration"))
    if (duration_s < 0).any():
        raise _refused("duration", "is negative", duration_s < 0, duration_s)
    if (duration_s > MAX_TRACE_S).any():
        text = "is more than a day; times must be in seconds"
        raise _refused("duration", text, duration_s > MAX_TRACE_S, duration_s)
    dp, stage, step, seq = (_whole(columns, name) for name in WHOLE)
    rank = _optional(columns, "rank", dp * (stage.max() + 1) + stage)
    began_s = float(start_s.min())
    return Trace(
        kind=kinds,
        step=step,
        dp=dp,
        stage=stage,
        rank=rank,
        seq=seq,
        chunk=_optional(columns, "mc", np.zeros_like(seq)),
        microbatch=_optional(columns, "mb_id", np.full_like(seq, -1)),
        start_s=start_s,
        duration_s=duration_s,
        tp=tp,
        began_at_s=began_s if began_s > UNIX_S else None,
    )


def kinds_of(names: list[str], codes: IntArray) -> IntArray:
    """Return indexes into KINDS; ``codes`` are indexes into ``names``."""
    used = np.unique(codes)
    unknown = sorted({names[i] for i in used.tolist()} - set(KINDS))
    if unknown:
        raise TraceError(
            f"optype: {', '.join(map(repr, unknown[:5]))} is unknown; known are {', '.join(KINDS)}"
        )
    return np.asarray(np.array([CODE.get(name, -1) for name in names])[codes])


def _floats(columns: Columns, name: str, rule: str) -> FloatArray:
    try:
        return np.asarray(columns[name], "f8")
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be {rule}") from error


def _seconds(columns: Columns, name: str) -> FloatArray:
    values = _floats(columns, name, "numbers, seconds")
    if not np.isfinite(values).all():
        raise _refused(name, "is not a number", ~np.isfinite(values), values)
    return values


def _whole(columns: Columns, name: str) -> IntArray:
    values = _floats(columns, name, "whole numbers")
    bad = ~((values >= 0) & (values <= MAX_INTEGER if name != "step" else np.isfinite(values)))
    if (bad := bad | (values != np.floor(values))).any():
        raise _refused(name, "must be a whole number, 0 or more", bad, values)
    whole: IntArray = values.astype("i8")
    return whole


def _optional(columns: Columns, name: str, default: IntArray) -> IntArray:
    """Return a column of whole numbers, -1 where unknown."""
    if name not in columns:
        return default
    values = np.nan_to_num(_floats(columns, name, "whole numbers"), nan=-1.0)
    whole: IntArray = np.clip(values, -1, MAX_INTEGER).astype("i8")
    return whole


def _refused(name: str, why: str, bad: BoolArray, values: FloatArray) -> TraceError:
    row = int(np.flatnonzero(bad)[0])
    return TraceError(f"{name}: row {row} {why} ({values[row]:g})")


MAX_BYTES = 2 * 1024**3
US = 1e-6
NS = 1e-9
DEVICE = ("kernel", "neuron", "neuroncore", "neuron_core", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
# NCCL, RCCL and Neuron use the same names, with other case and hyphens.
COLLECTIVE = re.compile(
    r"all[-_ ]?reduce|reduce[-_ ]?scatter|all[-_ ]?gather|broadcast", re.IGNORECASE
)
SEND = re.compile(r"send[-_ ]?recv|\bncclDevKernel_(?:Send|Recv)|collective[-_]?permute", re.I)
ALL_TO_ALL = re.compile(r"all[-_ ]?to[-_ ]?all", re.IGNORECASE)
LIBRARY = re.compile(r"nccl|rccl|^cc[-_:]|neuron|collective|^(?:all|reduce)[-_ ]", re.IGNORECASE)
# PyTorch up to 2.5 writes an empty description without its quotes, which is invalid JSON.
EMPTY_VALUE = re.compile(rb'("Process Group (?:Description|Name)"\s*:\s*)(?=[,}])')


class _Event(msgspec.Struct):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    ts: Any = None
    dur: Any = 0
    pid: Any = 0
    args: Any = None


class _File(msgspec.Struct):
    """One file; some files have only the list of events."""

    traceEvents: list[_Event]  # noqa: N815 - their name
    distributedInfo: Any = None  # noqa: N815 - their name
    baseTimeNanoseconds: Any = 0  # noqa: N815 - their name


@dataclass(slots=True)
class RankEvents:
    """The kernels (n,) and steps of one rank.

    ``start_s`` and ``end_s`` are seconds on the rank's own clock. ``group`` is an index into
    ``groups``, the participants of collectives, empty if unknown. ``is_other_comm`` are sends,
    receives and all-to-all; ``has_sends``: some of them send. ``steps`` maps the numbers of steps
    to their spans.
    """

    rank: int
    world: int | None
    start_s: FloatArray
    end_s: FloatArray
    is_collective: BoolArray
    is_other_comm: BoolArray
    has_sends: bool
    group: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    groups: list[tuple[int, ...]] = field(default_factory=list)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    began_at_s: float = 0.0


def read_kineto(path: Path) -> Iterator[RankEvents]:
    file = _decoded(path)
    info = file.distributedInfo if isinstance(file.distributedInfo, dict) else {}
    events = [
        event
        for event in file.traceEvents
        if event.ph == "X"
        and isinstance(event.ts, int | float)
        and isinstance(event.dur, int | float)
    ]
    device = [event for event in events if str(event.cat).lower() in DEVICE]
    if not device:
        raise TraceError(
            f"{path.name}: has no kernels, only "
            f"{', '.join(sorted({str(e.cat) for e in events})[:6]) or 'nothing'}; "
            "profile the device as well (such as ProfilerActivity.CUDA)"
        )
    base_s = float(file.baseTimeNanoseconds or 0) * NS
    streams = _by_stream(path, info, device)
    for rank, own in sorted(streams.items()):
        yield _rank_events(rank, own, events, info=info, base_s=base_s, is_alone=len(streams) == 1)


def _decoded(path: Path) -> _File:
    if path.stat().st_size > MAX_BYTES:
        raise _too_large(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == GZIP:
            with gzip.open(path) as stream:
                raw = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path.name}: the gzip file is truncated; copy it again") from error
    if len(raw) > MAX_BYTES:
        raise _too_large(path)
    raw = EMPTY_VALUE.sub(rb'\1""', raw)
    try:
        if raw.lstrip()[:1] == b"[":
            return _File(msgspec.json.decode(raw, type=list[_Event]))
        return msgspec.json.decode(raw, type=_File)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path.name}: is not a Chrome trace: {error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path.name}: is not complete JSON ({error}); copy it again") from error


def _too_large(path: Path) -> TraceError:
    return TraceError(f"{path.name}: is more than 2 GiB; record fewer steps, or one file per rank")


def _by_stream(path: Path, info: dict[str, Any], device: list[_Event]) -> dict[int, list[_Event]]:
    """Return the device's events by rank: the event's, the file's, else one per process."""
    streams: dict[int, list[_Event]] = {}
    if any(_rank_of(event) is not None for event in device):
        for event in device:
            streams.setdefault(_rank_of(event) or 0, []).append(event)
        return streams
    if isinstance(info.get("rank"), int):
        return {info["rank"]: device}
    processes = sorted({str(event.pid) for event in device})
    if len(processes) == 1 and (named := RANK.search(path.name)):
        return {int(named.group(1)): device}
    for event in device:
        streams.setdefault(processes.index(str(event.pid)), []).append(event)
    return streams


def _rank_of(event: _Event) -> int | None:
    """Return an event's rank; only merged files have it."""
    rank = event.args.get("rank") if isinstance(event.args, dict) else None
    return rank if isinstance(rank, int) else None


def _rank_events(
    rank: int,
    device: list[_Event],
    events: list[_Event],
    *,
    info: dict[str, Any],
    base_s: float,
    is_alone: bool,
) -> RankEvents:
    names = [str(event.name) for event in device]
    is_library = np.array([bool(LIBRARY.search(name)) for name in names])
    is_send, is_all_to_all = (
        np.array([bool(kind.search(name)) for name in names]) for kind in (SEND, ALL_TO_ALL)
    )
    members = [_members(event) for event in device]
    groups = sorted(set(members))
    start_s = np.array([event.ts for event in device], "f8") * US
    lasts_s = np.array([event.dur for event in device], "f8") * US
    if not (np.isfinite(start_s).all() and (lasts_s >= 0).all() and lasts_s.max() < 86_400):
        raise TraceError(f"rank {rank}: ts and dur must be microseconds, dur 0 to a day")
    processes = {event.pid for event in device}
    own = [e for e in events if is_alone or e.pid in processes or _rank_of(e) == rank]
    world = info.get("world_size")
    return RankEvents(
        rank=rank,
        world=world if isinstance(world, int) and world > 0 else None,
        start_s=start_s,
        end_s=start_s + lasts_s,
        is_collective=is_library & np.array([bool(COLLECTIVE.search(name)) for name in names]),
        is_other_comm=is_send | (is_library & is_all_to_all),
        has_sends=bool(is_send.any()),
        group=np.array([groups.index(each) for each in members]),
        groups=groups,
        steps=_steps(own) or _steps(events),
        began_at_s=base_s + float(start_s.min()),
    )


def _members(event: _Event) -> tuple[int, ...]:
    """Return the ranks of a collective's group; empty if unknown."""
    ranks = event.args.get("Process Group Ranks") if isinstance(event.args, dict) else None
    if isinstance(ranks, str):
        ranks = None if "..." in ranks else [int(number) for number in re.findall(r"\d+", ranks)]
    return tuple(sorted(ranks)) if isinstance(ranks, list) and ranks else ()


def _steps(events: list[_Event]) -> dict[int, tuple[float, float]]:
    """Return the span of each step, by the device's annotations, else the host's."""
    for cats in (("gpu_user_annotation",), ("user_annotation", "cpu_op", "python_function", "")):
        spans: dict[int, tuple[float, float]] = {}
        for event in events:
            if str(event.cat) in cats and (found := STEP.search(str(event.name))):
                number, begin = int(found.group(1)), event.ts * US
                first, last = spans.get(number, (begin, begin))
                spans[number] = min(first, begin), max(last, begin + event.dur * US)
        if spans:
            return spans
    return {}


# Less work than this share of the step between two collectives: a worker waited for both.
RESUMED_RATIO = 0.01
# A collective of which less than this is visible is hidden behind work and delays no worker.
VISIBLE_RATIO = 0.05
# Work before a collective and during it, then the rest of a piece.
SEGMENT_KINDS = ("compute", *KERNEL_KINDS)


@dataclass(frozen=True, slots=True)
class StepSegments:
    """A rank's step, cut at the end of each collective: (n_collectives + 1,) seconds each.

    ``before`` and ``parallel`` are work before and during the collective, ``other`` is other
    communication before it without work in parallel, ``visible`` is the collective without work in
    parallel, ``whole`` all of it. All but ``whole`` add up to the step.
    """

    before: FloatArray
    parallel: FloatArray
    idle: FloatArray
    other: FloatArray
    visible: FloatArray
    whole: FloatArray

    def joined(self, kept: IntArray) -> FloatArray:
        """Return the segments up to each collective that is kept: (n_kept + 1, 5) seconds.

        The others are hidden behind work; their visible part counts as idle time.
        """
        ends = np.append(kept[kept < len(self.visible) - 1], len(self.visible) - 1)
        firsts = np.append(0, ends[:-1] + 1)
        work = np.add.reduceat(self.before + self.parallel, firsts)
        before, visible = self.before[firsts], self.visible[ends]
        idle = np.add.reduceat(self.idle + self.visible, firsts) - visible
        other = np.add.reduceat(self.other, firsts)
        return np.stack([before, work - before, idle, other, visible], axis=1)


def trace_of_ranks(ranks: Sequence[RankEvents]) -> Trace:
    """Return the ranks' steps as segments of work and collectives.

    Notes
    -----
    Each collective ends a segment: the time since the previous one is work if a kernel ran
    before or during it, collective if only that ran, else idle. Clocks of different ranks are
    not compared. Ranks that share a group for gradients are replicas. Several such groups are
    pipeline stages if kernels send to each other, else shards of one tensor-parallel worker,
    whose collectives count as work.
    """
    numbers = Counter(each.rank for each in ranks)
    if twice := [rank for rank, n in numbers.items() if n > 1]:
        raise TraceError(f"rank {twice[0]}: occurs twice; give each rank's file once")
    # The ranks with which a rank exchanges gradients: its largest group.
    groups = {}
    for each in ranks:
        if not each.is_collective.any():
            raise TraceError(
                f"rank {each.rank}: has no collective (all-reduce, reduce-scatter, all-gather "
                "…); record a distributed job, with the kernels of its communication"
            )
        used = {each.groups[i] for i in np.unique(each.group[each.is_collective]).tolist()}
        groups[each.rank] = max(used, key=lambda members: (len(members), members))
    places = _places(groups, is_pipeline=any(each.has_sends for each in ranks))
    steps = [
        ((number, *places[each.rank], each.rank), _step_segments(each, groups[each.rank], span))
        for each in ranks
        for number, span in _spans(each).items()
    ]
    # The collectives that delay a worker, by their index in the step.
    n = max(len(segments.visible) for _, segments in steps) - 1
    ratio = np.full((len(steps), n), np.nan)
    for row, (_, segments) in zip(ratio, steps, strict=True):
        whole = np.where(segments.whole > 0, segments.whole, 1.0)
        row[: len(whole) - 1] = (segments.visible / whole)[:-1]
    delays = np.nanmedian(ratio, axis=0) >= VISIBLE_RATIO if n else np.zeros(0, bool)
    kept = np.flatnonzero(delays)
    rows = np.concatenate([_rows(segments, kept, head) for head, segments in steps])
    step, dp, stage, rank, kind, seq = rows[:, :6].astype("i8").T
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
        start_s=rows[:, 6],
        duration_s=rows[:, 7],
        has_common_clock=False,
        n_ranks_missing=max(0, world - len(ranks)),
        began_at_s=began_at_s if began_at_s > UNIX_S else None,
    )


def _places(
    groups: dict[int, tuple[int, ...]], *, is_pipeline: bool
) -> dict[int, tuple[int, int]]:
    """Return replica and stage of each rank."""
    columns = sorted(set(groups.values()))
    places = {}
    for rank, members in groups.items():
        same = [other for other in sorted(groups) if groups[other] == members]
        places[rank] = (same.index(rank), columns.index(members) if is_pipeline else 0)
    return places


def _spans(each: RankEvents) -> dict[int, tuple[float, float]]:
    """Return a rank's steps, each until the next begins; without marks, all is one step."""
    if not each.steps:
        return {0: (float(each.start_s.min()), float(each.end_s.max()))}
    numbers = sorted(each.steps)
    begins = [each.steps[number][0] for number in numbers]
    ends = [*begins[1:], each.steps[numbers[-1]][1]]
    return dict(zip(numbers, zip(begins, ends, strict=True), strict=True))


def _step_segments(
    each: RankEvents, members: tuple[int, ...], span: tuple[float, float]
) -> StepSegments:
    """Cut one step at the end of every gradient collective."""
    begin, until = span
    inside = (each.start_s >= begin) & (each.start_s < until)
    mine = each.is_collective & (each.group == each.groups.index(members))
    mine = np.flatnonzero(mine & inside)
    mine = mine[np.argsort(each.end_s[mine])]
    work = inside & ~each.is_other_comm
    work[mine] = False
    rows = (mine, work, inside & each.is_other_comm)
    return segments_of(*((each.start_s[some], each.end_s[some]) for some in rows), span=span)


def _rows(segments: StepSegments, kept: IntArray, head: tuple[int, int, int, int]) -> FloatArray:
    """Return one step of one rank as operations, (n, 8).

    Columns are step, replica, stage, rank, kind, sequence number, start and duration in seconds.
    """
    took_s = segments.joined(kept).ravel()[:-1]
    rows = np.empty((len(took_s), 8))
    rows[:, :4] = head
    rows[:, 4] = np.resize([CODE[name] for name in SEGMENT_KINDS], len(took_s))
    rows[:, 5] = np.arange(len(took_s))
    rows[:, 6] = np.concatenate([[0.0], np.cumsum(took_s)[:-1]])
    rows[:, 7] = took_s
    return rows


def segments_of(
    collectives: tuple[FloatArray, FloatArray],
    work: tuple[FloatArray, FloatArray],
    other: tuple[FloatArray, FloatArray],
    *,
    span: tuple[float, float],
) -> StepSegments:
    """Cut a step at the end of every collective.

    Parameters
    ----------
    collectives, work, other : start and end, (n,) seconds each; collectives in order of end
    span : start and end of the step

    Notes
    -----
    A worker may wait through several collectives in a row, and continue only after the last.
    All of its waiting belongs to that one.
    """
    begin, until = span
    start_s, end_s = collectives
    knots, done = busy_time(*work)
    cuts = np.concatenate([[begin], np.minimum(end_s, until), [until]])
    starts = np.append(np.maximum(start_s, cuts[:-2]), until)
    by_start, by_end = (np.interp(moments, knots, done) for moments in (starts, cuts))
    before, parallel = by_start - by_end[:-1], by_end[1:] - by_start
    visible = np.maximum(cuts[1:] - starts - parallel, 0.0)
    knots, done = busy_time(*(np.concatenate(pair) for pair in zip(work, other, strict=True)))
    other_s = np.interp(starts, knots, done) - np.interp(cuts[:-1], knots, done) - before
    other_s = np.maximum(other_s, 0.0)
    idle = np.maximum(np.diff(cuts) - before - parallel - other_s - visible, 0.0)
    resumed = (before + parallel)[1:] > RESUMED_RATIO * (until - begin)
    whole = np.append(end_s - start_s, 0.0)
    moved = visible
    if len(visible) > 1:
        # The wait of the last collective ends with it, whatever follows.
        lasts = np.append(np.flatnonzero(resumed[:-1]), len(visible) - 2)
        firsts = np.append(0, lasts[:-1] + 1)
        moved = np.zeros_like(visible)
        moved[lasts] = np.add.reduceat(visible[:-1], firsts)
    return StepSegments(before, parallel, idle, other_s, moved, whole)


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
