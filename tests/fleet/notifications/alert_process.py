"""A process that fires alerts and prints each notification key after commit."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
django.setup()

from django.db import DatabaseError, IntegrityError, connection, transaction  # noqa: E402

from fleet.alerts.events import enqueue  # noqa: E402
from fleet.models import Alert, AlertEvent, Delivery, Receiver, Route  # noqa: E402


def fire(number: int) -> str:
    """Fire one alert, and return its notification's key."""
    now = datetime.now(UTC)
    with transaction.atomic():
        alert = Alert.objects.create(
            rule="node_silent",
            severity=Alert.Severity.PAGE,
            subject=f"node:{number}",
            score=1.0,
            onset_at=now,
            fired_at=now,
            last_seen_at=now,
        )
        event = AlertEvent.objects.create(alert=alert, at=now, kind="fired")
        enqueue(alert, event, now=now)
        return Delivery.objects.get(alerts=alert).key


def main(target: str, n_alerts: int, pause_s: float) -> None:
    """Fire alerts one after the other, each until it is committed."""
    now = datetime.now(UTC)
    receiver = Receiver.objects.create(name="hook", kind="webhook", target=target, created_at=now)
    route = Route.objects.create(
        name="all", is_default=True, group_by=Route.GroupBy.ALERT, group_wait_s=0
    )
    route.receivers.add(receiver)
    number = 0
    while number < n_alerts:
        try:
            key = fire(number)
        except IntegrityError:
            # The answer to a commit was cut off; the commit was not.
            number += 1
            continue
        except DatabaseError:
            connection.close()
            time.sleep(0.05)
            continue
        sys.stdout.write(f"{key}\n")
        sys.stdout.flush()
        number += 1
        time.sleep(pause_s)


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
