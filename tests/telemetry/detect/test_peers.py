"""Robust peers: the literal formula, an identity, and a rate of false alarms."""

import numpy as np
import pytest

from telemetry.statistics.peers import deviations, mean, median


def test_it_is_the_literal_formula() -> None:
    x = np.random.default_rng(1).random(17)
    mad = np.median([abs(v - np.median(x)) for v in x])
    expected = [(v - np.median(x)) / (1.4826 * mad) for v in x]
    np.testing.assert_allclose(deviations(x, floor=1e-9), expected)


def test_it_does_not_depend_on_unit_or_zero() -> None:
    x = np.random.default_rng(2).random((3, 9))
    np.testing.assert_allclose(
        deviations(x, floor=0.01), deviations(5 - -1e3 * x, floor=10.0), atol=1e-9
    )


def test_peers_that_agree_to_the_last_digit_do_not_explode() -> None:
    assert deviations(np.array([1.0, 1.0, 1.0, 1.001]), floor=0.05).max() < 0.1
    np.testing.assert_array_equal(deviations(np.ones(5), floor=0.05), np.zeros(5))


def test_the_one_bad_part_in_a_thousand_is_seen() -> None:
    x = np.random.default_rng(3).normal(1.0, 0.01, 1_000)
    x[417] = 1.2
    z = deviations(x, floor=0.005)
    assert z.argmax() == 417
    assert z[417] > 15


def test_up_to_half_may_be_sick() -> None:
    x = np.r_[np.random.default_rng(4).normal(1.0, 0.01, 11), np.full(9, 3.0)]
    assert (deviations(x, floor=0.01)[11:] > 20).all()


def test_healthy_peers_seldom_look_sick() -> None:
    x = np.random.default_rng(5).standard_normal((5_000, 16))
    assert (deviations(x, floor=0.1) > 5).any(axis=1).mean() < 0.03


def test_who_reports_nothing_is_no_one_s_peer() -> None:
    z = deviations(np.array([1.0, np.nan, 1.0, 1.0, 2.0]), floor=0.1)
    assert np.isnan(z[1])
    assert z[4] == pytest.approx(10.0)
    assert np.isnan(deviations(np.full(4, np.nan), floor=0.1)).all()


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
