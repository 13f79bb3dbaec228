"""Similar runs by the API: a run's settings, and the effect of others."""

import pytest

from fleet.models import Run
from fleet.runs.similar_runs import update_comparison
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Ask
from tests.fleet.runs.test_similar_runs import made
from tests.fleet.runs.test_similar_runs_pace import NOW, train


@pytest.fixture
def measured(hot: HotStore, run: Run) -> Run:
    """Train a run and one that is a quarter faster in fp8, and compare them."""
    run.precision, run.compiler_flags = "bf16", "-O1"
    run.save()
    train(run, step_s=2.0)
    train(made(run, "quick", precision="fp8", compiler_flags="-O2"), step_s=1.6, seed=1)
    update_comparison(hot, Run.objects.get(name="llama"), now=NOW)
    return run


def test_it_shows_what_was_measured_with_its_interval(ask: Ask, measured: Run) -> None:
    reported = ask("runs/llama/like", scope="read").json()

    (other,) = reported["measured"]
    assert (reported["precision"], reported["compiler_flags"]) == ("bf16", "-O1")
    assert other["run"] == "quick"
    assert other["differ"] == [
        {"what": "precision", "mine": "bf16", "theirs": "fp8"},
        {"what": "flags", "mine": "-O1", "theirs": "-O2"},
    ]
    assert other["low"] < other["ratio"] < other["high"]
    assert other["ratio"] == pytest.approx(0.25, abs=0.01)
    assert "Likely gain" in reported["headline"]
    assert reported["worked_out_at"] == "2026-03-02T15:00:00Z"


def test_what_was_not_compared_yet_is_marked_as_such(ask: Ask, run: Run) -> None:
    reported = ask("runs/llama/like").json()

    assert (reported["measured"], reported["predicted"], reported["worked_out_at"]) == (
        [],
        [],
        None,
    )
    assert "Not compared yet" in reported["headline"]
    assert reported["sdk_version"] is None


def test_a_run_that_no_one_knows_has_no_like(ask: Ask, db: None) -> None:
    assert ask("runs/missing/like").status_code == 404
