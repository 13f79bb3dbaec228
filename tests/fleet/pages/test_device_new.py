"""Notifications in a browser: adding and removing the device, and what is refused."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.formatting import counted
from fleet.models import Alert, ConfigurationChange, Receiver, Route
from fleet.notifications.forms import MOST_DEVICES
from tests.fleet.notifications.push_browser import PushBrowser
from tests.fleet.pages.deliveries import admin, delivery
from tests.helpers import just_now

__all__ = ["admin"]
HERE = "/notifications/devices/"


@pytest.fixture(autouse=True)
def _push_service(settings: Settings) -> None:
    settings.NOTIFY_ALLOW = ["localhost"]


def post(client: Client, **fields: str) -> Any:
    browser = PushBrowser()
    subscription = browser.keys | {"endpoint": "https://localhost:1/push/1"}
    own = {"name": "Firefox on Linux", "server_key": server_key(client)}
    return client.post(HERE, subscription | own | fields, follow=True)


def server_key(client: Client) -> str:
    key: str = client.get("/notifications/").context["server_key"]
    return key


def device_of(user: User, *, number: int = 1) -> Receiver:
    made: Receiver = Receiver.objects.create(
        name=f"{user}: {number}",
        kind="push",
        target=f"https://localhost:1/push/{number}",
        secret="{}",
        owner=user,
        created_at=just_now(),
    )
    return made


def test_a_viewer_is_notified_of_pages_in_the_browser(client: Client, viewer: User) -> None:
    text = post(client).text

    device, route = Receiver.objects.get(), Route.objects.get()
    assert (device.kind, device.owner) == ("push", viewer)
    assert device.name == f"{viewer}: Firefox on Linux"
    assert (route.is_default, route.devices) == (True, "pages")
    assert f"You added device {device}" in text
    assert f'data-device="{device.fingerprint}"' in text
    assert f"{counted(1, 'browser')}</b> (pages)" in text
    assert device.target not in text
    assert ConfigurationChange.objects.get().by == str(viewer)


def test_the_first_other_receiver_still_gets_every_alert(client: Client, admin: User) -> None:
    post(client)
    new = {"kind": "webhook", "name": "pager", "target": "http://localhost:9/x"}
    client.post("/notifications/receivers/new/", new)

    [pager] = Route.objects.get().receivers.all()
    assert pager.name == "pager"


def test_the_same_browser_is_stored_once_for_who_asked_last(client: Client, viewer: User) -> None:
    before = device_of(User.objects.create_user("ada"))
    post(client, name="Chrome")

    device = Receiver.objects.get()
    assert (device.pk, device.owner, device.name) == (before.pk, viewer, f"{viewer}: Chrome")


def test_two_devices_of_a_name_can_be_told_apart(client: Client, viewer: User) -> None:
    post(client)
    post(client, endpoint="https://localhost:1/push/2")

    assert {each.name for each in Receiver.objects.all()} == {
        f"{viewer}: Firefox on Linux",
        f"{viewer}: Firefox on Linux 2",
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"endpoint": "https://example.org/push"}, "is no known push service"),
        ({"endpoint": "http://localhost/push"}, "must begin with https"),
        ({"p256dh": "AAAA"}, "keys of the browser are invalid"),
        ({"auth": "AAAA"}, "keys of the browser are invalid"),
        ({"auth": "ä"}, "keys of the browser are invalid"),
        ({"server_key": "AAAA"}, "Reload the page"),
        ({"name": ""}, "required"),
    ],
)
def test_what_is_refused_is_said(
    client: Client, viewer: User, fields: dict[str, str], why: str
) -> None:
    assert why in post(client, **fields).text
    assert not Receiver.objects.exists()


def test_a_person_has_a_limited_number_of_devices(client: Client, viewer: User) -> None:
    device_of(User.objects.create_user("ada"), number=99)
    for number in range(MOST_DEVICES):
        device_of(viewer, number=number)

    assert "Remove one first" in post(client, endpoint="https://localhost:1/push/new").text
    assert Receiver.objects.count() == MOST_DEVICES + 1
    # A browser that is known may come back.
    assert "You added device" in post(client, endpoint="https://localhost:1/push/0").text


def test_people_remove_their_own_devices_and_no_others(
    client: Client, viewer: User, alert: Alert
) -> None:
    mine, other = device_of(viewer), device_of(User.objects.create_user("ada"), number=2)
    delivery(mine, alert)
    there = "/notifications/receivers/{}/"
    remove = {"action": "delete", "confirmed": "yes"}

    assert client.post(there.format(other.pk), remove).status_code == 403
    assert client.post(f"{there.format(other.pk)}test/").status_code == 403
    assert client.post(there.format(mine.pk), remove).status_code == 302
    assert list(Receiver.objects.all()) == [other]


def test_only_the_name_of_a_device_can_be_changed(client: Client, viewer: User) -> None:
    mine = device_of(viewer)
    there = f"/notifications/receivers/{mine.pk}/"
    text = client.get(there).text
    client.post(there, {"name": "my phone", "target": "https://localhost/x", "secret": "x"})

    after = Receiver.objects.get()
    assert 'name="target"' not in text
    assert (after.name, after.target, after.secret) == ("my phone", mine.target, "{}")


def test_no_one_adds_a_device_for_others(client: Client, admin: User) -> None:
    assert client.get("/notifications/receivers/new/", {"kind": "push"}).status_code == 404
