"""Trials by the API: list, read with figures, start and end by leads."""

from typing import Any

import pytest
from django.test import Client

from fleet.models import Run, Trial
from fleet.trials.services import update_figures
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Ask
from tests.fleet.test_anonymous_access import member
from tests.fleet.trials.conftest import LATER, made, train

NEW = {
    "name": "move",
    "question": "Do we move?",
    "baseline": "vit-p5",
    "candidates": ["vit-trn2"],
    "planned_steps": 100,
}


@pytest.fixture
def arms(db: None) -> tuple[Run, Run]:
    """Make the runs of a trial, with a hundred steps each."""
    runs = made("vit-p5", "p5.48xlarge", 90.0), made("vit-trn2", "trn2.48xlarge", 72.0)
    train("vit-p5", [2.0] * 100)
    train("vit-trn2", [1.25] * 100)
    return runs


@pytest.fixture
def started(ask: Ask, arms: tuple[Run, Run]) -> dict[str, Any]:
    """Start a trial."""
    response = ask("trials", NEW)
    assert response.status_code == 201
    reported: dict[str, Any] = response.json()
    return reported


def test_a_trial_is_begun_with_its_baseline_first(started: dict[str, Any]) -> None:
    assert [arm["run"] for arm in started["arms"]] == ["vit-p5", "vit-trn2"]
    assert started["created_by"] == "token admin"
    assert started["figured_at"] is None
    assert started["candidates"] == []


def test_one_trial_is_reported_with_its_figures(
    ask: Ask, hot: HotStore, started: dict[str, Any]
) -> None:
    update_figures(hot, Trial.objects.get(), now=LATER)

    reported = ask("trials/move", scope="read").json()

    candidate = reported["candidates"][0]
    per_mtok = candidate["comparisons"][0]
    assert per_mtok["measure"] == "usd_per_mtok"
    assert per_mtok["candidate"] == pytest.approx(0.1, rel=1e-3)
    assert per_mtok["word"] == "better"
    assert candidate["claim"]["date"] == "2024-12-03"
    assert "is better than" in candidate["sentence"]
    assert [arm["n_steps"] for arm in reported["figures"]] == [100, 100]
    assert {match["field"]: match["state"] for match in reported["matches"]}["model"] == "same"


def test_across_price_kinds_dollars_have_no_verdict_and_equal_kinds_are_reported(
    ask: Ask, hot: HotStore, started: dict[str, Any]
) -> None:
    # As paid 20 / 90 / 1.6 = 0.139 times; at capacity blocks 35.7608 / 47.76 / 1.6 = 0.468 times.
    Run.objects.filter(name="vit-trn2").update(
        usd_per_node_hour=20.0, price_basis="capacity block, 2026-10"
    )
    update_figures(hot, Trial.objects.get(), now=LATER)

    (candidate,) = ask("trials/move", scope="read").json()["candidates"]

    verdicts = {each["measure"]: each["word"] for each in candidate["comparisons"]}
    assert (candidate["badge"], verdicts["usd_per_mtok"], verdicts["tokens_per_s"]) == (
        "price kinds differ",
        "none: price kinds differ",
        "better",
    )
    kinds = candidate["price_kinds"]
    assert (kinds["baseline"], kinds["candidate"], kinds["is_alike"]) == (
        "on demand",
        "capacity block",
        False,
    )
    (block,) = kinds["at_equal"]
    assert (block["kind"], block["comparison"]["word"]) == ("capacity block", "better")
    assert block["comparison"]["ratio"] == pytest.approx(35.7608 / 47.76 / 1.6 - 1, rel=1e-3)
    assert (block["baseline"]["low_usd"], block["candidate"]["date"]) == (47.76, "2026-10")
    # 20 dollars over 1.6 times the pace.
    assert kinds["break_even"]["usd"] == pytest.approx(12.5, rel=1e-3)
    assert "is better than" not in candidate["sentence"]


def test_the_list_reports_the_last_begun_first(ask: Ask, started: dict[str, Any]) -> None:
    ask("trials", NEW | {"name": "again"})
    ask("trials/move/end", {})

    assert [item["name"] for item in ask("trials").json()["items"]] == ["again", "move"]
    assert [item["name"] for item in ask("trials?state=open").json()["items"]] == ["again"]
    assert [item["name"] for item in ask("trials?state=over").json()["items"]] == ["move"]
    assert ask("trials?team=x").json()["items"] == []


def test_a_trial_ends_once(ask: Ask, started: dict[str, Any]) -> None:
    assert ask("trials/move/end", {}).json()["ended_at"]
    assert ask("trials/move/end", {}).status_code == 409
    assert ask("trials/nothing/end", {}).status_code == 404


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("name", "a b", 400),
        ("name", "move", 409),
        ("question", " ", 400),
        ("baseline", "missing", 409),
        ("candidates", [], 400),
        ("candidates", ["vit-p5"], 409),
        ("planned_steps", 0, 400),
        ("colour", "red", 400),
    ],
)
def test_what_cannot_be_is_named(
    ask: Ask, started: dict[str, Any], field: str, value: object, status: int
) -> None:
    response = ask("trials", NEW | {"name": "other"} | {field: value})

    assert (response.status_code, response.json()["field"]) == (status, field)
    assert Trial.objects.count() == 1


def test_of_people_only_leads_begin_and_end(client: Client, redis_url: str, arms: object) -> None:
    operator = member("operator")
    client.force_login(operator)
    assert client.post("/api/v1/trials", NEW, "application/json").status_code == 403
    client.force_login(member("lead"))

    assert client.post("/api/v1/trials", NEW, "application/json").status_code == 201
    client.force_login(operator)
    assert client.post("/api/v1/trials/move/end", {}, "application/json").status_code == 403
    assert Trial.objects.get().ended_at is None


def test_a_token_that_may_only_read_begins_nothing(ask: Ask, arms: object) -> None:
    assert ask("trials", NEW, scope="read").status_code == 403
    assert not Trial.objects.exists()
