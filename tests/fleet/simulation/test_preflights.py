"""The demo's preflight: 12 of 16 nodes pass, and one run started without."""

from datetime import timedelta

import pytest
from pytest_django import Settings

from fleet.checks.preflights import update_preflight_doubts
from fleet.models import Alert, Preflight, Run
from fleet.simulation.demo import SPARES, create_fleet, ensure_preflight
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _demo(settings: Settings) -> None:
    settings.DEMO = settings.ALLOW_DRILLS = True


def test_the_run_got_the_recommended_nodes_and_each_spare_has_a_reason() -> None:
    create_fleet(now=NOON, longest=timedelta(hours=24))
    preflight = ensure_preflight()

    assert preflight is not None
    run = Run.objects.get(name="pretrain-gpt")
    chosen = preflight.nodes.filter(is_chosen=True).values_list("name", flat=True)
    assert set(chosen) == set(run.nodes.values_list("name", flat=True))
    left = {node.name: node.verdict for node in preflight.nodes.filter(is_chosen=False)}
    assert left == dict.fromkeys(SPARES[1:], "fail") | {SPARES[0]: "hold"}
    assert preflight.verdict == "pass"
    assert ensure_preflight() is None
    assert Preflight.objects.count() == 1


def test_the_run_passed_and_the_one_in_a_hurry_states_that_it_did_not() -> None:
    create_fleet(now=NOON, longest=timedelta(hours=24))
    ensure_preflight()
    update_preflight_doubts()

    doubts = {run.name: run.preflight_doubt for run in Run.objects.filter(requires_preflight=True)}
    assert doubts["pretrain-gpt"] == ""
    assert doubts["longctx"].startswith("No preflight of all its nodes")
    (alert,) = Alert.objects.open()
    assert (alert.rule, alert.subject) == ("preflight", "run:longctx")
    assert alert.acknowledged_by == "demo-bot"


def test_without_its_fleet_there_is_none() -> None:
    assert ensure_preflight() is None
