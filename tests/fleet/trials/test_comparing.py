"""Trial results compared with manual sums."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import CompileEvent, Run, Trial
from fleet.trials.comparison import compare
from fleet.trials.figures import Comparison, TrialFigures
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, train
from tests.helpers import NOON, NOON_S, steps

SEED = 5


def wavering(mean_s: float, n: int, seed: int) -> list[float]:
    """Return steps around a mean, 2 % up and down."""
    rng = np.random.default_rng([SEED, seed])
    return list(mean_s * (1 + 0.02 * rng.normal(size=n)))


def of(figures: TrialFigures, measure: str) -> Comparison:
    found = figures.candidates[0].get(measure)
    assert found is not None
    return found


def test_dollars_and_pace_are_those_calculated_manually(hot: HotStore, trial: Trial) -> None:
    # A million tokens a step: on p5 2 s of $0.10, on trn2 1.25 s of $0.08.
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 200)

    figures = compare(hot, trial, now=LATER)

    reported = {each.measure: each for each in figures.candidates[0].comparisons}
    assert reported["usd_per_mtok"].baseline == pytest.approx(0.20, rel=1e-3)
    assert reported["usd_per_mtok"].candidate == pytest.approx(0.10, rel=1e-3)
    assert reported["usd_per_mtok"].ratio == pytest.approx(-0.5, abs=1e-3)
    assert reported["tokens_per_usd"].ratio == pytest.approx(1.0, abs=2e-3)
    assert reported["tokens_per_s"].baseline == pytest.approx(500_000, rel=1e-3)
    assert reported["tokens_per_s"].candidate == pytest.approx(800_000, rel=1e-3)
    assert reported["step_s"].ratio == pytest.approx(-0.375, abs=1e-3)
    assert reported["allreduce_share_ratio"].candidate == pytest.approx(0.25, rel=1e-3)
    assert reported["usd_per_mtok"].word == "better"


def test_an_interval_holds_the_difference_and_misses_none(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", wavering(2.0, 200, 1))
    train("vit-trn2", wavering(1.8, 200, 2))

    found = of(compare(hot, trial, now=LATER), "step_s")

    assert found.low is not None
    assert found.high is not None
    assert found.low < -0.1 < found.high < 0
    # Two means of 200 steps that waver by 2 %, and 1.25 % between runs, assumed:
    # 1.96 * sqrt(2 * (0.02**2 / 200 + 0.0125**2)) * 0.9 each way.
    assert found.high - found.low == pytest.approx(2 * 0.0314, rel=0.05)
    assert found.word == "better"


def test_two_reads_of_the_same_steps_show_the_same(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", wavering(2.0, 200, 1))
    train("vit-trn2", wavering(1.9, 200, 2))

    assert compare(hot, trial, now=LATER) == compare(hot, trial, now=LATER)


def test_of_arms_alike_no_one_can_tell(hot: HotStore, trial: Trial, trn2: Run) -> None:
    Run.objects.filter(pk=trn2.pk).update(usd_per_node_hour=90.0)
    train("vit-p5", wavering(2.0, 100, 1))
    train("vit-trn2", wavering(2.0, 100, 2))

    assert of(compare(hot, trial, now=LATER), "usd_per_mtok").word == "cannot tell yet"


def test_warm_up_counts_in_no_measure_and_is_paid_for(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [10.0] * 5 + [2.0] * 195, began_s=100.0)
    train("vit-trn2", [1.25] * 200)

    figures = compare(hot, trial, now=NOON + timedelta(seconds=1_000))

    p5 = figures.arms[0]
    assert (p5.n_steps, p5.n_warm_up, p5.n_settled) == (200, 5, 195)
    assert p5.ready_s == pytest.approx(100, abs=0.01)
    assert p5.first_step_s == pytest.approx(10, rel=1e-3)
    assert p5.warm_up_s == pytest.approx(50, rel=1e-3)
    assert of(figures, "step_s").baseline == pytest.approx(2.0, rel=1e-3)
    # 100 s to get ready, 50 s of warm-up, 195 steps of 2 s, and the rest of 1,000 s, at $0.10.
    assert p5.usd_ready == pytest.approx(10, rel=1e-3)
    assert p5.usd_warm_up == pytest.approx(5, rel=1e-3)
    assert p5.usd_settled == pytest.approx(39, rel=1e-3)
    assert p5.usd_between == pytest.approx(46, rel=1e-3)
    assert p5.usd == pytest.approx(100)


def test_steps_after_the_end_of_a_trial_do_not_count(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0] * 100 + [9.0] * 100)
    train("vit-trn2", [1.25] * 100)
    trial.ended_at = NOON + timedelta(seconds=200.5)

    figures = compare(hot, trial, now=LATER)

    assert figures.arms[0].n_steps == 100
    assert of(figures, "step_s").baseline == pytest.approx(2.0, rel=1e-3)


def test_fresh_steps_count_though_only_the_hot_tier_has_them(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0] * 59)
    fresh = steps("vit-p5", n_steps=41, first=60, ended_at_s=NOON_S + 120, compute_s=2.0)
    hot.append_steps(fresh)

    assert compare(hot, trial, now=LATER).arms[0].n_steps == 100


def test_a_minute_that_was_kept_before_it_was_over_lacks_nothing(
    hot: HotStore, trial: Trial
) -> None:
    train("vit-p5", [2.0] * 10)
    hot.append_steps(steps("vit-p5", n_steps=25, ended_at_s=NOON_S + 2, compute_s=2.0))

    assert compare(hot, trial, now=LATER).arms[0].n_steps == 25


def test_a_very_long_run_is_summed_up_and_its_ratios_stay(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [0.5, 1.5] * 4_500)
    train("vit-trn2", [1.25] * 50)

    figures = compare(hot, trial, now=LATER)

    assert figures.arms[0].n_steps == 9_000
    assert of(figures, "step_s").baseline == pytest.approx(1.0, rel=2e-3)


def test_a_late_slowdown_is_no_warm_up(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [10.0] * 5 + [1.0] * 2_995 + [3.0] * 500 + [1.0] * 5_500)
    train("vit-trn2", [1.25] * 50)

    p5 = compare(hot, trial, now=LATER).arms[0]

    assert (p5.n_warm_up, p5.n_settled) == (5, 8_995)
    assert p5.values["step_s"] == pytest.approx((8_495 + 1_500) / 8_995, rel=2e-3)


def test_heavy_steps_are_the_quarter_with_the_largest_share(hot: HotStore, trial: Trial) -> None:
    # Of 200 steps 50 exchange for half their time: those last 2 s, the others 1 s.
    for name in ("vit-p5", "vit-trn2"):
        train(name, [1.0, 1.0, 1.0, 2.0] * 50, share=[0.1, 0.1, 0.1, 0.5] * 50)

    figures = compare(hot, trial, now=LATER)

    assert of(figures, "heavy_step_s").baseline == pytest.approx(2.0, rel=1e-3)
    assert of(figures, "step_s").baseline == pytest.approx(1.25, rel=1e-3)
    # 3 * 0.1 + 0.5 * 2 seconds of 5.
    assert of(figures, "allreduce_share_ratio").baseline == pytest.approx(0.26, rel=1e-3)


def test_without_any_exchange_there_are_no_heavy_steps(hot: HotStore, trial: Trial) -> None:
    for name in ("vit-p5", "vit-trn2"):
        train(name, [1.0, 2.0] * 100, share=0.0)

    figures = compare(hot, trial, now=LATER)

    assert figures.candidates[0].get("heavy_step_s") is None
    # All other measures are known.
    assert of(figures, "step_s").baseline == pytest.approx(1.5, rel=1e-3)
    assert of(figures, "usd_per_mtok").ratio == pytest.approx(-0.2, abs=1e-3)


def test_the_usual_tokens_of_a_step_are_those_of_steps_that_report_some(
    hot: HotStore, trial: Trial
) -> None:
    for name in ("vit-p5", "vit-trn2"):
        train(name, [1.0] * 200, tokens=[1e6, 0.0, np.nan, np.nan] * 50)

    assert compare(hot, trial, now=LATER).arms[0].tokens_per_step == pytest.approx(1e6, rel=1e-3)


def test_a_run_without_a_price_is_judged_by_its_pace(hot: HotStore, trial: Trial, p5: Run) -> None:
    Run.objects.filter(pk=p5.pk).update(usd_per_node_hour=0.0, tokens_per_epoch=10**9)
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 200)

    figures = compare(hot, trial, now=LATER)

    assert figures.arms[0].usd is None
    assert figures.candidates[0].get("usd_per_mtok") is None
    assert figures.candidates[0].get("usd_per_epoch") is None
    assert of(figures, "tokens_per_s").ratio == pytest.approx(0.6, abs=1e-3)


def test_of_arms_without_steps_nothing_is_reported(hot: HotStore, trial: Trial) -> None:
    figures = compare(hot, trial, now=NOON + timedelta(hours=1))

    assert figures.candidates[0].comparisons == ()
    assert [arm.ready_s for arm in figures.arms] == [None, None]
    # An hour of four nodes at $90, all of it before the first step.
    assert figures.arms[0].usd_ready == pytest.approx(360)
    assert figures.arms[0].tokens_per_step is None


def test_compiling_is_what_the_compile_events_cover(
    hot: HotStore, trial: Trial, trn2: Run
) -> None:
    for begin_s, lasted_s in ((0, 60), (30, 60)):
        CompileEvent.objects.create(
            run=trn2,
            module=f"MODULE_{begin_s}",
            outcome="miss",
            at=NOON + timedelta(seconds=begin_s),
            seconds=lasted_s,
        )

    arms = compare(hot, trial, now=LATER).arms

    assert [arm.compile_s for arm in arms] == [None, 90]
