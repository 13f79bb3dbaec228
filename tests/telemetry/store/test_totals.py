"""Totals: every block and step counted once."""

import numpy as np
import pytest

from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block


def sent(hot: HotStore) -> dict[str, float]:
    return dict(hot.totals().nodes["efa_tx_bytes_per_s"])


def test_a_rate_adds_up_over_parts_and_ticks(hot: HotStore) -> None:
    rates = np.array([[1e9, 2e9], [3e9, np.nan]])
    for second in range(3):
        hot.append([block(tick=NOON_S + second, efa_tx_bytes_per_s=rates)])

    assert sent(hot) == {"steady": 9e9, "limping": 9e9}


def test_what_is_repeated_or_late_counts_once(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S + 5)])
    hot.append([block(tick=NOON_S + 5), block(tick=NOON_S)])

    assert sent(hot)["steady"] == 2 * 8 * 0.5


def test_nodes_come_and_go_without_disturbing_the_others(hot: HotStore) -> None:
    hot.append([block(nodes=["a", "b"])])
    hot.append([block(tick=NOON_S + 1, nodes=["c", "b"])])

    assert sent(hot) == {"c": 4.0, "b": 8.0}


def test_a_total_is_exact_far_beyond_single_precision(hot: HotStore) -> None:
    for second in range(10):
        rates = np.full((2, 1), 1e15 + 1.0)
        hot.append([block(tick=NOON_S + second, efa_tx_bytes_per_s=rates)])

    assert sent(hot)["steady"] == pytest.approx(1e16 + 10, rel=1e-15)
