"""Paged lists: complete, ordered, and stable while rows are added."""

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from django.http import QueryDict

from fleet.models import Node, Silence
from telemetry.store import durable
from tests.fleet.api.conftest import Ask
from tests.helpers import NOON, NOON_S, steps

LISTS = (
    "runs",
    "nodes",
    "alerts",
    "silences",
    "annotations",
    "tokens",
    "runs/llama/steps",
    "trials",
    "prices",
    "budgets",
    "compiles",
    "support-checks",
)


def silence(name: str) -> Silence:
    return Silence.objects.create(
        matchers=name, reason="x", by="ada", starts_at=NOON, ends_at=NOON
    )


@pytest.fixture
def seven(ask: Ask) -> list[int]:
    """Make seven silences; gives their numbers as the list sorts them."""
    return [silence(f"rule=r{i}").pk for i in range(7)][::-1]


def walk(ask: Ask, path: str | None, link: str) -> list[list[int]]:
    pages = []
    while path:
        page = ask(path).json()
        pages.append([item["id"] for item in page["items"]])
        path = page[link]
    return pages


def test_pages_follow_one_another(ask: Ask, seven: list[int]) -> None:
    pages = walk(ask, "silences?limit=3", "next")

    assert [len(page) for page in pages] == [3, 3, 1]
    assert list(chain(*pages)) == seven


def test_the_way_back_leads_over_the_same_pages(ask: Ask, seven: list[int]) -> None:
    first = ask("silences?limit=3").json()
    second = ask(first["next"]).json()
    third = ask(second["next"]).json()

    assert first["prev"] is None
    assert third["next"] is None
    assert ask(third["prev"]).json()["items"] == second["items"]
    assert ask(second["prev"]).json()["items"] == first["items"]


def test_what_is_made_meanwhile_shifts_nothing(ask: Ask, seven: list[int]) -> None:
    first = ask("silences?limit=3").json()
    newer = silence("rule=new").pk
    Silence.objects.filter(pk=seven[3]).delete()

    rest = walk(ask, first["next"], "next")
    back = ask(ask(first["next"]).json()["prev"]).json()

    assert list(chain(*rest)) == seven[4:]
    assert [item["id"] for item in back["items"]] == seven[:3]
    assert newer in [item["id"] for item in ask(back["prev"]).json()["items"]]


def test_links_keep_the_filters(ask: Ask, seven: list[int]) -> None:
    link = ask("silences?limit=2&state=over&by=ada").json()["next"]

    asked = QueryDict(link.partition("?")[2])
    assert (asked["state"], asked["by"], asked["limit"]) == ("over", "ada", "2")


def test_nodes_are_paged_by_name(ask: Ask, steady: Node, limping: Node, silent: Node) -> None:
    first = ask("nodes?limit=2").json()
    second = ask(first["next"]).json()

    names = [[node["name"] for node in page["items"]] for page in (first, second)]
    assert names == [["limping", "silent"], ["steady"]]


def test_steps_are_paged_from_the_newest(ask: Ask, fleet: Any) -> None:
    pages = []
    path: str | None = "runs/llama/steps?limit=4"
    while path:
        page = ask(path).json()
        pages.append([step["step"] for step in page["items"]])
        path = page["next"]

    assert pages == [[10, 9, 8, 7], [6, 5, 4, 3], [2, 1]]
    assert [step["step"] for step in ask(page["prev"]).json()["items"]] == pages[1]


def test_tokens_of_steps_add_up_however_many_a_row_stands_for(ask: Ask, fleet: Any) -> None:
    ended_at_s = NOON_S + np.arange(5000)
    made = replace(steps(n_steps=5000, tokens=1000.0), ended_at_s=ended_at_s.astype(float))
    durable.write_steps(made)

    items, path = [], f"runs/llama/steps?limit=1000&since={NOON_S}&until={NOON_S + 5000}"
    while path:
        page = ask(path).json()
        items += page["items"]
        path = page["next"]

    assert len(items) <= 2000
    assert sum(item["n_steps"] for item in items) == 5000
    assert sum(item["tokens"] for item in items) == pytest.approx(5_000_000)
    assert {item["n_steps"] for item in ask("runs/llama/steps").json()["items"]} == {1}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=100000", "limit"),
        ("limit=many", "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=b", "cursor"),
        ("cursor=a.%00", "cursor"),
        ("colour=red", "colour"),
    ],
)
def test_a_page_that_cannot_be_is_refused(ask: Ask, fleet: Any, query: str, field: str) -> None:
    for path in LISTS:
        response = ask(f"{path}?{query}")

        assert (path, response.status_code, response.json()["field"]) == (path, 400, field)
        assert "limit" in response.json()["detail"] or field != "colour"


@pytest.mark.parametrize("cursor", ["a.99999999999999999999", "b.0", "a.x", "b.-", "a.0"])
def test_any_cursor_stands_somewhere(ask: Ask, fleet: Any, cursor: str) -> None:
    for path in LISTS:
        assert (path, ask(f"{path}?cursor={cursor}").status_code) == (path, 200)
