"""Two-way decomposition of a pair matrix recovers its known parts."""

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.checks.preflight_pairs import two_way


def matrix(node: list[float], *, usual: float = 16e-6) -> FloatArray:
    factors = np.array(node)
    return np.asarray(usual * factors[:, None] * factors)


@pytest.mark.parametrize("n", [5, 6, 8, 16, 33])
def test_a_node_and_a_pair_are_distinguished(n: int) -> None:
    values = matrix([2.0 if i == 1 else 1.0 for i in range(n)])
    values[0, 2] = values[2, 0] = 5 * values[0, 2]

    split = two_way(values)

    np.testing.assert_allclose(np.exp(split.node), [1, 2, *[1] * (n - 2)], rtol=1e-9)
    assert np.exp(split.pair[0, 2]) == pytest.approx(5)


@pytest.mark.parametrize("n", [3, 4])
def test_in_small_groups_one_of_them_is_reported(n: int) -> None:
    pair = matrix([1.0] * n)
    pair[0, 2] = pair[2, 0] = 5 * pair[0, 2]

    by_node, by_pair = two_way(matrix([2.0, *[1.0] * (n - 1)])), two_way(pair)

    np.testing.assert_allclose(np.exp(by_node.node), [2, *[1] * (n - 1)], rtol=1e-9)
    np.testing.assert_allclose(by_pair.node, np.zeros(n), atol=1e-9)
    assert np.exp(by_pair.pair[0, 2]) == pytest.approx(5)


def test_the_parts_make_the_whole_again() -> None:
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(size=(9, 9)))
    values = values + values.T

    split = two_way(values)

    again = np.exp(split.level + split.node[:, None] + split.node + split.pair)
    off = ~np.eye(9, dtype=bool)
    np.testing.assert_allclose(again[off], values[off])
    assert np.isnan(np.diag(split.pair)).all()


def test_what_was_not_measured_counts_for_nothing() -> None:
    values = matrix([1, 1, 1, 3, 1, 1])
    values[0, 1] = values[1, 0] = np.nan
    values[4, 5] = values[5, 4] = np.inf

    split = two_way(values)

    np.testing.assert_allclose(np.exp(split.node), [1, 1, 1, 3, 1, 1], rtol=1e-9)
    assert np.isnan(split.pair[0, 1])
    assert np.isnan(split.pair[4, 5])


@pytest.mark.parametrize("n", [0, 1, 2])
def test_two_alone_cannot_be_distinguished(n: int) -> None:
    split = two_way(matrix([7.0] * n))

    np.testing.assert_array_equal(split.node, np.zeros(n))
