"""Reading the hot tier: windows of blocks, steps of runs, when nodes were last seen."""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from redis import Redis

from telemetry.blocks import METRICS, Block, FloatArray, IntArray, Span
from telemetry.steps import AVERAGE, StepBatch
from telemetry.store.connection import COUNTERS, Service, StoreUnavailable
from telemetry.store.packing import (
    DIGEST_BYTES,
    Codes,
    PackedLayout,
    decode,
    digest,
    is_whole_block,
    is_whole_step,
    pack_steps,
    ratio_codes,
    read_layout,
    steps_between,
    unpack,
    unpack_block,
    unpack_steps,
)
from telemetry.units import DAY_S, MINUTE_S

# A packed block: tick, layout, bytes.
Packed = tuple[int, PackedLayout, bytes]

LAYOUTS_REMEMBERED, PLACES_REMEMBERED = 8192, 64
MAX_WINDOW_S = DAY_S
# Where steps are slow, earlier minutes are read in pieces.
LOOK_FURTHER_S = 4 * MINUTE_S
# Redis, by node that Prometheus scrapes: its Scrapes.
SCRAPES = "hot:scrapes"
# Three of them fail, and the next one may be late.
MISSED_SCRAPES = 3.5
# Redis, of agents that were asked to end: when, by node. They are back within AGENT_RESTART_S,
# as after an upgrade, or will be missed: 15 s to end (deploy/agent), a minute to fetch the new
# version (assumed), and the 15 s of silence that every node has.
STOPPING, AGENT_BACK_S = "hot:stopping", 75
AGENT_RESTART_S = AGENT_BACK_S + 15
# Redis, digests of what was found damaged, by when it was last read: each counts once.
DAMAGED = "hot:damaged"
COUNT_DAMAGED = """
local n = 0
for i = 4, #ARGV do n = n + redis.call('ZADD', KEYS[1], ARGV[2], ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] - ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[3])
if n > 0 then redis.call('HINCRBY', KEYS[2], ARGV[1], n) end
return n
"""
T = TypeVar("T")

log = logging.getLogger(__name__)


class Scrapes(msgspec.Struct, array_like=True, frozen=True):
    """A node's shard, the seconds between its scrapes, and the last second of each exporter."""

    shard: str
    every_s: int
    ticks: list[int]


_SCRAPES = msgspec.msgpack.Decoder(Scrapes)


@lru_cache(maxsize=LAYOUTS_REMEMBERED)
def names_in(lines: bytes) -> tuple[str, ...]:
    return tuple(lines.decode().split("\n"))


def gather(
    held: Mapping[str, Sequence[Packed]],
    metrics: Sequence[str],
    *,
    ticks: Sequence[int],
    only: Collection[str] | None = None,
) -> Span:
    """Return metrics of all shards' blocks of these ticks; no names means all metrics.

    NaN where nothing was reported. ``only`` some nodes are decoded.
    """
    row_of = {tick: i for i, tick in enumerate(ticks)}
    # Blocks of one layout are decoded in one pass.
    groups: dict[PackedLayout, list[Packed]] = {}
    for blocks in held.values():
        for block in blocks:
            groups.setdefault(block[1], []).append(block)
    nodes, places = places_of(tuple(groups), None if only is None else frozenset(only))
    rows_of = [as_slice([row_of[tick] for tick, _, _ in blocks]) for blocks in groups.values()]
    names = metrics or [
        name for name in METRICS if any(layout.column(name) is not None for layout in groups)
    ]
    values = {}
    for name in names:
        columns = [
            None if (place := layout.column(name)) is None else layout.columns[place]
            for layout in groups
        ]
        n_parts = max((column.n_parts for column in columns if column is not None), default=0)
        dtype = "f8" if METRICS[name].packing == "exact" else "f4"
        values[name] = np.full((len(ticks), len(nodes), n_parts), np.nan, dtype)
        for (layout, blocks), (kept, at), rows, column in zip(
            groups.items(), places, rows_of, columns, strict=True
        ):
            codes = unpack([blob for _, _, blob in blocks], layout, name)
            if codes is not None and column is not None:
                decoded = decode(codes[:, kept], column.packing)
                ticks_at = rows_at(rows)[:, None] if isinstance(at, list) else rows
                values[name][ticks_at, at, : column.n_parts] = decoded
    return Span(",".join(held), np.array(ticks, int), nodes, values)


