"""Editing a route: fields, position; the default route stays."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import ConfigurationChange, Receiver, Route
from tests.fleet.pages.deliveries import admin, hook

__all__ = ["admin", "hook"]


@pytest.fixture
def table(hook: Receiver) -> list[Route]:
    for position, name in enumerate("abc"):
        Route.objects.create(name=name, position=position)
    return list(Route.objects.in_order())


def post(client: Client, route: Route, **fields: Any) -> Any:
    return client.post(f"/notifications/routes/{route.pk}/", fields)


def order() -> str:
    return "".join(route.name[0] for route in Route.objects.in_order())


def test_the_form_shows_its_content(client: Client, admin: User, table: list[Route]) -> None:
    text = client.get(f"/notifications/routes/{table[0].pk}/").text

    assert 'value="a"' in text
    assert "Matching alerts" in text


def test_it_is_stored_as_given(client: Client, admin: User, table: list[Route]) -> None:
    fields = {"name": "a", "matchers": "team=LLM", "group_by": "alert", "sends_resolved": "on"}
    response = post(client, table[0], **fields, group_wait_s="7", repeat_min="0", devices="all")

    assert response.status_code == 302
    route = Route.objects.get(name="a")
    assert (route.matchers, route.group_by, route.group_wait_s) == ("team=LLM", "alert", 7)
    assert (route.repeat_s, route.sends_resolved, route.devices) == (0, True, "all")


@pytest.mark.parametrize(
    ("which", "action", "after"),
    [(0, "down", "bace"), (2, "up", "acbe"), (0, "up", "abce"), (2, "down", "abce")],
)
def test_it_moves_past_its_neighbour_and_no_further(
    client: Client, admin: User, table: list[Route], which: int, action: str, after: str
) -> None:
    post(client, table[which], action=action)

    assert order() == after


def test_it_can_be_deleted(client: Client, admin: User, table: list[Route]) -> None:
    post(client, table[1], action="delete")

    assert order() == "ace"
    assert ConfigurationChange.objects.get().text == "deleted route b"


def test_the_default_route_stays_and_takes_everything(
    client: Client, admin: User, table: list[Route]
) -> None:
    fields = {"name": "everything", "matchers": "team=LLM", "group_by": "run", "goes_on": "on"}
    for action in ("delete", "up"):
        post(client, table[3], action=action, **fields, group_wait_s="1", repeat_min="1")

    default = Route.objects.get(is_default=True)
    assert order() == "abce"
    assert (default.matchers, default.goes_on) == ("", False)
