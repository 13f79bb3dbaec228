"""Fixtures of notification tests: a listening receiver, and alerts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection, transaction

from fleet.alerts.events import enqueue
from fleet.models import Alert, AlertEvent, Receiver, Route, Run
from tests.fleet.notifications.processes import Senders, database_url
from tests.fleet.notifications.processes import senders as running_senders
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver
from tests.helpers import just_now


@pytest.fixture
def hook_server() -> Iterator[ReceiverServer]:
    """Run a receiver with configurable responses, 200 at first."""
    with serve_receiver() as one:
        yield one


@pytest.fixture
def hook(run: Run, hook_server: ReceiverServer) -> Receiver:
    """Make a signed webhook on the default route, which waits for no group."""
    return receiver("hook", "webhook", hook_server.url, secret="sesame")


def receiver(name: str, kind: str, target: str, *, secret: str = "") -> Receiver:
    """Make a receiver, and let the default route lead there alone, each alert by itself."""
    made: Receiver = Receiver.objects.create(
        name=name, kind=kind, target=target, secret=secret, created_at=just_now()
    )
    route, _ = Route.objects.get_or_create(
        is_default=True, defaults={"name": "default", "group_wait_s": 0, "group_by": "alert"}
    )
    route.receivers.set([made])
    return made


def an_alert(run: Run, subject: str = "run:llama", rule: str = "allreduce_share") -> Alert:
    """Make an alert that fires now."""
    now = just_now()
    alert: Alert = Alert.objects.create(
        rule=rule,
        cause="efa_latency",
        severity=Alert.Severity.PAGE,
        subject=subject,
        run=run,
        score=1.2,
        evidence={"share_ratio": 0.31},
        onset_at=now,
        fired_at=now,
        last_seen_at=now,
    )
    return alert


def say(alert: Alert, kind: str, *, by: str = "", text: str = "") -> AlertEvent:
    """Write an event and its notifications, in one transaction."""
    now = just_now()
    with transaction.atomic():
        if kind == "resolved":
            Alert.objects.filter(pk=alert.pk).update(resolved_at=now)
        event: AlertEvent = AlertEvent.objects.create(
            alert=alert, at=now, kind=kind, by=by, text=text
        )
        enqueue(alert, event, now=now)
    return event


@pytest.fixture
def senders(transactional_db: None, tmp_path: Path) -> Iterator[Senders]:
    """Give real senders on the database of the test."""
    with running_senders(tmp_path, database_url(connection.settings_dict)) as home:
        yield home
