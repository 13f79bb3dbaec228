"""Cost curves of two arms cross at the break-even."""

import numpy as np
import pytest

from telemetry.statistics.break_even import ArmForecast, break_even, over_days, over_tokens
from telemetry.statistics.forecast import ArmRates, Rate, Uncertainty, course, drawn
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2

DAYS = np.linspace(0, 14, 29)


def arm(habits: ArmRates, *, porting_usd: float = 0.0, seed: int = 1) -> ArmForecast:
    could = drawn(
        habits,
        Uncertainty(0.01, Rate(2, 40.0)),
        days=14,
        rng=np.random.default_rng(seed),
        n_draws=500,
    )
    return ArmForecast(
        course(habits, has_reuse=True, porting_usd=porting_usd),
        course(could, has_reuse=True, porting_usd=porting_usd),
    )


@pytest.fixture
def arms() -> tuple[ArmForecast, ArmForecast]:
    return arm(P5), arm(TRN2, porting_usd=PORTING_USD, seed=2)


def test_over_days_they_cross_at_the_break_even(arms: tuple[ArmForecast, ArmForecast]) -> None:
    even = break_even(arms[0].expected, arms[1].expected)

    found = over_days(*arms, np.array([even.days]))

    assert found.candidate.usd[0] == pytest.approx(found.baseline.usd[0])
    assert found.tokens[0] == pytest.approx(even.tokens)


def test_over_tokens_they_cross_at_the_same_work(arms: tuple[ArmForecast, ArmForecast]) -> None:
    even = break_even(arms[0].expected, arms[1].expected)

    found = over_tokens(*arms, np.array([even.tokens]))

    assert found.candidate.usd[0] == pytest.approx(found.baseline.usd[0])
    assert found.days[0] == pytest.approx(even.days)


def test_what_is_expected_lies_within_what_could_be(arms: tuple[ArmForecast, ArmForecast]) -> None:
    for found in (over_days(*arms, DAYS), over_tokens(*arms, np.linspace(1e9, 1e11, 20))):
        for curve in (found.candidate, found.baseline):
            assert (curve.low <= curve.usd + 1e-6).all()
            assert (curve.usd <= curve.high + 1e-6).all()


def test_what_has_been_spent_by_a_day_is_sure(arms: tuple[ArmForecast, ArmForecast]) -> None:
    found = over_days(*arms, DAYS)

    np.testing.assert_array_equal(found.candidate.low, found.candidate.high)
    assert found.candidate.usd[-1] == pytest.approx(20_000 + 14 * 24 * 144)
    assert found.baseline.high[-1] > found.baseline.low[-1]


def test_bands_widen_as_time_continues(arms: tuple[ArmForecast, ArmForecast]) -> None:
    width = np.subtract(*(getattr(over_days(*arms, DAYS).baseline, e) for e in ("high", "low")))

    assert width[-1] > width[14] > width[4]
