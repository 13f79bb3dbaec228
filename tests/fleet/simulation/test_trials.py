"""The demo's trials: created once, after their runs."""

import msgspec
import pytest

from fleet.models import Run, Trial
from fleet.simulation.demo import FLEET, DemoRun, create_run, ensure_trials
from fleet.trials.figures import MatchState, match_runs
from fleet.trials.layout import arm_layout
from telemetry import catalog
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def started() -> list[Trial]:
    for demo in FLEET:
        create_run(demo, started_at=NOON)
    return ensure_trials(now=NOON)


def test_each_begins_once(started: list[Trial]) -> None:
    assert ensure_trials(now=NOON) == []
    assert [trial.name for trial in started] == ["vit-bakeoff", "trn2-or-p5"]
    assert Trial.objects.count() == 2


def test_the_newest_is_the_13b_model_on_four_of_each(started: list[Trial]) -> None:
    trial = Trial.objects.first()
    assert trial is not None

    arms = [(arm.run.instance_type, arm.run.n_nodes, arm.is_baseline) for arm in trial.arms.all()]

    assert arms == [("p5.48xlarge", 4, True), ("trn2.48xlarge", 4, False)]
    assert {round(catalog.model(arm.run.model).params / 1e9) for arm in trial.arms.all()} == {13}


@pytest.mark.parametrize("name", ["vit-bakeoff", "trn2-or-p5"])
def test_arms_train_the_same_thing(started: list[Trial], name: str) -> None:
    runs = [arm.run for arm in Trial.objects.get(name=name).arms.all()]

    assert {match.state for match in match_runs(runs, [1e6, 1e6])} == {MatchState.SAME}


@pytest.mark.parametrize("name", ["vit-bakeoff", "trn2-or-p5"])
def test_arms_run_their_best_layouts(started: list[Trial], name: str) -> None:
    layouts = [arm_layout(arm.run) for arm in Trial.objects.get(name=name).arms.all()]

    assert [layout.above_best_ratio for layout in layouts] == [0.0, 0.0]
    assert [layout.used for layout in layouts] == [layout.best for layout in layouts]


def test_without_both_runs_there_is_none() -> None:
    create_run(FLEET[1], started_at=NOON)

    assert ensure_trials(now=NOON) == []
    assert Run.objects.count() == 1


def test_runs_share_no_rack_also_if_they_are_not_in_the_demo() -> None:
    demo = FLEET[0]
    runs = [
        create_run(
            DemoRun(msgspec.structs.replace(demo.spec, name=name), "LLM", "", "us-east-2b"),
            started_at=NOON,
        )
        for name in ("one", "two")
    ]
    racks = [set(run.nodes.values_list("rack", flat=True)) for run in runs]
    assert all(racks)
    assert racks[0].isdisjoint(racks[1])
