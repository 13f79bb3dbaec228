"""The life of a trial: started, calculated, ended."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.models import Run, Trial
from fleet.tasks import update_trials
from fleet.trials.comparison import compare
from fleet.trials.figures import load_figures
from fleet.trials.services import begin, end, update_due_figures, update_figures
from fleet.trials.text import candidate_reports
from telemetry.errors import FieldError
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON

WISH: dict[str, Any] = {
    "name": "again",
    "question": "Do we?",
    "baseline": "vit-p5",
    "candidates": ["vit-trn2"],
    "planned_steps": 2_000,
    "by": "ada",
    "now": NOON,
}


def test_arms_are_called_by_their_hardware_the_baseline_first(trial: Trial) -> None:
    arms = [(arm.label, arm.is_baseline) for arm in trial.arms.all()]

    assert arms == [("4 \u00d7 p5.48xlarge", True), ("4 \u00d7 trn2.48xlarge", False)]


def test_arms_of_the_same_hardware_are_called_by_their_runs(p5: Run) -> None:
    made("vit-p5-b", "p5.48xlarge", 90.0)

    arms = begin(**WISH | {"candidates": ["vit-p5-b"]}).arms.all()

    assert [arm.label for arm in arms] == ["vit-p5", "vit-p5-b"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "x" * 61),
        ("name", "bakeoff"),
        ("question", "  "),
        ("question", "x" * 201),
        ("question", "a\x00b"),
        ("team", "x" * 41),
        ("baseline", "missing"),
        ("candidates", []),
        ("candidates", ["missing"]),
        ("candidates", ["vit-p5"]),
        ("candidates", ["vit-trn2", "vit-trn2"]),
        ("candidates", ["vit-trn2"] * 9),
        ("planned_steps", 0),
        ("planned_steps", 10**9),
        ("planned_tokens", 0),
        ("planned_tokens", 10**19),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_begun(
    trial: Trial, field: str, value: object
) -> None:
    with pytest.raises(FieldError) as refused:
        begin(**WISH | {field: value})

    assert refused.value.field == field
    assert list(Trial.objects.all()) == [trial]


@pytest.mark.parametrize("name", ["vit-p5", "vit-trn2"])
def test_a_run_without_its_number_of_nodes_is_no_arm(trial: Trial, name: str) -> None:
    Run.objects.filter(name=name).update(n_nodes=0)

    with pytest.raises(FieldError, match=f"{name} has no number of nodes; import it again"):
        begin(**WISH | {"name": "other"})


@pytest.mark.parametrize("name", ["vit-p5", "vit-trn2"])
def test_a_trial_of_such_a_run_has_no_cost(hot: HotStore, trial: Trial, name: str) -> None:
    Run.objects.filter(name=name).update(n_nodes=0, usd_per_node_hour=0.0)
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)

    figures = compare(hot, Trial.objects.with_arms().get(), now=LATER)
    (report,) = candidate_reports(figures, LATER.date())

    assert (report.verdict.cost, report.verdict.break_even) == (None, None)


def test_figures_are_kept_and_read_again(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [9.0] * 5 + [2.0] * 100, began_s=100.0)
    train("vit-trn2", [1.25] * 100)

    update_figures(hot, trial, now=LATER)

    trial.refresh_from_db()
    figures = load_figures(trial.figures)
    assert figures is not None
    assert figures.candidates[0].run == "vit-trn2"
    assert trial.figured_at == LATER


def test_an_ended_trial_is_worked_out_once_more_and_then_left_alone(
    hot: HotStore, trial: Trial
) -> None:
    update_due_figures(hot, now=NOON)
    assert end(trial, now=NOON + timedelta(hours=1))

    assert update_due_figures(hot, now=LATER) == 1
    assert update_due_figures(hot, now=LATER) == 0


def test_a_trial_ends_once(trial: Trial) -> None:
    assert end(trial, now=NOON)
    assert not end(trial, now=LATER)
    trial.refresh_from_db()
    assert trial.ended_at == NOON


def test_figures_from_before_its_end_do_not_replace_it(hot: HotStore, trial: Trial) -> None:
    stale = Trial.objects.get(pk=trial.pk)
    end(trial, now=NOON)

    update_figures(hot, stale, now=LATER)

    trial.refresh_from_db()
    assert trial.figures == {}


def test_a_worker_works_out_what_is_due(hot: HotStore, trial: Trial) -> None:
    update_trials()

    trial.refresh_from_db()
    assert trial.figured_at is not None


def verdicts_of(trial: Trial) -> dict[str, str]:
    figures = load_figures(trial.figures)
    assert figures is not None
    return {each.measure: each.word for each in figures.candidates[0].comparisons}


def test_once_the_plan_is_done_the_verdicts_stand(hot: HotStore, trial: Trial, trn2: Run) -> None:
    train("vit-p5", [2.0] * 200)
    train("vit-trn2", [1.25] * 200)
    update_figures(hot, trial, now=LATER)
    decided = verdicts_of(trial)
    Run.objects.filter(pk=trn2.pk).update(usd_per_node_hour=720.0)

    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    later = Trial.objects.get(pk=trial.pk)
    figures = load_figures(later.figures)
    assert figures is not None
    assert decided["usd_per_mtok"] == "better"
    assert verdicts_of(later) == decided
    assert figures.candidates[0].comparisons[0].ratio > 1


def test_before_the_plan_is_done_a_verdict_may_change(
    hot: HotStore, trial: Trial, trn2: Run
) -> None:
    train("vit-p5", [2.0] * 150)
    train("vit-trn2", [1.25] * 150)
    update_figures(hot, trial, now=LATER)
    Run.objects.filter(pk=trn2.pk).update(usd_per_node_hour=720.0)

    update_figures(hot, Trial.objects.with_arms().get(pk=trial.pk), now=LATER)

    assert verdicts_of(Trial.objects.get(pk=trial.pk))["usd_per_mtok"] == "worse"


def test_figures_kept_by_an_earlier_version_are_read(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0] * 50)
    train("vit-trn2", [1.25] * 50)
    update_figures(hot, trial, now=LATER)
    new = ("first_epoch_step_s", "first_epoch_ratio", "time_to_train_s", "n_tokens", "price_basis")
    for arm in trial.figures["arms"]:
        for name in new:
            del arm[name]
    for candidate in trial.figures["candidates"]:
        del candidate["equal_tokens"], candidate["is_decided"]

    figures = load_figures(trial.figures)

    assert figures is not None
    assert not figures.candidates[0].is_decided
    assert figures.arms[0].n_tokens is None