Rows = list[int] | slice


def as_slice(rows: list[int]) -> Rows:
    """Return neighbouring rows as a slice: they are copied faster."""
    neighbours = range(rows[0], rows[0] + len(rows)) if rows else range(0)
    return slice(neighbours.start, neighbours.stop) if rows == list(neighbours) else rows


def rows_at(rows: Rows) -> IntArray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.array(rows)


# The nodes of a layout that are kept, and their rows among all.
Place = tuple[Rows, Rows]


@lru_cache(maxsize=PLACES_REMEMBERED)
def places_of(
    layouts: tuple[PackedLayout, ...], only: frozenset[str] | None
) -> tuple[tuple[str, ...], list[Place]]:
    """Return all nodes of layouts, or ``only`` some, and where those of each layout are.

    Nearly always a node is in one layout: then each has neighbouring rows.
    """
    kept = [
        [i for i, node in enumerate(layout.nodes) if only is None or node in only]
        for layout in layouts
    ]
    of_each = [[layout.nodes[i] for i in its] for layout, its in zip(layouts, kept, strict=True)]
    nodes = tuple(dict.fromkeys(chain.from_iterable(of_each)))
    places: list[Place] = []
    if only is None and len(nodes) == sum(map(len, of_each)):
        ends = accumulate(map(len, of_each))
        places = [
            (slice(None), slice(end - len(n), end)) for n, end in zip(of_each, ends, strict=True)
        ]
    else:
        row_of = {node: row for row, node in enumerate(nodes)}
        places = [(k, [row_of[n] for n in its]) for k, its in zip(kept, of_each, strict=True)]
    return nodes, places


