"""Several real Redis as one hot tier: where shards are, and what one that fails takes with it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.blocks import Block
from telemetry.store.hot import HotStore, StoreUnavailable, open_store
from telemetry.store.placement import place_of, store_name, store_urls
from tests.helpers import block, steps
from tests.telemetry.store.samples import Redis, several_redis

# So many that each store has some.
SHARDS = [f"llama/{i}" for i in range(48)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Redis]]:
    with several_redis(tmp_path) as servers:
        yield servers


@pytest.fixture
def now_s() -> int:
    return int(time.time())


@pytest.fixture
def hot(servers: list[Redis]) -> HotStore:
    return open_store(*(server.url for server in servers))


def of(hot: HotStore, *places: int) -> list[str]:
    return sorted(shard for shard in SHARDS if hot.of(shard) in [hot.parts[i] for i in places])


def blocks(tick: int) -> list[Block]:
    return [block(shard, tick, (shard,)) for shard in SHARDS]


def test_each_shard_is_in_one_of_them_and_all_are_read_together(hot: HotStore, now_s: int) -> None:
    assert hot.append(blocks(now_s)) == len(SHARDS)

    assert [sorted(part.shards()) for part in hot.parts] == [of(hot, i) for i in range(3)]
    assert hot.newest() == hot.last_seen() == dict.fromkeys(SHARDS, now_s)
    assert sorted(hot.latest()) == sorted(SHARDS)
    assert hot.window(SHARDS, start=now_s, end=now_s).nodes == tuple(SHARDS)
    assert sorted(hot.totals().nodes["efa_tx_bytes_per_s"]) == sorted(SHARDS)
    assert hot.append(blocks(now_s)) == hot.merge(blocks(now_s)) == 0


def test_clocks_and_steps_are_in_the_first_and_blocks_of_a_tick_once_in_theirs(
    hot: HotStore, now_s: int
) -> None:
    for shard in SHARDS:
        of_tick, batch = [block(shard, now_s)], steps(ended_at_s=now_s)
        assert hot.commit(shard, before=None, after=b"1", blocks=of_tick, steps=batch)
        assert not hot.commit(shard, before=None, after=b"2", blocks=of_tick, steps=batch)

    first = hot.parts[0]
    assert set(first.clocks(SHARDS).values()) == {b"1"}
    assert len(first.steps("llama", since_s=0)) == len(hot.steps("llama", since_s=0)) == 10
    assert [sorted(part.shards()) for part in hot.parts] == [of(hot, i) for i in range(3)]


def test_one_that_is_killed_takes_its_shards_with_it_and_no_others(
    hot: HotStore, servers: list[Redis], now_s: int
) -> None:
    hot.append(blocks(now_s))
    servers[1].kill()

    assert sorted(hot.newest()) == of(hot, 0, 2)
    with pytest.raises(StoreUnavailable, match="REDIS_URL"):
        hot.append(blocks(now_s + 1))
    assert hot.newest() == hot.last_seen() == dict.fromkeys(of(hot, 0, 2), now_s + 1)
    assert hot.missing().keys() == {store_name(servers[1].url)}


def test_without_the_first_nothing_is_known(
    hot: HotStore, servers: list[Redis], now_s: int
) -> None:
    hot.append(blocks(now_s))
    servers[0].kill()

    for question in (hot.newest, hot.last_seen, hot.missing, hot.latest, hot.totals):
        with pytest.raises(StoreUnavailable):
            question()


def test_all_processes_learn_what_one_of_them_misses(
    hot: HotStore, servers: list[Redis], now_s: int
) -> None:
    """One that can still reach it does not believe what it has."""
    other = open_store(*(server.url for server in servers), keep_s=901)
    hot.append(blocks(now_s - 5))
    hot.parts[0].execute("HSET", "stores:missing", store_name(servers[2].url), f"{hot.now()} 0")

    # It answers this one, so it is back: its nodes have a moment to report again.
    assert sorted(other.last_seen()) == of(other, 0, 1)
    [gap] = other.missing().values()
    assert gap.back_s is not None
    for part in other.parts:
        part.append(
            [
                block(shard, int(other.now()) + 1, (shard,))
                for shard in SHARDS
                if other.of(shard) is part
            ]
        )
    assert sorted(other.last_seen()) == sorted(SHARDS)


def test_one_more_takes_its_share_and_nothing_else_moves() -> None:
    shards = [f"run/{i}" for i in range(3_000)]
    names = ["a:6379", "b:6379", "c:6379"]
    before = [names[place_of(shard, names)] for shard in shards]
    more = [*names, "d:6379"]
    after = [more[place_of(shard, more)] for shard in shards]

    moved = {now for was, now in zip(before, after, strict=True) if was != now}
    assert moved == {"d:6379"}
    assert after.count("d:6379") == pytest.approx(len(shards) / 4, rel=0.15)
    assert [before.count(name) for name in names] == pytest.approx([1_000] * 3, rel=0.1)


def test_a_shard_that_has_moved_is_read_where_it_is_now(servers: list[Redis], now_s: int) -> None:
    urls = [server.url for server in servers]
    two, three = open_store(*urls[:2]), open_store(*urls)
    two.append(blocks(now_s - 300))
    moved = of(three, 2)

    assert sorted(three.newest()) == of(three, 0, 1)
    three.append([block(shard, now_s + 1, (shard,)) for shard in SHARDS])
    assert three.newest() == three.last_seen() == dict.fromkeys(SHARDS, now_s + 1)
    # Its old place does not make it silent, should the new one fail.
    servers[2].kill()
    assert three.last_seen().keys().isdisjoint(moved)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("redis://a:1/0", ["redis://a:1/0"]),
        ("redis://:p,w@a/0, rediss://b:7/0,", ["redis://:p,w@a/0", "rediss://b:7/0"]),
        ("redis://a,redis://a/1", ["redis://a", "redis://a/1"]),
    ],
)
def test_a_list_is_divided_where_an_address_begins(text: str, urls: list[str]) -> None:
    assert store_urls(text) == urls


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("redis://a,redis://:x@a:6379/0", "names a:6379 twice"),
        ("a:6379", "must be addresses"),
        ("redis://a:x/0", "invalid"),
    ],
)
def test_an_address_that_is_none_or_there_twice_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        store_urls(text)
    assert ":x@" not in str(error.value)
