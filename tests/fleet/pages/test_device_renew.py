"""A device that its push service has moved gives its new address, also without a session."""

import json

from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.models import ConfigurationChange, Receiver
from tests.fleet.notifications.push_browser import PushBrowser
from tests.fleet.pages.test_device_new import device_of

HERE = "/notifications/devices/renew/"


def test_a_device_gives_its_new_address_without_sign_in(db: None, settings: Settings) -> None:
    settings.NOTIFY_ALLOW = ["localhost"]
    browser, moved = PushBrowser(), PushBrowser()
    device = device_of(User.objects.create_user("ada"))
    device.secret = browser.secret
    device.is_enabled = False
    device.save()
    old = {"old_endpoint": device.target, "old_auth": browser.keys["auth"]}
    new = {"endpoint": "https://localhost:1/push/moved", **moved.keys}
    strict = Client(enforce_csrf_checks=True)

    for wrong in (
        {"old_auth": "AAAA"},
        {"old_endpoint": "ä"},
        {"old_endpoint": "", "old_auth": ""},
    ):
        assert strict.post(HERE, old | new | wrong).status_code == 401
    other = strict.post(HERE, old | new | {"endpoint": "https://example.org/push"})
    assert (other.status_code, "no known push service" in other.text) == (422, True)
    assert strict.post(HERE, old | new).status_code == 204

    after = Receiver.objects.get()
    assert (after.pk, after.name, after.is_enabled) == (device.pk, device.name, False)
    assert (after.target, json.loads(after.secret)) == (new["endpoint"], json.loads(moved.secret))
    assert "renewed the address" in ConfigurationChange.objects.get().text
    # The old address proves nothing any more.
    assert strict.post(HERE, old | new).status_code == 401
