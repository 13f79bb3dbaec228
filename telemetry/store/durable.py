"""The durable tier: minutes and steps in the Django database, for good or for so many days."""

import time
from collections.abc import Iterable, Sequence

import numpy as np
from django.db import models, transaction

from telemetry.blocks import Span
from telemetry.steps import StepBatch
from telemetry.store import run_chunks
from telemetry.store.models import HourRollup, MinuteRollup, RunChunk
from telemetry.store.rollups import (
    Minutes,
    hour_bytes,
    laid_over,
    minute_bytes,
    read_hour,
    read_minute,
    rolled_up,
)
from telemetry.store.run_chunks import (
    STEP,
    Chunk,
    chunk_of,
    joined,
    read_chunk,
    read_steps,
    step_bytes,
    worker_bytes,
)
from telemetry.store.step_records import in_time, steps_where

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 24 * HOUR_S
# An hour is settled, and folded into one row, when late reports have had this long.
SETTLE_S = 10 * MINUTE_S
# How much longer what is still to be delivered is kept, should nobody take it.
HELD_BACK_S = 7 * DAY_S
CHUNK_DATA = ("n_steps", "steps", "minutes", "workers")


def write_rollups(span: Span) -> None:
    """Keep every whole minute of a span; a minute written again is replaced."""
    new = rolled_up(span)
    if not len(new.minutes):
        return
    settled = _settled(int(new.minutes[-1]))
    hours, n = np.unique(new.minutes // HOUR_S * HOUR_S, return_counts=True)
    whole = hours[(n == HOUR_S // MINUTE_S) & (hours < settled)]
    in_whole = np.isin(new.minutes // HOUR_S * HOUR_S, whole)
    with transaction.atomic():
        for hour in whole.tolist():
            within = (new.minutes >= hour) & (new.minutes < hour + HOUR_S)
            _put_hour(hour, new.where(within))
        _put_minutes(new.where(~in_whole))
        _fold(span.shard, settled)


def _settled(newest_minute: int) -> int:
    """Return the second before which hours are over and late reports are in."""
    return (newest_minute + MINUTE_S - SETTLE_S) // HOUR_S * HOUR_S


def _put_minutes(new: Minutes) -> None:
    """Write minutes as rows of their own."""
    rows = [
        MinuteRollup(shard=new.shard, minute=minute, layout=layout, data=data)
        for i, minute in enumerate(new.minutes.tolist())
        for layout, data in (minute_bytes(new, i),)
    ]
    _upsert(MinuteRollup, rows, ("shard", "minute"), ("layout", "data"))


def _put_hour(hour: int, minutes: Minutes) -> None:
    """Write an hour; minutes that had rows of their own no longer need them."""
    rows = [
        HourRollup(shard=minutes.shard, metric=metric, hour=hour, data=data)
        for metric, data in hour_bytes(minutes)
    ]
    _upsert(HourRollup, rows, ("shard", "metric", "hour"), ("data",))


def _fold(shard: str, settled: int) -> None:
    """Move the minutes of settled hours into hours."""
    rows = MinuteRollup.objects.filter(shard=shard, minute__lt=settled).order_by("minute")
    loose = list(rows.select_for_update())
    by_hour: dict[int, list[MinuteRollup]] = {}
    for row in loose:
        by_hour.setdefault(row.minute // HOUR_S * HOUR_S, []).append(row)
    for hour, minutes in by_hour.items():
        held = HourRollup.objects.filter(shard=shard, hour=hour)
        pieces = [read_hour(row.metric, hour, bytes(row.data)) for row in held]
        pieces += [
            read_minute(shard, row.minute, bytes(row.layout), bytes(row.data)) for row in minutes
        ]
        _put_hour(hour, laid_over(shard, [piece for piece in pieces if piece]))
    MinuteRollup.objects.filter(pk__in=[row.pk for row in loose]).delete()


def write_steps(batch: StepBatch) -> None:
    """Keep every step of a batch; one that is held already stays as it is."""
    if not len(batch):
        return
    batch = in_time(batch)
    first, last = (int(end_s) // HOUR_S * HOUR_S for end_s in batch.ended_at_s[[0, -1]])
    settled = _settled(int(batch.ended_at_s[-1]) // MINUTE_S * MINUTE_S)
    touched = models.Q(start__gte=first, start__lt=last + HOUR_S)
    loose = models.Q(start__lt=settled, length_s=MINUTE_S)
    with transaction.atomic():
        found = RunChunk.objects.filter(touched | loose, run=batch.run).order_by("start")
        rows = list(found.select_for_update())
        held = [read_chunk(read_steps(bytes(row.steps)), bytes(row.workers)) for row in rows]
        new = _new_steps(batch, held)
        minutes = new.minutes.tolist() if new else []
        everything = joined([*held, new] if new else held)
        _put_chunks(batch.run, everything, rows, minutes, settled)


def _new_steps(batch: StepBatch, held: Sequence[Chunk]) -> Chunk | None:
    """Return the steps of a batch that no chunk holds yet, None where there are none."""
    known = [chunk.steps[:, STEP].astype("i8") for chunk in held]
    new = ~np.isin(batch.step, np.concatenate(known)) if known else np.ones(len(batch), bool)
    return chunk_of(steps_where(batch, new)) if new.any() else None


def _put_chunks(
    run: str, everything: Chunk, rows: Sequence[RunChunk], minutes: Sequence[int], settled: int
) -> None:
    """Write the minutes that changed, and fold those of settled hours into hours."""
    loose = [row for row in rows if row.length_s == MINUTE_S and row.start < settled]
    changed = {m // HOUR_S * HOUR_S for m in [*minutes, *(row.start for row in loose)]}
    spans = [(hour, HOUR_S) for hour in sorted(changed) if hour < settled]
    spans += [(minute, MINUTE_S) for minute in minutes if minute >= settled]
    chunks = [
        _chunk_row(run, start, length_s, everything.between(start, start + length_s))
        for start, length_s in spans
    ]
    _upsert(RunChunk, chunks, ("run", "start", "length_s"), CHUNK_DATA)
    RunChunk.objects.filter(pk__in=[row.pk for row in loose]).delete()


def _chunk_row(run: str, start: int, length_s: int, chunk: Chunk) -> RunChunk:
    """Return a chunk as the row that keeps it."""
    return RunChunk(
        run=run,
        start=start,
        length_s=length_s,
        n_steps=len(chunk.steps),
        steps=step_bytes(chunk.steps),
        minutes=run_chunks.minute_bytes(chunk),
        workers=worker_bytes(chunk),
    )


def _upsert(
    model: type[models.Model],
    rows: Iterable[models.Model],
    unique: Sequence[str],
    data: Sequence[str],
) -> None:
    """Write rows, those that exist already anew."""
    model._default_manager.bulk_create(
        rows, update_conflicts=True, unique_fields=unique, update_fields=data
    )


def forget_older_than(
    days: float, *, now_s: float | None = None, unless_since: int | None = None
) -> None:
    """Drop minutes, hours and steps that are older than so many days.

    What began at ``unless_since`` or later is wanted elsewhere first, and held back for a week.
    """
    before = int((time.time() if now_s is None else now_s) - days * DAY_S)
    if unless_since is not None:
        before = max(min(before, unless_since), before - HELD_BACK_S)
    MinuteRollup.objects.filter(minute__lt=before).delete()
    HourRollup.objects.filter(hour__lt=before - HOUR_S).delete()
    RunChunk.objects.filter(start__lt=before - models.F("length_s")).delete()
