"""Rates from counts: published tables, and coverage."""

import math

import numpy as np
import pytest

from telemetry.statistics.forecast import Rate, at_most, poisson_interval

# Garwood's limits at 95 %, as tables of the Poisson distribution print them.
TABLE = {0: (0.0, 3.689), 1: (0.0253, 5.572), 2: (0.242, 7.225), 10: (4.795, 18.391)}


@pytest.mark.parametrize("n", TABLE)
def test_the_interval_is_that_of_the_tables(n: int) -> None:
    assert poisson_interval(n) == pytest.approx(TABLE[n], abs=1e-3)


def test_it_holds_for_counts_in_the_thousands() -> None:
    low, high = poisson_interval(4_000)

    assert low == pytest.approx(4_000 - 1.96 * math.sqrt(4_000), rel=2e-3)
    assert high == pytest.approx(4_000 + 1.96 * math.sqrt(4_000), rel=2e-3)


def test_the_probability_of_few_is_a_sum_of_probabilities() -> None:
    assert at_most(1, 2.0) == pytest.approx(math.exp(-2) * 3)
    assert at_most(3, 0.0) == 1.0


def test_none_seen_is_no_rate_of_zero() -> None:
    rate = Rate(0, 4.0)

    assert rate.mean == pytest.approx(0.5 / 4)
    assert rate.interval == pytest.approx((0.0, 3.689 / 4), abs=1e-3)
    assert rate.drawn(100, rng=np.random.default_rng(1)).min() > 0


def test_half_a_failure_over_minutes_is_not_dozens_a_day() -> None:
    young = Rate(0, 0.01, extra_exposure=5.0)

    assert young.mean == pytest.approx(0.5 / 5.01)
    drawn = young.drawn(20_000, rng=np.random.default_rng(1))
    # Draws count half of the extra exposure.
    assert drawn.mean() == pytest.approx(0.5 / 2.51, rel=0.03)


def test_without_exposure_nothing_is_known() -> None:
    assert math.isnan(Rate(0, 0.0).mean)
    assert all(map(math.isnan, Rate(0, 0.0).interval))


def test_what_no_one_saw_may_be_none() -> None:
    none = Rate(0, 4.0, extra=0.0)

    assert none.mean == 0
    assert none.drawn(10, rng=np.random.default_rng(1)).max() == 0


def test_draws_have_the_mean_and_mostly_lie_within_the_interval() -> None:
    rate = Rate(6, 12.0)

    drawn = rate.drawn(20_000, rng=np.random.default_rng(1936))

    low, high = rate.interval
    assert drawn.mean() == pytest.approx(rate.mean, rel=0.02)
    assert 0.94 < ((drawn > low) & (drawn < high)).mean() < 0.99


def test_the_interval_holds_the_true_rate_in_95_of_100_cases_or_more() -> None:
    counts = np.random.default_rng(1936).poisson(3.0, 4_000)

    intervals = {count: poisson_interval(count) for count in set(counts.tolist())}
    held = [intervals[count][0] <= 3.0 <= intervals[count][1] for count in counts.tolist()]

    assert np.mean(held) >= 0.95