def moments_in(
    held: Mapping[str, Sequence[Packed]],
    shards: Sequence[str],
    metrics: Sequence[str],
    *,
    ticks: Sequence[int],
) -> Span:
    """Return metrics of shards at single ticks from what was read of these and others."""
    of_shards = {
        shard: [block for block in held.get(shard, ()) if block[0] in ticks] for shard in shards
    }
    stored = {tick for blocks in of_shards.values() for tick, _, _ in blocks}
    return gather(of_shards, metrics, ticks=[tick for tick in ticks if tick in stored])


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals since the store was created; each block and step counts once.

    ``nodes`` is by metric (its ``_per_s`` summed over the node's parts) and node;
    ``tokens`` and ``steps`` are by run.
    """

    nodes: Mapping[str, Mapping[str, float]]
    tokens: Mapping[str, float]
    steps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Missing:
    """Since when a store does not answer; when it answered again, a moment ago (None: not yet)."""

    since_s: float
    back_s: float | None


@dataclass(frozen=True, slots=True)
class StepState:
    """When a run's newest step ended, and the counts of its steps and of those that changed."""

    ended_s: float = 0.0
    n_steps: int = 0
    n_amended: bytes | None = None

    def is_rewritten(self, later: "StepState") -> bool:
        """Whether more than new steps came meanwhile."""
        return self.n_amended != later.n_amended or self.n_steps > later.n_steps


@dataclass(slots=True)
class RecentSteps:
    """What is kept of a run's recent steps from one second to the next.

    ``state`` is that of the last time, ``asked`` what ``batch`` answers; the minutes in ``n_read``
    are read as far as ``read`` says. Records are by minute; ``n_read`` counts damaged ones, too.
    Where it ``is_averaged`` each holds the mean of a step's workers, and all minutes are kept:
    they are small, and pages ask for several windows.
    """

    is_averaged: bool = False
    state: StepState = StepState()
    read: StepState = StepState()
    asked: tuple[float, int] = (math.nan, 0)
    records: dict[int, list[bytes]] = field(default_factory=dict)
    n_read: dict[int, int] = field(default_factory=dict)
    batch: StepBatch = field(default_factory=partial(StepBatch.empty, ""))
    read_at: float = 0.0


def average_of(_: bytes) -> tuple[str, ...]:
    return AVERAGE


class Reader(Service):
    """Read-only access to the hot tier."""

    def __init__(
        self, redis: Redis, *, keep_s: int = 900, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(redis)
        self.keep_s = keep_s
        self.now = now
        # By digest of the content, so entries never become stale.
        self._layouts: dict[bytes, PackedLayout] = {}
        self._workers: dict[bytes, tuple[str, ...]] = {}
        # By run, and whether they are averages.
        self._recent: dict[tuple[str, bool], RecentSteps] = {}

    def newest(self, shards: Collection[str] | None = None) -> dict[str, int]:
        """Return the newest tick of each shard, or of some."""
        if shards is None:
            return self._ticks("hot:shards")
        ticks = self.execute("ZMSCORE", "hot:shards", *shards) if shards else ()
        known = zip(shards, ticks, strict=True)
        return {shard: int(tick) for shard, tick in known if tick is not None}

    def _ticks(self, key: str) -> dict[str, int]:
        query = ("ZRANGE", key, 0, -1, "WITHSCORES")
        return {name.decode(): int(tick) for name, tick in self.execute(*query, withscores=True)}

    def shards(self) -> tuple[str, ...]:
        return tuple(self.newest())

    def last_seen(self, shards: Collection[str] | None = None) -> dict[str, int]:
        """Return the newest tick of each node that reported in the last week.

        With ``shards``, of the nodes of these, and of some others.
        """
        seen = self._ticks("hot:seen")
        if shards is None:
            heard_of = self.execute("HGETALL", "hot:heard").values()
        else:
            heard_of = filter(None, self.execute("HMGET", "hot:heard", *shards) if shards else ())
        for heard in heard_of:
            tick, _, nodes = heard.partition(b"\n")
            of_shard = dict.fromkeys(names_in(nodes), int(tick))
            for node in seen.keys() & of_shard.keys():
                of_shard[node] = max(seen[node], of_shard[node])
            seen |= of_shard
        return seen

    def scrapes(self) -> dict[str, Scrapes]:
        """Return how the nodes are scraped that report by Prometheus, by name."""
        packed_scrapes = self.execute("HGETALL", SCRAPES)
        return {node.decode(): _SCRAPES.decode(packed) for node, packed in packed_scrapes.items()}

    def quiet_s(self) -> dict[str, int]:
        """Return how long each of these nodes may be without a new second.

        Those that are scraped, and those whose agent was asked to end a moment ago.
        """
        allowed = {
            name: int(MISSED_SCRAPES * each.every_s) for name, each in self.scrapes().items()
        }
        stopping = self.execute("ZRANGEBYSCORE", STOPPING, self.now() - AGENT_RESTART_S, "+inf")
        return allowed | dict.fromkeys((node.decode() for node in stopping), AGENT_RESTART_S)

    def latest(self, shards: Collection[str] | None = None) -> dict[str, Block]:
        """Return the newest block of each shard, or of some; it may be old, so check its tick.

        Exporters of one node are scraped at different times: what the newest block lacks is that
        of each exporter's last second.
        """
        wanted = [(shard, tick, tick) for shard, tick in self.newest(shards).items()]
        ticks = {shard: tick for shard, tick, _ in wanted}
        for of_node in self.scrapes().values():
            last = ticks.get(of_node.shard, 0)
            wanted += [(of_node.shard, t, t) for t in of_node.ticks if last - t > 0]
        blocks: dict[str, Block] = {}
        for shard, packed in self.held(wanted).items():
            for tick, layout, blob in sorted(packed, key=itemgetter(0), reverse=True):
                block = unpack_block(shard, tick, blob, layout)
                if shard in blocks:
                    first = blocks[shard]
                    block = Block(shard, first.tick, first.nodes, {**block.values, **first.values})
                blocks[shard] = block
        return blocks

    def latest_packed(self, shards: Collection[str] | None = None) -> dict[str, Packed]:
        """Return the newest block of each shard, or of some shards, without decoding it."""
        wanted = [(shard, tick, tick) for shard, tick in self.newest(shards).items()]
        by_shard = self.held(wanted)
        return {shard: packed[-1] for shard, packed in by_shard.items() if packed}

    def heard(self) -> list[bytes]:
        """Return the newest tick of each shard whose nodes report together, and their names."""
        lines: list[bytes] = self.execute("HVALS", "hot:heard")
        return lines

    def seen_apart(self) -> dict[str, int]:
        """Return the newest tick of each node that does not report with all of its shard."""
        return self._ticks("hot:seen")

    def newest_codes(self, metric: str) -> Iterator[tuple[int, PackedLayout, Codes | None]]:
        """Yield the newest tick of each shard, and its codes of a ratio: (n_nodes, n_parts).

        Exporters of one node are scraped at different times: the codes are of the newest second
        that has the metric. None without one.
        """
        newest = self.newest()
        wanted = [(shard, tick, tick) for shard, tick in newest.items()]
        for of_node in self.scrapes().values():
            last = newest.get(of_node.shard, 0)
            wanted += [(of_node.shard, t, t) for t in of_node.ticks if last - t > 0]
        for packed in self.held(wanted).values():
            for tick, layout, blob in sorted(packed, key=itemgetter(0), reverse=True):
                codes = ratio_codes(blob, layout, metric)
                if codes is not None:
                    yield tick, layout, codes
                    break
            else:
                if packed:
                    yield max(tick for tick, _, _ in packed), packed[0][1], None

    def recent_packed(
        self, newest: Mapping[str, int], *, within_s: int
    ) -> dict[str, list[Packed]]:
        """Return packed blocks of shards up to a tick each, the newest last."""
        return self.held([(shard, tick - within_s, tick) for shard, tick in newest.items()])

    def window(
        self,
        shards: Sequence[str] | str,
        metrics: Sequence[str] = (),
        *,
        start: int,
        end: int,
        only: Collection[str] | None = None,
    ) -> Span:
        """Return metrics of all nodes of some shards, tick by tick from start to end.

        ``only`` some nodes are decoded: a shard holds hundreds. No ``metrics`` means all.
        Missing ticks, nodes and parts are NaN; a metric of no shard is (n_ticks, n_nodes, 0).
        """
        if not 0 <= end - start < MAX_WINDOW_S:
            msg = f"end: {end - start} s after start; a window lasts at most {MAX_WINDOW_S} s"
            raise ValueError(msg)
        names = (shards,) if isinstance(shards, str) else tuple(shards)
        by_shard = self.held([(name, start, end) for name in names])
        return gather(by_shard, metrics, ticks=range(start, end + 1), only=only)

    def moments(
        self, shards: Sequence[str], metrics: Sequence[str], *, ticks: Sequence[int]
    ) -> Span:
        """Return metrics of all nodes of some shards at single ticks, in one round trip.

        Ticks without a block are left out.
        """
        return moments_in(self.held_at(shards, ticks), shards, metrics, ticks=ticks)

    def held_at(
        self, shards: Sequence[str], ticks: Sequence[int]
    ) -> Mapping[str, Sequence[Packed]]:
        """Return the packed blocks of shards at single ticks, for ``moments_in``."""
        return self.held([(name, tick, tick) for name in shards for tick in ticks])

    def held(self, wanted: Sequence[tuple[str, int, int]]) -> dict[str, list[Packed]]:
        """Return the packed blocks of each (shard, start, end), without damaged ones."""
        asked: dict[tuple[str, int], list[int]] = {}
        for shard, start, end in wanted:
            for minute in range(start - start % MINUTE_S, end + 1, MINUTE_S):
                ticks = range(max(start, minute), min(end + 1, minute + MINUTE_S))
                asked.setdefault((shard, minute), []).extend(ticks)
        answers = self.execute_all(
            ("HMGET", f"hot:{shard}:{minute}", *(tick - minute for tick in ticks))
            for (shard, minute), ticks in asked.items()
        )
        packed_blobs = [
            (shard, tick, blob)
            for ((shard, _), ticks), answer in zip(asked.items(), answers, strict=True)
            for tick, blob in zip(ticks, answer, strict=True)
            if blob is not None
        ]
        layouts = self._learn(
            self._layouts, {b[:DIGEST_BYTES] for _, _, b in packed_blobs}, read_layout
        )
        by_shard: dict[str, list[Packed]] = {shard: [] for shard, _, _ in wanted}
        damaged: dict[str, list[bytes]] = {}
        for shard, tick, blob in packed_blobs:
            layout = layouts.get(blob[:DIGEST_BYTES])
            if layout is not None and is_whole_block(layout, blob):
                by_shard[shard].append((tick, layout, blob))
            else:
                damaged.setdefault(shard, []).append(blob)
        for shard, blobs in damaged.items():
            self.report_damaged("blocks", shard, blobs)
        return by_shard

    def report_damaged(self, what: str, owner: str, contents: Sequence[bytes]) -> None:
        """Count and log stored blocks or steps that cannot be read, each once."""
        keep_s = 2 * self.keep_s
        names = (digest(content) for content in contents)
        arguments = (f"damaged_{what}", self.now(), keep_s, *names)
        try:
            n_new = self.execute("EVAL", COUNT_DAMAGED, 2, DAMAGED, COUNTERS, *arguments)
        except StoreUnavailable:
            # As when Redis is full. The rest of what was read is still good.
            n_new = len(contents)
        if n_new:
            log.error(
                "Redis: %d stored %s of %s are damaged and left out: their values are unknown. "
                "Check the disk and the memory of the machine that runs Redis.",
                n_new,
                what,
                owner,
            )

    def _learn(
        self, known: dict[bytes, T], digests: set[bytes], read: Callable[[bytes], T]
    ) -> dict[bytes, T]:
        """Fetch the entries of unknown digests into the cache, and return it.

        A damaged entry is removed, so that the next block or step stores it again.
        """
        if len(known) > LAYOUTS_REMEMBERED:
            known.clear()
        if new := sorted(digests - known.keys()):
            texts = self.execute("MGET", *(b"hot:layout:" + digest for digest in new))
            for name, text in zip(new, texts, strict=True):
                if text is not None and digest(text) == name:
                    known[name] = read(text)
                elif text is not None:
                    self.execute("DEL", b"hot:layout:" + name)
        return known

    def newest_step_at(self, run: str) -> float | None:
        """Return when the newest step of a run ended, None without one in the last week."""
        newest = self.execute("ZSCORE", "hot:runs", run)
        return None if newest is None else float(newest)

    def active_runs(self, *, since_s: float) -> tuple[str, ...]:
        """Return the runs with a step that ended at ``since_s`` or later."""
        names = self.execute("ZRANGEBYSCORE", "hot:runs", since_s, "+inf")
        return tuple(run.decode() for run in names)

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return a run's steps that ended in [since_s, until_s), with all their workers."""
        newest = self.newest_step_at(run)
        if newest is None:
            return StepBatch.empty(run)
        oldest = newest - self.keep_s - MINUTE_S
        start = int(max(since_s, oldest) // MINUTE_S) * MINUTE_S
        minutes = range(start, int(min(until_s, newest)) + 1, MINUTE_S)
        minutes_of_records = self.execute_all(
            ("LRANGE", f"steps:{run}:{minute}", 0, -1) for minute in minutes
        )
        known = self._readable(run, [each for minute in minutes_of_records for each in minute])
        return steps_between(unpack_steps(run, known, self._workers.get), since_s, until_s)

    def _readable(self, run: str, records: Sequence[bytes]) -> list[bytes]:
        """Leave out damaged records of steps, and those whose workers' names are lost."""
        whole = [record for record in records if is_whole_step(record)]
        digests = {record[:DIGEST_BYTES] for record in whole}
        workers = self._learn(self._workers, digests, lambda names: tuple(json.loads(names)))
        known = [record for record in whole if record[:DIGEST_BYTES] in workers]
        if len(known) < len(records):
            good = set(known)
            self.report_damaged("steps", run, [each for each in records if each not in good])
        return known

    def step_states(self, runs: Sequence[str]) -> dict[str, StepState]:
        """Return the states of runs with steps, in one round trip."""
        if not runs:
            return {}
        ended, n_steps, n_amended = self.execute_all(
            [
                ("ZMSCORE", "hot:runs", *runs),
                ("HMGET", "totals:steps", *runs),
                ("MGET", *(f"steps:{run}:amended" for run in runs)),
            ]
        )
        return {
            run: StepState(float(ended_s), int(n or 0), amended)
            for run, ended_s, n, amended in zip(runs, ended, n_steps, n_amended, strict=True)
            if ended_s is not None
        }

    def read_ahead(self, states: Mapping[str, StepState], *, since_s: float) -> None:
        """Fetch what is new in runs for `recent_steps`, in one round trip; of known ones only."""
        changed: list[tuple[RecentSteps, str, list[int]]] = []
        for run, state in states.items():
            held = self._recent.get((run, False))
            if held and held.state != state and not held.state.is_rewritten(state):
                low = self._first_minute(since_s, state.ended_s)
                new = range(low, int(state.ended_s) + 1, MINUTE_S)
                changed.append((held, run, sorted({*held.n_read, *new})))
                held.read = state
        answers = iter(
            self.execute_all(
                ("LRANGE", f"steps:{run}:{minute}", held.n_read.get(minute, 0), -1)
                for held, run, minutes in changed
                for minute in minutes
            )
        )
        for held, run, minutes in changed:
            for minute, records in zip(minutes, islice(answers, len(minutes)), strict=True):
                self._keep(run, held, minute, records)

    def _first_minute(self, since_s: float, newest: float) -> int:
        return int(max(since_s, newest - self.keep_s - MINUTE_S) // MINUTE_S) * MINUTE_S

    def recent_steps(
        self,
        run: str,
        *,
        since_s: float,
        at_least: int = 0,
        state: StepState | None = None,
        averaged: bool = False,
    ) -> StepBatch:
        """Return the steps that ended at ``since_s`` or later, or the last ``at_least`` if fewer.

        Only what is new since the last call is fetched; without anything new it is the same batch.
        ``state`` is what ``step_states`` has just returned. Steps that are ``averaged`` have the
        mean of all workers as the only one: for a large run they are much smaller.
        """
        state, key = state or self.step_states([run]).get(run), (run, averaged)
        if state is None:
            self._recent.pop(key, None)
            return StepBatch.empty(run)
        held = self._recent.get(key)
        if held is None or held.state.is_rewritten(state):
            held = self._recent[key] = RecentSteps(averaged)
        if held.state != state or held.asked != (since_s, at_least):
            held.state, held.asked = state, (since_s, at_least)
            self._extend(run, held, state.ended_s, is_read=state == held.read)
            held.read = state
        held.read_at = self.now()
        for name in [n for n, each in self._recent.items() if each.read_at < held.read_at - 60]:
            del self._recent[name]
        return held.batch

    def _extend(self, run: str, held: RecentSteps, newest: float, *, is_read: bool) -> None:
        """Fetch the new records of the minutes that are asked for; ``is_read``: there are none."""
        since_s, at_least = held.asked
        floor, low = (self._first_minute(each, newest) for each in (-math.inf, since_s))
        minutes = list(range(low, int(newest) + 1, MINUTE_S))
        while True:
            self._fetch(run, held, [m for m in minutes if not (is_read and m in held.n_read)])
            n_since = sum(len(held.records.get(m, ())) for m in held.records if m >= low)
            if n_since >= at_least or low <= floor:
                break
            # A few minutes more, because steps are slow.
            minutes = list(range(max(floor, low - LOOK_FURTHER_S), low, MINUTE_S))
            low = minutes[0]
        kept_from = floor if held.is_averaged else low
        for minute in [minute for minute in held.records if minute < kept_from]:
            del held.records[minute], held.n_read[minute]
        minutes = sorted(minute for minute in held.records if minute >= low)
        known = [record for minute in minutes for record in held.records[minute]]
        steps = unpack_steps(run, known, average_of if held.is_averaged else self._workers.get)
        between = steps_between(steps, since_s, math.inf)
        held.batch = between if len(between) >= at_least else steps.last(at_least)

    def _fetch(self, run: str, held: RecentSteps, minutes: Sequence[int]) -> None:
        """Add the records of some minutes that are not read yet."""
        turns = [list(minutes)]
        if held.is_averaged:
            # Those of many workers are large: at first one minute at a time.
            known = [minute for minute in minutes if minute in held.n_read]
            turns = [known, *([minute] for minute in minutes if minute not in held.n_read)]
        for turn in filter(None, turns):
            answers = self.execute_all(
                ("LRANGE", f"steps:{run}:{each}", held.n_read.get(each, 0), -1) for each in turn
            )
            for minute, records in zip(turn, answers, strict=True):
                self._keep(run, held, minute, records)

    def _keep(self, run: str, held: RecentSteps, minute: int, records: Sequence[bytes]) -> None:
        held.n_read[minute] = held.n_read.get(minute, 0) + len(records)
        new = self._readable(run, records)
        if held.is_averaged and new:
            new = pack_steps(unpack_steps(run, new, self._workers.get).averaged())[2]
        held.records.setdefault(minute, []).extend(new)

    def totals(self, shards: Collection[str] | None = None) -> Totals:
        """Return the totals of all nodes, or those of some shards, and of runs."""
        shards = self.shards() if shards is None else shards
        packed_sums = self.execute_all(
            ("HMGET", f"totals:{shard}", "nodes", "counted", "sums") for shard in shards
        )
        totals: dict[str, dict[str, float]] = {}
        for nodes, counted, packed in packed_sums:
            if packed is not None:
                names, sums = nodes.decode().split("\n"), msgspec.msgpack.decode(packed)
                for i, metric in enumerate(filter(None, counted.decode().split("\n"))):
                    row = sums[i * len(names) : (i + 1) * len(names)]
                    totals.setdefault(metric, {}).update(zip(names, row, strict=True))
        steps = {run: int(n) for run, n in self._numbers("totals:steps").items()}
        return Totals(totals, self._numbers("totals:tokens"), steps)


class Source(Protocol):
    """What detection and charts read of the last minutes."""

    @property
    def keep_s(self) -> int:
        """Seconds of data that are available."""

    def newest(self) -> dict[str, int]:
        """Return the newest tick of each shard."""

    def newest_step_at(self, run: str) -> float | None:
        """Return when a run's newest step ended, None without any."""

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick in which each node reported."""

    def quiet_s(self) -> dict[str, int]:
        """Return how long each of these nodes may be without a new second."""

    def window(
        self,
        shards: Sequence[str] | str,
        metrics: Sequence[str] = (),
        *,
        start: int,
        end: int,
        only: Collection[str] | None = None,
    ) -> Span:
        """Return metrics of nodes of some shards, tick by tick; it may leave out all but some."""

    def moments(
        self, shards: Sequence[str], metrics: Sequence[str], *, ticks: Sequence[int]
    ) -> Span:
        """Return metrics of all nodes of some shards at single ticks; unknown ones left out."""

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return a run's steps that ended in [since_s, until_s)."""

    def recent_steps(
        self, run: str, *, since_s: float, at_least: int, state: StepState | None = None
    ) -> StepBatch:
        """Return the steps since a second, or the last ``at_least`` where they are fewer."""


def recent_of(source: Source, run: str, *, since_s: float, at_least: int) -> StepBatch:
    """Return recent steps of a source that has all at hand."""
    some = source.steps(run, since_s=since_s)
    return some if len(some) >= at_least else source.steps(run, since_s=0.0).last(at_least)


class LongTermError(Exception):
    """The long-term store is unreachable or its response is invalid."""


class LongTerm(Protocol):
    """What history reads from the long-term store; methods raise LongTermError."""

    def node_minutes(
        self, node: str, metric: str, *, start: int, end: int, every_s: int
    ) -> tuple[IntArray, FloatArray]:
        """Return minimum, mean and maximum of each part, (n, 3 * n_parts), per ``every_s``."""

    def run_minutes(self, run: str, *, start: int, end: int, every_s: int) -> FloatArray:
        """Return a run's average step per ``every_s``: (n, 9)."""
