"""Shared service state: plans, counts, gauges, tick messages."""

from pathlib import Path

from redis import Redis

from telemetry.store.hot import TICKS, HotStore, open_store
from tests.helpers import redis_server


def test_plans_are_kept_until_dropped(hot: HotStore) -> None:
    hot.put_plan("llama", b"{}")
    hot.put_plan("bert", b"{1}")
    hot.put_plan("bert", b"{2}")
    hot.drop_plan("llama")

    assert hot.plans() == {"bert": b"{2}"}
    assert hot.plan("bert") == b"{2}"
    assert hot.plan("llama") is None


def test_counts_add_up_and_gauges_are_replaced(hot: HotStore) -> None:
    hot.count("ticks")
    hot.count("ticks", 2)
    hot.gauge("tick_lateness_s", 0.5)
    hot.gauge("tick_lateness_s", 0.25)

    assert hot.counters() == {"ticks": 3.0}
    assert hot.gauges() == {"tick_lateness_s": 0.25}


def test_a_gauge_held_in_shares_is_their_sum_while_they_are_fresh(hot: HotStore) -> None:
    hot.gauge_share("stream_clients", 3, by="web:1", now_s=1_000.0)
    hot.gauge_share("stream_clients", 2, by="web:2", now_s=1_001.0)
    assert hot.gauges(now_s=1_002.0)["stream_clients"] == 5

    hot.gauge_share("stream_clients", 1, by="web:2", now_s=1_020.0)
    assert hot.gauges(now_s=1_021.0)["stream_clients"] == 1

    assert hot.gauges(now_s=1_100.0)["stream_clients"] == 0
    assert hot.gauges(now_s=9_000.0)["stream_clients"] == 0
    assert "stream_clients" not in hot.gauges(now_s=9_001.0)


def test_each_subscriber_gets_each_tick(hot: HotStore, redis: Redis) -> None:
    with redis.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(TICKS)
        channel.get_message(timeout=1.0)
        hot.publish_tick(1_700_000_000)

        message = channel.get_message(timeout=5.0)

    assert message is not None
    assert message["data"] == b"1700000000"


def test_it_knows_how_many_tasks_wait(hot: HotStore, redis: Redis) -> None:
    redis.rpush("celery", "task", "task")

    assert hot.queue_depth() == 2


def test_it_knows_how_much_it_holds(tmp_path: Path) -> None:
    # Other tests write to the Redis that all of them share.
    with redis_server(tmp_path) as url, Redis.from_url(url) as redis:
        hot = HotStore(redis)
        before = hot.bytes_used()
        redis.set("large", bytes(4_000_000))

        assert hot.bytes_used() > before + 3_000_000


def test_a_process_opens_each_store_once(redis_url: str) -> None:
    assert open_store(redis_url) is open_store(redis_url)
