"""Dollars and tokens over time: manual sums and step-by-step simulation."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.statistics.forecast import course, stretch
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2


def test_the_baseline_goes_as_calculated_manually() -> None:
    found = course(P5, has_reuse=True)

    # One failure in 432,000 s: restarts of 600 s, and 3,600 s from one checkpoint to the next.
    hours = 432_000 * np.exp(600 / 432_000) * (np.exp(3_600 / 432_000) - 1)
    assert found.start_days == pytest.approx(600 / 86_400)
    assert found.usd_per_day == 240 * 24
    assert found.tokens_per_day == pytest.approx(100_000 * 86_400 * 0.99 / (hours / 3_600))
    assert found.usd_at_first_step == pytest.approx(40)


def test_without_reuse_failures_and_recompiles_compile_again() -> None:
    found = course(TRN2, has_reuse=False)

    # A recompile of 7,200 s a day makes an hour 3,900 s; a restart takes 7,800 s.
    hours = 432_000 * np.exp(7_800 / 432_000) * (np.exp(3_900 / 432_000) - 1)
    assert found.tokens_per_day == pytest.approx(90_000 * 86_400 * 0.99 / (hours / 3_600))
    assert found.start_days == pytest.approx(7_800 / 86_400)


def test_the_first_compile_is_paid_for_with_reuse_too() -> None:
    kept, lost = (course(TRN2, has_reuse=has_reuse) for has_reuse in (True, False))

    assert kept.start_days == lost.start_days
    assert kept.tokens_per_day > lost.tokens_per_day


def test_what_costs_days_for_tokens_is_what_it_costs_by_then() -> None:
    found = course(TRN2, has_reuse=True, porting_usd=PORTING_USD)
    days = np.array([0.5, 3.0, 14.0])

    tokens = found.tokens_by(days)

    np.testing.assert_allclose(found.days_for(tokens), days)
    np.testing.assert_allclose(found.usd_for(tokens), found.usd_by(days))
    assert found.usd_by(14.0) == pytest.approx(20_000 + 14 * 24 * 144)


def test_before_the_first_step_there_are_no_tokens() -> None:
    assert course(TRN2, has_reuse=True).tokens_by(0.05) == 0


def test_while_failures_are_rare_each_costs_a_restart_and_half_an_interval() -> None:
    # 0.05 failures on each of 4 nodes a day, each 600 s of restart and 1,800 s of steps: 480 s.
    assert stretch(P5, has_reuse=True) == pytest.approx(1 + 480 / 86_400, rel=1e-4)
    assert stretch(replace(P5, failures_per_node_day=0.0), has_reuse=True) == 1


def test_a_run_that_only_fails_gets_nowhere_and_nothing_overflows() -> None:
    doomed = replace(P5, failures_per_node_day=1_000.0)

    with np.errstate(all="raise"):
        found = course(doomed, has_reuse=True)

    assert 0 < found.tokens_per_day < 1
    assert np.isfinite(found.usd_per_token)


def lived_through(
    *,
    failure_s: float,
    restart_s: float,
    interval_s: float,
    n_intervals: int,
    seed: int,
    outage_s: float = 0.0,
) -> float:
    """Live through so many intervals, and failures at any time; return how much longer it took."""
    rng = np.random.default_rng(seed)
    passed_s, n_done, n_failures = 0.0, 0, 0
    while n_done < n_intervals:
        trained_s = rng.exponential(failure_s)
        n_saved = min(int(trained_s // interval_s), n_intervals - n_done)
        n_done += n_saved
        passed_s += n_saved * interval_s if n_done == n_intervals else trained_s
        n_failures += n_done < n_intervals
        while n_done < n_intervals and (until_failure_s := rng.exponential(failure_s)) < restart_s:
            passed_s += until_failure_s
            n_failures += 1
        passed_s += restart_s if n_done < n_intervals else 0.0
    return (passed_s + n_failures * outage_s) / (n_intervals * interval_s)


@pytest.mark.parametrize("restart_s", [60.0, 1_800.0, 5_400.0])
@pytest.mark.parametrize("failure_s", [2_700.0, 7_200.0, 36_000.0, 720_000.0])
def test_it_agrees_with_simulated_failures(failure_s: float, restart_s: float) -> None:
    habits = replace(
        P5, n_nodes=1, failures_per_node_day=86_400 / failure_s, load_s=restart_s, compile_s=0.0
    )

    # Some 4,000 failures each: the mean of their cost is known to about two hundredths.
    lived = lived_through(
        failure_s=failure_s,
        restart_s=restart_s,
        interval_s=3_600.0,
        n_intervals=max(2_000, int(4_000 * failure_s / 3_600)),
        seed=2006,
    )

    assert lived - 1 == pytest.approx(stretch(habits, has_reuse=True) - 1, rel=0.06)
    assert lived == pytest.approx(stretch(habits, has_reuse=True), rel=0.05)


def test_each_failure_costs_an_outage_that_cannot_fail() -> None:
    habits = replace(P5, n_nodes=1, failures_per_node_day=24.0, load_s=1_800.0, outage_s=5_400.0)

    lived = lived_through(
        failure_s=3_600.0,
        restart_s=1_800.0,
        outage_s=5_400.0,
        interval_s=3_600.0,
        n_intervals=20_000,
        seed=2024,
    )

    assert lived == pytest.approx(stretch(habits, has_reuse=True), rel=0.05)


def test_where_each_interval_sees_a_failure_the_first_order_is_an_eighth_short() -> None:
    habits = replace(P5, n_nodes=1, failures_per_node_day=24.0, load_s=0.0)

    lived = lived_through(
        failure_s=3_600.0, restart_s=0.0, interval_s=3_600.0, n_intervals=40_000, seed=1974
    )

    # Each of 40,000 intervals takes e - 1 = 1.718 of itself, give or take 1.6: 0.5 % in all.
    assert lived == pytest.approx(stretch(habits, has_reuse=True), rel=0.015)
    assert lived > 1.1 * (1 + 0.5)
