"""Minutes on their way from the durable tier to the long-term store."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from django.db.models import F, Model

from telemetry.blocks import METRICS, FloatArray, IntArray
from telemetry.longterm.batches import Chunk
from telemetry.longterm.names import (
    MIDDLE_S,
    PHASE_NAMES,
    RUN_PHASE,
    RUN_STEP,
    RUN_TOKENS,
    STATS,
    as_exported,
    heads,
)
from telemetry.longterm.wire import series
from telemetry.store.models import HourRollup, MinuteRollup, RunChunk
from telemetry.store.rollups import HOUR_S, MINUTE_S, N_STATS, Minutes, read_hour, read_minute
from telemetry.store.run_chunks import ENDED, FIRST_PHASE, STEP, TOKENS, read_minutes

MS = 1000
Row = TypeVar("Row", bound=Model)
AVERAGE, HIGHEST = STATS.index("avg_1m"), STATS.index("max_1m")


# Chunks that have no series in common. What comes after must be delivered after: a store may
# refuse what is older than what it has.
Group = Iterable[Chunk]


def minute_groups(*, start: int, end: int) -> Iterator[Group]:
    """Yield the minutes of all nodes and runs from start up to end, at most an hour."""
    for held in _held(start, end):
        yield (chunk for minutes in held for chunk in _stat_chunks(minutes))
    yield from _run_groups(start, end)


def _stat_chunks(minutes: Minutes) -> Iterator[Chunk]:
    for name, values in minutes.values.items():
        stats = _apart(values)
        n_parts = stats.shape[3]
        for i, stat in enumerate(STATS):
            told = as_exported(name, stats[:, i])
            yield _chunk(heads(name, minutes.nodes, n_parts, stat), told, minutes)


def means_as_seconds(*, start: int, end: int) -> Iterator[Group]:
    """Yield minutes in place of seconds that are gone: their means, of counts the highest."""
    for held in _held(start, end):
        yield (chunk for minutes in held for chunk in _mean_chunks(minutes))


def _mean_chunks(minutes: Minutes) -> Iterator[Chunk]:
    for name, values in minutes.values.items():
        stats = _apart(values)
        told = stats[:, HIGHEST if METRICS[name].packing == "exact" else AVERAGE]
        yield _chunk(heads(name, minutes.nodes, stats.shape[3]), as_exported(name, told), minutes)


def _apart(values: FloatArray) -> FloatArray:
    """Set lowest, mean and highest apart: (n_minutes, 3, n_nodes, n_parts)."""
    stats = values.reshape(*values.shape[:2], N_STATS, -1)
    return stats.transpose(0, 2, 1, 3)


def _chunk(series_heads: Sequence[bytes], values: FloatArray, minutes: Minutes) -> Chunk:
    """Return one figure per minute and part as samples: (n_minutes, n_nodes, n_parts)."""
    flat = values.transpose(1, 2, 0).reshape(len(series_heads), -1)
    return Chunk(series_heads, flat, _times_ms(minutes.minutes))


def _times_ms(minutes: IntArray) -> IntArray:
    return (minutes[None] + MIDDLE_S) * MS


def _held(start: int, end: int) -> Iterator[Iterable[Minutes]]:
    """Yield what the durable tier has: hours, then minutes that are not folded one by one."""
    yield _hours(start, end)
    # Row by row, and nothing held open: the store may keep us waiting for hours.
    loose = MinuteRollup.objects.filter(minute__gte=start, minute__lt=end).order_by("minute")
    keys = loose.values_list("minute", "pk")
    for _, group in groupby(keys, key=itemgetter(0)):
        yield _loose([pk for _, pk in group])


def _loose(keys: Sequence[int]) -> Iterator[Minutes]:
    """Yield one minute, shard by shard."""
    for row in _one_by_one(MinuteRollup, keys):
        yield read_minute(row.shard, row.minute, bytes(row.layout), bytes(row.data))


def _one_by_one(model: type[Row], keys: Iterable[int]) -> Iterator[Row]:
    """Yield rows that are still there."""
    found = (model._default_manager.filter(pk=key).first() for key in keys)
    return (row for row in found if row is not None)


def _hours(start: int, end: int) -> Iterator[Minutes]:
    """Yield the minutes of folded hours, a metric of a shard at a time."""
    hours = HourRollup.objects.filter(metric__in=METRICS, hour__gt=start - HOUR_S, hour__lt=end)
    keys = list(hours.order_by("hour", "shard", "metric").values_list("pk", flat=True))
    for row in _one_by_one(HourRollup, keys):
        if (minutes := read_hour(row.metric, row.hour, bytes(row.data))) is not None:
            within = (minutes.minutes >= start) & (minutes.minutes < end)
            if within.any():
                yield minutes.where(within)


def _run_groups(start: int, end: int) -> Iterator[Group]:
    """Yield the minutes of runs: their average step, and the number of the last."""
    rows = RunChunk.objects.filter(start__gt=start - F("length_s"), start__lt=end)
    told = rows.order_by("start", "run").values_list("start", "run", "minutes")
    for _, group in groupby(told, key=itemgetter(0)):
        yield [
            chunk
            for _, run, packed in group
            for chunk in _run_chunk(run, bytes(packed), start, end)
        ]


def _run_chunk(run: str, packed: bytes, start: int, end: int) -> Iterator[Chunk]:
    means = read_minutes(packed)
    minutes = means[:, ENDED].astype("i8") // MINUTE_S * MINUTE_S
    within = (minutes >= start) & (minutes < end)
    if within.any():
        columns = [STEP, TOKENS, *range(FIRST_PHASE, FIRST_PHASE + len(PHASE_NAMES))]
        yield Chunk(run_heads(run), means[within][:, columns].T, _times_ms(minutes[within]))


def run_heads(run: str) -> list[bytes]:
    """Return the series of a run's minutes: number of the last step, tokens, phases."""
    mine = ("run", run)
    phases = [series(RUN_PHASE, (mine, ("phase", phase))) for phase in PHASE_NAMES]
    return [series(RUN_STEP, (mine,)), series(RUN_TOKENS, (mine,)), *phases]
