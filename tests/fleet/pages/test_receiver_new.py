"""A new receiver: fields by kind, validation, defaults of the first one."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.models import ConfigurationChange, Receiver, Route
from fleet.notifications.forms import TARGET_AND_SECRET
from tests.fleet.pages.deliveries import admin, hook

HERE = "/notifications/receivers/new/"
GOOD = {"kind": "webhook", "name": "pager", "target": "http://127.0.0.1:9/x", "secret": "s"}
__all__ = ["admin", "hook"]


@pytest.fixture(autouse=True)
def _loopback(settings: Settings) -> None:
    settings.NOTIFY_ALLOW = ["127.0.0.0/8"]


def post(client: Client, **fields: str) -> Any:
    return client.post(HERE, GOOD | fields)


def test_the_first_receiver_gets_every_alert(client: Client, admin: User) -> None:
    assert post(client).status_code == 302

    receiver = Receiver.objects.get()
    assert (receiver.name, receiver.kind, receiver.secret) == ("pager", "webhook", "s")
    assert list(Route.objects.get(is_default=True).receivers.all()) == [receiver]
    assert ConfigurationChange.objects.get().text == "added receiver pager (Webhook)"


def test_the_next_one_gets_no_alerts_yet(client: Client, admin: User, hook: Receiver) -> None:
    post(client)

    assert not Receiver.objects.get(name="pager").routes.exists()


@pytest.mark.parametrize("kind", TARGET_AND_SECRET)
def test_every_kind_has_a_form(client: Client, admin: User, kind: str) -> None:
    assert client.get(HERE, {"kind": kind}).status_code == 200


def test_an_unknown_name_of_a_kind_is_refused(client: Client, admin: User) -> None:
    assert client.get(HERE, {"kind": "fax"}).status_code == 404


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": ""}, "required"),
        ({"target": ""}, "Is empty. Enter an address"),
        ({"target": "ftp://example.org"}, "is not an address"),
        ({"target": "http://10.0.0.1/"}, "is a private address"),
        ({"target": "http://169.254.169.254/latest/meta-data"}, "is a private address"),
        ({"kind": "email", "target": "ada@example.org, bob"}, "valid email"),
        (
            {"kind": "pagerduty", "target": "http://127.0.0.1/", "secret": ""},
            "requires an integration key",
        ),
    ],
)
def test_an_invalid_value_is_reported_next_to_its_field(
    client: Client, admin: User, fields: dict[str, str], why: str
) -> None:
    response = post(client, **fields)

    assert response.status_code == 422
    assert why in response.text
    assert not Receiver.objects.exists()


def test_a_name_is_given_once(client: Client, admin: User, hook: Receiver) -> None:
    response = post(client, name="hook")

    assert response.status_code == 422
    assert "A receiver named hook exists" in response.text


def test_a_refused_form_does_not_show_the_secret(client: Client, admin: User) -> None:
    assert "open-sesame" not in post(client, name="", secret="open-sesame").text
