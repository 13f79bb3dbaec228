"""Similar runs: which fields must agree, and which settings differ."""

from typing import Any

import pytest

from fleet.models import Run
from fleet.runs.similar_runs import differences_of, differing, similar_runs
from tests.helpers import NOON


def made(run: Run, name: str = "other", **other: Any) -> Run:
    """Return a run like another, but for some fields."""
    same = {
        field: getattr(run, field)
        for field in ("model", "instance_type", "n_nodes", "seq_len", "global_batch", "tp")
    }
    usual = {"name": name, "phase_since": NOON, "started_at": NOON, "last_step": 100}
    price = {"usd_per_node_hour": 1.0, "price_basis": ""}
    return Run.objects.create(**same | usual | price | other)


def test_the_same_training_on_the_same_nodes_is_like(run: Run) -> None:
    other = made(run)

    assert list(similar_runs(run)) == [other]


@pytest.mark.parametrize(
    "other",
    [
        {"model": "bert-large"},
        {"instance_type": "trn2.48xlarge"},
        {"n_nodes": 8},
        {"seq_len": 2048},
        {"global_batch": 512},
        {"last_step": 0},
    ],
)
def test_what_differs_in_anything_else_is_not(run: Run, other: dict[str, Any]) -> None:
    made(run, **other)

    assert list(similar_runs(run)) == []


def test_a_run_that_does_not_say_what_it_trains_has_no_like(run: Run) -> None:
    run.global_batch = 0
    made(run)

    assert list(similar_runs(run)) == []


def test_every_setting_that_both_tell_is_compared(run: Run) -> None:
    run.precision, run.compiler_flags, run.compiler_version = "bf16", "-O1 --lnc=1", "2.19"
    other = made(
        run,
        precision="fp8",
        compiler_flags="--optlevel=2 --lnc=1",
        compiler_version="2.21",
        sdk_version="2.26.1",
    )

    assert [(each.what, each.mine, each.theirs) for each in differences_of(run, other)] == [
        ("precision", "bf16", "fp8"),
        ("flags", "-O1", "-O2"),
        ("neuronx-cc", "2.19", "2.21"),
    ]


def test_only_runs_with_other_settings_are_compared(run: Run) -> None:
    made(run, "alike", precision=run.precision)
    other = made(run, "fp8", precision="fp8")

    assert [each for each, _ in differing(run)] == [other]
