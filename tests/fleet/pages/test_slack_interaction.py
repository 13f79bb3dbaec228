"""A button in Slack: signed requests acknowledge, all others change nothing."""

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from fleet.models import Alert, AlertEvent, Receiver
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver
from tests.helpers import just_now

Fire = Callable[..., Alert]
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@pytest.fixture
def slack(db: None, settings: Settings) -> Iterator[ReceiverServer]:
    settings.NOTIFY_ALLOW = ["127.0.0.0/8"]
    with serve_receiver() as server:
        Receiver.objects.create(
            name="ops", kind="slack", target=server.url, secret=SECRET, created_at=just_now()
        )
        yield server


def click(
    alert: Alert, server: ReceiverServer, *, secret: str = SECRET, age_s: int = 0, **more: str
) -> HttpResponse:
    payload = {
        "type": "block_actions",
        "user": {"id": "U1", "username": "ada"},
        "actions": [{"action_id": "acknowledge", "value": str(alert.pk), "type": "button"}],
        "response_url": f"{server.url}/answer",
    } | more
    body = urlencode({"payload": json.dumps(payload)})
    at = str(int(time.time()) - age_s)
    made = hmac.new(secret.encode(), f"v0:{at}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={made}"}
    client = Client(enforce_csrf_checks=True)
    kind = "application/x-www-form-urlencoded"
    response: HttpResponse = client.post(  # type: ignore[assignment]
        "/notifications/slack", body, content_type=kind, headers=headers, REMOTE_ADDR="192.0.2.7"
    )
    return response


def test_a_click_acknowledges_in_the_name_of_the_person(
    alert: Alert, slack: ReceiverServer
) -> None:
    assert click(alert, slack).status_code == 200

    alert.refresh_from_db()
    assert alert.acknowledged_by == "ada (Slack)"
    event = alert.events.get(kind=AlertEvent.Kind.ACKNOWLEDGED)
    assert event.by == "ada (Slack)"
    assert slack.posts == []


def test_a_second_click_is_refused_to_its_person_alone(
    alert: Alert, slack: ReceiverServer
) -> None:
    click(alert, slack)
    assert click(alert, slack).status_code == 200

    [post] = slack.posts
    assert post.json["response_type"] == "ephemeral"
    assert post.json["text"] == "It is already acknowledged by ada (Slack)."


def test_a_resolved_alert_stays_resolved(fired: Fire, slack: ReceiverServer) -> None:
    alert = fired(ago=timedelta(minutes=9), resolved_at=just_now() - timedelta(minutes=5))
    click(alert, slack)

    alert.refresh_from_db()
    assert not alert.acknowledged_by
    assert slack.posts[0].json["text"] == "The alert is already resolved."


@pytest.mark.parametrize("wrong", [{"secret": "guessed"}, {"age_s": 400}, {"age_s": -400}])
def test_without_a_valid_signature_nothing_changes(
    alert: Alert, slack: ReceiverServer, wrong: dict[str, str | int]
) -> None:
    assert click(alert, slack, **wrong).status_code == 401  # type: ignore[arg-type]

    alert.refresh_from_db()
    assert not alert.acknowledged_by


@pytest.mark.parametrize(
    "at", ["9" * 5_000, str(10**30), "-1", "NaN", "1e3", ""], ids=lambda text: text[:9]
)
def test_a_time_that_is_none_is_no_signature(slack: ReceiverServer, at: str) -> None:
    headers = {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": "v0=x"}
    assert Client().post("/notifications/slack", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "value", ["9" * 5_000, str(10**30), str(2**63), "-1", "\u0663", ""], ids=lambda text: text[:9]
)
def test_a_button_of_no_alert_changes_nothing(
    alert: Alert, slack: ReceiverServer, value: str
) -> None:
    actions: Any = [{"action_id": "acknowledge", "value": value}]
    assert click(alert, slack, actions=actions).status_code == 200

    alert.refresh_from_db()
    assert not alert.acknowledged_by


def test_a_receiver_without_a_secret_accepts_no_click(alert: Alert, slack: ReceiverServer) -> None:
    receiver = Receiver.objects.get()
    receiver.secret = ""
    receiver.save()
    assert click(alert, slack, secret="").status_code == 401


def test_answers_go_only_to_the_host_of_the_receiver(alert: Alert, slack: ReceiverServer) -> None:
    with serve_receiver() as other:
        click(alert, slack)
        click(alert, slack, response_url=f"{other.url}/steal")
        assert other.posts == slack.posts == []


def test_a_payload_of_another_form_is_refused(alert: Alert, slack: ReceiverServer) -> None:
    assert click(alert, slack, user="ada").status_code == 400
