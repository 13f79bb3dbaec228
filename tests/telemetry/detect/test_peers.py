"""Medians and means of what peers reported."""

import numpy as np
import pytest

from telemetry.statistics.peers import mean, median


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_the_median_is_the_median(n: int) -> None:
    x = np.random.default_rng(n).random((4, n))
    np.testing.assert_allclose(median(x), np.median(x, axis=1))
    x[0, 0] = np.nan
    expected = np.nan if n == 1 else np.nanmedian(x[0])
    np.testing.assert_allclose(median(x)[0], expected)


def test_the_median_of_no_one_is_unknown() -> None:
    assert np.isnan(median(np.zeros((2, 0)))).all()


def test_the_mean_is_of_what_was_reported() -> None:
    np.testing.assert_array_equal(
        mean(np.array([[1.0, np.nan], [3.0, np.nan]]), axis=0), [2, np.nan]
    )
