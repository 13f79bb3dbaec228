"""The writer to the long-term store: delivers new data of the hot and durable tiers in order."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import TypeVar

import msgspec
import numpy as np
import zstandard as zstd
from django.conf import settings
from django.db.models import F, Model, Q, QuerySet
from prometheus_client import Metric
from prometheus_client.registry import Collector

from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.exporter.exposition import add, counter, format_codes, gauge
from telemetry.exporter.hardware import HARDWARE
from telemetry.long_term.remote_write import Delivered, SeriesChunk, WriteClient, batches, series
from telemetry.steps import PHASES
from telemetry.store.connection import Connection
from telemetry.store.durable import (
    ENDED,
    FIRST_PHASE,
    STEP,
    TOKENS,
    decode_minutes,
    finish_rewrites,
    queued_rewrites,
)
from telemetry.store.models import HourRollup, LongTermPosition, MinuteRollup, RunChunk
from telemetry.store.packing import DTYPES, digest, encode
from telemetry.store.reading import Reader
from telemetry.store.rollups import HOUR_S, MINUTE_S, N_STATS, Minutes, decode_hour, decode_minute

# By Unix second. The first write of a second wins, so that a repeated task changes nothing.
# Seconds expire together with those of the hot tier.
FIGURES = "long-term:figures"
# The series of the figures, by digest of their names; kept while a second refers to them.
NAMES = b"long-term:names:"
MS = 1000


class _Names(msgspec.Struct, array_like=True):
    name: str
    labels: tuple[str, ...]
    series: list[tuple[str, ...]]


class _Figures(msgspec.Struct, array_like=True):
    """A family at one second: the digest of its names, and one 64-bit float per series."""

    names: bytes
    values: bytes


def keep_figures(hot: Connection, second: int, families: Iterable[Metric], *, keep_s: int) -> None:
    """Store the values of families at a second, without histograms, and drop old seconds."""
    names, figures = {}, []
    for family in families:
        samples = list(family.samples)
        if not samples:
            continue
        name, labels = samples[0].name, tuple(samples[0].labels)
        described = _Names(name, labels, [tuple(each.labels.values()) for each in samples])
        encoded = msgspec.msgpack.encode(described)
        values = np.array([each.value for each in samples], "<f8")
        names[key := digest(encoded)] = encoded
        figures.append(_Figures(key, values.tobytes()))
    known = hot.execute_all(("EXPIRE", NAMES + key, 2 * keep_s) for key in names)
    for (key, encoded), is_there in zip(names.items(), known, strict=True):
        if not is_there:
            hot.execute("SET", NAMES + key, zstd.compress(encoded, 3), "EX", 2 * keep_s)
    hot.execute("HSETNX", FIGURES, second, zstd.compress(msgspec.msgpack.encode(figures), 3))
    old = [field for field in hot.execute("HKEYS", FIGURES) if int(field) < second - keep_s]
    if old:
        hot.execute("HDEL", FIGURES, *old)


class FigureReader:
    """Reads stored values; caches the names of the latest second."""

    def __init__(self, hot: Connection) -> None:
        self._hot = hot
        self._heads: dict[bytes, Sequence[bytes]] = {}

    def seconds(self, *, start: int, end: int) -> Iterator[Iterable[SeriesChunk]]:
        """Yield the stored values from start up to end, second by second."""
        kept = sorted(int(field) for field in self._hot.execute("HKEYS", FIGURES))
        for second in kept:
            if start <= second < end and (packed := self._hot.execute("HGET", FIGURES, second)):
                yield self._chunks(second, packed)

    def _chunks(self, second: int, packed: bytes) -> Iterator[SeriesChunk]:
        figures = msgspec.msgpack.decode(zstd.decompress(packed), type=list[_Figures])
        wanted = {each.names for each in figures}
        self._heads = {key: heads for key, heads in self._heads.items() if key in wanted}
        for key in wanted - self._heads.keys():
            if encoded := self._hot.execute("GET", NAMES + key):
                names = msgspec.msgpack.decode(zstd.decompress(encoded), type=_Names)
                self._heads[key] = [
                    series(names.name, tuple(zip(names.labels, values, strict=True)))
                    for values in names.series
                ]
        for each in figures:
            figure: FloatArray = np.frombuffer(each.values, "<f8")[:, None]
            if heads := self._heads.get(each.names):
                yield SeriesChunk(heads, figure, np.array([[second * MS]]))


# Suffixes of the names of minutes, as of recording rules: lowest, mean and highest, in the order
# of the durable tier.
STATS = ("min_1m", "avg_1m", "max_1m")
assert len(STATS) == N_STATS  # noqa: S101
# A minute has its time in its middle, so that no range border assigns it to a neighbour.
MIDDLE_S = 30

RUN_PHASE = "trnwatch_run_phase_seconds:avg_1m"
RUN_TOKENS = "trnwatch_run_step_tokens:avg_1m"
RUN_STEP = "trnwatch_run_steps:max_1m"
PHASE_NAMES = tuple(phase.removesuffix("_s") for phase in PHASES)


def minute_name(metric: str, stat: str) -> str:
    """Return the series name of the minutes of a metric.

    >>> minute_name("efa_latency_s", "avg_1m")
    'trnwatch_efa_latency_seconds:avg_1m'
    """
    return f"{HARDWARE[metric].name}:{stat}"


@lru_cache(maxsize=8192)
def heads(
    metric: str, nodes: tuple[str, ...], n_parts: int, stat: str | None = None
) -> Sequence[bytes]:
    """Return the series of a metric, all parts of the first node first.

    ``stat`` names minutes; without it they are the seconds, as exported.
    """
    spec = HARDWARE[metric]
    name = spec.name if stat is None else minute_name(metric, stat)
    if METRICS[metric].part == "node":
        return [series(name, ((spec.labels[0], node),)) for node in nodes]
    by_node, by_part = spec.labels
    parts = [str(part) for part in range(n_parts)]
    return [series(name, ((by_node, node), (by_part, part))) for node in nodes for part in parts]


def as_exported(metric: str, values: FloatArray) -> FloatArray:
    """Round values as /metrics does, so that scraped and written values are equal."""
    packing = METRICS[metric].packing
    if packing == "exact":
        return np.asarray(values, float)
    return _exported(packing)[encode(values, packing)]


@cache
def _exported(packing: str) -> FloatArray:
    """Every value of a packing, as exported."""
    dtype = DTYPES[packing]
    codes = np.arange(1 << 8 * dtype.itemsize, dtype=dtype)
    return np.array([float(text) for text in format_codes(codes, packing)])


Row = TypeVar("Row", bound=Model)
AVERAGE, HIGHEST = STATS.index("avg_1m"), STATS.index("max_1m")


# Chunks without common series. Groups are delivered in order: a store may refuse samples that
# are older than its newest.
Group = Iterable[SeriesChunk]


def minute_groups(*, start: int, end: int) -> Iterator[Group]:
    """Yield the minutes of all nodes and runs from start up to end, an hour at most."""
    for held in _held(start, end):
        yield (chunk for minutes in held for chunk in _minute_chunks(minutes))
    rows = RunChunk.objects.filter(start__gt=start - F("length_s"), start__lt=end)
    packed_runs = rows.order_by("start", "run").values_list("start", "run", "minutes")
    columns = [STEP, TOKENS, *range(FIRST_PHASE, FIRST_PHASE + len(PHASE_NAMES))]
    for _, group in groupby(packed_runs, key=itemgetter(0)):
        chunks = []
        for _, run, packed in group:
            means = decode_minutes(bytes(packed))
            minute = means[:, ENDED].astype("i8") // MINUTE_S * MINUTE_S
            within = (minute >= start) & (minute < end)
            if within.any():
                values = means[within][:, columns].T
                chunks.append(SeriesChunk(run_heads(run), values, _times_ms(minute[within])))
        yield chunks


def means_as_seconds(*, start: int, end: int) -> Iterator[Group]:
    """Yield minutes instead of seconds that have expired: means, and the maximum of counts."""
    for held in _held(start, end):
        yield (chunk for minutes in held for chunk in _minute_chunks(minutes, as_seconds=True))


def _minute_chunks(minutes: Minutes, *, as_seconds: bool = False) -> Iterator[SeriesChunk]:
    for name, values in minutes.values.items():
        # Lowest, mean and highest: (n_minutes, 3, n_nodes, n_parts).
        stats = values.reshape(*values.shape[:2], N_STATS, -1).transpose(0, 2, 1, 3)
        only = HIGHEST if METRICS[name].packing == "exact" else AVERAGE
        for i, stat in [(only, None)] if as_seconds else enumerate(STATS):
            series_heads = heads(name, minutes.nodes, stats.shape[3], stat)
            flat = as_exported(name, stats[:, i]).transpose(1, 2, 0).reshape(len(series_heads), -1)
            yield SeriesChunk(series_heads, flat, _times_ms(minutes.minutes))


def _times_ms(minutes: IntArray) -> IntArray:
    return (minutes[None] + MIDDLE_S) * MS


def _held(start: int, end: int) -> Iterator[Iterable[Minutes]]:
    """Yield the stored hours, then the minutes that are not yet folded into hours."""
    yield _hours(start, end)
    # Row by row without an open cursor: a delivery may wait for hours.
    loose = MinuteRollup.objects.filter(minute__gte=start, minute__lt=end).order_by("minute")
    keys = loose.values_list("minute", "pk")
    for _, group in groupby(keys, key=itemgetter(0)):
        rows = _one_by_one(MinuteRollup, [pk for _, pk in group])
        yield (
            decode_minute(row.shard, row.minute, bytes(row.layout), bytes(row.data))
            for row in rows
        )


def _one_by_one(model: type[Row], keys: Iterable[int]) -> Iterator[Row]:
    """Yield the rows that still exist."""
    found = (model._default_manager.filter(pk=key).first() for key in keys)
    return (row for row in found if row is not None)


def _hours(start: int, end: int) -> Iterator[Minutes]:
    """Yield the minutes of folded hours, one metric of one shard at a time."""
    hours = HourRollup.objects.filter(metric__in=METRICS, hour__gt=start - HOUR_S, hour__lt=end)
    keys = list(hours.order_by("hour", "shard", "metric").values_list("pk", flat=True))
    for row in _one_by_one(HourRollup, keys):
        if (minutes := decode_hour(row.metric, row.hour, bytes(row.data))) is not None:
            within = (minutes.minutes >= start) & (minutes.minutes < end)
            if within.any():
                yield minutes.where(within)


def run_heads(run: str) -> list[bytes]:
    mine = ("run", run)
    phases = [series(RUN_PHASE, (mine, ("phase", phase))) for phase in PHASE_NAMES]
    return [series(RUN_STEP, (mine,)), series(RUN_TOKENS, (mine,)), *phases]


SECONDS, MINUTES = "seconds", "minutes"
LONGEST_WHY = 300
# A stream that is further behind is reported as a problem.
BEHIND_S = 15 * 60
# A refusal is reported for this long.
REPORTED_S = 60 * 60


@dataclass(frozen=True, slots=True)
class Position:
    stream: str

    def start_at(self, second: int, *, now: datetime) -> int:
        """Return the stored position; a new stream starts at ``second``."""
        row, _ = LongTermPosition.objects.get_or_create(
            stream=self.stream, defaults={"second": second, "moved_at": now}
        )
        return row.second

    def move(self, *, before: int, after: int, delivered: Delivered, now: datetime) -> None:
        """Record that everything before ``after`` is delivered, with its counts.

        Another writer may be ahead: a position never goes back.
        """
        row = LongTermPosition.objects.filter(stream=self.stream)
        row.filter(second=before).update(second=after, moved_at=now)
        row.update(
            n_sent=F("n_sent") + delivered.sent,
            n_dropped=F("n_dropped") + delivered.dropped,
            n_retries=F("n_retries") + delivered.retries,
        )
        if delivered.dropped:
            row.update(dropped_at=now, trouble=delivered.why[:LONGEST_WHY], trouble_at=now)

    def rewind(self, second: int, *, now: datetime) -> None:
        """Continue from an earlier second, so that later data is delivered again."""
        LongTermPosition.objects.update_or_create(
            stream=self.stream, defaults={"second": second, "moved_at": now}
        )

    def complain(self, why: str, *, now: datetime) -> None:
        """Store the current error."""
        LongTermPosition.objects.filter(stream=self.stream).update(
            trouble=why[:LONGEST_WHY], trouble_at=now
        )


def streams() -> QuerySet[LongTermPosition]:
    """Return the streams; none while LONG_TERM_WRITE_URL is empty."""
    everything = LongTermPosition.objects.order_by("stream")
    return everything if settings.LONG_TERM_WRITE_URL else everything.none()


def failing(now: datetime) -> QuerySet[LongTermPosition]:
    """Return the streams that are far behind, or whose samples were rejected recently."""
    behind = Q(second__lt=int(now.timestamp()) - BEHIND_S)
    refused = Q(dropped_at__gt=now - timedelta(seconds=REPORTED_S))
    return streams().filter(behind | refused)


def undelivered_since() -> int | None:
    """Return the first second whose minutes are not delivered; None without a writer."""
    row = streams().filter(stream=MINUTES).first()
    return None if row is None else row.second


def second_chunks(hot: Reader, *, start: int, end: int, every_s: int) -> Iterator[SeriesChunk]:
    """Yield every metric of every node from start up to end, shard by shard.

    Of each ``every_s`` seconds the newest that a node reported, under its own time.
    """
    for shard, newest in hot.newest().items():
        if newest >= start:
            span = hot.window(shard, (), start=start, end=end - 1)
            if not span.nodes:
                continue
            rows = newest_rows(span, every_s)
            columns = np.arange(len(span.nodes))
            times_ms = span.ticks[rows].T * MS
            for name, values in span.values.items():
                if n_parts := values.shape[2]:
                    exported = as_exported(name, values[rows, columns]).transpose(1, 2, 0)
                    yield SeriesChunk(
                        heads(name, span.nodes, n_parts),
                        exported.reshape(len(span.nodes) * n_parts, -1),
                        np.repeat(times_ms, n_parts, axis=0),
                    )


def newest_rows(span: Span, every_s: int) -> IntArray:
    """Return the row of the newest report of each node in each ``every_s``: (n, n_nodes).

    Where a node was silent it is any row of that time: there is nothing in it.
    """
    reported = np.zeros((len(span.ticks), len(span.nodes)), dtype=bool)
    for values in span.values.values():
        reported |= np.isfinite(values).any(axis=2)
    turned = reported.reshape(-1, every_s, len(span.nodes))[:, ::-1]
    last = every_s - 1 - turned.argmax(axis=1)
    return np.asarray(last + every_s * np.arange(len(last))[:, None])


log = logging.getLogger(__name__)


# Seconds are sent after this time for late reports, minutes once their rollup is final.
SECONDS_SETTLE_S = 15
MINUTES_SETTLE_S = 6 * MINUTE_S
# The hot tier may drop its oldest seconds while they are read.
FORGETTING_S = 30
LEAST_SLICE_S = 15
MINUTES_AT_ONCE = 60


@dataclass
class Writer:
    """Delivers two streams: seconds as exported, and minutes as the durable tier keeps them.

    A stream moves on when everything of a slice of time was delivered, and its position is
    stored in the database only then: a killed writer repeats a slice and never misses one. At
    most one slice and one batch per stream are in memory.
    """

    hot: Reader
    client: WriteClient
    every_s: int = 15
    clock: Callable[[], float] = field(default=lambda: datetime.now(UTC).timestamp())

    def turn(self) -> bool:
        """Deliver the next slice of each stream; return whether more is due at once."""
        return any([self._send_seconds(), self._send_minutes(), self._send_again()])

    def __post_init__(self) -> None:
        """Raise ValueError unless ``every_s`` divides a minute."""
        if not 1 <= self.every_s <= MINUTE_S or MINUTE_S % self.every_s:
            msg = (
                f"every_s: {self.every_s} s does not divide a minute; give 1, 5, 10, 15, 30 or 60"
            )
            raise ValueError(msg)
        self._figures = FigureReader(self.hot)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    def _send_seconds(self) -> bool:
        position, now_s = Position(SECONDS), int(self.clock())
        hot_from = self._whole(now_s - self.hot.keep_s + FORGETTING_S) + self.every_s
        due = self._whole(now_s - SECONDS_SETTLE_S)
        start = position.start_at(hot_from, now=self._now())
        if start < hot_from:
            # Minutes replace the seconds of an outage longer than the hot tier keeps them.
            until = min(_up(hot_from, MINUTE_S), start - start % HOUR_S + HOUR_S)
            from_s = _up(start - MIDDLE_S, MINUTE_S)
            self._deliver(position, start, until, means_as_seconds(start=from_s, end=until))
            return True
        # After a change of ``every_s`` a few seconds are delivered twice.
        first, length_s = self._whole(start), max(self.every_s, LEAST_SLICE_S)
        end = min(first + self._whole(length_s), due)
        if end <= start:
            return False
        chunks = second_chunks(self.hot, start=first, end=end, every_s=self.every_s)
        self._deliver(position, start, end, [chunks])
        return end < due

    def _send_minutes(self) -> bool:
        position, now_s = Position(MINUTES), int(self.clock())
        due = (now_s - MINUTES_SETTLE_S) // MINUTE_S * MINUTE_S
        start = position.start_at(due - self.hot.keep_s // MINUTE_S * MINUTE_S, now=self._now())
        end = min(start - start % HOUR_S + HOUR_S, due)
        if end <= start:
            return False
        self._deliver(position, start, end, minute_groups(start=start, end=end))
        return end < due

    def _send_again(self) -> bool:
        """Deliver again the minutes that late reports changed."""
        position = Position(MINUTES)
        due = position.start_at(int(self.clock()), now=self._now())
        marks = queued_rewrites(self.hot, most=MINUTES_AT_ONCE)
        for minute, _ in marks:
            # A minute that is not due yet is delivered later anyway.
            if minute < due:
                groups = minute_groups(start=minute, end=minute + MINUTE_S)
                self._deliver(position, due, due, groups)
        finish_rewrites(self.hot, marks)
        return len(marks) == MINUTES_AT_ONCE

    def _whole(self, second: int) -> int:
        return second // self.every_s * self.every_s

    def _deliver(
        self, position: Position, start: int, end: int, groups: Iterable[Iterable[SeriesChunk]]
    ) -> None:
        """Deliver a slice, one group after another, then store the position."""
        self.client.on_failure = lambda why: position.complain(why, now=self._now())
        if position.stream == SECONDS:
            groups = chain(groups, self._figures.seconds(start=start, end=end))
        delivered = sum((self.client.deliver(batches(group)) for group in groups), Delivered())
        position.move(before=start, after=end, delivered=delivered, now=self._now())


def _up(second: int, step_s: int) -> int:
    return -(-second // step_s) * step_s


BY_STREAM = ("stream",)
LAG = gauge(
    "trnwatch_long_term_lag_seconds",
    "How far the long-term store is behind this moment.",
    *BY_STREAM,
)
SENT = counter(
    "trnwatch_long_term_samples_sent_total", "Samples that the long-term store took.", *BY_STREAM
)
DROPPED = counter(
    "trnwatch_long_term_samples_dropped_total",
    "Samples that the long-term store refused for good.",
    *BY_STREAM,
)
RETRIES = counter(
    "trnwatch_long_term_retries_total",
    "Requests sent again because the long-term store was away or busy.",
    *BY_STREAM,
)


@dataclass(frozen=True, eq=False, slots=True)
class LongTermCollector(Collector):
    """The progress of each stream; no series while LONG_TERM_WRITE_URL is empty."""

    now: datetime

    def collect(self) -> Iterator[Metric]:
        lag, sent, dropped, retries = (spec.family() for spec in (LAG, SENT, DROPPED, RETRIES))
        for row in streams():
            add(lag, self.now.timestamp() - row.second, row.stream)
            add(sent, row.n_sent, row.stream)
            add(dropped, row.n_dropped, row.stream)
            add(retries, row.n_retries, row.stream)
        yield from (lag, sent, dropped, retries)
