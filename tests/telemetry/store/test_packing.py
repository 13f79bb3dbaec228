"""Packing: small, precise enough, each metric readable alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from telemetry.blocks import METRICS, Block, FloatArray
from telemetry.store.packing import decode, encode, pack, read_layout, unpack, unpack_block
from tests.helpers import NOON_S, block
from tests.telemetry.store.samples import training

RATIOS = st.one_of(st.just(np.nan), st.floats(0, 1))
QUANTITIES = st.one_of(st.just(np.nan), st.just(0.0), st.floats(1e-12, 1e18))
ANYTHING = st.floats(allow_nan=True, allow_infinity=True)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 9))


def kept(values: FloatArray, packing: str) -> FloatArray:
    return decode(encode(values, packing), packing)


@given(arrays("f8", SHAPES, elements=RATIOS))
def test_a_ratio_is_off_by_half_a_step_at_most(values: FloatArray) -> None:
    np.testing.assert_allclose(kept(values, "ratio"), values, rtol=0, atol=0.5 / 254 + 1e-6)


@given(arrays("f8", SHAPES, elements=QUANTITIES))
def test_a_rounded_value_is_off_by_four_thousandths_at_most(values: FloatArray) -> None:
    np.testing.assert_allclose(kept(values, "rounded"), values, rtol=1 / 256, atol=0)


@given(arrays("f8", SHAPES, elements=ANYTHING))
def test_an_exact_value_is_exact(values: FloatArray) -> None:
    np.testing.assert_array_equal(kept(values, "exact"), values)


@given(arrays("f8", SHAPES, elements=QUANTITIES))
def test_rounding_twice_is_rounding_once(values: FloatArray) -> None:
    once = kept(values, "rounded")

    np.testing.assert_array_equal(kept(once, "rounded"), once)


@pytest.mark.parametrize("packing", ["ratio", "rounded", "exact"])
def test_zero_stays_zero_and_absent_stays_absent(packing: str) -> None:
    np.testing.assert_array_equal(kept(np.array([0.0, np.nan]), packing), [0.0, np.nan])


def test_a_block_comes_back_whole() -> None:
    given_ = next(iter(training(n_ticks=1).blocks()))
    layout, blob = pack(given_)

    found = unpack_block(given_.shard, given_.tick, blob, read_layout(layout.encoded))

    assert found.nodes == given_.nodes
    assert found.values.keys() == METRICS.keys()
    for name, values in given_.values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1 / 256, atol=1 / 254)


def test_one_metric_is_read_without_touching_the_others() -> None:
    layout, blob = pack(block())
    damaged = blob[:-200] + b"\xff" * 200

    codes = unpack([damaged], layout, "core_utilization_ratio")

    assert codes is not None
    assert (codes == 127).all()


def test_a_metric_that_no_node_has_is_not_there() -> None:
    layout, blob = pack(Block("s", NOON_S, ("a",), {"vcpu_usage_ratio": np.zeros((1, 1))}))

    assert unpack([blob], layout, "efa_latency_s") is None


def test_a_core_tick_of_a_trn2_node_takes_two_bytes_at_most() -> None:
    nodes = tuple(f"llama-{i:02d}" for i in range(32))
    blobs = [pack(tick)[1] for tick in training(nodes=nodes, n_ticks=20).blocks()]

    assert sum(map(len, blobs)) / (20 * 32 * 64) <= 2.0


def test_an_unknown_metric_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'mood'.*METRICS"):
        pack(Block("s", NOON_S, ("a",), {"mood": np.zeros((1, 1))}))


def test_a_wrong_shape_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"vcpu_usage_ratio.*want \(1, parts\)"):
        pack(Block("s", NOON_S, ("a",), {"vcpu_usage_ratio": np.zeros((2, 1))}))
