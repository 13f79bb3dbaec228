"""The durable tier: minutes, hours and steps in the Django database, for a number of days."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np
from django.db import DatabaseError, models, transaction

from telemetry.blocks import Block, FloatArray, Span
from telemetry.steps import StepBatch
from telemetry.store.chunks import (
    STEP,
    chunk_of,
    decode_chunk,
    decode_steps,
    encode_minutes,
    encode_steps,
    encode_workers,
    join_chunks,
)
from telemetry.store.connection import Connection
from telemetry.store.hot import HotStore
from telemetry.store.models import DayRollup, HourRollup, MinuteRollup, RunChunk
from telemetry.store.packing import (
    DIGEST_BYTES,
    digest,
    is_whole_block,
    pack,
    read_layout,
    sort_by_end,
    steps_where,
)
from telemetry.store.reading import gather
from telemetry.store.rollups import (
    Minutes,
    decode_day,
    decode_hour,
    decode_single,
    encode_day,
    encode_hour,
    encode_minute,
    merge_minutes,
    roll_up,
    ten_minutes,
    widened,
)
from telemetry.units import DAY_S, HOUR_S, MINUTE_S

# An hour is settled, and merged into one row, this long after its end: late reports are in.
SETTLE_S = 10 * MINUTE_S
# Minutes are kept for this long at least, then merged to rows of ten minutes, a day at once.
KEEP_MINUTES_S = 2 * DAY_S
# Few rows at a time are deleted: what else writes waits for few of them. Some tables are searched
# whole for old rows, so that more are looked up at once.
DELETE_AT_ONCE, FIND_AT_ONCE = 500, 20_000
CHUNK_DATA = ("n_steps", "steps", "minutes", "workers")
# Older blocks are kept apart until they are rolled up: soon the hot tier forgets theirs.
LATE_S = 4 * MINUTE_S
QUIET_S = 20.0
KEEP_S = 2 * 24 * HOUR_S
MAX_AT_ONCE = 2_000
# Minutes with late seconds, scored by when the last one came: "shard\nminute". Runs with late
# steps, scored by the first minute of them; and those that are being stored.
LATE_MINUTES, LATE_STEPS, TAKEN_STEPS = "late:minutes", "late:steps", "late:steps:taken"
# Before this second a roll-up has begun to read: what is stored there from now on is late.
BEGUN = "roll_up:begun"
# What was taken is taken again where a worker ended before it was stored.
TAKE_STEPS = """
redis.call('ZUNIONSTORE', KEYS[2], 2, KEYS[1], KEYS[2], 'AGGREGATE', 'MIN')
redis.call('DEL', KEYS[1])
return redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
"""
LAYOUT = b"layout:"
# Remove the minute unless more late seconds have arrived since.
REMOVE_IF_EMPTY = """
local last = redis.call('ZSCORE', KEYS[2], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 and last and tonumber(last) <= tonumber(ARGV[2]) then
  redis.call('ZREM', KEYS[2], ARGV[1])
end
"""


def write_rollups(span: Span) -> None:
    """Store every whole minute of a span; a minute that exists is replaced."""
    new = roll_up(span)
    if not len(new.minutes):
        return
    settled = _settled(int(new.minutes[-1]))
    hours, n = np.unique(new.minutes // HOUR_S * HOUR_S, return_counts=True)
    whole = hours[(n == HOUR_S // MINUTE_S) & (hours < settled)]
    in_whole = np.isin(new.minutes // HOUR_S * HOUR_S, whole)
    with transaction.atomic():
        for hour in whole.tolist():
            within = new.where((new.minutes >= hour) & (new.minutes < hour + HOUR_S))
            stored = _stored(span.shard, hour, ())
            _put_hour(hour, merge_minutes(span.shard, [*stored, within]) if stored else within)
        loose = new.where(~in_whole)
        rows = [
            MinuteRollup(shard=span.shard, minute=minute, layout=layout, data=data)
            for i, minute in enumerate(loose.minutes.tolist())
            for layout, data in (encode_minute(loose, i),)
        ]
        _upsert(MinuteRollup, rows, ("shard", "minute"), ("layout", "data"))
        # Merge the minute rows of settled hours into hour rows.
        old = MinuteRollup.objects.filter(shard=span.shard, minute__lt=settled)
        by_hour: dict[int, list[MinuteRollup]] = {}
        for row in (folded := list(old.order_by("minute").select_for_update())):
            by_hour.setdefault(row.minute // HOUR_S * HOUR_S, []).append(row)
        for hour, minutes in by_hour.items():
            pieces = _stored(span.shard, hour, minutes)
            _put_hour(hour, merge_minutes(span.shard, pieces))
        MinuteRollup.objects.filter(pk__in=[row.pk for row in folded]).delete()


def _settled(newest_minute: int) -> int:
    """Return the second before which all hours are settled."""
    return (newest_minute + MINUTE_S - SETTLE_S) // HOUR_S * HOUR_S


def _put_hour(hour: int, minutes: Minutes) -> None:
    rows = [
        HourRollup(shard=minutes.shard, metric=metric, hour=hour, data=data)
        for metric, data in encode_hour(minutes)
    ]
    # The hour may have been stored by metric before, or together.
    before = HourRollup.objects.filter(shard=minutes.shard, hour=hour)
    before.exclude(metric__in=[row.metric for row in rows]).delete()
    _upsert(HourRollup, rows, ("shard", "metric", "hour"), ("data",))


def _stored(shard: str, hour: int, loose: Iterable[MinuteRollup]) -> list[Minutes]:
    """Return an hour's minutes as stored: those of the hour's rows, then loose ones."""
    rows = HourRollup.objects.filter(shard=shard, hour=hour)
    pieces = [decode_hour(row.metric, hour, bytes(row.data)) for row in rows]
    single = [(row.minute, bytes(row.layout), bytes(row.data)) for row in loose]
    return [piece for piece in pieces if piece is not None] + decode_single(shard, single)


def write_steps(batch: StepBatch) -> None:
    """Store the steps of a batch; steps that exist are not changed."""
    if not len(batch):
        return
    batch = sort_by_end(batch)
    first, last = (int(end_s) // HOUR_S * HOUR_S for end_s in batch.ended_at_s[[0, -1]])
    settled = _settled(int(batch.ended_at_s[-1]) // MINUTE_S * MINUTE_S)
    touched = models.Q(start__gte=first, start__lt=last + HOUR_S)
    loose = models.Q(start__lt=settled, length_s=MINUTE_S)
    with transaction.atomic():
        touched_rows = RunChunk.objects.filter(touched | loose, run=batch.run).order_by("start")
        rows = list(touched_rows.select_for_update())
        stored = [decode_chunk(decode_steps(bytes(row.steps)), bytes(row.workers)) for row in rows]
        known = [chunk.steps[:, STEP].astype("i8") for chunk in stored]
        is_new = ~np.isin(batch.step, np.concatenate(known or [np.zeros(0, "i8")]))
        new = chunk_of(steps_where(batch, is_new)) if is_new.any() else None
        minutes = new.minutes.tolist() if new else []
        everything = join_chunks([*stored, new] if new else stored)
        # Write changed minutes; merge those of settled hours into hour chunks.
        folded = [row for row in rows if row.length_s == MINUTE_S and row.start < settled]
        changed = {m // HOUR_S * HOUR_S for m in [*minutes, *(row.start for row in folded)]}
        spans = [(hour, HOUR_S) for hour in sorted(changed) if hour < settled]
        spans += [(minute, MINUTE_S) for minute in minutes if minute >= settled]
        chunks = [
            RunChunk(
                run=batch.run,
                start=start,
                length_s=length_s,
                n_steps=len(chunk.steps),
                steps=encode_steps(chunk.steps),
                minutes=encode_minutes(chunk),
                workers=encode_workers(chunk),
            )
            for start, length_s in spans
            for chunk in (everything.between(start, start + length_s),)
        ]
        _upsert(RunChunk, chunks, ("run", "start", "length_s"), CHUNK_DATA)
        RunChunk.objects.filter(pk__in=[row.pk for row in folded]).delete()


def _upsert(
    model: type[models.Model],
    rows: Iterable[models.Model],
    unique: Sequence[str],
    data: Sequence[str],
) -> None:
    """Insert rows, or replace ``data`` of those that exist."""
    model._default_manager.bulk_create(
        rows, update_conflicts=True, unique_fields=unique, update_fields=data
    )


def merge_old_hours(*, now_s: float, until_s: float, clock: Callable[[], float]) -> bool:
    """Merge minutes older than ``KEEP_MINUTES_S`` to rows of ten, until a time of ``clock``.

    A day of one row after the other, each in a transaction of its own. Returns whether all of
    them are merged; whatever ends it, the next call goes on. What cannot be read stays as it is,
    and is raised at the end.
    """
    errors: list[Exception] = []
    is_over = True
    for shard, metric, day in _old_days(int(now_s - KEEP_MINUTES_S) // DAY_S * DAY_S):
        if clock() >= until_s:
            is_over = False
            break
        try:
            _merge_day(shard, metric, day)
        except DatabaseError:
            raise
        except Exception as error:
            error.add_note(f"while merging {metric or 'all metrics'} of {shard}, day {day}")
            errors.append(error)
    if errors:
        raise ExceptionGroup("could not merge all hours; they stay as they are", errors)
    return is_over


def _old_days(before: int) -> Iterator[tuple[str, str, int]]:
    """Yield the shard and metric of rows by hour, for each day before a time, oldest first."""
    old = HourRollup.objects.filter(hour__lt=before).order_by("hour")
    start = 0
    while (
        oldest := old.filter(hour__gte=start).values_list("hour", flat=True).first()
    ) is not None:
        day = oldest // DAY_S * DAY_S
        start = day + DAY_S
        hours = HourRollup.objects.filter(hour__gte=day, hour__lt=start)
        for shard, metric in hours.values_list("shard", "metric").order_by().distinct():
            yield shard, metric, day


def _merge_day(shard: str, metric: str, day: int) -> None:
    """Merge one day of a row per hour; what came late fills what an earlier merge left open."""
    with transaction.atomic():
        of_day = HourRollup.objects.filter(
            shard=shard, metric=metric, hour__gte=day, hour__lt=day + DAY_S
        )
        pieces, merged = [], []
        for pk, hour, data in (
            of_day.order_by("hour").select_for_update().values_list("pk", "hour", "data")
        ):
            if (minutes := decode_hour(metric, hour, bytes(data))) is not None:
                pieces.append(ten_minutes(minutes))
            merged.append(pk)
        # Another process may have merged them meanwhile.
        if not pieces:
            return
        rows = DayRollup.objects.filter(shard=shard, metric=metric, day=day)
        stored = rows.select_for_update().values_list("data", flat=True).first()
        before = None if stored is None else decode_day(day, bytes(stored))
        new = merge_minutes(shard, pieces)
        data = encode_day(new if before is None else _fill(before, new))
        row = DayRollup(shard=shard, metric=metric, day=day, data=data)
        _upsert(DayRollup, [row], ("shard", "metric", "day"), ("data",))
        HourRollup.objects.filter(pk__in=merged).delete()


def _fill(before: Minutes, late: Minutes) -> Minutes:
    """Join rows; what is known before is kept."""
    order = before.where(slice(0))
    first, second = (
        merge_minutes(late.shard, [order, *pieces]) for pieces in ((late, before), (before, late))
    )
    values = {
        name: np.where(np.isnan(array), second.values[name], array)
        for name, array in first.values.items()
    }
    return Minutes(late.shard, first.minutes, first.nodes, values)


def delete_older_than(days: float, *, now_s: float | None = None) -> None:
    """Delete minutes, hours, days and steps older than ``days``, few rows at a time."""
    before = int((time.time() if now_s is None else now_s) - days * DAY_S)
    for rows in (
        MinuteRollup.objects.filter(minute__lt=before),
        HourRollup.objects.filter(hour__lt=before - HOUR_S),
        DayRollup.objects.filter(day__lt=before - DAY_S),
        RunChunk.objects.filter(start__lt=before - models.F("length_s")),
    ):
        while found := list(rows.values_list("pk", flat=True)[:FIND_AT_ONCE]):
            for i in range(0, len(found), DELETE_AT_ONCE):
                some = found[i : i + DELETE_AT_ONCE]
                rows.model._default_manager.filter(pk__in=some).delete()


def save_late(hot: HotStore, blocks: Iterable[Block], *, now_s: float) -> None:
    """Store late blocks until they are rolled up; the first block of a second is kept."""
    late = (block for block in blocks if block.tick < now_s - LATE_S)
    for part, some in hot.divide(late, attrgetter("shard")):
        part.execute_all(_late_commands(some, now_s=now_s))


def _late_commands(blocks: Iterable[Block], *, now_s: float) -> Iterator[tuple[object, ...]]:
    for block in blocks:
        layout, blob = pack(block)
        minute = block.tick - block.tick % MINUTE_S
        key = f"late:{block.shard}:{minute}"
        yield "HSETNX", key, b"%d:" % block.tick + layout.digest, blob
        yield "HSETNX", key, LAYOUT + layout.digest, layout.encoded
        yield "EXPIRE", key, KEEP_S
        yield "ZADD", LATE_MINUTES, now_s, f"{block.shard}\n{minute}"


def forget_late(hot: HotStore, blocks: Iterable[Block], *, now_s: float) -> None:
    """Remove late blocks that wait for their roll-up; others of the same second stay."""
    for block in blocks:
        if block.tick < now_s - LATE_S:
            layout, blob = pack(block)
            key = f"late:{block.shard}:{block.tick - block.tick % MINUTE_S}"
            field = b"%d:" % block.tick + layout.digest
            part = hot.of(block.shard)
            if part.execute("HGET", key, field) == blob:
                part.execute("HDEL", key, field)


def begin_roll_up(hot: Connection, *, end: int) -> None:
    """Let what is stored before ``end`` from now on count as late."""
    hot.execute("SET", BEGUN, end)


def take_late_steps(hot: Connection) -> dict[str, int]:
    """Return the runs with late steps, and the first minute of them."""
    flat: list[bytes] = hot.execute("EVAL", TAKE_STEPS, 2, LATE_STEPS, TAKEN_STEPS)
    return {
        run.decode(): int(float(minute)) for run, minute in zip(flat[::2], flat[1::2], strict=True)
    }


def stored_late_steps(hot: Connection) -> None:
    """Forget what ``take_late_steps`` returned last."""
    hot.execute("DEL", TAKEN_STEPS)


def fold_late(hot: HotStore, *, now_s: float) -> int:
    """Roll up late minutes after ``QUIET_S`` without new blocks; return how many.

    Those that the hot tier still has are read from there, with all their seconds.
    Repeating it changes nothing for minutes that were late as a whole.
    """
    quiet = ("ZRANGEBYSCORE", LATE_MINUTES, "-inf", now_s - QUIET_S, "LIMIT", 0, MAX_AT_ONCE)
    members: list[tuple[bytes, float]] = hot.execute(*quiet, "WITHSCORES", withscores=True)
    newest = hot.newest()
    by_shard: dict[str, dict[int, float]] = {}
    for member, last_s in members:
        shard, _, word = member.decode().rpartition("\n")
        by_shard.setdefault(shard, {})[int(word)] = last_s
    for shard, minutes in by_shard.items():
        oldest_s = newest[shard] - hot.keep_s if shard in newest else now_s
        if still_hot := [minute for minute in minutes if minute >= oldest_s + MINUTE_S]:
            end = max(still_hot) + MINUTE_S - 1
            write_rollups(hot.window(shard, (), start=min(still_hot), end=end))
        for minute, last_s in minutes.items():
            key = f"late:{shard}:{minute}"
            late: dict[bytes, bytes] = hot.execute("HGETALL", key)
            if late:
                if minute not in still_hot:
                    _write_late_minute(hot, shard, minute, late)
                hot.execute("HDEL", key, *late)
            name = f"{shard}\n{minute}"
            hot.execute("EVAL", REMOVE_IF_EMPTY, 2, key, LATE_MINUTES, name, last_s)
    return len(members)


def _write_late_minute(hot: HotStore, shard: str, minute: int, held: dict[bytes, bytes]) -> None:
    """Write a minute with its late seconds, of which the hot tier has no more."""
    end = minute + MINUTE_S - 1
    layouts = {
        name: read_layout(encoded)
        for field, encoded in held.items()
        if field.startswith(LAYOUT) and digest(encoded) == (name := field.removeprefix(LAYOUT))
    }
    # The waiting blocks, in order of tick.
    blobs = [
        (int(field.partition(b":")[0]), layouts.get(blob[:DIGEST_BYTES]), blob)
        for field, blob in held.items()
        if not field.startswith(LAYOUT)
    ]
    whole = [
        (tick, layout, blob)
        for tick, layout, blob in blobs
        if layout is not None and is_whole_block(layout, blob)
    ]
    if len(whole) < len(blobs):
        good = {blob for _, _, blob in whole}
        damaged = [blob for _, _, blob in blobs if blob not in good]
        hot.report_damaged("blocks", shard, damaged)
    packed = sorted(whole, key=lambda packed: packed[0])
    late = roll_up(gather({shard: packed}, (), ticks=range(minute, end + 1)))
    if not len(late.minutes):
        return
    n_late = len({tick for tick, _, _ in packed})
    with transaction.atomic():
        # The minute as stored until now, in an hour's row or on its own.
        loose = MinuteRollup.objects.filter(shard=shard, minute=minute)
        pieces = _stored(shard, minute - minute % HOUR_S, loose)
        known = [piece.where(piece.minutes == minute) for piece in pieces]
        known = [piece for piece in known if len(piece.minutes)]
        before = merge_minutes(shard, known) if known else None
        merged = late if before is None else _merge_late(before, late, share=n_late / MINUTE_S)
        layout, data = encode_minute(merged, 0)
        MinuteRollup.objects.update_or_create(
            shard=shard, minute=minute, defaults={"layout": layout, "data": data}
        )


def _merge_late(before: Minutes, late: Minutes, *, share: float) -> Minutes:
    """Merge late seconds into a stored minute; they are ``share`` of it."""
    values = dict(before.values)
    for name, stats in late.values.items():
        earlier = before.values.get(name)
        if earlier is None or before.nodes != late.nodes:
            values[name] = stats
            continue
        width = max(earlier.shape[2], stats.shape[2])
        low, mean, high = _stats(widened(earlier, width))
        low_2, mean_2, high_2 = _stats(widened(stats, width))
        both = mean * (1 - share) + mean_2 * share
        mean = np.where(np.isnan(mean), mean_2, np.where(np.isnan(mean_2), mean, both))
        values[name] = np.concatenate([np.fmin(low, low_2), mean, np.fmax(high, high_2)], axis=2)
    return Minutes(late.shard, late.minutes, late.nodes, values)


def _stats(stats: FloatArray) -> Sequence[FloatArray]:
    return np.split(stats, 3, axis=2)
