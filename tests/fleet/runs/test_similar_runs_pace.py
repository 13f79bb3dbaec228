"""Effect of other settings: measured with an interval, or marked as predicted."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Run, SimilarRunsResult
from fleet.runs.similar_runs import (
    FLAGS_UNKNOWN,
    INTERVAL,
    MIN_STEPS,
    compare_run,
    predictions_for,
    similar_runs_panel,
    update_comparison,
    update_due_comparisons,
)
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import estimate
from telemetry.steps import PHASES, StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.fleet.runs.test_similar_runs import made
from tests.helpers import NOON, NOON_S

NOW = NOON + timedelta(hours=3)
TOKENS = 1_000.0


def train(run: Run, *, step_s: float, n_steps: int = 400, seed: int = 0) -> None:
    """Let a run take steps that differ by a hundredth or so."""
    took_s = step_s * (1 + np.random.default_rng(seed).normal(0, 0.01, n_steps))
    phases = {phase: np.zeros((n_steps, 1)) for phase in PHASES} | {"compute_s": took_s[:, None]}
    durable.write_steps(
        StepBatch(
            run.name,
            ("w",),
            np.arange(1, n_steps + 1),
            NOON_S + np.cumsum(took_s),
            phases,
            np.full(n_steps, TOKENS),
        )
    )
    Run.objects.filter(pk=run.pk).update(last_step=n_steps)


@pytest.fixture
def bf16(run: Run) -> Run:
    run.precision, run.compiler_flags = "bf16", "-O1"
    run.save()
    train(run, step_s=2.0)
    return run


@pytest.fixture
def fp8(run: Run) -> Run:
    other = made(run, "quick", precision="fp8", compiler_flags="-O2")
    train(other, step_s=1.6, seed=1)
    return other


def test_a_like_run_is_compared_with_its_interval_and_its_steps(
    hot: HotStore, bf16: Run, fp8: Run
) -> None:
    (found,) = compare_run(hot, bf16, now=NOW)["measured"]

    # 2.0 s instead of 1.6 s: a quarter more tokens in the same time.
    assert found["ratio"] == pytest.approx(0.25, abs=0.01)
    assert 0.24 < found["low"] < found["ratio"] < found["high"] < 0.26
    assert (found["run"], found["n_steps"] > MIN_STEPS) == ("quick", True)


def test_the_page_names_the_likely_gain(hot: HotStore, bf16: Run, fp8: Run) -> None:
    update_comparison(hot, bf16, now=NOW)
    panel = similar_runs_panel(Run.objects.get(pk=bf16.pk))

    assert panel.headline.startswith("Likely gain: 25")
    assert "as measured on quick" in panel.headline
    assert panel.runs[0].settings == "fp8 (here bf16) and -O2 (here -O1)"
    assert (panel.runs[0].state, panel.unknown) == ("faster", [])
    assert "settled steps" in panel.runs[0].evidence


def test_the_faster_one_is_reported_that_the_other_is_slower(
    hot: HotStore, bf16: Run, fp8: Run
) -> None:
    update_comparison(hot, fp8, now=NOW)
    panel = similar_runs_panel(Run.objects.get(pk=fp8.pk))

    assert panel.runs[0].state == "slower"
    assert panel.headline == "No comparable run with other settings was faster."


@pytest.mark.parametrize("simulated", ["llama", "quick"])
def test_of_simulated_runs_the_pace_is_assumed_and_has_no_interval(
    hot: HotStore, bf16: Run, fp8: Run, simulated: str
) -> None:
    Run.objects.filter(name=simulated).update(is_simulated=True)
    update_comparison(hot, Run.objects.get(pk=bf16.pk), now=NOW)
    panel = similar_runs_panel(Run.objects.get(pk=bf16.pk))

    (found,) = panel.runs
    assert panel.headline.startswith("Not measured on real hardware. Assumed")
    assert (found.state, found.figure.replace("\u202f", " ")) == (
        "assumed",
        "25 % more tokens/s assumed",
    )
    assert "interval" not in found.evidence
    (kept,) = SimilarRunsResult.objects.get(run=bf16).comparison["measured"]
    assert (kept["low"], kept["high"], kept["is_assumed"]) == (None, None, True)


def test_rows_of_earlier_versions_claim_nothing_from_a_simulated_run(run: Run) -> None:
    run.is_simulated = True
    differ = [{"what": "precision", "mine": "bf16", "theirs": "fp8"}]
    pace = {"ratio": 0.29, "low": 0.285, "high": 0.295, "n_steps": 4000, "my_n_steps": 4000}
    reported = {"measured": [{"run": "probe", "differ": differ} | pace]}
    SimilarRunsResult.objects.create(run=run, updated_at=NOW, comparison=reported)
    panel = similar_runs_panel(run)

    assert "Likely gain" not in panel.headline
    assert panel.runs[0].state == "assumed"
    assert "interval" not in panel.runs[0].evidence


def test_no_difference_is_no_claim(hot: HotStore, bf16: Run, run: Run) -> None:
    train(made(run, "same", precision="fp8"), step_s=2.0, seed=3)
    update_comparison(hot, bf16, now=NOW)
    panel = similar_runs_panel(Run.objects.get(pk=bf16.pk))

    assert panel.runs[0].state == "same"
    assert "Likely gain" not in panel.headline


def test_too_few_steps_are_no_evidence(hot: HotStore, bf16: Run, run: Run) -> None:
    train(made(run, "brief", precision="fp8"), step_s=1.0, n_steps=20)

    assert compare_run(hot, bf16, now=NOW)["measured"] == []


def test_what_no_one_tried_is_predicted_as_the_model_has_it(run: Run) -> None:
    run.instance_type, run.n_nodes, run.global_batch = "trn2.48xlarge", 4, 256
    (found,) = predictions_for(run, tried={"bf16"})
    pace = [
        estimate(
            Job(
                model=run.model,
                instance=run.instance_type,
                nodes=4,
                tp=8,
                seq_len=4096,
                global_batch=256,
                precision=precision,
            )
        ).tokens_per_s
        for precision in ("bf16", "fp8")
    ]

    assert found["precision"] == "fp8"
    assert found["ratio"] == pytest.approx(pace[1] / pace[0] - 1)
    assert (found["basis"], found["spread_ratio"]) == ("assumed", 0.49)


def test_what_was_tried_is_not_predictions_for(run: Run) -> None:
    run.instance_type, run.n_nodes, run.global_batch = "trn2.48xlarge", 4, 256

    assert predictions_for(run, tried={"bf16", "fp8"}) == []


@pytest.mark.parametrize(
    ("field", "value"), [("model", "unheard-of"), ("instance_type", "abacus"), ("tp", 7)]
)
def test_what_the_model_cannot_know_is_not_predictions_for(
    run: Run, field: str, value: object
) -> None:
    setattr(run, field, value)

    assert predictions_for(run, tried={"bf16"}) == []


def test_a_prediction_is_called_one_and_flags_are_unknown(run: Run) -> None:
    run.compiler_flags = "-O1"
    predicted = {"precision": "fp8", "ratio": 0.3, "spread_ratio": 0.49}
    reported = {"measured": [], "predicted": [predicted]}
    SimilarRunsResult.objects.create(run=run, updated_at=NOW, comparison=reported)
    panel = similar_runs_panel(run)

    assert panel.predictions[0].startswith("fp8: 30")
    assert "assumed" in panel.predictions[0]
    assert "9 of 10 times within 49" in panel.predictions[0]
    assert panel.unknown == [FLAGS_UNKNOWN]
    assert "Likely gain" not in panel.headline


def test_a_run_not_yet_compared_claims_nothing(run: Run) -> None:
    panel = similar_runs_panel(run)

    assert panel.headline.startswith("Not compared yet")
    assert dict(panel.settings)["Compiler flags"] == "not reported"


def test_runs_take_turns_and_rest_between(hot: HotStore, bf16: Run, fp8: Run) -> None:
    first = update_due_comparisons(hot, now=NOW, batch_size=1)
    second = update_due_comparisons(hot, now=NOW, batch_size=5)
    third = update_due_comparisons(hot, now=NOW, batch_size=5)
    later = update_due_comparisons(hot, now=NOW + 2 * INTERVAL, batch_size=5)

    assert (first, second, third, later) == (1, 1, 0, 2)
