"""Epochs, time to train and loss at equal tokens, compared with manual sums."""

import math
from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Run, Trial
from fleet.trials.comparison import compare
from fleet.trials.figures import Comparison, TrialFigures, dump_figures, load_figures
from fleet.trials.text import candidate_reports
from telemetry.store.hot import HotStore
from telemetry.store.models import RunChunk
from tests.fleet.trials.conftest import LATER, train
from tests.helpers import NOON, NOON_S

# The arms of these trials train a million tokens a step: on p5 for $0.10 a second, on trn2 $0.08.
EPOCH = 50_000_000


def by_metric(figures: TrialFigures) -> dict[str, Comparison]:
    return {each.measure: each for each in figures.candidates[0].comparisons}


@pytest.fixture
def with_epochs(trial: Trial) -> Trial:
    Run.objects.update(tokens_per_epoch=EPOCH)
    return Trial.objects.with_arms().get(pk=trial.pk)


def test_an_epoch_costs_its_tokens_at_the_price_of_a_token(
    hot: HotStore, with_epochs: Trial
) -> None:
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 200)

    found = by_metric(compare(hot, with_epochs, now=LATER))["usd_per_epoch"]

    # 50 steps of 2 s at $0.10, against 50 of 1.25 s at $0.08.
    assert found.baseline == pytest.approx(10.0, rel=1e-3)
    assert found.candidate == pytest.approx(5.0, rel=1e-3)
    assert found.word == "better"


def test_the_first_epoch_counts_its_warm_up_and_nothing_after_it(
    hot: HotStore, with_epochs: Trial
) -> None:
    train("vit-p5", [12.0] * 5 + [2.0] * 195)
    train("vit-trn2", [7.0] * 10 + [1.0] * 190)

    figures = compare(hot, with_epochs, now=LATER)
    found = by_metric(figures)["first_epoch_step_s"]

    # (5 * 12 + 45 * 2) / 50, and (10 * 7 + 40 * 1) / 50.
    assert found.baseline == pytest.approx(3.0, rel=1e-3)
    assert found.candidate == pytest.approx(2.2, rel=1e-3)
    assert figures.arms[0].first_epoch_step_s == pytest.approx(3.0, rel=1e-3)
    assert figures.arms[0].first_epoch_ratio == 1.0
    assert by_metric(figures)["step_s"].candidate == pytest.approx(1.0, rel=1e-3)


def test_an_epoch_that_is_not_over_states_how_far_it_has_come(
    hot: HotStore, with_epochs: Trial
) -> None:
    train("vit-p5", [2.0] * 20)
    train("vit-trn2", [1.25] * 20)

    arm = compare(hot, with_epochs, now=LATER).arms[0]

    assert arm.first_epoch_ratio == pytest.approx(0.4, rel=1e-3)


def test_without_epochs_or_with_unlike_ones_nothing_is_reported_of_them(
    hot: HotStore, trial: Trial, p5: Run
) -> None:
    train("vit-p5", [2.0] * 60)
    train("vit-trn2", [1.25] * 60)
    before = by_metric(compare(hot, trial, now=LATER))
    Run.objects.filter(pk=p5.pk).update(tokens_per_epoch=EPOCH)

    after = by_metric(compare(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER))

    assert {"usd_per_epoch", "first_epoch_step_s"}.isdisjoint({*before, *after})


def test_time_to_train_is_the_way_to_settling_and_the_rest_at_that_pace(
    hot: HotStore, trial: Trial
) -> None:
    train("vit-p5", [10.0] * 5 + [2.0] * 195, began_s=100.0)
    train("vit-trn2", [1.25] * 200, began_s=1_000.0)
    trial.planned_tokens = 10**9

    figures = compare(hot, trial, now=LATER)
    found = by_metric(figures)["time_to_train_s"]

    # A thousand steps: 100 s, five steps of 10 s and 995 of 2 s; 1,000 s and 1,000 of 1.25 s.
    assert found.baseline == pytest.approx(100 + 50 + 1_990, rel=1e-3)
    assert found.candidate == pytest.approx(1_000 + 1_250, rel=1e-3)
    assert found.word == "worse"
    assert figures.arms[1].time_to_train_s == pytest.approx(2_250, rel=1e-3)


