"""Several real Redis as one hot tier: where shards are, and what one that fails takes with it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from telemetry.blocks import Block
from telemetry.store.hot import HotStore, StoreUnavailable, open_store
from telemetry.store.placement import store_name
from tests.helpers import NOON_S, block, free_port
from tests.telemetry.store.samples import Redis

SHARDS = [f"llama/{i}" for i in range(12)]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Redis]]:
    with ExitStack() as stack:
        servers = []
        for i in range(3):
            folder = tmp_path / f"{i}"
            folder.mkdir()
            servers.append(Redis(folder, free_port()))
            stack.callback(servers[-1].kill)
        yield servers


@pytest.fixture
def hot(servers: list[Redis]) -> HotStore:
    return open_store(*(server.url for server in servers))


def of(hot: HotStore, i: int) -> list[str]:
    return [shard for shard in SHARDS if hot.of(shard) is hot.parts[i]]


def blocks(tick: int = NOON_S) -> list[Block]:
    return [block(shard, tick) for shard in SHARDS]


def test_each_shard_is_in_one_of_them_and_all_are_read_together(hot: HotStore) -> None:
    assert hot.append(blocks()) == len(SHARDS)

    assert all(of(hot, i) for i in range(3))
    assert [sorted(part.shards()) for part in hot.parts] == [sorted(of(hot, i)) for i in range(3)]
    assert hot.newest() == dict.fromkeys(SHARDS, NOON_S)
    assert sorted(hot.latest()) == sorted(SHARDS)
    assert hot.append(blocks()) == 0


def test_one_that_is_killed_takes_its_shards_with_it_and_no_others(
    hot: HotStore, servers: list[Redis]
) -> None:
    hot.append(blocks())
    servers[1].kill()

    assert sorted(hot.newest()) == sorted(of(hot, 0) + of(hot, 2))
    with pytest.raises(StoreUnavailable, match="REDIS_URL"):
        hot.append(blocks(NOON_S + 1))
    assert set(hot.newest().values()) == {NOON_S + 1}
    [(name, gap)] = hot.missing().items()
    assert name == store_name(servers[1].url)
    assert gap.since_s == pytest.approx(time.time(), abs=60)
