"""Draws of what an arm could do: the same from the same seed, as wide as what is not known."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.project.chance import Doubt, drawn, interval, pace_error_log
from telemetry.project.course import course
from telemetry.project.rates import Rate
from tests.telemetry.project.examples import P5


def test_the_same_seed_draws_the_same() -> None:
    doubt = Doubt(0.02, Rate(2, 40.0))

    first, second = (
        drawn(P5, doubt, days=14, rng=np.random.default_rng(7)).tokens_per_s for _ in range(2)
    )

    np.testing.assert_array_equal(first, second)


def test_a_doubtful_pace_spreads_as_its_error_says() -> None:
    could = drawn(P5, Doubt(0.02), days=14, rng=np.random.default_rng(7), n_draws=20_000)

    low, high = interval(np.asarray(could.tokens_per_s))
    assert low == pytest.approx(100_000 * np.exp(-1.96 * 0.02), rel=2e-3)
    assert high == pytest.approx(100_000 * np.exp(1.96 * 0.02), rel=2e-3)


def test_failures_are_a_matter_of_luck_even_where_the_rate_is_known() -> None:
    could = drawn(P5, Doubt(), days=14, rng=np.random.default_rng(7))

    counts = np.asarray(could.failures_per_node_day) * 4 * 14
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    assert counts.mean() == pytest.approx(0.05 * 4 * 14, rel=0.05)
    assert counts.var() == pytest.approx(0.05 * 4 * 14, rel=0.1)


def test_a_count_of_few_makes_the_projection_wide() -> None:
    rare, often = (
        drawn(P5, Doubt(None, rate), days=14, rng=np.random.default_rng(7))
        for rate in (Rate(1, 20.0), Rate(100, 2_000.0))
    )

    widths = [
        np.subtract(*interval(np.asarray(course(each, has_reuse=True).tokens_per_day))[::-1])
        for each in (rare, often)
    ]
    assert widths[0] > 1.15 * widths[1]


def test_recompiles_hurt_only_without_reuse() -> None:
    habits = replace(P5, compile_s=3_600.0, recompiles_per_day=1.0)
    could = drawn(habits, Doubt(), days=14, rng=np.random.default_rng(7))

    kept, lost = (course(could, has_reuse=has_reuse).tokens_per_day for has_reuse in (True, False))

    assert (np.asarray(lost) <= np.asarray(kept)).all()


def test_an_interval_may_have_no_end() -> None:
    assert interval(np.array([1.0] * 90 + [np.inf] * 10)) == (1.0, np.inf)


def test_the_error_of_a_pace_is_that_of_its_mean() -> None:
    rng = np.random.default_rng(1992)
    taken_s = 2.0 * (1 + 0.02 * rng.standard_normal(400))

    error = pace_error_log(np.full(400, 1e6), taken_s, rng=rng)

    assert error == pytest.approx(0.02 / np.sqrt(400), rel=0.2)


def test_too_few_steps_have_no_error() -> None:
    few = np.full(5, 1e6)

    assert np.isnan(pace_error_log(few, few, rng=np.random.default_rng(1)))
    assert np.isnan(pace_error_log(few[:0], few[:0], rng=np.random.default_rng(1)))
