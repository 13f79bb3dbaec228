"""Notifications of browsers: what arrives, who gets which alert, and when a device is removed."""

import random
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from django.contrib.auth.models import User
from pytest_django import Settings

from fleet.alerts.events import labels_of, receivers_of, routing_table
from fleet.models import Alert, ConfigurationChange, Delivery, Node, Receiver, Route, Run
from fleet.notifications.channels import CHANNELS
from fleet.notifications.delivery import DeliveryClient, RetryPolicy, claim, due, settle
from fleet.notifications.http_client import AddressError, Allowed, HttpClient
from fleet.notifications.messages import Message, TimelineItem, item_of
from fleet.notifications.web_push import check_endpoint, server_keys
from tests.fleet.notifications.conftest import an_alert, receiver, say
from tests.fleet.notifications.push_browser import PushBrowser
from tests.fleet.notifications.receiver_server import Post, ReceiverServer, hangs, status
from tests.helpers import NOON, just_now

KIND = Delivery.Kind
BASE = "https://trnwatch.example"
LOOPBACK = Allowed.of(["127.0.0.0/8"])
CLIENT = HttpClient(LOOPBACK, timeout_s=5)
CREATED = status(201)


@pytest.fixture
def browser() -> PushBrowser:
    return PushBrowser()


@pytest.fixture
def device(browser: PushBrowser, hook_server: ReceiverServer, db: None) -> Receiver:
    """Notify ada in a browser, by the default route; the server is its push service."""
    hook_server.answers = [CREATED]
    Route.objects.create(is_default=True, name="default", group_wait_s=0, group_by="alert")
    made: Receiver = Receiver.objects.create(
        name="ada: phone",
        kind="push",
        target=hook_server.url,
        secret=browser.secret,
        owner=User.objects.create_user("ada"),
        created_at=just_now(),
    )
    return made


@pytest.fixture
def message(run: Run, limping: Node) -> Message:
    alert = an_alert(run)
    alert.node, alert.device = limping, 3
    alert.evidence |= {"step_s": 2.6, "baseline_step_s": 2.0}
    alert.save()
    item = item_of(alert, labels_of(alert), base_url=BASE, now=NOON)
    return Message(KIND.FIRING, key="k1", at=NOON, items=(item,), list_url=f"{BASE}/alerts/")


def sent(device: Receiver, message: Message, hook_server: ReceiverServer) -> Post:
    channel = CHANNELS["push"]
    body = channel.render(message)
    assert channel.send(device, body, key=message.key, at=NOON, client=CLIENT).status == 201
    return hook_server.posts[-1]


def attempt(*, after_min: int = 1, timeout_s: float = 5) -> str:
    """Send the one delivery that is due, as a sender does; return its new state."""
    now = just_now() + timedelta(minutes=after_min)
    client = DeliveryClient(HttpClient(LOOPBACK, timeout_s=timeout_s), base_url=BASE)
    [delivery] = due(now=now, busy=(), limit=9)
    assert claim(delivery, by="me", lease=timedelta(seconds=9), now=now)
    result = client.attempt(delivery, now=now)
    assert result is not None
    return settle(delivery, result, retry_policy=RetryPolicy(), rng=random.Random(0), now=now)


# What arrives


def test_only_the_browser_can_read_what_is_slow_by_how_much_and_what_it_costs(
    device: Receiver, browser: PushBrowser, message: Message, hook_server: ReceiverServer
) -> None:
    post = sent(device, message, hook_server)

    shown = browser.read(post.body)
    assert shown["title"] == message.items[0].verdict
    assert "limping" in shown["title"]
    assert "steps \u00d7 1.30, \u2212$" in shown["title"]
    assert shown["text"] == message.items[0].because
    assert shown["url"] == message.items[0].url
    assert (shown["rings"], shown["stays"]) == (True, True)
    assert b"limping" not in post.body
    assert post.key == "k1"
    assert post.headers["content-encoding"] == "aes128gcm"
    assert post.headers["urgency"] == "high"
    assert int(post.headers["ttl"]) == 12 * 3600


def test_the_push_service_learns_who_sends(
    device: Receiver, message: Message, hook_server: ReceiverServer, settings: Settings
) -> None:
    settings.DEFAULT_FROM_EMAIL = "trnwatch <ops@trnwatch.example>"
    header = sent(device, message, hook_server).headers["authorization"]

    scheme, _, fields = header.partition(" ")
    token, key = (field.strip()[2:] for field in fields.split(","))
    [(public, private)] = server_keys().items()
    claims = jwt.decode(token, private.public_key(), ["ES256"], audience="http://127.0.0.1")
    assert (scheme, key) == ("vapid", public)
    assert claims["sub"] == "mailto:ops@trnwatch.example"


def test_a_message_never_exceeds_what_push_services_take(
    device: Receiver, browser: PushBrowser, message: Message, hook_server: ReceiverServer
) -> None:
    item = replace(message.items[0], verdict="\x01" * 4000, because="\x01" * 4000)
    long = replace(message, items=(item,))
    post = sent(device, long, hook_server)

    assert len(post.body) <= 4096
    assert browser.read(post.body)["text"].endswith("…")


def test_several_alerts_lead_to_the_list(message: Message) -> None:
    other = replace(message.items[0], pk=message.items[0].pk + 1, verdict="core 3 is slow")
    shown = dict(CHANNELS["push"].render(replace(message, items=(*message.items, other))))

    assert shown["title"].startswith("2 alerts: ")
    assert shown["text"] == "core 3 is slow"
    assert shown["url"] == f"{BASE}/alerts/"