def test_the_interval_of_the_time_to_train_leaves_out_what_is_certain(
    hot: HotStore, trial: Trial
) -> None:
    rng = np.random.default_rng(3)
    train("vit-p5", list(2.0 + 0.1 * rng.normal(size=200)))
    train("vit-trn2", list(1.0 + 0.05 * rng.normal(size=200)), began_s=9_000.0)
    trial.planned_tokens = 10**9

    found = by_metric(compare(hot, trial, now=LATER))
    pace, whole = found["tokens_per_s"], found["time_to_train_s"]

    assert None not in (pace.low, pace.high, whole.low, whole.high)
    # Nine tenths of the candidate's 10,000 s are certain; the baseline's 2,000 s are not.
    assert whole.ratio == pytest.approx(4.0, rel=0.02)
    log_width = math.log1p(whole.high or 0) - math.log1p(whole.low or 0)
    assert log_width < 0.85 * (math.log1p(pace.high or 0) - math.log1p(pace.low or 0))


def test_losses_are_compared_at_the_tokens_that_both_arms_have_seen(
    hot: HotStore, trial: Trial
) -> None:
    falling = np.linspace(4.0, 2.0, 400)
    train("vit-p5", [2.0] * 200, loss=list(falling[:200]))
    train("vit-trn2", [1.25] * 400, loss=list(1.1 * falling))

    figures = compare(hot, trial, now=LATER)
    found = by_metric(figures)["loss"]

    # The last ten of the baseline's 200 steps, and the same ten of the candidate's 400.
    assert figures.candidates[0].equal_tokens == pytest.approx(200e6, rel=1e-3)
    assert found.baseline == pytest.approx(falling[190:200].mean(), rel=2e-3)
    assert found.ratio == pytest.approx(0.1, abs=2e-3)
    # Curves have a point for each sixtieth of an arm's tokens: of 3 or 4 steps, and of 6 or 7.
    for arm, losses, n_tokens in zip(
        figures.arms, (falling[:200], 1.1 * falling), (200e6, 400e6), strict=True
    ):
        assert len(arm.losses) == 60
        assert arm.losses[-1][0] == pytest.approx(n_tokens, rel=1e-3)
        assert arm.losses[0][1] == pytest.approx(losses[:3].mean(), rel=0.01)
        assert arm.losses[-1][1] == pytest.approx(losses[-4:].mean(), rel=0.01)


def test_a_loss_that_an_arm_does_not_tell_is_compared_with_none(
    hot: HotStore, trial: Trial
) -> None:
    train("vit-p5", [2.0] * 200, loss=[3.0] * 200)
    train("vit-trn2", [1.25] * 200)

    assert "loss" not in by_metric(compare(hot, trial, now=LATER))


@pytest.fixture
def failed(trial: Trial) -> Trial:
    """Let the candidate fail after 120 steps, and begin again with its own 101st."""
    Run.objects.filter(name="vit-trn2").update(
        starts=[
            {"first_step": 0, "shift": 0, "began_s": NOON_S},
            {"first_step": 121, "shift": 20, "began_s": NOON_S + 150},
        ]
    )
    return Trial.objects.with_arms().get(pk=trial.pk)


def test_tokens_trained_again_after_a_failure_count_once(hot: HotStore, failed: Trial) -> None:
    # The loss of the n-th step is n: of the candidate's 170 steps 20 were lost, 150 stay.
    train("vit-p5", [2.0] * 200, loss=list(range(1, 201)))
    train("vit-trn2", [1.25] * 170, loss=[*range(1, 121), *range(101, 151)])

    figures = compare(hot, failed, now=LATER)
    found = by_metric(figures)["loss"]

    assert figures.candidates[0].equal_tokens == pytest.approx(150e6, rel=1e-3)
    # The last twentieth of 150 steps, rounded to whole ones: from the 143rd on, in both.
    assert found.baseline == pytest.approx(np.arange(143, 151).mean(), rel=2e-3)
    assert found.candidate == pytest.approx(found.baseline, rel=1e-6)
    assert [arm.n_lost for arm in figures.arms] == [0, 20]
    assert figures.arms[1].n_tokens == pytest.approx(170e6, rel=1e-3)


