"""The demo's trial of trn2 against p5, recalculated from its steps."""

import math
from datetime import datetime, timedelta

import numpy as np
import pytest

from fleet.models import Run, Trial
from fleet.simulation.demo import FLEET, create_run, ensure_trials
from fleet.simulation.demo_history import simulate_history
from fleet.simulation.runs import plan_of
from fleet.trials.comparison import compare
from fleet.trials.figures import TrialFigures
from fleet.trials.schedule import update_observed_runs
from fleet.trials.schedule_forms import ScheduleRequest
from fleet.trials.schedule_text import schedule_of
from telemetry.blocks import FloatArray
from telemetry.simulate.shard import played_steps, start_clock
from telemetry.statistics.bootstrap import RUN_CV
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore
from tests.helpers import just_now, number_from

ARMS = ("trial-13b-p5", "trial-13b-trn2")
USD_PER_HOUR = (4 * 55.04, 4 * 35.7608)
HOURS, N_BLOCKS = 3, 30


@pytest.fixture
def now() -> datetime:
    return just_now().replace(second=0, microsecond=0)


@pytest.fixture(params=[5, 22], ids=["settled at once", "some warm-up"])
def seed(request: pytest.FixtureRequest) -> int:
    """Give the first run's number, the seed of its scatter: by some a part of it is warm-up."""
    number: int = request.param
    return number


@pytest.fixture
def trial(db: None, hot: HotStore, now: datetime, seed: int) -> Trial:
    """Let both runs train for three hours, from compiling on, and nothing go wrong."""
    number_from(seed, Run)
    for demo in sorted(FLEET, key=lambda each: each.spec.name):
        if demo.spec.name in ARMS:
            create_run(demo, started_at=now - timedelta(hours=HOURS))
    for run in Run.objects.prefetch_related("nodes"):
        simulate_history(hot, run, [], now=now)
    (trial,) = ensure_trials(now=now)
    return trial


@pytest.fixture
def taken(trial: Trial, now: datetime) -> tuple[StepBatch, ...]:
    """Return the steps that both arms took, as the simulator plays them and no store has them."""
    plans = (plan_of(Run.objects.get(name=name), [], []) for name in ARMS)
    until = int(now.timestamp())
    return tuple(played_steps(plan, start_clock(plan), until) for plan in plans)


def settled(figures: TrialFigures, taken: tuple[StepBatch, ...]) -> tuple[StepBatch, ...]:
    """Return the steps of both arms that are no warm-up: only they are compared."""
    arms = zip(figures.arms, taken, strict=True)
    return tuple(steps.last(len(steps) - arm.n_warm_up) for arm, steps in arms)


def mtok_usd(steps: StepBatch, usd_per_hour: float) -> float:
    """Return dollars per million tokens: the seconds of the steps at the price by the hour."""
    usd = float(steps.step_s.sum()) / 3600 * usd_per_hour
    return usd / (float(steps.tokens.sum()) / 1e6)


def standard_error(step_s: FloatArray) -> float:
    """Return that of a mean, over the mean, by the scatter of the means of long blocks."""
    n = len(step_s) // N_BLOCKS
    means = step_s[: n * N_BLOCKS].reshape(N_BLOCKS, n).mean(axis=1)
    return float(means.std(ddof=1) / np.sqrt(N_BLOCKS) / means.mean())


def expect_dollars_tokens_and_pace(
    figures: TrialFigures, taken: tuple[StepBatch, ...], seed: int
) -> None:
    reported = {each.measure: each for each in figures.candidates[0].comparisons}
    counted = settled(figures, taken)
    p5, trn2 = (mtok_usd(*arm) for arm in zip(counted, USD_PER_HOUR, strict=True))
    assert (len(taken[1]) > len(counted[1])) is (seed > 5)

    for arm, steps in zip(figures.arms, taken, strict=True):
        # Every step trains on 256 sequences of 4,096 tokens.
        assert arm.n_steps == len(steps)
        assert arm.settled_tokens == arm.n_settled * 256 * 4096
        assert float(steps.tokens.sum()) == len(steps) * 256 * 4096
    cost, pace = reported["usd_per_mtok"], reported["tokens_per_s"]
    assert (cost.baseline, cost.candidate) == pytest.approx((p5, trn2), rel=1e-5)
    assert cost.ratio == pytest.approx(trn2 / p5 - 1, rel=1e-4)
    assert reported["tokens_per_usd"].ratio == pytest.approx(p5 / trn2 - 1, rel=1e-4)
    expected = [float(s.tokens.sum() / s.step_s.sum()) for s in counted]
    assert [pace.baseline, pace.candidate] == pytest.approx(expected, rel=1e-5)


def expect_the_interval_as_wide_as_the_steps_scatter(
    figures: TrialFigures, taken: tuple[StepBatch, ...]
) -> None:
    found = next(e for e in figures.candidates[0].comparisons if e.measure == "usd_per_mtok")
    errors = [standard_error(steps.step_s) for steps in settled(figures, taken)]

    assert found.low is not None
    assert found.high is not None
    assert found.low < found.ratio < found.high
    # The ratio of two means errs by both, and by what is assumed between runs; 95 of 100 cases
    # lie within 1.96 of it each way.
    width = 2 * 1.96 * math.hypot(*errors, RUN_CV, RUN_CV) * (1 + found.ratio)
    assert found.high - found.low == pytest.approx(width, rel=0.1)


def expect_the_compile_earned_back_when_the_dollars_are_even(
    trial: Trial, taken: tuple[StepBatch, ...], now: datetime
) -> None:
    worked = schedule_of(trial, ScheduleRequest(failures=0.0))

    assert worked is not None
    even = worked.found.scenario(has_reuse=True).break_even
    assert even is not None
    assert even.days is not None
    # Until its first step trn2 has cost more; from then on every token brings some of it back.
    began_s = now.timestamp() - HOURS * 3600
    ready_s = [float(s.ended_at_s[0] - s.step_s[0]) - began_s for s in taken]
    usd = [s / 3600 * price for s, price in zip(ready_s, USD_PER_HOUR, strict=True)]
    p5, trn2 = (mtok_usd(*arm) for arm in zip(taken, USD_PER_HOUR, strict=True))
    mtok = (usd[1] - usd[0]) / (p5 - trn2)
    pace = float(taken[1].tokens.sum() / taken[1].step_s.sum()) / 1e6
    assert even.days.value * 86_400 == pytest.approx(ready_s[1] + mtok / pace, rel=0.05)


def test_cost_pace_interval_and_break_even_follow_from_the_steps(
    hot: HotStore, trial: Trial, taken: tuple[StepBatch, ...], now: datetime, seed: int
) -> None:
    figures = compare(hot, trial, now=now)
    update_observed_runs(hot, now=now)

    expect_dollars_tokens_and_pace(figures, taken, seed)
    expect_the_interval_as_wide_as_the_steps_scatter(figures, taken)
    expect_the_compile_earned_back_when_the_dollars_are_even(trial, taken, now)
