"""Trials with several runs of an arm."""

import math
from typing import Any

import numpy as np
import pytest

from fleet.models import Run, Trial
from fleet.trials.comparison import compare
from fleet.trials.services import begin
from fleet.trials.text import candidate_reports
from telemetry.errors import FieldError
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON

N_STEPS = 200
# Seconds of a step in each run: the first belongs to the arm.
P5_S, TRN2_S = (2.00, 2.02, 1.98), (1.70, 1.72, 1.68)


def names(arm: str) -> list[str]:
    return [arm, f"{arm}-2", f"{arm}-3"]


@pytest.fixture
def repeated(p5: Run, trn2: Run) -> Trial:
    """Start a trial of three runs of each arm."""
    for name in names(p5.name)[1:]:
        made(name, "p5.48xlarge", 90.0)
    for name in names(trn2.name)[1:]:
        made(name, "trn2.48xlarge", 72.0)
    return begin(**wish())


def wish(**other: Any) -> dict[str, Any]:
    replicates = {arm: names(arm)[1:] for arm in ("vit-p5", "vit-trn2")}
    return {
        "name": "bakeoff",
        "question": "Do we move?",
        "baseline": "vit-p5",
        "candidates": ["vit-trn2"],
        "replicates": replicates,
        "planned_steps": N_STEPS,
        "by": "ada",
        "now": NOON,
    } | other


def train_all(trn2_s: tuple[float, ...] = TRN2_S) -> None:
    rng = np.random.default_rng(3)
    for arm, seconds in (("vit-p5", P5_S), ("vit-trn2", trn2_s)):
        for name, mean_s in zip(names(arm), seconds, strict=True):
            train(name, list(mean_s * (1 + 0.01 * rng.normal(size=N_STEPS))))


def test_runs_of_an_arm_are_one_arm(hot: HotStore, repeated: Trial) -> None:
    train_all()
    figures = compare(hot, repeated, now=LATER)

    assert [arm.run.name for arm in repeated.compared_arms] == ["vit-p5", "vit-trn2"]
    (candidate,) = figures.candidates
    assert (candidate.n_runs, candidate.is_provisional) == ((3, 3), False)
    assert [arm.replicate_of for arm in figures.arms] == [
        "",
        "",
        *["vit-p5"] * 2,
        *["vit-trn2"] * 2,
    ]
    step = candidate.get("step_s")
    assert step is not None
    # The geometric means of the runs, 2 % apart: as Welch's t of six logarithms.
    assert step.baseline == pytest.approx(math.prod(P5_S) ** (1 / 3), rel=2e-3)
    assert step.candidate == pytest.approx(math.prod(TRN2_S) ** (1 / 3), rel=2e-3)
    assert step.low is not None
    assert step.high is not None
    spread = [float(np.var(np.log(seconds), ddof=1)) for seconds in (P5_S, TRN2_S)]
    reach = 2.78 * math.sqrt(sum(spread) / 3)
    assert math.log1p(step.high) - math.log1p(step.ratio) == pytest.approx(reach, rel=0.25)
    assert step.word == "better"
    (report,) = candidate_reports(figures, LATER.date())
    assert not report.verdict.is_provisional
    assert "measured with 3\u202fruns and 3\u202fruns" in report.decision.doubt


def test_a_run_that_disagrees_leaves_no_verdict(hot: HotStore, repeated: Trial) -> None:
    train_all((1.70, 1.72, 2.30))
    (candidate,) = compare(hot, repeated, now=LATER).candidates

    step = candidate.get("step_s")
    assert step is not None
    assert (step.word, step.n_more_steps) == ("cannot tell yet", None)


def test_one_run_of_each_arm_is_provisional(hot: HotStore, trial: Trial) -> None:
    for name, mean_s in (("vit-p5", 2.0), ("vit-trn2", 1.25)):
        train(name, [mean_s, mean_s * 1.01] * 100)
    (report,) = candidate_reports(compare(hot, trial, now=LATER), LATER.date())

    assert report.verdict.badge == "better"
    assert report.verdict.is_provisional
    assert "1\u202frun each: run-to-run variation" in report.decision.doubt


def test_a_drift_is_named(hot: HotStore, trial: Trial) -> None:
    train("vit-p5", [2.0, 2.02] * 200)
    train("vit-trn2", list(np.linspace(1.2, 1.3, 400)))
    figures = compare(hot, trial, now=LATER)

    assert figures.arms[0].pace_change_ratio is None
    # Of the 8 %, the part after what counts as warm-up, between the means of its quarters.
    assert figures.arms[1].pace_change_ratio == pytest.approx(0.03, abs=0.015)
    (report,) = candidate_reports(figures, LATER.date())
    assert any("vit-trn2 drifts or jumps by" in note for note in report.notes)


@pytest.mark.parametrize(
    ("replicates", "message"),
    [
        ({"vit-p6": []}, "is no arm of this trial"),
        ({"vit-p5": ["vit-p6"]}, "no run is called 'vit-p6'"),
        ({"vit-p5": ["vit-trn2-2"]}, "choose runs on the same hardware"),
        ({"vit-p5": ["vit-p5"]}, "a run can be in a trial once only"),
        ({"vit-p5": ["vit-p5-2", "vit-p5-2"]}, "a run can be in a trial once only"),
    ],
)
def test_what_is_no_further_run_is_refused(
    repeated: Trial, replicates: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(FieldError, match=message) as refused:
        begin(**wish(name="other", replicates=replicates))

    assert refused.value.field == "replicates"
    assert Trial.objects.count() == 1


@pytest.mark.parametrize("margin_ratio", [-0.01, 0.51, math.nan])
def test_a_margin_that_is_none_is_refused(p5: Run, trn2: Run, margin_ratio: float) -> None:
    with pytest.raises(FieldError, match=r"0\.02 is 2 %") as refused:
        begin(**wish(replicates={}, margin_ratio=margin_ratio))

    assert refused.value.field == "margin_ratio"
