"""Late data: each second once, merged into its minute."""

import numpy as np
import pytest

from telemetry.blocks import Block
from telemetry.store.durable import LATE_S, QUIET_S, fold_late, save_late
from telemetry.store.history import node_series
from telemetry.store.hot import HotStore, open_store
from tests.helpers import NOON_S

pytestmark = pytest.mark.django_db
SHARD, METRIC = "node:real", "executions_completed_per_s"
HOUR_S = 3600


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give a store whose clock stands at noon."""
    return HotStore(open_store(redis_url)._redis, now=lambda: float(NOON_S))


def blocks(ticks: range, value: float, metric: str = METRIC) -> list[Block]:
    """Return a second's block for each tick."""
    return [Block(SHARD, tick, ("real",), {metric: np.array([[value]])}) for tick in ticks]


def minute(hot: HotStore, start: int, metric: str = METRIC) -> list[float]:
    """Return lowest, mean and highest of a minute."""
    series = node_series(hot, shard=SHARD, node="real", metric=metric, start=start, end=start + 59)
    assert series.low is not None
    assert series.high is not None
    return [float(stat[0, 0]) for stat in (series.low, series.values, series.high)]


def test_what_is_not_late_is_left_to_others(hot: HotStore) -> None:
    save_late(hot, blocks(range(NOON_S - LATE_S, NOON_S), 1.0), now_s=NOON_S)

    assert fold_late(hot, now_s=NOON_S + HOUR_S) == 0


def test_a_minute_waits_until_it_is_quiet(hot: HotStore) -> None:
    start = NOON_S - 2 * HOUR_S
    save_late(hot, blocks(range(start, start + 60), 8.0), now_s=NOON_S)

    assert fold_late(hot, now_s=NOON_S + QUIET_S - 1) == 0
    assert fold_late(hot, now_s=NOON_S + QUIET_S) == 1
    assert fold_late(hot, now_s=NOON_S + QUIET_S) == 0
    assert minute(hot, start) == [8, 8, 8]


def test_twice_is_once(hot: HotStore) -> None:
    start = NOON_S - 2 * HOUR_S
    for _ in range(2):
        save_late(hot, blocks(range(start, start + 60), 8.0), now_s=NOON_S)
        fold_late(hot, now_s=NOON_S + QUIET_S)

    assert minute(hot, start) == [8, 8, 8]


def test_both_halves_of_a_minute_count(hot: HotStore) -> None:
    start = NOON_S - 2 * HOUR_S
    for value, begin in ((8.0, 0), (16.0, 30)):
        save_late(hot, blocks(range(start + begin, start + begin + 30), value), now_s=NOON_S)
        fold_late(hot, now_s=NOON_S + QUIET_S)

    assert minute(hot, start) == [8, 12, 16]


def test_what_two_senders_reported_of_a_minute_is_both_kept(hot: HotStore) -> None:
    start = NOON_S - 2 * HOUR_S
    for metric in (METRIC, "efa_tx_bytes_per_s"):
        save_late(hot, blocks(range(start, start + 60), 8.0, metric), now_s=NOON_S)
    fold_late(hot, now_s=NOON_S + QUIET_S)

    assert minute(hot, start) == [8, 8, 8]
    assert minute(hot, start, "efa_tx_bytes_per_s") == [8, 8, 8]


def test_late_seconds_that_are_still_hot_are_rolled_up_with_the_others(hot: HotStore) -> None:
    """Ten minutes late: the hot tier has them, and would forget them before they are history."""
    start = NOON_S - 600
    first, second = (
        blocks(range(start, start + 30), 8.0),
        blocks(range(start + 30, start + 60), 16.0),
    )
    hot.merge([*first, *second, *blocks(range(NOON_S - 1, NOON_S), 1.0)])
    save_late(hot, second, now_s=NOON_S)
    fold_late(hot, now_s=NOON_S + QUIET_S)
    hot.execute("FLUSHDB")

    assert minute(hot, start) == [8, 12, 16]
