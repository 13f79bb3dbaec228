"""Arms whose price changed: each second at its price."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from fleet.models import Run, Trial
from fleet.runs.prices import PriceRequest, set_price
from fleet.trials.comparison import compare
from fleet.trials.figures import Comparison, TrialFigures
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, train
from tests.helpers import NOON


def after(seconds: float) -> datetime:
    """Return a time some seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def a_price(instance: str, usd: float, *, since: datetime, now: datetime = NOON) -> None:
    """Set the price of a node hour for every team."""
    set_price(PriceRequest("", instance, "reserved", usd, since, "contract 7"), by="lea", now=now)


def worked_out(hot: HotStore, trial: Trial, *, now: datetime = LATER) -> TrialFigures:
    return compare(hot, Trial.objects.with_arms().get(pk=trial.pk), now=now)


def of(figures: TrialFigures, measure: str) -> Comparison:
    found = figures.candidates[0].get(measure)
    assert found is not None
    return found


def test_an_arm_that_spans_a_change_pays_each_step_what_held_then(
    hot: HotStore, trial: Trial
) -> None:
    # p5: 100 steps of 2 s at $0.10 a second, then 100 at $0.05; all of a million tokens.
    a_price("p5.48xlarge", 45.0, since=after(200))
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 200)

    figures = worked_out(hot, trial, now=after(400.5))

    assert of(figures, "usd_per_mtok").baseline == pytest.approx(0.15, rel=1e-3)
    assert of(figures, "usd_per_mtok").candidate == pytest.approx(0.10, rel=1e-3)
    p5 = figures.arms[0]
    assert p5.usd_settled == pytest.approx(200 * 0.10 + 200 * 0.05, rel=1e-3)
    assert p5.usd == pytest.approx(30, rel=1e-3)
    assert [price.usd_per_hour for price in p5.prices] == [360, 180]
    assert p5.usd_per_hour == 180
    assert p5.price_basis.startswith("reserved")


def test_the_two_prices_are_weighted_by_the_time_they_held(hot: HotStore, trial: Trial) -> None:
    # 150 of 200 s at $0.10, 50 s at $0.02.
    a_price("p5.48xlarge", 18.0, since=after(150))
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)

    found = of(worked_out(hot, trial), "usd_per_mtok")

    assert found.baseline == pytest.approx((150 * 0.10 + 50 * 0.02) / 100, rel=1e-3)


def test_a_step_in_which_the_price_changes_pays_both(hot: HotStore, trial: Trial) -> None:
    a_price("p5.48xlarge", 45.0, since=after(101))
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)

    # 101 s at $0.10 and 99 s at $0.05.
    assert worked_out(hot, trial).arms[0].usd_settled == pytest.approx(15.05, rel=1e-4)


def test_what_is_over_keeps_the_price_of_its_time(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)
    Run.objects.filter(name="vit-p5").update(finished_at=after(200), phase=Run.Phase.FINISHED)
    before = worked_out(hot, trial, now=after(300))

    a_price("p5.48xlarge", 9.0, since=NOON - timedelta(days=1), now=after(300))
    now = worked_out(hot, trial, now=after(400))

    assert now.arms[0] == before.arms[0]
    assert of(now, "usd_per_mtok").baseline == pytest.approx(0.20, rel=1e-3)


def test_a_price_after_the_end_of_a_trial_changes_nothing(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)
    Trial.objects.filter(pk=trial.pk).update(ended_at=after(200))
    before = worked_out(hot, trial)

    a_price("p5.48xlarge", 9.0, since=after(300))
    p5 = worked_out(hot, trial).arms[0]

    assert p5 == before.arms[0]
    assert p5.usd_per_hour == 360


def test_a_change_of_price_makes_no_interval_wider(hot: HotStore, trial: Trial) -> None:
    rng = np.random.default_rng(6)
    train("vit-p5", list(2.0 + 0.05 * rng.normal(size=300)))
    train("vit-trn2", list(1.25 + 0.05 * rng.normal(size=300)))
    before = of(worked_out(hot, trial), "usd_per_mtok")

    a_price("p5.48xlarge", 45.0, since=after(300))
    now = of(worked_out(hot, trial), "usd_per_mtok")

    assert now.baseline == pytest.approx(before.baseline * 0.75, rel=1e-2)
    assert None not in (before.low, before.high, now.low, now.high)
    factor = (1 + now.ratio) / (1 + before.ratio)
    assert 1 + (now.low or 0) == pytest.approx((1 + (before.low or 0)) * factor)
    assert 1 + (now.high or 0) == pytest.approx((1 + (before.high or 0)) * factor)


def test_an_arm_pays_what_its_run_does(hot: HotStore, trial: Trial) -> None:
    a_price("p5.48xlarge", 45.0, since=after(100))
    train("vit-p5", [2.0] * 20, began_s=60.0)
    train("vit-trn2", [1.25] * 20)

    p5 = worked_out(hot, trial, now=after(500)).arms[0]

    assert p5.usd == pytest.approx(Run.objects.get(name="vit-p5").usd_by(after(500)))
    assert p5.usd == pytest.approx(100 * 0.10 + 400 * 0.05)
    assert p5.usd_ready == pytest.approx(6, rel=1e-3)
