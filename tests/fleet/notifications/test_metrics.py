"""Prometheus series of notifications."""

from datetime import timedelta

from fleet.metrics.collectors import NotificationCollector
from fleet.models import Delivery, Receiver, Run, SenderHeartbeat
from telemetry.exporter.exposition import write_page
from tests.fleet.notifications.conftest import an_alert, say
from tests.helpers import just_now


def test_without_receivers_nothing_is_reported(db: None) -> None:
    assert write_page(NotificationCollector(now=just_now()).collect()) == b""


def test_it_counts_what_arrived_failed_waits_and_is_dead(hook: Receiver, run: Run) -> None:
    Receiver.objects.update(n_sent=7, n_failed=3, n_dead=1)
    for i in range(3):
        say(an_alert(run, f"node:{i}"), "fired")
    Delivery.objects.filter(pk=Delivery.objects.order_by("pk")[0].pk).update(state="dead")
    now = just_now()
    SenderHeartbeat.objects.create(name="a", started_at=now, seen_at=now - timedelta(seconds=4))
    page = write_page(NotificationCollector(now=now).collect()).decode()

    for line in (
        'trnwatch_notifications_total{outcome="sent",receiver="hook"} 7.0',
        'trnwatch_notifications_total{outcome="failed",receiver="hook"} 3.0',
        'trnwatch_notifications_total{outcome="dead",receiver="hook"} 1.0',
        'trnwatch_notifications_pending{receiver="hook"} 2.0',
        'trnwatch_notifications_dead{receiver="hook"} 1.0',
        "trnwatch_notifications_sender_age_seconds 4.0",
    ):
        assert line in page.splitlines()
