"""The hot tier: one Redis, or several, with shards hashed over them and all else in the first.

Each shard has one of them by rendezvous hashing, so that adding one moves only its share. Samples
(blocks, what was last seen, totals, late minutes) are where their shard is. Clocks, steps, plans,
locks and counters of the fleet are in the first; without it nothing works, as with a single one.
While another one does not answer its shards are missing: nothing is known of their nodes, which
does not mean that they are silent.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from django.conf import settings
from redis import Redis, exceptions

from telemetry.blocks import Block
from telemetry.steps import RETURN_S
from telemetry.store.commits import ClockChange, HotStore, block_parts, raw
from telemetry.store.connection import TICKS, Command, StoreUnavailable, impatient, patient
from telemetry.store.placement import place_of, store_name
from telemetry.store.reading import Missing, Packed, Totals

__all__ = [
    "TICKS",
    "ClockChange",
    "HotStore",
    "ShardedStore",
    "StoreUnavailable",
    "Totals",
    "hot_store",
    "open_store",
    "raw",
]

# A store that hangs delays a process once by so much; then it is asked again, each second, by a
# connection that does not wait.
WITHIN_S, REST_S, PROBE_WITHIN_S = 1.0, 1.0, 0.25
# Nodes that moved from one store to another were last seen by the first before that.
MOVED_S = 120.0
# Redis, a hash in the first store, by name of a store: since when it is missing, and when it
# answered again (0: not yet). And what a process writes to see whether a store takes writes.
MISSING, PROBE = "stores:missing", "hot:probe"
PLACES_REMEMBERED = 100_000
NOTE = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
local since = held and string.match(held, '^%S+') or ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], since .. ' 0')
return since
"""
FORGET = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 0
"""
T = TypeVar("T")
S = TypeVar("S")


class Part(HotStore):
    """One of several stores. While it fails it is not asked, but probed once a second.

    A probe writes: a store that is full or read-only is as good as away, because what it has is
    old.
    """

    def __init__(
        self, url: str, *, keep_s: int, now: Callable[[], float], failed: Callable[["Part"], None]
    ) -> None:
        self.name, self._failed = store_name(url), failed
        self._prober = impatient(url, within_s=PROBE_WITHIN_S)
        self._rests_until_s, self._error = 0.0, ""
        redis = impatient(url, within_s=WITHIN_S, n_retries=1)
        super().__init__(redis, keep_s=keep_s, now=now)

    def execute(self, *command: Any, **reading: Any) -> Any:
        with self._guarded():
            return super().execute(*command, **reading)

    def execute_all(self, commands: Iterable[Command]) -> list[Any]:
        with self._guarded():
            return super().execute_all(commands)

    def probe(self) -> bool:
        """Return whether it takes writes; ask at most once a second while it does not."""
        if time.monotonic() < self._rests_until_s:
            return False
        try:
            self._prober.set(PROBE, 1, ex=60)
        except exceptions.RedisError as error:
            self._rest(error)
            return False
        self._rests_until_s, self._error = 0.0, ""
        return True

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._error and not self.probe():
            raise StoreUnavailable(self._error)
        try:
            yield
        except exceptions.NoScriptError:
            raise
        except exceptions.RedisError as error:
            self._rest(error)
            raise StoreUnavailable(self._error) from error

    def _rest(self, error: exceptions.RedisError) -> None:
        self._rests_until_s = time.monotonic() + REST_S
        self._error = f"Store {self.name} of REDIS_URL: {error}"
        self._failed(self)


class ShardedStore(HotStore):
    """The hot tier over several Redis; methods are those of one."""

    def __init__(
        self,
        redis: Redis,
        urls: Sequence[str],
        *,
        keep_s: int = 900,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``redis`` is the first of ``urls``; the settings of its connections are the caller's."""
        super().__init__(redis, keep_s=keep_s, now=now)
        self._first = HotStore(redis, keep_s=keep_s, now=now)
        self._others = [Part(url, keep_s=keep_s, now=now, failed=self._note) for url in urls[1:]]
        self._parts = (self._first, *self._others)
        self._names = [store_name(url) for url in urls]
        self._places: dict[str, int] = {}
        self._counters: dict[str, dict[str, float]] = {}

    # Where shards are.

    @property
    def parts(self) -> tuple[HotStore, ...]:
        return self._parts

    def _place(self, shard: str) -> int:
        place = self._places.get(shard)
        if place is None:
            if len(self._places) >= PLACES_REMEMBERED:
                self._places.clear()
            place = self._places[shard] = place_of(shard, self._names)
        return place

    def of(self, shard: str) -> HotStore:
        return self._parts[self._place(shard)]

    def store_of(self, shard: str) -> str:
        return self._names[self._place(shard)]

    def divide(
        self, given: Iterable[T], shard_of: Callable[[T], str]
    ) -> list[tuple[HotStore, list[T]]]:
        by_place: dict[int, list[T]] = {}
        for each in given:
            by_place.setdefault(self._place(shard_of(each)), []).append(each)
        return [(self._parts[place], some) for place, some in sorted(by_place.items())]

    # What is missing.

    def missing(self) -> dict[str, Missing]:
        stored = self.execute("HGETALL", MISSING)
        if not stored:
            return {}
        now_s, missing = self.now(), {}
        by_name = {part.name: part for part in self._others}
        for name, text in ((name.decode(), text) for name, text in stored.items()):
            since_s, back_s = map(float, text.split())
            part = by_name.get(name)
            if part is None or (back_s and now_s - back_s > RETURN_S):
                self.execute("EVAL", FORGET, 1, MISSING, name, text)
                continue
            if not back_s and part.probe():
                back_s = now_s
                self.execute("HSET", MISSING, name, f"{since_s} {back_s}")
            missing[name] = Missing(since_s, back_s or None)
        return missing

    def _note(self, part: Part) -> None:
        """Let all processes know that a store is missing; one that was just back: since before."""
        with suppress(StoreUnavailable):
            self.execute("EVAL", NOTE, 1, MISSING, part.name, self.now())

    def _answers(
        self, questions: Iterable[tuple[HotStore, T]], ask: Callable[[HotStore, T], S]
    ) -> Iterator[tuple[HotStore, S]]:
        """Ask some of the stores, each a question of its own; leave out those that are missing."""
        for part, question in questions:
            try:
                yield part, ask(part, question)
            except StoreUnavailable:
                if part is self._first:
                    raise

    def _change_each(
        self, blocks: Iterable[Block], change: Callable[[HotStore, list[Block]], int | None]
    ) -> int:
        """Change all stores that answer; then raise the error of those that do not."""
        n, errors = 0, []
        for part, some in self.divide(blocks, attrgetter("shard")):
            try:
                n += change(part, some) or 0
            except StoreUnavailable as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return n

    # Writing.

    def append(self, blocks: Iterable[Block]) -> int:
        return self._change_each(blocks, HotStore.append)

    def merge(self, blocks: Iterable[Block], *, is_counted: bool = True) -> int:
        return self._change_each(blocks, partial(HotStore.merge, is_counted=is_counted))

    def remove(self, blocks: Iterable[Block]) -> None:
        self._change_each(blocks, HotStore.remove)

    def commit_ticks(self, ticks: Sequence[ClockChange]) -> list[bool]:
        """Store the blocks of other stores first, then all clocks and steps in the first.

        A block is written once, so a tick that is played again changes nothing. Blocks of a store
        that is missing are lost: their run goes on.
        """
        others = [tick for tick in ticks if self.of(tick.shard) is not self._first]
        blocks = (block for tick in others for block in tick.blocks)
        questions = self.divide(blocks, attrgetter("shard"))
        for _ in self._answers(questions, lambda part, some: part.put(block_parts(some))):
            pass
        is_other = {tick.shard for tick in others}
        bare = [replace(t, blocks=()) if t.shard in is_other else t for t in ticks]
        return super().commit_ticks(bare)

    # Reading.

    def newest(self, shards: Collection[str] | None = None) -> dict[str, int]:
        newest: dict[str, int] = {}
        for part, ticks in self._answers(self._asked(shards), HotStore.newest):
            # A shard that has moved is still known where it was.
            newest |= {shard: tick for shard, tick in ticks.items() if self.of(shard) is part}
        return newest

    def _asked(
        self, shards: Collection[str] | None
    ) -> list[tuple[HotStore, Collection[str] | None]]:
        """Return which store is asked for which shards; None: for all that it has."""
        if shards is None:
            return [(part, None) for part in self._parts]
        return [*self.divide(shards, str)]

    def last_seen(self, shards: Collection[str] | None = None) -> dict[str, int]:
        """Return the newest ticks, without nodes whose store is missing or just back.

        While one is missing others may know a moved node as it was before: what is older than that
        tells nothing.
        """
        answers = list(self._answers(self._asked(shards), HotStore.last_seen))
        missing = self.missing()
        since_s = min((gap.since_s for gap in missing.values()), default=0.0) - MOVED_S
        gaps = {id(part): missing[part.name] for part in self._others if part.name in missing}
        seen: dict[str, int] = {}
        for part, of_part in answers:
            gap = gaps.get(id(part))
            if gap is not None and gap.back_s is None:
                continue
            from_s = since_s if gap is None or gap.back_s is None else int(gap.back_s)
            for node in seen.keys() & of_part.keys():
                of_part[node] = max(of_part[node], seen[node])
            seen |= {n: t for n, t in of_part.items() if t >= from_s} if missing else of_part
        return seen

    def heard(self) -> list[bytes]:
        """Return none: what a store knows may be old, so each node is read alone."""
        return []

    def seen_apart(self) -> dict[str, int]:
        return self.last_seen()

    def held(self, wanted: Sequence[tuple[str, int, int]]) -> dict[str, list[Packed]]:
        held: dict[str, list[Packed]] = {shard: [] for shard, _, _ in wanted}
        questions = self.divide(wanted, itemgetter(0))
        for _, of_part in self._answers(questions, lambda part, some: part.held(some)):
            held |= of_part
        return held

    def totals(self, shards: Collection[str] | None = None) -> Totals:
        shards = self.shards() if shards is None else shards
        totals = self._first.totals([shard for shard in shards if self.of(shard) is self._first])
        nodes: dict[str, dict[str, float]] = {k: {**v} for k, v in totals.nodes.items()}
        others = [each for each in self.divide(shards, str) if each[0] is not self._first]
        for _, of_part in self._answers(others, HotStore.totals):
            for metric, by_node in of_part.nodes.items():
                nodes.setdefault(metric, {}).update(by_node)
        return replace(totals, nodes=nodes)

    def counters(self) -> dict[str, float]:
        """Return the counters of all stores; of one that is missing, as they were."""
        total = self._first.counters()
        for part in self._others:
            with suppress(StoreUnavailable):
                self._counters[part.name] = part.counters()
            for name, n in self._counters.get(part.name, {}).items():
                total[name] = total.get(name, 0.0) + n
        return total

    def bytes_used(self) -> int:
        everywhere = ((part, None) for part in self._parts)
        return sum(n for _, n in self._answers(everywhere, lambda part, _: part.bytes_used()))


@lru_cache(maxsize=8)
def open_store(
    url: str, *others: str, keep_s: int = 900, within_s: float | None = None
) -> HotStore:
    """Return the store of one address or more; the first one must answer ``within_s``."""
    redis = patient(url) if within_s is None else impatient(url, within_s=within_s)
    if others:
        return ShardedStore(redis, (url, *others), keep_s=keep_s)
    return HotStore(redis, keep_s=keep_s)


def hot_store() -> HotStore:
    """Return the store that the settings name."""
    return open_store(settings.REDIS_URL, *settings.REDIS_OTHERS, keep_s=settings.HOT_KEEP_S)
