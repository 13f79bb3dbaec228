"""What Prometheus may know of notifications: what arrived, what waits, what was given up."""

from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet, Subquery

from fleet.models import Delivery, Receiver, SenderPulse
from telemetry.families import Family, Spec

TOTAL = Spec(
    "trnwatch_notifications_total",
    "counter",
    "Attempts that arrived or failed, and notifications given up.",
    ("receiver", "outcome"),
)
PENDING = Spec(
    "trnwatch_notifications_pending", "gauge", "Notifications on their way.", ("receiver",)
)
DEAD = Spec(
    "trnwatch_notifications_dead", "gauge", "Given up, and nobody has dealt with.", ("receiver",)
)
SENDER_AGE = Spec(
    "trnwatch_notifications_sender_age_seconds", "gauge", "Since a sender was last heard of."
)


def notification_families(*, now: datetime) -> list[Family]:
    """Return how each receiver gets on; where there is none there is nothing to say."""
    total, pending, dead, age = map(Family, (TOTAL, PENDING, DEAD, SENDER_AGE))
    receivers = list(_receivers())
    for receiver in receivers:
        outcomes = {"sent": receiver.n_sent, "failed": receiver.n_failed, "dead": receiver.n_dead}
        for outcome, n in outcomes.items():
            total.add(n, receiver.name, outcome)
        pending.add(receiver.n_pending, receiver.name)
        dead.add(receiver.n_unhandled, receiver.name)
    if receivers and receivers[0].seen_at is not None:
        age.add(max(0.0, (now - receivers[0].seen_at).total_seconds()))
    return [total, pending, dead, age]


def _receivers() -> QuerySet[Any, Any]:
    unfinished = Q(deliveries__state__in=(Delivery.State.PENDING, Delivery.State.SENDING))
    heard = SenderPulse.objects.order_by("-seen_at").values("seen_at")[:1]
    return Receiver.objects.annotate(
        n_pending=Count("deliveries", filter=unfinished),
        n_unhandled=Count("deliveries", filter=Q(deliveries__state=Delivery.State.DEAD)),
        seen_at=Subquery(heard),
    )