def test_an_end_replaces_the_alert_without_a_sound(message: Message) -> None:
    channel = CHANNELS["push"]
    first = dict(channel.render(message))
    change = TimelineItem(message.items[0].pk, "acknowledged", NOON, "ada", "on it")
    seen = dict(channel.render(replace(message, kind=KIND.ACKNOWLEDGED, changes=(change,))))
    ended = dict(channel.render(replace(message, kind=KIND.RESOLVED)))

    assert first["tag"] == seen["tag"] == ended["tag"]
    assert seen["text"].startswith("ada: on it")
    assert ended["title"].startswith("[RESOLVED] ")
    assert (ended["rings"], ended["stays"]) == (False, False)


# Who gets which alert


@pytest.mark.parametrize(
    ("devices", "severity", "is_sent"),
    [
        ("pages", Alert.Severity.PAGE, True),
        ("pages", Alert.Severity.WARN, False),
        ("all", Alert.Severity.WARN, True),
        ("none", Alert.Severity.PAGE, False),
    ],
)
def test_a_route_says_what_devices_get(
    device: Receiver, run: Run, devices: str, severity: str, *, is_sent: bool
) -> None:
    Route.objects.update(devices=devices)
    alert = an_alert(run)
    alert.severity = severity

    reached = [each for _, each in receivers_of(alert, routing_table())]
    assert reached == [device] * is_sent


def test_who_may_no_longer_sign_in_is_no_longer_notified(device: Receiver, run: Run) -> None:
    say(an_alert(run), "fired")
    User.objects.update(is_active=False)

    assert receivers_of(an_alert(run, subject="run:other"), routing_table()) == []
    later = just_now() + timedelta(hours=1)
    assert due(now=later, busy=(), limit=9) == []
    assert not Delivery.objects.late(later).exists()


# Delivery


def test_what_the_push_service_takes_is_delivered(
    device: Receiver, browser: PushBrowser, run: Run, hook_server: ReceiverServer
) -> None:
    say(an_alert(run), "fired")

    assert attempt() == "sent"
    device.refresh_from_db()
    assert device.last_sent_at is not None
    assert "llama" in browser.read(hook_server.posts[0].body)["title"]


def test_no_answer_is_tried_again_with_the_same_text_under_the_same_key(
    device: Receiver, browser: PushBrowser, run: Run, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [hangs(1), CREATED]
    say(an_alert(run), "fired")

    assert attempt(timeout_s=0.3) == "pending"
    assert attempt(after_min=5) == "sent"
    first, second = hook_server.posts
    assert browser.read(first.body) == browser.read(second.body)
    assert first.body != second.body
    assert first.key == second.key
    assert first.headers["topic"] == second.headers["topic"]


@pytest.mark.parametrize("code", [404, 410])
def test_a_browser_that_ended_its_subscription_is_removed(
    device: Receiver, run: Run, hook_server: ReceiverServer, code: int
) -> None:
    hook_server.answers = [status(code)]
    say(an_alert(run), "fired")
    attempt()

    assert not Receiver.objects.exists()
    assert not Delivery.objects.exists()
    assert f"removed device ada: phone: {code}" in ConfigurationChange.objects.get().text


def test_a_webhook_that_is_not_found_is_kept(run: Run, hook_server: ReceiverServer) -> None:
    receiver("hook", "webhook", hook_server.url)
    hook_server.answers = [status(410)]
    say(an_alert(run), "fired")

    assert attempt() == "dead"
    assert Receiver.objects.exists()


def test_a_refusal_is_seen(device: Receiver, run: Run, hook_server: ReceiverServer) -> None:
    hook_server.answers = [status(403, body=b'{"reason":"BadJwtToken"}')]
    say(an_alert(run), "fired")

    assert attempt() == "dead"
    device.refresh_from_db()
    assert "BadJwtToken" in device.last_error


# Keys


def test_a_device_outlives_a_new_key_while_the_old_one_is_a_fallback(
    device: Receiver, message: Message, hook_server: ReceiverServer, settings: Settings
) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    newest, old = server_keys()

    header = sent(device, message, hook_server).headers["authorization"]
    assert header.endswith(old)
    assert newest != old

    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(AddressError, match="a key that is not set any more"):
        sent(device, message, hook_server)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://fcm.googleapis.com/fcm/send/a", "must begin with https"),
        ("https://fcm.googleapis.com.example.org/a", "is no known push service"),
        ("https://notfcm.googleapis.com/a", "is no known push service"),
        ("https://10.0.0.1/a", "is no known push service"),
        ("https://user@fcm.googleapis.com/a", "leave out user"),
        ("https://web.push.apple.com/a", "TRNWATCH_MAIL_FROM"),
    ],
)
def test_only_push_services_are_written_to(url: str, why: str) -> None:
    with pytest.raises(AddressError, match=why):
        check_endpoint(url, LOOPBACK)


def test_push_services_of_browsers_and_named_hosts_are_allowed(settings: Settings) -> None:
    settings.DEFAULT_FROM_EMAIL = "ops@example.org"
    for host in (
        "fcm.googleapis.com",
        "updates.push.services.mozilla.com",
        "wns2-by3p.notify.windows.com",
        "web.push.apple.com",
        "push.internal",
    ):
        check_endpoint(f"https://{host}/a", Allowed.of(["push.internal"]))


def test_every_key_derived_is_of_the_curve(settings: Settings) -> None:
    settings.SECRET_KEY_FALLBACKS = [f"key {number}" for number in range(20)]
    keys = server_keys()

    assert len(keys) == 21
    assert {key.curve.name for key in keys.values()} == {ec.SECP256R1.name}
