"""Draws of possible outcomes: the same for the same seed, as wide as the uncertainty."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.statistics.forecast import (
    BURST_DISPERSION,
    Rate,
    Uncertainty,
    course,
    drawn,
    interval,
    pace_error_log,
    spread_log,
)
from tests.telemetry.statistics.examples import P5


def test_the_same_seed_draws_the_same() -> None:
    doubt = Uncertainty(0.02, Rate(2, 40.0))

    first, second = (
        drawn(P5, doubt, days=14, rng=np.random.default_rng(7)).tokens_per_s for _ in range(2)
    )

    np.testing.assert_array_equal(first, second)


def test_a_doubtful_pace_spreads_as_its_error_states() -> None:
    could = drawn(P5, Uncertainty(0.02), days=14, rng=np.random.default_rng(7), n_draws=20_000)

    low, high = interval(np.asarray(could.tokens_per_s))
    assert low == pytest.approx(100_000 * np.exp(-1.96 * 0.02), rel=2e-3)
    assert high == pytest.approx(100_000 * np.exp(1.96 * 0.02), rel=2e-3)


def test_failures_are_a_matter_of_luck_even_where_the_rate_is_known() -> None:
    for dispersion in (1.0, BURST_DISPERSION):
        doubt = Uncertainty(failure_dispersion=dispersion)
        could = drawn(P5, doubt, days=14, rng=np.random.default_rng(7))

        counts = np.asarray(could.failures_per_node_day) * 4 * 14
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
        assert counts.mean() == pytest.approx(0.05 * 4 * 14, rel=0.05)
        assert counts.var() == pytest.approx(dispersion * 0.05 * 4 * 14, rel=0.1)


def test_failures_with_weibull_times_between_them_vary_as_assumed() -> None:
    # Schroeder and Gibson: of shape 0.7. Counts of long spans, one per row.
    between = np.random.default_rng(2006).weibull(0.7, size=(2_000, 400)).cumsum(axis=1)
    counts = (between < 200).sum(axis=1)

    assert counts.var() / counts.mean() == pytest.approx(BURST_DISPERSION, rel=0.1)


def test_a_count_of_few_makes_the_projection_wide() -> None:
    rare, often = (
        drawn(P5, Uncertainty(None, rate), days=14, rng=np.random.default_rng(7))
        for rate in (Rate(1, 20.0), Rate(100, 2_000.0))
    )

    widths = [
        np.subtract(*interval(np.asarray(course(each, has_reuse=True).tokens_per_day))[::-1])
        for each in (rare, often)
    ]
    assert widths[0] > 1.15 * widths[1]


def test_recompiles_hurt_only_without_reuse() -> None:
    habits = replace(P5, compile_s=3_600.0, recompiles_per_day=1.0)
    could = drawn(habits, Uncertainty(), days=14, rng=np.random.default_rng(7))

    kept, lost = (course(could, has_reuse=has_reuse).tokens_per_day for has_reuse in (True, False))

    assert (np.asarray(lost) <= np.asarray(kept)).all()


def test_an_interval_may_have_no_end() -> None:
    assert interval(np.array([1.0] * 90 + [np.inf] * 10)) == (1.0, np.inf)


def test_the_error_of_a_pace_is_that_of_its_mean() -> None:
    rng = np.random.default_rng(1992)
    taken_s = 2.0 * (1 + 0.02 * rng.standard_normal(400))

    error = pace_error_log(np.full(400, 1e6), taken_s, run_cv=0.0)
    of_next_run = pace_error_log(np.full(400, 1e6), taken_s, run_cv=0.01)

    assert error == pytest.approx(0.02 / np.sqrt(400), rel=0.2)
    assert of_next_run == pytest.approx(np.hypot(error, 0.01 * np.sqrt(2)))


def test_a_pace_that_drifts_is_as_uncertain_as_the_drift() -> None:
    rng = np.random.default_rng(1993)
    taken_s = 2.0 * (1 + 0.02 * rng.standard_normal(2_000) + np.linspace(0, 0.06, 2_000))

    assert pace_error_log(np.full(2_000, 1e6), taken_s, run_cv=0.0) > 0.015


def test_of_too_few_steps_only_the_error_between_runs_is_known() -> None:
    few = np.full(5, 1e6)

    for steps in (few, few[:0]):
        assert pace_error_log(steps, steps, run_cv=0.01) == pytest.approx(0.01 * np.sqrt(2))


def test_starts_and_checkpoints_spread_as_their_errors_say() -> None:
    habits = replace(P5, compile_s=7_200.0)
    habits = replace(habits, outage_s=900.0)
    doubt = Uncertainty(
        compile_error_log=0.1,
        load_error_log=0.2,
        checkpoint_error_log=0.05,
        outage_error_log=0.4,
    )

    could = drawn(habits, doubt, days=14, rng=np.random.default_rng(7), n_draws=20_000)

    for drawn_s, middle, error in (
        (could.compile_s, 7_200.0, 0.1),
        (could.load_s, 600.0, 0.2),
        (could.checkpoint_s_per_hour, 36.0, 0.05),
        (could.outage_s, 900.0, 0.4),
    ):
        assert np.log(np.asarray(drawn_s) / middle).std() == pytest.approx(error, rel=0.03)


def test_some_of_each_hour_is_left_for_training() -> None:
    habits = replace(P5, checkpoint_s_per_hour=3_000.0)

    could = drawn(
        habits, Uncertainty(checkpoint_error_log=1.0), days=14, rng=np.random.default_rng(7)
    )

    assert np.max(could.checkpoint_s_per_hour) < 3_600


def test_the_next_start_is_less_sure_than_the_mean_of_many() -> None:
    seen = [580.0, 600.0, 620.0, 610.0, 590.0]

    error_of_next, error_of_mean = (spread_log(seen, of_next=each) for each in (True, False))

    assert error_of_next is not None
    assert error_of_mean is not None
    assert error_of_next == pytest.approx(np.sqrt(6) * error_of_mean)
    # Student's t of four degrees of freedom is 2.776, and the normal quantile 1.96.
    assert error_of_mean == pytest.approx(
        np.log(seen).std(ddof=1) / np.sqrt(5) * 2.776 / 1.96, rel=0.01
    )


def test_two_observations_tell_no_spread() -> None:
    assert spread_log([600.0, 700.0], of_next=True) is None


def test_the_next_start_falls_within_its_interval_as_often_as_it_states() -> None:
    rng, n = np.random.default_rng(1908), 4
    inside = 0
    for _ in range(2_000):
        *seen, to_come = 600 * np.exp(0.2 * rng.standard_normal(n + 1))
        error = spread_log(seen, of_next=True)
        assert error is not None
        inside += abs(np.log(to_come / np.exp(np.log(seen).mean()))) < 1.96 * error

    # 95 of 100; of 2,000 within 1.5 of it, and the mean is that of logarithms.
    assert inside / 2_000 == pytest.approx(0.95, abs=0.015)


def outcome_s(*, failure_s: float, restart_s: float, rng: np.random.Generator) -> float:
    """Return the seconds of 14 days that count, saving every three hours."""
    left_s, counted_s = 14 * 86_400.0, 0.0
    while left_s > 0:
        trained_s = min(rng.exponential(failure_s), left_s)
        counted_s += trained_s - trained_s % 10_800 if trained_s < left_s else trained_s
        left_s -= trained_s
        while left_s > 0 and (until_failure_s := rng.exponential(failure_s)) < restart_s:
            left_s -= until_failure_s
        left_s -= restart_s
    return counted_s


def test_simulated_failures_fall_within_the_interval() -> None:
    habits = replace(
        P5,
        n_nodes=1,
        tokens_per_s=1.0,
        failures_per_node_day=1.0,
        checkpoint_s_per_hour=0.0,
        checkpoint_every_s=10_800.0,
    )
    doubt = Uncertainty(failure_dispersion=1.0)
    could = drawn(habits, doubt, days=14, rng=np.random.default_rng(7))
    low, high = interval(np.asarray(course(could, has_reuse=True).tokens_per_day) * 14)

    rng = np.random.default_rng(1837)
    outcomes = [outcome_s(failure_s=86_400.0, restart_s=600.0, rng=rng) for _ in range(1_000)]

    assert np.mean([low <= outcome <= high for outcome in outcomes]) == pytest.approx(
        0.95, abs=0.025
    )
