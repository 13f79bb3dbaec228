"""History from all tiers: seconds from the hot tier, then minutes, then the long-term store."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from django.db.models import Max, Min, Q

from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.series import EVERY_STEP, SOME_STEPS, Series, SeriesSource
from telemetry.steps import AVERAGE, PHASES, Merged, StepBatch, is_reported
from telemetry.store.chunks import (
    ENDED,
    FIRST_PHASE,
    LOSS,
    N_COLUMNS,
    OTHER_COMM,
    STEP,
    TOKENS,
    Chunk,
    average_groups,
    chunk_of,
    decode_chunk,
    decode_minutes,
    decode_steps,
    join_chunks,
    minute_means,
)
from telemetry.store.models import DayRollup, HourRollup, MinuteRollup, RunChunk
from telemetry.store.packing import decode, read_layout, unpack
from telemetry.store.reading import LongTerm, LongTermError, Source
from telemetry.store.rollups import (
    LEAST_PARTS,
    N_STATS,
    TEN_MINUTES_S,
    TOGETHER,
    as_stored,
    coarser,
    decode_day,
    decode_hour,
    roll_up,
)
from telemetry.units import DAY_S, HOUR_S, MINUTE_S

# Divisors of an hour. The durable tier deletes by hours, so tiers meet between two rows.
GRIDS_S = (MINUTE_S, 300, 600, 1800)
MAX_ROWS = 2000

MAX_STEPS = 2000
# Windows with more steps than this are read by minutes.
MAX_STEPS_READ = 50_000
CHECKPOINT = FIRST_PHASE + PHASES.index("checkpoint_s")
# Rows of history have two more columns than steps: the number of steps in a row, and their
# tokens in all.
N_EACH, ALL_TOKENS = N_COLUMNS, N_COLUMNS + 1
NO_STEPS = np.zeros((0, N_COLUMNS))


def grid_s(length_s: float) -> int:
    """Return the seconds per row of a window: at most 2,000 rows, or half an hour per row.

    >>> [grid_s(days * 86_400) for days in (1, 7, 30)]
    [60, 600, 1800]
    """
    return next((grid for grid in GRIDS_S if length_s <= grid * MAX_ROWS), GRIDS_S[-1])


def durable_from() -> int | None:
    """Return the oldest second in the durable tier, None if it is empty."""
    day = DayRollup.objects.aggregate(oldest=Min("day"))["oldest"]
    hour = HourRollup.objects.aggregate(oldest=Min("hour"))["oldest"]
    minute = MinuteRollup.objects.aggregate(oldest=Min("minute"))["oldest"]
    return min((second for second in (day, hour, minute) if second is not None), default=None)


def merged_until(start: int, end: int) -> int | None:
    """Return the second before which a window has rows of ten minutes; None if it has none."""
    days = DayRollup.objects.aggregate(first=Min("day"), last=Max("day"))
    first, last = days["first"], days["last"]
    if first is None or last is None or end < first or start >= last + DAY_S:
        return None
    return int(last) + DAY_S


def fill_from_long_term(
    long_term: LongTerm,
    *,
    node: str,
    metric: str,
    t_s: IntArray,
    stats: FloatArray,
    stretches: list[SeriesSource],
) -> tuple[FloatArray, list[SeriesSource]]:
    """Fill rows older than the durable tier from the long-term store.

    ``stretches`` are those of the durable tier. If the store fails, the rows stay as they are and
    their source has the reason.
    """
    kept_from = durable_from()
    n_older = len(t_s) if kept_from is None else int(np.searchsorted(t_s, kept_from))
    if not n_older:
        return stats, stretches
    every_s = stretches[0].every_s
    begin, end, why = int(t_s[0]), int(t_s[n_older - 1]) + every_s, ""
    try:
        _, values = long_term.node_minutes(node, metric, start=begin, end=end, every_s=every_s)
        older = values.reshape(n_older, N_STATS, -1)
        n_parts = max(stats.shape[2], older.shape[2])
        stats, older = (with_parts(each, n_parts) for each in (stats, older))
        stats[:n_older] = np.where(np.isnan(older), stats[:n_older], older)
    except LongTermError as error:
        why = str(error)
    kept = int(t_s[n_older]) if n_older < len(t_s) else end
    later = [replace(each, since=max(each.since, kept)) for each in stretches]
    older_stretch = SeriesSource(begin, every_s, "long term", why)
    return stats, [older_stretch, *(later if n_older < len(t_s) else ())]


def with_parts(stats: FloatArray, n_parts: int) -> FloatArray:
    """Pad (n, 3, fewer) with parts that are NaN."""
    missing = [(0, 0), (0, 0), (0, n_parts - stats.shape[2])]
    return np.pad(stats, missing, constant_values=np.nan)


def older_steps(
    long_term: LongTerm, run: str, kept: FloatArray, stretch: SeriesSource, *, end_s: float
) -> tuple[FloatArray, tuple[SeriesSource, ...]]:
    """Return average steps from the long-term store, older than those of the durable tier.

    Parameters
    ----------
    kept : (n_steps, 9)
        The steps of the window that the durable tier has.
    stretch : their source, from the start of the window

    Returns
    -------
    older : (n, 9)
        Rows of equal length up to the first minute that is kept.
    stretches : the sources of the window
    """
    kept_from = durable_from()
    steps_from = int(kept[0, ENDED]) if len(kept) else int(end_s)
    first = min(steps_from if kept_from is None else kept_from, steps_from, int(end_s))
    first = first // MINUTE_S * MINUTE_S
    if first <= stretch.since:
        return kept[:0], (stretch,)
    every_s = grid_s(end_s - stretch.since)
    begin = stretch.since // every_s * every_s
    cut = max(begin, first // every_s * every_s)
    pieces, why = [kept[:0]], ""
    try:
        # The last rows before the border are single minutes, so that none is missing or double.
        for start, end, grid in ((begin, cut, every_s), (cut, first, MINUTE_S)):
            if start < end:
                pieces.append(long_term.run_minutes(run, start=start, end=end, every_s=grid))
    except LongTermError as error:
        why = str(error)
    stretches = [SeriesSource(stretch.since, every_s, "long term", why)]
    if first < end_s:
        stretches.append(SeriesSource(first, stretch.every_s, stretch.tier))
    older = np.concatenate(pieces)
    return older[older[:, ENDED] >= stretch.since], tuple(stretches)


def node_series(
    hot: Source,
    *,
    shard: str,
    node: str,
    metric: str,
    start: int,
    end: int,
    long_term: LongTerm | None = None,
) -> Series:
    """Return one metric of one node from start to end, both included; gaps are NaN.

    Seconds if the hot tier has the whole window, else minutes, by their first second, with
    minimum and maximum. Minutes that are not rolled up yet come from the hot tier. If the hot
    tier was emptied recently, the seconds before that show their minute's values. Windows of
    more than 2,000 minutes have longer rows, and so have those with rows of ten minutes.
    Rows older than the durable tier come from the long-term store.
    """
    newest = hot.newest().get(shard, 0)
    if start >= newest - hot.keep_s and end - start <= hot.keep_s:
        span = hot.window(shard, (metric,), start=start, end=end, only=(node,)).of((node,))
        if not np.isfinite(span.values[metric][:MINUTE_S]).any():
            # Whether the others of its shard reported says whether the hot tier was emptied.
            span = hot.window(shard, (metric,), start=start, end=end)
        return _seconds(span, shard, node, metric)
    every_s, border = grid_s(end - start), merged_until(start, end)
    every_s = every_s if border is None else max(every_s, TEN_MINUTES_S)
    grid = np.arange(start // every_s * every_s, end + 1, MINUTE_S)
    pieces = _stored_minutes(shard, node, metric, int(grid[0]), end)
    done = max((int(minutes[-1]) + MINUTE_S for minutes, _ in pieces), default=0)
    whole = (newest - hot.keep_s) // MINUTE_S * MINUTE_S + MINUTE_S
    begin, newest = max(done, int(grid[0]), whole), min(newest, int(grid[-1]))
    if begin <= newest:
        last = newest - newest % MINUTE_S + MINUTE_S - 1
        window = hot.window(shard, (metric,), start=begin, end=last, only=(node,))
        recent = roll_up(window.of((node,)))
        values = recent.values.get(metric, np.zeros((len(recent.minutes), 1, 0)))
        pieces.append((recent.minutes, as_stored(metric, values[:, 0])))
    t_s, stats = grid[:: every_s // MINUTE_S], coarser(_on_grid(grid, pieces), every_s // MINUTE_S)
    if border is not None:
        days = _stored_days(shard, node, metric, int(grid[0]), end)
        older = _on_grid(np.arange(grid[0], end + 1, TEN_MINUTES_S), days, every_s=TEN_MINUTES_S)
        older = coarser(older, every_s // TEN_MINUTES_S)
        n_parts = max(stats.shape[2], older.shape[2])
        stats, older = with_parts(stats, n_parts), with_parts(older, n_parts)
        stats = np.where(np.isnan(stats), older, stats)
    stretches = [SeriesSource(int(t_s[0]), every_s, "durable")]
    if border is not None and stats.shape[2] >= LEAST_PARTS:
        later = [replace(stretches[0], since=border)] if border <= t_s[-1] else []
        stretches = [replace(stretches[0], has_all_parts=False), *later]
    if long_term is not None:
        stats, stretches = fill_from_long_term(
            long_term, node=node, metric=metric, t_s=t_s, stats=stats, stretches=stretches
        )
    low, mean, high = (stats[:, i] for i in range(N_STATS))
    return Series(metric, t_s, mean, every_s, low, high, tuple(stretches))


def _seconds(span: Span, shard: str, node: str, metric: str) -> Series:
    """Return seconds; those before the first in the hot tier show their minute's values."""
    ticks, values = span.ticks, span.of((node,)).values[metric][:, 0]
    reported = np.flatnonzero(np.isfinite(span.values[metric]).any(axis=(1, 2)))
    n_before = int(reported[0]) if reported.size else len(ticks)
    whole = (SeriesSource(int(ticks[0]), 1, "hot"),)
    if n_before < MINUTE_S:
        return Series(metric, ticks, values, stretches=whole)
    grid = np.arange(ticks[0] // MINUTE_S * MINUTE_S, ticks[n_before - 1] + 1, MINUTE_S)
    pieces = _stored_minutes(shard, node, metric, int(grid[0]), int(grid[-1]))
    if not pieces:
        return Series(metric, ticks, values, stretches=whole)
    stats = _on_grid(grid, pieces, n_parts=values.shape[1])
    rest = np.full((len(ticks) - n_before, stats.shape[2]), np.nan)
    rest[:, : values.shape[1]] = values[n_before:]
    place = (ticks[:n_before] - grid[0]) // MINUTE_S
    low, mean, high = (np.concatenate([stats[place, i], rest]) for i in range(N_STATS))
    stretches = [SeriesSource(int(ticks[0]), MINUTE_S, "durable")]
    if n_before < len(ticks):
        stretches.append(SeriesSource(int(ticks[n_before]), 1, "hot"))
    return Series(metric, ticks, mean, 1, low, high, tuple(stretches))


# Minutes, and for each the minima of all parts, the means and the maxima: (n, 3 * n_parts).
MinuteStats = tuple[IntArray, FloatArray]


def _stored_minutes(shard: str, node: str, metric: str, start: int, end: int) -> list[MinuteStats]:
    """Return the minutes of the durable tier; later entries take precedence."""
    hours = HourRollup.objects.filter(
        shard=shard,
        metric__in=(metric, TOGETHER),
        hour__gte=start - start % HOUR_S,
        hour__lte=end,
    )
    # In any order, as hours share no minute: the database need not sort their contents.
    pieces = [
        (minutes.minutes, minutes.values[metric][:, 0])
        for key, hour, data in hours.values_list("metric", "hour", "data")
        if (minutes := decode_hour(key, hour, bytes(data), node, metric))
    ]
    loose = MinuteRollup.objects.filter(shard=shard, minute__gte=start, minute__lte=end)
    by_layout: dict[bytes, list[tuple[int, bytes]]] = {}
    for row in loose.order_by("minute"):
        by_layout.setdefault(bytes(row.layout), []).append((row.minute, bytes(row.data)))
    for encoded, rows in by_layout.items():
        layout = read_layout(encoded)
        codes = unpack([data for _, data in rows], layout, metric)
        if codes is not None and node in layout.nodes:
            values = decode(codes[:, layout.nodes.index(node)], METRICS[metric].packing)
            pieces.append((np.array([minute for minute, _ in rows]), values))
    return pieces


def _stored_days(shard: str, node: str, metric: str, start: int, end: int) -> list[MinuteStats]:
    """Return the rows of ten minutes of the durable tier."""
    days = DayRollup.objects.filter(
        shard=shard, metric__in=(metric, TOGETHER), day__gte=start - start % DAY_S, day__lte=end
    )
    return [
        (rows.minutes, rows.values[metric][:, 0])
        for day, data in days.values_list("day", "data")
        if (rows := decode_day(day, bytes(data), node, metric))
    ]


def parts_at(
    hot: Source, metric: str, shards: Sequence[str], *, at: int
) -> list[tuple[tuple[str, ...], FloatArray]]:
    """Return a metric of all nodes of some shards at a second: nodes, and (n_nodes, n_parts).

    It is that second where the hot tier has it, else the mean of its minute or ten minutes.
    """
    if at > max(hot.newest().values(), default=0) - hot.keep_s:
        second = hot.moments(shards, (metric,), ticks=(at,))
        if len(second.ticks) and np.isfinite(second.values[metric]).any():
            return [(second.nodes, second.values[metric][0])]
    minute = at - at % MINUTE_S
    found = []
    loose = MinuteRollup.objects.filter(shard__in=shards, minute=minute).order_by()
    for encoded, data in loose.values_list("layout", "data"):
        layout = read_layout(bytes(encoded))
        codes = unpack([bytes(data)], layout, metric)
        if codes is not None:
            found.append((layout.nodes, decode(codes[0], METRICS[metric].packing)))
    stored = Q(shard__in=shards, metric__in=(metric, TOGETHER))
    hours = HourRollup.objects.filter(stored, hour=at - at % HOUR_S).order_by()
    days = DayRollup.objects.filter(stored, day=at - at % DAY_S).order_by()
    rows = [
        (MINUTE_S, decode_hour(key, hour, bytes(data), metric=metric))
        for key, hour, data in hours.values_list("metric", "hour", "data")
    ] + [
        (TEN_MINUTES_S, decode_day(day, bytes(data), metric=metric))
        for day, data in days.values_list("day", "data")
    ]
    for every_s, minutes in rows:
        if minutes is not None:
            is_then = minutes.minutes == at - at % every_s
            found += [(minutes.nodes, stats) for stats in minutes.values[metric][is_then]]
    return [(nodes, each.reshape(len(nodes), N_STATS, -1)[:, 1]) for nodes, each in found]


def _on_grid(
    grid: IntArray, pieces: list[MinuteStats], *, n_parts: int = 0, every_s: int = MINUTE_S
) -> FloatArray:
    """Put rows on a grid, (n_minutes, 3, n_parts); later entries take precedence."""
    n_parts = max(n_parts, *(values.shape[1] // N_STATS for _, values in pieces), 0)
    stats = np.full((len(grid), N_STATS, n_parts), np.nan)
    for minutes, values in pieces:
        kept = (minutes >= grid[0]) & (minutes <= grid[-1])
        parts = values[kept].reshape(kept.sum(), N_STATS, values.shape[1] // N_STATS)
        stats[(minutes[kept] - grid[0]) // every_s, :, : parts.shape[2]] = parts
    return stats


def run_steps(hot: Source, run: str, *, start_s: float, end_s: float) -> StepBatch:
    """Return a run's steps that ended in [start_s, end_s), from hot and durable tier.

    With all workers if the hot tier has the whole window. Otherwise with one worker, "mean",
    and averaged to at most 2,000 rows; ``merged`` is then the number of steps per row.
    """
    return run_history(hot, run, start_s=start_s, end_s=end_s)[0]


def run_history(
    hot: Source, run: str, *, start_s: float, end_s: float, long_term: LongTerm | None = None
) -> tuple[StepBatch, tuple[SeriesSource, ...]]:
    """Return a run's steps as ``run_steps`` does, and the source of each part.

    Steps older than the durable tier are averages from the long-term store.
    """
    newest = hot.newest_step_at(run)
    if newest is not None and start_s >= newest - hot.keep_s:
        steps = hot.steps(run, since_s=start_s, until_s=end_s)
        if not _hot_tier_lacks_steps(run, steps, start_s, end_s):
            return steps, (SeriesSource(int(start_s), 0, "hot"),)
    rows = RunChunk.objects.filter(run=run, start__gt=start_s - HOUR_S, start__lt=end_s)
    rows = rows.order_by("start")
    sizes = list(rows.values_list("start", "length_s", "n_steps"))
    whole = sum(n for _, _, n in sizes) <= MAX_STEPS_READ
    if whole:
        packed = rows.values_list("steps", flat=True)
        parts = [_counted(decode_steps(bytes(data))) for data in packed]
    else:
        by_minute = rows.values_list("minutes", "n_steps")
        parts = [_minutes_counted(decode_minutes(bytes(data)), n) for data, n in by_minute]
    done = max((start + length_s for start, length_s, _ in sizes), default=0)
    if newest is not None and newest >= done:
        recent = hot.steps(run, since_s=max(start_s, done), until_s=end_s)
        parts.append(_counted(chunk_of(recent).steps if len(recent) else NO_STEPS))
    kept = np.concatenate(parts or [_counted(NO_STEPS)])
    kept = kept[(kept[:, ENDED] >= start_s) & (kept[:, ENDED] < end_s)]
    # Each step once, in order.
    kept = kept[np.unique(kept[:, STEP], return_index=True)[1]]
    every_s = EVERY_STEP if len(kept) <= MAX_STEPS else SOME_STEPS
    stretches: tuple[SeriesSource, ...] = (
        SeriesSource(int(start_s), every_s if whole else MINUTE_S, "durable"),
    )
    if long_term is not None:
        stored = kept[:, :N_COLUMNS]
        older, stretches = older_steps(long_term, run, stored, stretches[0], end_s=end_s)
        # Step numbers give the number of steps in each average except the first.
        n_each = np.diff(older[:, STEP], prepend=np.nan)
        kept = np.concatenate([_counted(older, np.where(n_each > 0, n_each, np.nan)), kept])
    return _mean_batch(run, kept), stretches


def _hot_tier_lacks_steps(run: str, steps: StepBatch, start_s: float, end_s: float) -> bool:
    """Whether the durable tier has steps of a window before the hot tier's first step."""
    first_s = float(steps.ended_at_s[0] - steps.step_s[0]) if len(steps) else end_s
    if first_s < start_s + MINUTE_S:
        return False
    kept = RunChunk.objects.filter(run=run, start__gt=start_s - HOUR_S, start__lt=first_s)
    ends = (start + length_s for start, length_s in kept.values_list("start", "length_s"))
    return any(end > start_s for end in ends)


def _counted(steps: FloatArray, n_each: FloatArray | float = 1.0) -> FloatArray:
    """Append the number of steps per row and their tokens: (n, 11) to (n, 13)."""
    n_in_row = np.broadcast_to(n_each, len(steps))
    return np.column_stack([steps, n_in_row, steps[:, TOKENS] * n_in_row])


def _minutes_counted(minutes: FloatArray, n_steps: int) -> FloatArray:
    """Append the number of steps in each minute of a chunk of ``n_steps``.

    A minute's row has its last step's number, so differences give the counts of all minutes
    but the first. Counts are scaled so that they add up to ``n_steps``.
    """
    between = np.maximum(np.diff(minutes[:, STEP]), 1.0)
    first = n_steps - between.sum()
    if first < 1:
        first = between.mean()
    weights = np.append(first, between)[: len(minutes)]
    upto = np.rint(np.cumsum(weights) * (n_steps / weights.sum())) if len(minutes) else weights
    return _counted(minutes, np.diff(upto, prepend=0.0))


def _mean_batch(run: str, steps: FloatArray) -> StepBatch:
    """Return rows of history as a batch of one worker, at most ``MAX_STEPS`` rows."""
    if len(steps) > MAX_STEPS:
        # Groups are aligned to step numbers, so that a moving window does not flicker.
        span = steps[-1, STEP] - steps[0, STEP] + 1
        n_in_row = int(np.ceil(span / (MAX_STEPS - 1)))
        steps = _thin(steps, steps[:, STEP].astype("i8") // n_in_row)
    phases = {phase: steps[:, FIRST_PHASE + i, None] for i, phase in enumerate(PHASES)}
    numbers, loss = steps[:, STEP].astype("i8"), steps[:, LOSS]
    reported = loss if is_reported(loss).any() else None
    other = steps[:, OTHER_COMM] if np.isfinite(steps[:, OTHER_COMM]).any() else None
    merged = Merged(steps[:, N_EACH], steps[:, ALL_TOKENS])
    return StepBatch(
        run, AVERAGE, numbers, steps[:, ENDED], phases, steps[:, TOKENS], reported, merged, other
    )


def _thin(steps: FloatArray, group: IntArray) -> FloatArray:
    """Average the rows of each group; counts and tokens are added up."""
    first = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    rows = average_groups(steps, group)
    rows[:, N_EACH] = np.add.reduceat(steps[:, N_EACH], first)
    known = np.isfinite(steps[:, ALL_TOKENS])
    tokens = np.add.reduceat(np.where(known, steps[:, ALL_TOKENS], 0.0), first)
    is_known = np.logical_or.reduceat(known, first) & np.isfinite(rows[:, N_EACH])
    rows[:, ALL_TOKENS] = np.where(is_known, tokens, np.nan)
    return rows


def stored_checkpoints(run: str, *, before_s: float, most: int) -> list[float]:
    """Return how long a run's newest checkpoints took, of the day before: seconds.

    Their rows are the mean over workers, of which some may have written nothing: the pause between
    two steps shows how long all of them waited.
    """
    rows = RunChunk.objects.filter(run=run, start__lt=before_s, start__gt=before_s - DAY_S)
    packed = rows.order_by("-start").values_list("steps", flat=True)
    by_chunk, n_found = list[FloatArray](), 0
    for data in packed.iterator(chunk_size=4):
        steps = decode_steps(bytes(data))
        by_chunk.insert(0, steps[steps[:, ENDED] < before_s])
        n_found += int((by_chunk[0][:, CHECKPOINT] > 0).sum())
        # One more: what came before the first one may be in an older row.
        if n_found > most:
            break
    steps = np.concatenate([*by_chunk, NO_STEPS])
    between_s = np.diff(steps[:, ENDED], prepend=np.nan)
    pause_s = between_s - np.median(between_s[1:]) if len(steps) > 1 else between_s
    took_s = np.fmax(steps[:, CHECKPOINT], pause_s)[steps[:, CHECKPOINT] > 0]
    newest: list[float] = took_s[::-1][:most].tolist()
    return newest


def worker_chunks(run: str, *, start_s: float, end_s: float) -> Iterator[Chunk]:
    """Read a run's durable minutes with all workers, in chunks that overlap [start_s, end_s)."""
    rows = RunChunk.objects.filter(run=run, start__gt=start_s - HOUR_S, start__lt=end_s)
    packed = rows.order_by("start").values_list("minutes", "workers")
    for minutes, workers in packed.iterator(chunk_size=24):
        yield decode_chunk(decode_minutes(bytes(minutes)), bytes(workers))


def worker_minutes(hot: Source, run: str, *, start_s: float, end_s: float) -> StepBatch:
    """Return a run's average step per minute, with all workers.

    Minutes that began in [start_s, end_s); number, end and tokens as in ``run_steps``.
    """
    chunks = list(worker_chunks(run, start_s=start_s, end_s=end_s))
    done = max((int(chunk.minutes[-1]) + MINUTE_S for chunk in chunks), default=0)
    recent = hot.steps(run, since_s=max(start_s // MINUTE_S * MINUTE_S, done), until_s=end_s)
    if len(recent):
        chunks.append(chunk_of(recent))
    if not chunks:
        return StepBatch.empty(run)
    first = -(-start_s // MINUTE_S) * MINUTE_S
    chunk = join_chunks(chunks).between(int(first), int(-(-end_s // MINUTE_S) * MINUTE_S))
    steps = minute_means(chunk)
    phases = {phase: chunk.means[:, :, i] for i, phase in enumerate(PHASES)}
    numbers, ended_at_s = steps[:, STEP].astype("i8"), steps[:, ENDED]
    return StepBatch(run, chunk.workers, numbers, ended_at_s, phases, steps[:, TOKENS])
