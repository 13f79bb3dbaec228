"""Appending blocks: once each, late ones too, invalid ones never."""

import dataclasses

import numpy as np
import pytest
from redis import Redis

import telemetry.store.commits
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block


def test_a_block_counts_once(hot: HotStore) -> None:
    assert hot.append([block()]) == 1
    assert hot.append([block(), block(tick=NOON_S + 1)]) == 1


def test_the_first_to_come_stays(hot: HotStore) -> None:
    hot.append([block(fill=0.5)])
    hot.append([block(fill=0.9)])

    assert hot.latest()["llama/0"].values["vcpu_usage_ratio"][0, 0] == pytest.approx(0.5, abs=0.01)


def test_a_late_block_is_welcome_and_not_the_newest(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S)])

    assert hot.append([block(tick=NOON_S - 300)]) == 1
    assert hot.latest()["llama/0"].tick == NOON_S
    assert hot.last_seen() == {"steady": NOON_S, "limping": NOON_S}


@pytest.mark.parametrize("tick", [NOON_S - 901, 2**40])
def test_an_absurd_tick_is_counted_and_not_kept(hot: HotStore, tick: int) -> None:
    hot.append([block(tick=NOON_S)])

    assert hot.append([block(tick=tick)]) == 0
    assert hot.latest()["llama/0"].tick == NOON_S
    assert hot.counters()["refused_blocks"] == 1


def test_a_tick_ahead_of_the_clock_is_refused(redis: Redis) -> None:
    hot = HotStore(redis, now=lambda: NOON_S)

    assert hot.append([block(tick=NOON_S + 121)]) == 0
    assert hot.append([block(tick=NOON_S + 119)]) == 1


def test_every_key_expires(hot: HotStore, redis: Redis) -> None:
    hot.append([block(tick=NOON_S - 600), block(tick=NOON_S)])

    minutes = sorted(redis.scan_iter("hot:llama/0:*"))
    ttls_s = [redis.ttl(minute) for minute in minutes]
    assert [0 < ttl_s <= 900 + 120 for ttl_s in ttls_s] == [True, True]
    assert redis.ttl("hot:newest") > 0
    assert all(redis.ttl(key) > 900 for key in redis.scan_iter("hot:layout:*"))


def test_a_shard_too_many_is_refused_and_counted(
    hot: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry.store.commits, "MAX_NAMES", 2)
    hot.append([block(shard="a"), block(shard="b")])

    assert hot.append([block(shard="c"), block(shard="a", tick=NOON_S + 1)]) == 1
    assert hot.shards() == ("b", "a")
    assert hot.counters()["refused_for_room"] == 1


def test_a_silent_shard_is_evicted(hot: HotStore) -> None:
    hot.append([block(shard="old", tick=NOON_S - 2000)])
    hot.append([block(shard="new", tick=NOON_S)])

    assert hot.shards() == ("new",)


def test_a_silent_node_is_remembered_as_last_seen(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S)])
    spoken = block(tick=NOON_S + 1)
    values = {name: array.copy() for name, array in spoken.values.items()}
    for array in values.values():
        array[1] = np.nan
    hot.append([dataclasses.replace(spoken, values=values)])

    assert hot.last_seen() == {"steady": NOON_S + 1, "limping": NOON_S}


def test_a_node_that_left_is_remembered_too(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S, nodes=["a", "b"])])
    hot.append([block(tick=NOON_S + 1, nodes=["b", "c"])])
    hot.append([block(tick=NOON_S - 1, nodes=["a", "d"])])

    assert hot.last_seen() == {"a": NOON_S, "b": NOON_S + 1, "c": NOON_S + 1, "d": NOON_S - 1}


def test_who_was_not_heard_of_for_a_week_is_forgotten(hot: HotStore) -> None:
    week_s = 7 * 24 * 3600
    hot.append([block("a", tick=NOON_S - week_s - 1, nodes=["long-gone"])])
    hot.append([block("b", tick=NOON_S - week_s + 9, nodes=["gone"])])
    hot.append([block("c", nodes=["here"])])

    assert hot.last_seen().keys() == {"gone", "here"}


def test_a_name_must_be_one_line(hot: HotStore) -> None:
    with pytest.raises(ValueError, match=r"nodes: .* Give one line"):
        hot.append([block(nodes=["two\nlines"])])


def test_an_empty_store_has_nothing_to_say(hot: HotStore) -> None:
    assert hot.append([]) == 0
    assert hot.shards() == ()
    assert hot.latest() == {}
    assert hot.last_seen() == {}
