"""Secrets at rest: encrypted in the database, with key rotation."""

import io
import json

import pytest
from cryptography.fernet import Fernet, InvalidToken
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from fleet.models import Receiver
from fleet.models.sealing import SealedError, seal, unseal
from fleet.notifications.delivery import LOCKED, DeliveryClient
from fleet.notifications.forms import ReceiverForm
from fleet.notifications.http_client import Allowed, HttpClient
from tests.fleet.pages.deliveries import admin, hook
from tests.helpers import NOON

__all__ = ["admin", "hook"]
TARGET, SECRET = "http://127.0.0.1:1/hush/path", "sesame"


def at_rest() -> str:
    """Return all that the database holds of receivers."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM fleet_receiver")
        return repr(cursor.fetchall())


def plain(receiver: Receiver) -> None:
    """Write a receiver as the release before did."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE fleet_receiver SET target = %s, secret = %s, sealed = '' WHERE id = %s",
            [TARGET, SECRET, receiver.pk],
        )


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("seal_receivers", *args, stdout=out)
    return out.getvalue()


@given(st.text(max_size=600))
@hypothesis_settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_sealed_is_opened_and_never_seen(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    sealed = seal(text)

    assert unseal(sealed) == text
    assert seal(text) != sealed
    assert len(text) < 8 or text not in sealed


def test_what_was_changed_or_is_no_seal_is_refused() -> None:
    sealed = seal(SECRET)

    for damaged in (sealed[:-4] + "AAAA", sealed[:20], "plain", "", "\u00e9"):
        with pytest.raises(SealedError, match="TRNWATCH_SEALING_KEY_FALLBACKS"):
            unseal(damaged)


def test_the_lock_is_not_the_key_itself(settings: Settings) -> None:
    key = Fernet.generate_key()
    settings.SEALING_KEY = key.decode()

    with pytest.raises(InvalidToken):
        Fernet(key).decrypt(seal(SECRET).encode())


def test_an_own_key_comes_before_django_s_which_still_opens(settings: Settings) -> None:
    old = seal(SECRET)
    settings.SEALING_KEY = "own"
    assert unseal(old) == SECRET

    new = seal(SECRET)
    settings.SEALING_KEY = ""
    with pytest.raises(SealedError):
        unseal(new)


@pytest.mark.parametrize("name", ["SEALING_KEY", "SECRET_KEY"])
def test_an_older_key_opens_as_long_as_it_is_named(settings: Settings, name: str) -> None:
    setattr(settings, name, "old")
    sealed = seal(SECRET)
    setattr(settings, name, "new")
    setattr(settings, f"{name}_FALLBACKS", ["older", "old"])
    assert unseal(sealed) == SECRET

    setattr(settings, f"{name}_FALLBACKS", [])
    with pytest.raises(SealedError):
        unseal(sealed)


def test_nothing_of_a_receiver_lies_in_the_database(hook: Receiver) -> None:
    assert "hush" not in at_rest()
    assert SECRET not in at_rest()
    assert (hook.target, hook.secret) == (TARGET, SECRET)
    found = Receiver.objects.get()
    assert (found.target, found.secret) == (TARGET, SECRET)


def test_a_change_is_sealed_too(hook: Receiver) -> None:
    hook.secret = "open sesame"
    hook.save(update_fields=["secret"])

    hook.refresh_from_db()
    assert (hook.target, hook.secret) == (TARGET, "open sesame")
    assert "sesame" not in at_rest()


def test_counting_does_not_touch_the_seal(hook: Receiver) -> None:
    sealed = Receiver.objects.get().sealed
    Receiver.objects.update(n_sent=3)
    found = Receiver.objects.get()
    found.n_failed = 2
    found.save(update_fields=["n_failed"])

    assert Receiver.objects.get().sealed == sealed
    assert Receiver.objects.get().target == TARGET


def test_parts_of_a_row_are_read_with_their_seal(hook: Receiver) -> None:
    found = Receiver.objects.only("name").get()

    assert (found.target, found.secret) == (TARGET, SECRET)


def test_what_would_not_be_sealed_is_refused(hook: Receiver) -> None:
    with pytest.raises(TypeError, match=r"secret, target: save\(\) seals it"):
        Receiver.objects.update(target="x", secret="y")


def test_a_row_of_the_release_before_is_read_and_sealed_by_the_command(hook: Receiver) -> None:
    plain(hook)
    assert Receiver.objects.get().target == TARGET

    assert run() == "1 receiver sealed with the newest key.\n"
    assert "hush" not in at_rest()
    assert Receiver.objects.get().secret == SECRET


def test_the_way_back_to_the_release_before(hook: Receiver) -> None:
    assert json.loads(run("--open", "--json")) == {"done": 1, "locked": [], "are_sealed": False}

    assert TARGET in at_rest()
    assert Receiver.objects.get().secret == SECRET


def test_a_new_key_takes_over(hook: Receiver, settings: Settings) -> None:
    settings.SEALING_KEY, settings.SEALING_KEY_FALLBACKS = "new", ["old"]
    run()
    settings.SECRET_KEY = "Django's is another, too"

    assert Receiver.objects.get().target == TARGET


def test_without_its_key_a_receiver_is_locked_and_nothing_is_lost(
    hook: Receiver, settings: Settings
) -> None:
    key = settings.SECRET_KEY
    settings.SECRET_KEY = "another"
    with pytest.raises(CommandError, match="No key that is set opens hook"):
        run()
    found = Receiver.objects.get()
    found.save()
    assert found.is_locked
    assert found.masked_target == "sealed with a key that is not set"

    settings.SECRET_KEY = key
    assert Receiver.objects.get().target == TARGET


def test_what_cannot_be_opened_is_tried_again_and_states_why(
    hook: Receiver, settings: Settings
) -> None:
    settings.SECRET_KEY = "another"
    client = DeliveryClient(HttpClient(Allowed()), "http://127.0.0.1")

    outcome = client.send(Receiver.objects.get(), {}, key="k", now=NOON)
    assert outcome.why == LOCKED
    assert not outcome.is_final


def test_a_receiver_without_its_key_is_named_and_its_secret_may_be_entered_again(
    client: Client, hook: Receiver, admin: object, settings: Settings
) -> None:
    settings.SECRET_KEY = "another"
    client.logout()
    settings.ANONYMOUS_READING = True
    assert "sealed with a key that is not set" in client.get("/notifications/").text

    locked = Receiver.objects.get()
    assert not ReceiverForm("webhook", locked, {"name": "hook", "target": ""}).is_valid()
    locked.target = "http://127.0.0.1:1/new"
    locked.save()
    assert Receiver.objects.get().target == "http://127.0.0.1:1/new"
