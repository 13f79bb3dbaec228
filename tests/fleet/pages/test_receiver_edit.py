"""Editing a receiver: secrets are kept if left empty; no deletion with unsent messages."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.models import Alert, Delivery, Receiver
from tests.fleet.pages.deliveries import admin, dead, hook

__all__ = ["admin", "dead", "hook"]


@pytest.fixture(autouse=True)
def _loopback(settings: Settings) -> None:
    settings.NOTIFY_ALLOW = ["127.0.0.0/8"]


def post(client: Client, receiver: Receiver, **fields: str) -> Any:
    return client.post(f"/notifications/receivers/{receiver.pk}/", fields)


def test_the_form_shows_no_secret(client: Client, admin: User, hook: Receiver) -> None:
    text = client.get(f"/notifications/receivers/{hook.pk}/").text

    assert 'value="hook"' in text
    assert "sesame" not in text
    assert "hush" not in text


def test_what_is_left_empty_is_kept(client: Client, admin: User, hook: Receiver) -> None:
    assert post(client, hook, name="renamed", target="", secret="").status_code == 302

    hook.refresh_from_db()
    assert (hook.name, hook.secret) == ("renamed", "sesame")
    assert hook.target.endswith("/hush/path")


def test_what_is_given_replaces_it(client: Client, admin: User, hook: Receiver) -> None:
    post(client, hook, name="hook", target="http://127.0.0.1:2/", secret="new")

    hook.refresh_from_db()
    assert (hook.target, hook.secret) == ("http://127.0.0.1:2/", "new")


def test_what_cannot_be_changes_nothing(client: Client, admin: User, hook: Receiver) -> None:
    response = post(client, hook, name="hook", target="http://10.0.0.1/")

    assert response.status_code == 422
    hook.refresh_from_db()
    assert hook.target.endswith("/hush/path")


def test_it_is_switched_off_and_on(client: Client, admin: User, hook: Receiver) -> None:
    for action, is_on in (("off", False), ("on", True)):
        post(client, hook, action=action)
        hook.refresh_from_db()
        assert hook.is_enabled is is_on


def test_it_can_be_deleted(client: Client, admin: User, hook: Receiver) -> None:
    assert post(client, hook, action="delete").status_code == 302
    assert not Receiver.objects.exists()


def test_with_unsent_messages_deletion_needs_a_confirmation(
    client: Client, admin: User, hook: Receiver, dead: Delivery, alert: Alert
) -> None:
    response = post(client, hook, action="delete")
    assert response.status_code == 422
    assert "1 notification for it is not delivered yet" in response.text
    assert Receiver.objects.exists()

    post(client, hook, action="delete", confirmed="yes")
    assert not Receiver.objects.exists()


def test_only_administrators_may(client: Client, operator: User, hook: Receiver) -> None:
    assert client.get(f"/notifications/receivers/{hook.pk}/").status_code == 403
    assert post(client, hook, action="delete").status_code == 403
    assert Receiver.objects.exists()
