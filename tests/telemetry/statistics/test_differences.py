"""Difference of two arms: manual sums, and coverage of the interval."""

import math

import numpy as np
import pytest

from telemetry.statistics.bootstrap import (
    ArmSamples,
    Difference,
    Measure,
    differences,
    student_quantile,
)
from tests.telemetry.statistics.test_blocks import remembering

USD_PER_TOKEN = Measure("usd", "tokens", is_better_low=True)
TOKENS_PER_S = Measure("tokens", "step_s", is_better_low=False)
NAMES = ("step_s", "tokens", "usd")


def arm(*, n: int, seed: int, step_s: float, usd_per_s: float, memory: float = 0.5) -> ArmSamples:
    seconds = step_s * remembering(n, ratio=memory, seed=seed)
    return ArmSamples(NAMES, np.stack([seconds, np.full(n, 1e6), usd_per_s * seconds], axis=1))


def compared(
    baseline: ArmSamples, candidate: ArmSamples, measure: Measure, seed: int = 7
) -> Difference:
    rng = np.random.default_rng(seed)
    return differences(baseline, candidate, {"it": measure}, rng=rng)["it"]


def test_the_figures_are_sums_over_sums() -> None:
    baseline = ArmSamples(NAMES, np.array([[2.0, 10.0, 4.0], [3.0, 10.0, 6.0]] * 50))
    candidate = ArmSamples(NAMES, np.array([[1.0, 10.0, 3.0], [3.0, 10.0, 3.0]] * 50))
    reported = compared(baseline, candidate, USD_PER_TOKEN)

    assert reported.baseline == 0.5
    assert reported.candidate == pytest.approx(0.3)
    assert reported.ratio == pytest.approx(-0.4)
    assert reported.low < -0.4 < reported.high


def test_three_times_the_price_at_twice_the_pace_costs_half_as_much_again() -> None:
    slow = arm(n=800, seed=1, step_s=2.0, usd_per_s=1.0)
    fast = arm(n=800, seed=1, step_s=1.0, usd_per_s=3.0)

    assert compared(slow, fast, USD_PER_TOKEN).ratio == pytest.approx(0.5)
    assert compared(slow, fast, TOKENS_PER_S).ratio == pytest.approx(1.0)


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_the_interval_covers_the_true_value_in_95_percent(memory: float) -> None:
    held = 0
    for seed in range(100):
        one = arm(n=600, seed=seed, step_s=1.0, usd_per_s=1.0, memory=memory)
        other = arm(n=600, seed=seed + 1_000, step_s=1.1, usd_per_s=1.0, memory=memory)
        reported = compared(one, other, USD_PER_TOKEN)
        held += reported.low <= 0.1 <= reported.high

    # Of a hundred, 95 are expected; fewer than 86 by chance once in ten thousand times.
    assert held >= 86


def test_where_steps_remember_nearly_all_of_a_trial_there_is_no_interval() -> None:
    # Two hundred steps of which each remembers 98 % of the one before are worth two of them.
    reported = [
        compared(
            arm(n=200, seed=seed, step_s=1.0, usd_per_s=1.0, memory=0.98),
            arm(n=200, seed=seed + 1_000, step_s=1.1, usd_per_s=1.0, memory=0.98),
            USD_PER_TOKEN,
        )
        for seed in range(20)
    ]

    assert sum(math.isnan(found.low) for found in reported) >= 18


def test_usual_steps_that_hardly_stir_take_no_interval_from_rare_long_ones() -> None:
    seconds = remembering(400, ratio=0.99, seed=3) * 1e-3 + 1.0
    seconds[::7] += 3.0
    it = ArmSamples(NAMES, np.stack([seconds, np.ones(400), seconds], axis=1))

    reported = compared(it, it, USD_PER_TOKEN)
    assert reported.n_blocks == 10
    assert math.isfinite(reported.low)


def test_the_interval_narrows_as_steps_come_in() -> None:
    short, long = (
        compared(
            arm(n=n, seed=1, step_s=1.0, usd_per_s=1.0),
            arm(n=n, seed=2, step_s=1.0, usd_per_s=1.0),
            USD_PER_TOKEN,
        )
        for n in (300, 4_800)
    )

    assert (long.high - long.low) < 0.5 * (short.high - short.low)


def test_too_few_steps_give_figures_and_no_interval() -> None:
    reported = compared(
        arm(n=5, seed=1, step_s=1.0, usd_per_s=1.0),
        arm(n=5, seed=2, step_s=1.0, usd_per_s=2.0),
        USD_PER_TOKEN,
    )

    assert reported.ratio == pytest.approx(1.0, rel=0.2)
    assert math.isnan(reported.low)
    assert math.isnan(reported.error_log)


@pytest.mark.parametrize(("freedom", "value"), [(9, 2.262), (19, 2.093), (99, 1.984)])
def test_student_s_quantile_is_the_table_s(freedom: int, value: float) -> None:
    assert student_quantile(freedom) == pytest.approx(value, abs=0.002)
