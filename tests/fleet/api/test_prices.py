"""Prices by the API: leads list and set them; a price never changes."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from fleet.models import Run, TeamPrice
from telemetry import catalog
from tests.fleet.api.conftest import Ask
from tests.helpers import NOON, just_now

NEW = {
    "team": "LLM",
    "instance_type": "trn1.32xlarge",
    "basis": "reserved",
    "usd_per_node_hour": 12.5,
    "valid_from": "2026-11-01T00:00:00Z",
    "source": "contract 7",
}


def price(usd: float, *, days_ago: float, **fields: Any) -> TeamPrice:
    """Keep a price from some days ago on."""
    usual = {"team": "LLM", "instance_type": "trn1.32xlarge", "basis": "contract", "source": "x"}
    at = just_now() - timedelta(days=days_ago)
    reported = {"valid_from": at, "set_at": NOON, "set_by": "ada", **usual, **fields}
    return TeamPrice.objects.create(usd_per_node_hour=usd, **reported)


def test_a_price_is_set_and_states_how_many_runs_it_changes(ask: Ask, run: Run) -> None:
    made = ask("prices", NEW)

    reported = made.json()
    run.refresh_from_db()
    assert made.status_code == 201
    assert (reported["usd_per_node_hour"], reported["basis"], reported["team"]) == (
        12.5,
        "reserved",
        "LLM",
    )
    assert (reported["valid_from"], reported["set_by"]) == ("2026-11-01T00:00:00Z", "token admin")
    assert (reported["n_runs_changed"], run.price[0]) == (1, 12.5)
    assert ask(f"prices/{reported['id']}").json() == {
        name: value for name, value in reported.items() if name != "n_runs_changed"
    }


def test_a_price_is_never_changed(ask: Ask, run: Run) -> None:
    first = ask("prices", NEW).json()["id"]
    second = ask("prices", NEW | {"usd_per_node_hour": 11, "valid_from": 1793491200}).json()["id"]

    listed = ask("prices").json()["items"]
    assert [(each["id"], each["usd_per_node_hour"]) for each in listed] == [
        (second, 11.0),
        (first, 12.5),
    ]
    # Of two from the same moment the one set later holds.
    assert [each["holds_now"] for each in listed] == [True, False]


def test_no_method_changes_one(client: Client, ask: Ask) -> None:
    kept = price(14, days_ago=9)

    for method in ("PUT", "PATCH", "DELETE", "POST"):
        assert client.generic(method, f"/api/v1/prices/{kept.pk}").status_code == 405


def test_it_shows_which_hold(ask: Ask, run: Run) -> None:
    old, new = price(14, days_ago=9), price(13, days_ago=2)
    ahead = price(12, days_ago=-5)
    everybody, other = price(20, days_ago=1, team=""), price(9, days_ago=1, team="vision")

    holds = {each["id"]: each["holds_now"] for each in ask("prices").json()["items"]}

    assert holds == {
        old.pk: False,
        new.pk: True,
        ahead.pk: False,
        everybody.pk: True,
        other.pk: True,
    }


@pytest.mark.parametrize(
    ("query", "usd"),
    [
        ("", [20.0, 13.0, 14.0]),
        ("team=LLM", [13.0, 14.0]),
        ("whose=everybody", [20.0]),
        ("whose=team", [13.0, 14.0]),
        ("basis=spot", [13.0]),
        ("instance_type=trn2.48xlarge", [20.0]),
        ("until=0", []),
    ],
)
def test_prices_are_listed_by_what_they_are(ask: Ask, query: str, usd: list[float]) -> None:
    price(14, days_ago=9)
    price(13, days_ago=2, basis="spot")
    price(20, days_ago=1, team="", instance_type="trn2.48xlarge")

    reported = ask(f"prices?{query}").json()["items"]

    assert [each["usd_per_node_hour"] for each in reported] == usd
    assert {each["team"] for each in reported} <= {None, "LLM"}


def test_what_is_published_is_reported_with_its_source(ask: Ask) -> None:
    reported = ask("prices/published", scope="read").json()["items"]

    trn1 = [each for each in reported if each["instance_type"] == "trn1.32xlarge"]
    assert trn1[0]["usd_per_node_hour"] == catalog.instance("trn1.32xlarge").price.usd_per_hour
    assert [each["is_default"] for each in trn1] == [True] + [False] * (len(trn1) - 1)
    assert all(each["source"] and each["date"] for each in reported)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("team", "x" * 41),
        ("instance_type", "m5.large"),
        ("basis", "barter"),
        ("usd_per_node_hour", 0),
        ("usd_per_node_hour", 1e6),
        ("usd_per_node_hour", "12"),
        ("valid_from", "2026-11-01"),
        ("valid_from", None),
        ("valid_from", "1970-01-01T00:00:00Z"),
        ("source", " "),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_kept(
    ask: Ask, db: None, field: str, value: object
) -> None:
    response = ask("prices", NEW | {field: value})

    assert (response.status_code, response.json()["field"]) == (400, field)
    assert not TeamPrice.objects.exists()


def test_a_token_that_may_only_read_sets_nothing(ask: Ask) -> None:
    assert ask("prices", NEW, scope="read").status_code == 403
    assert not TeamPrice.objects.exists()
