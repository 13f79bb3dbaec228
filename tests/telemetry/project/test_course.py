"""Dollars and tokens over time: against arithmetic by hand, and against living through it."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.project.course import course
from tests.telemetry.project.examples import P5, PORTING_USD, TRN2


def test_the_baseline_goes_as_worked_out_by_hand() -> None:
    found = course(P5, has_reuse=True)

    # 0.05 failures on each of 4 nodes a day, each 600 s of restart and 1,800 s of steps: 480 s.
    assert found.start_days == pytest.approx(600 / 86_400)
    assert found.usd_per_day == 240 * 24
    assert found.tokens_per_day == pytest.approx(100_000 * 86_400 * 0.99 / (1 + 480 / 86_400))
    assert found.usd_at_first_step == pytest.approx(40)


def test_without_reuse_failures_and_recompiles_compile_anew() -> None:
    found = course(TRN2, has_reuse=False)

    # 0.2 failures of 7,200 + 600 + 1,800 s, and one recompile of 7,200 s, a day: 9,120 s.
    assert found.tokens_per_day == pytest.approx(90_000 * 86_400 * 0.99 / (1 + 9_120 / 86_400))
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


def lived_through(*, failure_s: float, restart_s: float, days: float, seed: int) -> float:
    """Train through a life of failures, saving every hour; return the seconds that counted."""
    rng = np.random.default_rng(seed)
    left_s, counted_s = days * 86_400.0, 0.0
    while left_s > 0:
        until_failure_s = min(rng.exponential(failure_s), left_s)
        counted_s += until_failure_s - until_failure_s % 3_600
        left_s -= until_failure_s + restart_s
    return counted_s


def test_it_agrees_with_a_life_of_failures() -> None:
    often = replace(P5, failures_per_node_day=0.5, load_s=1_200.0)

    counted_s = lived_through(failure_s=43_200.0, restart_s=1_200.0, days=4_000, seed=1974)

    # Two failures a day: some 8,000 of them tell their share of the days to about a hundredth.
    expected = course(often, has_reuse=True).tokens_per_day
    assert counted_s / 4_000 * 100_000 * 0.99 == pytest.approx(expected, rel=0.005)
    assert expected < 0.95 * 100_000 * 86_400 * 0.99