def test_of_steps_trained_twice_those_that_stayed_tell_the_loss(
    hot: HotStore, failed: Trial
) -> None:
    # The lost steps had diverged: their loss was 9; the repeated ones have 3.
    train("vit-p5", [2.0] * 120, loss=[3.0] * 120)
    train("vit-trn2", [1.25] * 170, loss=[3.0] * 100 + [9.0] * 20 + [3.0] * 50)

    found = by_metric(compare(hot, failed, now=LATER))["loss"]

    assert found.baseline == pytest.approx(3)
    assert found.candidate == pytest.approx(3)


def test_a_failure_after_the_end_of_a_trial_has_lost_it_nothing(
    hot: HotStore, failed: Trial
) -> None:
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 170)
    failed.ended_at = NOON + timedelta(seconds=149)

    figures = compare(hot, failed, now=LATER)

    assert (figures.arms[1].n_steps, figures.arms[1].n_lost) == (119, 0)
    assert figures.candidates[0].equal_tokens == pytest.approx(74e6, rel=1e-2)


def test_the_first_epoch_is_over_when_all_of_it_has_stayed(hot: HotStore, failed: Trial) -> None:
    Run.objects.update(tokens_per_epoch=160_000_000)
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 170)

    arms = compare(hot, Trial.objects.with_arms().get(pk=failed.pk), now=LATER).arms

    assert arms[0].first_epoch_ratio == 1.0
    assert arms[1].first_epoch_ratio == pytest.approx(150 / 160, rel=1e-3)


def test_the_verdict_on_losses_is_given_once_when_the_plan_is_done(
    hot: HotStore, trial: Trial
) -> None:
    rng = np.random.default_rng(4)
    train("vit-p5", [2.0] * 2_000, loss=list(2.0 + 0.01 * rng.normal(size=2_000)))
    train("vit-trn2", [1.25] * 2_000, loss=list(2.5 + 0.01 * rng.normal(size=2_000)))
    trial.planned_steps = 3_000
    early = by_metric(compare(hot, trial, now=LATER))["loss"]
    trial.planned_steps = 2_000

    late = by_metric(compare(hot, trial, now=LATER))["loss"]

    assert (early.word, early.n_more_steps) == ("cannot tell yet", 1_000)
    assert late.word == "worse"


def test_a_run_whose_beginning_is_no_longer_stored_did_not_start_slowly(
    hot: HotStore, with_epochs: Trial
) -> None:
    Trial.objects.update(planned_tokens=10_000_000_000)
    trial, now = Trial.objects.with_arms().get(), NOON + timedelta(hours=2, seconds=1)
    losses = [8.0 * step**-0.1 for step in range(1, 3601)]
    train("vit-p5", [2.0] * 3600, loss=losses)
    train("vit-trn2", [2.0] * 900, loss=losses[:900])
    alike = by_metric(compare(hot, trial, now=now))
    # Both arms train in the same way: nothing may differ because steps are forgotten.
    RunChunk.objects.filter(run="vit-p5", start__lt=NOON_S + 3600).delete()

    figures = load_figures(dump_figures(compare(hot, trial, now=now)))

    assert figures is not None
    p5, trn2 = figures.arms
    assert alike["loss"].ratio == pytest.approx(0.0, abs=1e-3)
    assert alike["time_to_train_s"].ratio == pytest.approx(0.0, abs=1e-3)
    later = {"loss", "time_to_train_s", "first_epoch_step_s"}
    assert later.isdisjoint(by_metric(figures))
    assert (p5.ready_s, p5.usd_ready, p5.first_step_s, p5.time_to_train_s) == (None,) * 4
    assert p5.usd_between == pytest.approx(0.0, abs=0.2)
    assert p5.losses[-1][0] == pytest.approx(3600e6, rel=1e-3)
    assert trn2.time_to_train_s is not None
    (report,) = candidate_reports(figures, now.date())
    assert any(
        note.startswith(f"The steps of vit-p5 before {p5.first_step:,} are not stored")
        for note in report.notes
    )
