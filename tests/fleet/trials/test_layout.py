"""How far an arm is from its best layout, on the page and in the API."""

from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Run, Trial
from fleet.trials.comparison import compare
from fleet.trials.layout import WARNING_RATIO, arm_layout
from fleet.trials.services import begin, update_figures
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import estimate
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import LATER, made, train
from tests.helpers import NOON

LLAMA: dict[str, Any] = {"model": "llama2-13b", "seq_len": 4096, "global_batch": 256}
FAR, BEST = {"tp": 8}, {"tp": 1, "recipe": {"micro_batch": 2, "recompute": "none"}}
SOFTWARE = {"sdk_version": "2.21", "compiler_version": "2.16.1"}


def estimated(**layout: Any) -> float:
    job = Job(instance="p5.48xlarge", nodes=4, **LLAMA, **layout)
    return estimate(job).usd_per_mtok or 0.0


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


@pytest.fixture
def uneven(db: None, hot: HotStore) -> Trial:
    """Compare a p5 arm far from its best layout with a trn2 arm that runs its best one."""
    recipe = {"micro_batch": 2, "recompute": "selective"}
    made("llama-p5", "p5.48xlarge", 55.04, **LLAMA, **FAR)
    made("llama-trn2", "trn2.48xlarge", 35.76, **LLAMA, **SOFTWARE, tp=2, recipe=recipe)
    for run, step_s in (("llama-p5", 7.2), ("llama-trn2", 7.4)):
        train(run, [step_s, step_s + 0.1] * 200)
    trial = begin(
        "move",
        "Do we move?",
        baseline="llama-p5",
        candidates=["llama-trn2"],
        planned_steps=200,
        by="ada",
        now=NOON,
    )
    update_figures(hot, trial, now=LATER)
    return trial


@pytest.mark.django_db
def test_without_a_reported_precision_the_usual_one_counts() -> None:
    known, unknown = (
        arm_layout(made(f"llama-{precision}", "p5.48xlarge", 55.04, **fields))
        for precision in ("bf16", "")
        for fields in [{**LLAMA, **FAR, "precision": precision}]
    )

    assert unknown.above_best_ratio == known.above_best_ratio is not None


@pytest.mark.django_db
def test_the_distance_is_that_of_the_estimated_cost() -> None:
    layout = arm_layout(made("llama-p5", "p5.48xlarge", 55.04, **LLAMA, **FAR))
    best = {"tp": 1, "micro_batch": 2, "recompute": "none"}

    assert layout.best is not None
    assert layout.best.text == "tp 1, pp 1, micro-batch 2, recompute none"
    assert layout.above_best_ratio == pytest.approx(estimated(**FAR) / estimated(**best) - 1)
    assert layout.is_far == ((layout.above_best_ratio or 0.0) > WARNING_RATIO)
    assert layout.used.text == "tp 8, pp 1"


@pytest.mark.django_db
def test_the_best_layout_is_no_distance_away() -> None:
    layout = arm_layout(made("llama-p5", "p5.48xlarge", 55.04, **LLAMA, **BEST))

    assert (layout.above_best_ratio, layout.is_far) == (0.0, False)
    assert layout.used == layout.best


@pytest.mark.django_db
@pytest.mark.parametrize(
    "other",
    [
        {"model": "unheard-of"},
        {"global_batch": 0},
        {"tp": 7},
        {"shape": {"params": 1e9}},
        {"precision": "int4"},
    ],
)
def test_without_an_estimate_there_is_no_distance(other: dict[str, Any]) -> None:
    layout = arm_layout(made("llama-p5", "p5.48xlarge", 55.04, **(LLAMA | other)))

    assert (layout.best, layout.above_best_ratio, layout.is_far) == (None, None, False)


@pytest.mark.django_db
def test_a_simulated_run_does_what_the_step_model_chose() -> None:
    run = made("llama-p5", "p5.48xlarge", 55.04, **LLAMA, **FAR, is_simulated=True)

    assert arm_layout(run).used.text == "tp 8, pp 1, micro-batch 4, recompute none"


def test_the_figures_keep_layout_and_software(uneven: Trial, hot: HotStore) -> None:
    p5, trn2 = compare(hot, uneven, now=LATER).arms

    assert p5.layout is not None
    assert trn2.layout is not None
    assert p5.layout.is_far
    assert not trn2.layout.is_far
    assert trn2.layout.software == "Neuron SDK 2.21, neuronx-cc 2.16.1"


def test_the_page_warns_of_an_arm_far_from_its_best_layout(uneven: Trial, client: Client) -> None:
    text = client.get(uneven.get_absolute_url()).content.decode()

    assert "One arm is far from its best layout" in text
    assert "more expensive than its best layout, tp 1, pp 1, micro-batch 2, recompute none" in text
    assert "estimated by the step model, not measured" in text
    assert "Neuron SDK 2.21, neuronx-cc 2.16.1" in text
    assert "Above its best layout" in text
    printed = client.get(f"{uneven.get_absolute_url()}print/").content.decode()
    assert "more expensive than its best layout" in printed


def test_a_page_without_such_an_arm_does_not_warn(
    uneven: Trial, client: Client, hot: HotStore
) -> None:
    Run.objects.filter(name="llama-p5").update(**BEST)
    update_figures(hot, Trial.objects.get(), now=LATER)
    text = client.get(uneven.get_absolute_url()).content.decode()

    assert "best layout</h2>" not in text
    assert "0 %, estimated" in text.replace("\u202f", " ").replace("\u00a0", " ")


def test_the_api_has_layout_software_and_distance(uneven: Trial, client: Client) -> None:
    p5, trn2 = client.get("/api/v1/trials/move").json()["figures"]

    assert p5["layout"]["used"] == {
        "tp": 8,
        "pp": 1,
        "cp": 1,
        "micro_batch": None,
        "recompute": None,
    }
    assert p5["layout"]["best"]["tp"] == 1
    assert p5["layout"]["above_best_ratio"] > WARNING_RATIO
    assert p5["layout"]["spread_ratio"] == 0.2
    assert trn2["layout"]["software"] == "Neuron SDK 2.21, neuronx-cc 2.16.1"
    assert trn2["layout"]["above_best_ratio"] == 0.0
