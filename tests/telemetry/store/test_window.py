"""Windows: many shards together, NaN for missing data."""

import numpy as np
import pytest

from telemetry.blocks import METRICS, Block
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block

CORES = "core_utilization_ratio"


def test_a_gap_is_a_gap(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S + second) for second in (0, 1, 4)])

    span = hot.window("llama/0", [CORES], start=NOON_S - 1, end=NOON_S + 4)

    assert span.ticks.tolist() == list(range(NOON_S - 1, NOON_S + 5))
    heard = np.isfinite(span.values[CORES]).all(axis=(1, 2))
    assert heard.tolist() == [False, True, True, False, False, True]


def test_a_window_may_span_minutes_that_were_never_written(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S), block(tick=NOON_S + 200)])

    span = hot.window("llama/0", [CORES], start=NOON_S, end=NOON_S + 200)

    assert np.flatnonzero(np.isfinite(span.values[CORES][:, 0, 0])).tolist() == [0, 200]


def test_shards_stand_side_by_side(hot: HotStore) -> None:
    hot.append([block("a", nodes=["a0", "a1"], fill=0.25), block("b", nodes=["b0"], fill=0.75)])

    span = hot.window(["a", "b"], [CORES], start=NOON_S, end=NOON_S)

    assert span.nodes == ("a0", "a1", "b0")
    np.testing.assert_allclose(span.values[CORES][0, :, 0], [0.25, 0.25, 0.75], atol=0.003)


def test_a_smaller_machine_has_no_reading_for_parts_it_lacks(hot: HotStore) -> None:
    small = Block("b", NOON_S, ("b0",), {CORES: np.full((1, 2), 0.5)})
    hot.append([block("a"), small])

    span = hot.window(["a", "b"], [CORES], start=NOON_S, end=NOON_S)

    assert span.values[CORES].shape == (1, 3, 32)
    assert np.isfinite(span.values[CORES][0, 2]).sum() == 2


def test_a_node_that_joins_was_absent_before(hot: HotStore) -> None:
    hot.append([block(nodes=["a"]), block(tick=NOON_S + 1, nodes=["b", "a"])])

    span = hot.window("llama/0", [CORES], start=NOON_S, end=NOON_S + 1)

    heard = np.isfinite(span.values[CORES][:, :, 0])
    assert dict(zip(span.nodes, heard.T.tolist(), strict=True)) == {
        "a": [True, True],
        "b": [False, True],
    }


def test_no_metric_named_means_all(hot: HotStore) -> None:
    hot.append([block()])

    assert hot.window("llama/0", start=NOON_S, end=NOON_S).values.keys() == METRICS.keys()


def test_a_metric_that_no_one_has_has_no_parts(hot: HotStore) -> None:
    hot.append([Block("b", NOON_S, ("b0",), {CORES: np.full((1, 2), 0.5)})])

    span = hot.window("b", ["efa_latency_s"], start=NOON_S, end=NOON_S)

    assert span.values["efa_latency_s"].shape == (1, 1, 0)


def test_an_unknown_shard_is_empty(hot: HotStore) -> None:
    span = hot.window("missing", [CORES], start=NOON_S, end=NOON_S + 9)

    assert span.nodes == ()
    assert span.values[CORES].shape == (10, 0, 0)


@pytest.mark.parametrize("end", [NOON_S - 1, NOON_S + 10**6])
def test_an_absurd_window_is_refused(hot: HotStore, end: int) -> None:
    with pytest.raises(ValueError, match=r"end: .* a window lasts at most"):
        hot.window("llama/0", [CORES], start=NOON_S, end=end)


def test_some_nodes_of_a_shard_are_what_all_of_them_hold(hot: HotStore) -> None:
    fills = {"a": 0.2, "b": 0.4, "c": 0.6}
    values = np.array([[fill] * 4 for fill in fills.values()])
    two = Block("llama/0", NOON_S + 1, ("c", "b"), {CORES: values[[2, 1]]})
    hot.append([Block("llama/0", NOON_S, ("a", "b", "c"), {CORES: values}), two])
    hot.append([block("other", nodes=["d"])])

    shards = ["llama/0", "other"]
    some = hot.window(shards, [CORES], start=NOON_S, end=NOON_S + 1, only=("c", "a", "unknown"))
    whole = hot.window(shards, [CORES], start=NOON_S, end=NOON_S + 1)

    assert some.nodes == ("a", "c")
    parts = some.values[CORES].shape[2]
    np.testing.assert_array_equal(
        some.values[CORES], whole.of(("a", "c")).values[CORES][:, :, :parts]
    )
    assert np.isfinite(some.values[CORES][:, :, 0]).tolist() == [[True, True], [False, True]]
