"""A new route: above the default one, with validation."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Receiver, Route
from tests.fleet.pages.deliveries import admin, hook

__all__ = ["admin", "hook"]
HERE = "/notifications/routes/new/"


def post(client: Client, **fields: Any) -> Any:
    usual = {"name": "pages", "matchers": "severity=page", "group_by": "run", "devices": "pages"}
    return client.post(HERE, usual | {"group_wait_s": "0", "repeat_min": "15"} | fields)


def test_it_is_made_and_tried_before_the_default(
    client: Client, admin: User, hook: Receiver
) -> None:
    assert post(client, receivers=[str(hook.pk)], goes_on="on").status_code == 302

    first, last = Route.objects.in_order()
    assert (first.name, first.matchers, first.repeat_s) == ("pages", "severity=page", 900)
    assert (first.goes_on, first.sends_resolved) == (True, False)
    assert list(first.receivers.all()) == [hook]
    assert last.is_default


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": ""}, "required"),
        ({"matchers": "colour=blue"}, "is not a field"),
        ({"matchers": "run=~("}, "run"),
        ({"group_by": "moon"}, "valid choice"),
        ({"group_wait_s": "-1"}, "greater than or equal"),
        ({"repeat_min": "1e9"}, "whole number"),
        ({"receivers": ["99"]}, "valid choice"),
    ],
)
def test_an_invalid_value_is_reported_next_to_its_field(
    client: Client, admin: User, fields: dict[str, Any], why: str
) -> None:
    response = post(client, **fields)

    assert response.status_code == 422
    assert why in response.text
    assert not Route.objects.exists()
