"""Difference of two arms: manual sums, and coverage of the interval."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.statistics.bootstrap import (
    RUN_CV,
    ArmSamples,
    Difference,
    Measure,
    RunEstimate,
    difference,
    differences,
    estimate,
    student_quantile,
)
from tests.telemetry.statistics.test_blocks import remembering

USD_PER_TOKEN = Measure("usd", "tokens", is_better_low=True)
TOKENS_PER_S = Measure("tokens", "step_s", is_better_low=False)
NAMES = ("step_s", "tokens", "usd")


def arm(*, n: int, seed: int, step_s: float, usd_per_s: float, memory: float = 0.5) -> ArmSamples:
    seconds = step_s * remembering(n, ratio=memory, seed=seed)
    return ArmSamples(NAMES, np.stack([seconds, np.full(n, 1e6), usd_per_s * seconds], axis=1))


def compared(baseline: ArmSamples, candidate: ArmSamples, measure: Measure) -> Difference:
    """Compare one run of each arm by its steps alone."""
    return differences([baseline], [candidate], {"it": measure}, run_cv=0.0)["it"]


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
        np.median(
            [
                found.high - found.low
                for seed in range(9)
                for found in [
                    compared(
                        arm(n=n, seed=seed, step_s=1.0, usd_per_s=1.0),
                        arm(n=n, seed=seed + 1_000, step_s=1.0, usd_per_s=1.0),
                        USD_PER_TOKEN,
                    )
                ]
            ]
        )
        for n in (300, 4_800)
    )

    assert long < 0.5 * short


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


@pytest.mark.parametrize("freedom", [2.0, 2.5, 3.0, 4.9, 8.0])
@pytest.mark.parametrize("ratio", [0.975, 0.9875, 0.998])
def test_student_s_quantile_holds_its_share_at_few_degrees(freedom: float, ratio: float) -> None:
    x = np.linspace(0, student_quantile(freedom, ratio), 100_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    density = scale / math.sqrt(freedom * math.pi) * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)

    assert 0.5 + np.trapezoid(density, x) == pytest.approx(ratio, abs=1e-6)


def run_of(value: float, **other: Any) -> RunEstimate:
    """Return an estimate whose steps are nearly certain."""
    return replace(RunEstimate(value, 1e-8, 500.0, 0.0, 0.0), **other)


def test_one_run_of_each_arm_assumes_the_variation_between_runs() -> None:
    found = difference([run_of(1.0)], [run_of(1.1)])

    # Two runs of 1.25 % each; the steps add nothing.
    assert found.error_log == pytest.approx(RUN_CV * math.sqrt(2), rel=1e-3)
    assert math.log1p(found.high) == pytest.approx(
        math.log(1.1) + 1.96 * found.error_log, rel=1e-3
    )


def test_three_runs_of_each_arm_measure_the_variation() -> None:
    baseline = [math.exp(each) for each in (-0.01, 0.0, 0.01)]
    candidate = [math.exp(0.1 + each) for each in (-0.02, 0.0, 0.02)]
    found = difference([run_of(each) for each in baseline], [run_of(each) for each in candidate])

    # Welch manually: variances 1e-4 and 4e-4 of three runs each.
    of_means = (1e-4 / 3, 4e-4 / 3)
    assert found.baseline == pytest.approx(1.0)
    assert found.ratio == pytest.approx(math.expm1(0.1))
    assert found.error_log == pytest.approx(math.sqrt(sum(of_means)))
    assert found.freedom == pytest.approx(
        sum(of_means) ** 2 / sum(each**2 / 2 for each in of_means)
    )
    assert found.run_error_log == pytest.approx(found.error_log, rel=1e-3)


def test_runs_alike_by_chance_are_not_more_certain_than_their_steps() -> None:
    runs = [run_of(1.0, block_variance=4e-4) for _ in range(3)]
    found = difference(runs, runs)

    assert found.error_log == pytest.approx(math.sqrt(2 * 4e-4 / 3))
    assert found.run_error_log == 0


def test_two_runs_that_vary_more_than_assumed_count_as_they_are() -> None:
    apart = [run_of(math.exp(each)) for each in (-0.05, 0.05)]
    found = difference(apart, [run_of(1.0), run_of(1.0)])

    # Variance 0.005 of one arm, none of the other: 0.0025 pooled, of two runs each.
    assert found.error_log == pytest.approx(math.sqrt(0.0025 / 2 * 2), rel=1e-3)


def test_a_drift_widens_the_interval_of_its_run() -> None:
    rng = np.random.default_rng(4)
    flat = 1 + 0.02 * rng.normal(size=2_000)
    rising = flat + np.linspace(0, 0.1, 2_000)
    still, moving = (
        estimate(ArmSamples(NAMES, np.stack([x, x * 0 + 1, x], axis=1)), USD_PER_TOKEN)
        for x in (flat, rising)
    )

    assert not still.has_drift
    assert moving.has_drift
    # Quarters of a rise by 0.1 are 0.075 apart, from a mean of 1.05.
    assert moving.change_log == pytest.approx(0.075 / 1.05, rel=0.05)
    # A uniform distribution as wide as the rise, less what the blocks see of it.
    assert 0.5 < moving.drift_variance / ((0.1 / 1.05) ** 2 / 12) < 1
    assert difference([still], [moving]).error_log > 1.5 * difference([still], [still]).error_log


def test_a_share_varies_by_the_seconds_of_the_step() -> None:
    steps = ArmSamples(("part", "step_s"), np.tile([0.1, 1.0], (200, 1)))
    share = estimate(steps, Measure("part", "step_s", is_better_low=True, is_share=True))

    assert share.sensitivity == pytest.approx(9.0)
