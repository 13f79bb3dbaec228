"""Support checks by the API: list, read with operators, create from text."""

from typing import Any

import pytest
from django.test import Client

from fleet.models import SupportCheck, Trial
from tests.fleet.api.conftest import Ask
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON
from tests.telemetry.checks.files import DATA

LIST = "aten::add 3\naten::cumsum\nmine::op\n"


@pytest.fixture
def made(ask: Ask) -> dict[str, Any]:
    """Check a list of three operators for a trial."""
    Trial.objects.create(name="move", question="?", created_by="x", created_at=NOON)
    response = ask("support-checks", {"text": LIST, "file": "a/b/ops.txt", "trial": "move"})
    assert response.status_code == 201, response.text
    reported: dict[str, Any] = response.json()
    return reported


def test_a_check_is_kept_with_every_operator(ask: Ask, made: dict[str, Any]) -> None:
    assert (made["file"], made["form"], made["trial"]) == ("ops.txt", "list", "move")
    assert (made["by"], made["n_operators"]) == ("token admin", 3)
    assert sum(made[f"n_{state}"] for state in ("supported", "unsupported", "unknown")) == 3
    mine = next(each for each in made["operators"] if each["written"] == "mine::op")
    assert (mine["state"], mine["basis"]) == ("unknown", "none")
    assert mine["why"] == "a custom operator: no published list can contain it"
    assert made["n_listed"] > 0
    assert ask(f"support-checks/{made['id']}", scope="read").json() == made


def test_the_compilers_own_report_stands_above_the_list(ask: Ask) -> None:
    report = (DATA / "result.json").read_text()

    reported = ask(
        "support-checks", {"text": "aten::add 3\naten::cumsum", "report": report}
    ).json()

    assert reported["headline"] == "All 2 operators are supported."
    assert (reported["file"], reported["report"]["file"]) == ("pasted text", "result.json")


@pytest.mark.parametrize("name", ["export.txt", "result.json"])
def test_any_form_that_the_page_reads_will_do(ask: Ask, name: str) -> None:
    reported = ask("support-checks", {"text": (DATA / name).read_text(), "file": name})

    assert reported.status_code == 201
    assert reported.json()["file"] == name


def test_the_list_shows_what_stands(ask: Ask, made: dict[str, Any]) -> None:
    ask("support-checks", {"text": "aten::add"})

    items = ask("support-checks").json()["items"]
    assert [item["trial"] for item in items] == [None, "move"]
    assert "operators" not in items[0]
    assert [i["id"] for i in ask("support-checks?trial=move").json()["items"]] == [made["id"]]
    assert ask("support-checks?by=ada").json()["items"] == []


def test_checks_are_listed_by_their_verdict(ask: Ask) -> None:
    texts = {"supported": "aten::add", "unknown": "mine::op"}
    numbers = {
        verdict: ask("support-checks", {"text": text}).json()["id"]
        for verdict, text in texts.items()
    }

    for verdict, number in numbers.items():
        reported = ask(f"support-checks?verdict={verdict}").json()["items"]
        assert [each["id"] for each in reported] == [number]
    assert ask("support-checks?verdict=unsupported").json()["items"] == []


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({"text": ""}, "text", 400),
        ({"text": "PK\x03\x04"}, "text", 400),
        ({"text": "a\0b"}, "text", 400),
        ({"text": LIST, "report": LIST}, "report", 400),
        ({"text": LIST, "trial": "missing"}, "trial", 409),
        ({"text": LIST, "file": "a\nb"}, "file", 400),
        ({"text": LIST, "colour": "red"}, "colour", 400),
        ({}, "text", 400),
    ],
)
def test_what_cannot_be_is_named_and_nothing_kept(
    ask: Ask, db: None, body: dict[str, str], field: str, status: int
) -> None:
    response = ask("support-checks", body)

    assert (response.status_code, response.json()["field"]) == (status, field)
    assert not SupportCheck.objects.exists()


def test_a_graph_may_be_larger_than_other_bodies_but_not_without_end(ask: Ask) -> None:
    line = "aten::add\n"

    assert ask("support-checks", {"text": line * 20_000}).status_code == 201
    assert ask("support-checks", {"text": line * 120_000}).status_code == 413
    assert ask("annotations", {"text": line * 20_000}).status_code == 413


def test_viewers_check_nothing(client: Client, redis_url: str, db: None) -> None:
    client.force_login(member("viewer"))
    refused = client.post("/api/v1/support-checks", {"text": LIST}, "application/json")
    client.force_login(member("operator"))
    done = client.post("/api/v1/support-checks", {"text": LIST}, "application/json")

    assert (refused.status_code, done.status_code) == (403, 201)
    assert SupportCheck.objects.get().by == "operator"
