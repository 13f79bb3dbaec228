"""EFA counts: every tick once, whichever reader asks."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.store.hot import HotStore
from telemetry.store.node_state import RATES, efa_counts
from tests.helpers import NOON_S, block

SHARD = "llama/0"
SENT = np.arange(16.0).reshape(2, 8)


def reported(hot: HotStore, *seconds: int, nodes: tuple[str, ...] = ("steady", "limping")) -> None:
    """Let nodes send so much per device in each of these seconds."""
    hot.append(
        block(tick=NOON_S + second, nodes=nodes, efa_tx_bytes_per_s=SENT[: len(nodes)])
        for second in seconds
    )


def sent(hot: HotStore, second: int) -> FloatArray:
    [counts] = efa_counts(hot, {SHARD: NOON_S + second}).values()
    return np.asarray(counts.sums[RATES.index("efa_tx_bytes_per_s")])


@pytest.fixture(autouse=True)
def noon(hot: HotStore) -> None:
    """Let it be noon, and counting begin."""
    hot.now = lambda: float(NOON_S)
    reported(hot, 0)
    np.testing.assert_array_equal(sent(hot, 0), SENT)


def test_every_tick_counts_once(hot: HotStore) -> None:
    reported(hot, *range(1, 100))

    for _ in range(3):
        np.testing.assert_array_equal(sent(hot, 99), 100 * SENT)


def test_counts_never_go_back(hot: HotStore) -> None:
    reported(hot, *range(1, 10))
    sent(hot, 9)

    np.testing.assert_array_equal(sent(hot, 4), 10 * SENT)


def test_scrapers_at_the_same_time_count_nothing_twice(hot: HotStore) -> None:
    reported(hot, *range(1, 60))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: sent(hot, 59), range(24)))

    for counts in (*found, sent(hot, 59)):
        np.testing.assert_array_equal(counts, 60 * SENT)


def test_a_tick_that_is_missing_adds_nothing(hot: HotStore) -> None:
    reported(hot, 1, 2, 8)

    np.testing.assert_array_equal(sent(hot, 8), 4 * SENT)


def test_counting_starts_with_the_tick_of_the_first_scrape(hot: HotStore) -> None:
    hot.append(
        block("other/0", tick=NOON_S + second, nodes=("steady",), efa_tx_bytes_per_s=SENT[:1])
        for second in range(-3, 1)
    )

    [counts] = efa_counts(hot, {"other/0": NOON_S}).values()

    assert counts.n_ticks == 1
    np.testing.assert_array_equal(counts.by_node()["steady"][0], SENT[0])


def test_a_node_that_joins_begins_at_zero_and_others_continue(hot: HotStore) -> None:
    reported(hot, 1)
    sent(hot, 1)
    reported(hot, 2, nodes=("new", "steady"))

    [counts] = efa_counts(hot, {SHARD: NOON_S + 2}).values()

    place = RATES.index("efa_tx_bytes_per_s")
    of = {node: counted[place] for node, counted in counts.by_node().items()}
    np.testing.assert_array_equal(of["new"], SENT[0])
    np.testing.assert_array_equal(of["steady"], 2 * SENT[0] + SENT[1])


def test_a_shard_without_efa_has_no_counts(hot: HotStore) -> None:
    values = {"vcpu_usage_ratio": np.ones((1, 1))}
    plain = block("plain/0", nodes=("a",))
    hot.append([type(plain)("plain/0", NOON_S, ("a",), values)])

    assert efa_counts(hot, {"plain/0": NOON_S}) == {}
