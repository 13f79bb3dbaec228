"""Two senders for one node and second: merged into one block, counted once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import Block
from telemetry.store.hot import HotStore, open_store
from tests.helpers import NOON_S

SHARD = "node:real"


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give a store whose clock stands a minute after noon."""
    store = open_store(redis_url)
    return HotStore(store._redis, now=lambda: NOON_S + 60.0)


def block(second: int, **values: float) -> Block:
    """Return a block of one node with one part per metric."""
    arrays = {name: np.array([[value]]) for name, value in values.items()}
    return Block(SHARD, NOON_S + second, ("real",), arrays)


def held(hot: HotStore, second: int) -> dict[str, float]:
    """Return what is held of a second."""
    span = hot.window(SHARD, (), start=NOON_S + second, end=NOON_S + second)
    return {name: float(array[0, 0, 0]) for name, array in span.values.items()}


def test_what_a_second_sender_states_is_added(hot: HotStore) -> None:
    assert hot.merge([block(0, executions_completed_per_s=8)]) == 1
    assert hot.merge([block(0, efa_tx_bytes_per_s=512, efa_latency_s=2.0**-16)]) == 1

    assert held(hot, 0) == {
        "executions_completed_per_s": 8,
        "efa_tx_bytes_per_s": 512,
        "efa_latency_s": 2.0**-16,
    }
    assert set(hot.latest()[SHARD].values) == set(held(hot, 0))
    totals = hot.totals().nodes
    assert totals["executions_completed_per_s"] == {"real": 8}
    assert totals["efa_tx_bytes_per_s"] == {"real": 512}


def test_the_first_value_of_a_metric_holds(hot: HotStore) -> None:
    hot.merge([block(0, executions_completed_per_s=8)])
    more = block(0, executions_completed_per_s=16, efa_tx_bytes_per_s=512)

    assert hot.merge([more]) == 1
    assert hot.merge([more]) == 0

    assert held(hot, 0)["executions_completed_per_s"] == 8
    assert hot.totals().nodes["executions_completed_per_s"] == {"real": 8}
    assert hot.totals().nodes["efa_tx_bytes_per_s"] == {"real": 512}


def test_totals_survive_seconds_that_only_one_of_them_reports(hot: HotStore) -> None:
    for second in range(4):
        hot.merge([block(second, executions_completed_per_s=1)])
        if second % 2:
            hot.merge([block(second, efa_tx_bytes_per_s=100)])
    hot.merge([block(4, efa_tx_bytes_per_s=100, executions_failed_per_s=1)])

    totals = hot.totals().nodes
    assert totals["executions_completed_per_s"] == {"real": 4}
    assert totals["efa_tx_bytes_per_s"] == {"real": 300}
    assert totals["executions_failed_per_s"] == {"real": 1}


def test_many_seconds_at_once_old_and_new(hot: HotStore) -> None:
    hot.merge([block(s, executions_completed_per_s=1) for s in range(0, 20, 2)])

    n_new = hot.merge([block(s, efa_tx_bytes_per_s=64) for s in range(20)])

    assert n_new == 20
    assert all(held(hot, s)["efa_tx_bytes_per_s"] == 64 for s in range(20))
    assert hot.totals().nodes["efa_tx_bytes_per_s"] == {"real": 20 * 64}


def test_counts_of_parts_of_a_second_are_added_to_it(hot: HotStore) -> None:
    hot.merge([block(0, executions_completed_per_s=8, efa_tx_bytes_per_s=512)])
    part = replace(
        block(0, executions_completed_per_s=4, executions_failed_per_s=1, vcpu_usage_ratio=0.5),
        is_partial=True,
    )

    assert hot.merge([part, part]) == 1
    assert hot.merge([part]) == 1
    first = replace(block(1, executions_completed_per_s=2), is_partial=True)
    assert hot.merge([first, block(2, executions_completed_per_s=1)]) == 2

    assert held(hot, 0) == {
        "executions_completed_per_s": 20,
        "executions_failed_per_s": 3,
        "efa_tx_bytes_per_s": 512,
        "vcpu_usage_ratio": pytest.approx(0.5, abs=0.01),
    }
    assert held(hot, 1)["executions_completed_per_s"] == 2
    totals = hot.totals().nodes
    assert totals["executions_completed_per_s"] == {"real": 23}
    assert totals["executions_failed_per_s"] == {"real": 3}
    assert totals["efa_tx_bytes_per_s"] == {"real": 512}


def test_processes_that_add_to_one_second_at_once_lose_nothing(hot: HotStore) -> None:
    part = replace(block(0, executions_completed_per_s=1), is_partial=True)

    with ThreadPoolExecutor(4) as pool:
        n_stored = sum(pool.map(lambda _: hot.merge([part]), range(40)))

    assert n_stored == 40
    assert held(hot, 0)["executions_completed_per_s"] == 40
    assert hot.totals().nodes["executions_completed_per_s"] == {"real": 40}
