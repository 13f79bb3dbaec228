"""Pages and alerts while values in Redis are damaged."""

import logging
import time
from datetime import UTC, datetime

import pytest
from django.test import Client
from pytest_django import Settings
from redis import Redis

from fleet.alerts.evaluate import watch
from fleet.alerts.failures import rule_failures
from fleet.models import Node, Run
from telemetry.store.hot import HotStore
from tests.helpers import block, steps


@pytest.mark.parametrize("place", [3, 12, 60, -30, -2])
def test_pages_and_the_watch_go_on(
    client: Client,
    settings: Settings,
    run: Run,
    steady: Node,
    limping: Node,
    hot: HotStore,
    redis: Redis,
    place: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.ANONYMOUS_READING = True
    now_s = int(time.time())
    ticks = range(now_s - 60, now_s + 1)
    nodes = (steady.name, limping.name)
    hot.append([block(steady.shard, tick, nodes) for tick in ticks])
    hot.append_steps(steps(run.name, nodes, n_steps=50, ended_at_s=now_s - 50, compute_s=1.0))
    keys = [*redis.scan_iter(f"hot:{steady.shard}:*"), *redis.scan_iter(f"steps:{run.name}:1*")]
    for key in keys:
        if redis.type(key) == b"hash":
            for field, content in hot.execute("HGETALL", key).items():
                redis.hset(key, field, flipped(content, place))
        else:
            for i, content in enumerate(hot.execute("LRANGE", key, 0, -1)):
                hot.execute("LSET", key, i, flipped(content, place))

    with caplog.at_level(logging.ERROR):
        watch(hot, now=datetime.fromtimestamp(now_s, UTC))
        assert rule_failures(hot) == []
        for page in ("/", f"/runs/{run.name}/", f"/nodes/{steady.name}/"):
            assert client.get(page).status_code == 200, page

    counters = hot.counters()
    assert counters["damaged_blocks"] > 0
    assert counters["damaged_steps"] > 0
    assert {each.name for each in caplog.records} == {"telemetry.store.reading"}


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 0x10
    return bytes(changed)
