"""Preflights by the API: create, list, read with findings."""

from typing import get_args

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.api.preflights import FaultKind
from fleet.checks.preflights import advance_all
from fleet.models import Node, Preflight, Run
from telemetry.simulate.preflight import PROBE_KINDS
from tests.fleet.api.conftest import Ask
from tests.fleet.checks.conftest import SIXTEEN
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
NEW = {
    "nodes": list(SIXTEEN),
    "instance_type": "trn2.48xlarge",
    "wanted": 12,
    "faults": [
        {"kind": "efa_latency", "node": "n-03", "device": 5, "magnitude": 3},
        {"kind": "pair_slow", "node": "n-06", "peer": "n-11", "magnitude": 2},
        {"kind": "chip_missing", "node": "n-09"},
    ],
}


@pytest.fixture(autouse=True)
def _rehearsing(settings: Settings) -> None:
    settings.ALLOW_DRILLS = True


def test_it_is_asked_for_and_shows_what_it_found(ask: Ask) -> None:
    asked = ask("preflights", NEW)
    there = f"preflights/{asked.json()['id']}"
    assert asked.status_code == 201
    assert (asked.json()["asked_by"], asked.json()["verdict"]) == ("token admin", None)
    while ask(there).json()["progress_ratio"] < 1:
        advance_all(now=NOON)

    reported = ask(there, scope="read").json()

    assert (reported["verdict"], len(reported["take"])) == ("pass", 12)
    assert {(t["kind"], t["node"], t["peer"], t["device"]) for t in reported["troubles"]} == {
        ("device_missing", "n-09", None, None),
        ("efa_latency", "n-03", None, 5),
        ("pair_slow", "n-06", "n-11", None),
    }
    assert [n["node"] for n in reported["nodes"] if n["verdict"] == "fail"] == ["n-03", "n-09"]
    assert "12 of 16" in reported["words"]


def test_they_are_listed_the_last_first(ask: Ask) -> None:
    first, second = (ask("preflights", NEW).json()["id"] for _ in range(2))
    for _ in range(11):
        advance_all(now=NOON)
    third = ask("preflights", NEW).json()["id"]

    assert [item["id"] for item in ask("preflights").json()["items"]] == [third, second, first]
    passed = ask("preflights?verdict=pass").json()["items"]
    assert [item["id"] for item in passed] == [second, first]


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("nodes", [], 400),
        ("nodes", ["a", "a"], 409),
        ("wanted", 17, 409),
        ("wanted", 0, 400),
        ("instance_type", "m5.large", 409),
        ("faults", [{"kind": "chip_missing", "node": "missing"}], 409),
        ("run", "missing", 409),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    ask: Ask, field: str, value: object, status: int
) -> None:
    response = ask("preflights", NEW | {field: value})

    assert (response.status_code, response.json()["field"]) == (status, field)
    assert not Preflight.objects.exists()


def test_the_schema_has_every_kind_of_fault() -> None:
    assert set(get_args(FaultKind)) == set(PROBE_KINDS)


def test_a_run_is_reported_with_it(ask: Ask, run: Run, steady: Node, limping: Node) -> None:
    reported = ask("preflights", {"nodes": ["steady", "limping"], "run": "llama"}).json()

    assert (reported["run"], reported["instance_type"]) == ("llama", "trn1.32xlarge")


def test_viewers_read_and_operators_ask(client: Client, ask: Ask) -> None:
    assert ask("preflights", NEW, scope="read").status_code == 403
    client.force_login(member("operator"))

    assert client.post("/api/v1/preflights", NEW, "application/json").status_code == 201
    assert ask("preflights/999999").status_code == 404
