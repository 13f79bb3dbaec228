"""Into the outbox: who is told of an event on the timeline, in the same transaction."""

from datetime import datetime

from django.db import transaction

from fleet.models import Alert, AlertEvent, Delivery, Told
from fleet.outbox.labels import labels_of
from fleet.outbox.posting import post
from fleet.outbox.routing import lane_of, receivers_of, routing_table
from fleet.outbox.traits import traits_of
from fleet.silences.muting import silences_of

KIND = AlertEvent.Kind
STARTS = frozenset({KIND.FIRED, KIND.REFIRED, KIND.UNSILENCED})
GOES_ON = {
    KIND.CAUSE_CHANGED: Delivery.Kind.CHANGED,
    KIND.RULE_CHANGED: Delivery.Kind.CHANGED,
    KIND.ACKNOWLEDGED: Delivery.Kind.ACKNOWLEDGED,
    KIND.UNACKNOWLEDGED: Delivery.Kind.REPEATED,
}


@transaction.atomic
def enqueue(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    """Put into the outbox whatever an event on an alert's timeline is to tell people.

    Must be called within the transaction that writes the event: then either both are there
    after a crash or neither is. Without receivers it does nothing.
    """
    kind = KIND(event.kind)
    if kind == KIND.RESOLVED:
        _tell_the_end(alert, event, now=now)
    elif kind in STARTS:
        if not silences_of(alert, now=now):
            _tell_the_start(alert, event, now=now)
    elif kind in GOES_ON and not silences_of(alert, now=now):
        for told in alert.told.filter(ended_at=None).select_related("receiver", "route"):
            _tell(told, GOES_ON[kind], event, now=now)


def _tell_the_start(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    for route, receiver in receivers_of(alert, routing_table()):
        told, is_new = Told.objects.get_or_create(
            receiver=receiver,
            alert=alert,
            ended_at=None,
            defaults={
                "route": route,
                "lane": lane_of(route, receiver, alert),
                "labels": labels_of(alert),
                "since": now,
                "last_at": now,
            },
        )
        is_damped = alert.flapping_since is not None and event.kind == KIND.REFIRED
        if is_new or not is_damped:
            kind = Delivery.Kind.FIRING if is_new else Delivery.Kind.REPEATED
            _tell(told, kind, event, now=now)


def _tell_the_end(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    """Tell whoever knows of the alert that it is over, silenced or not."""
    for told in alert.told.filter(ended_at=None).select_related("receiver", "route"):
        told.ended_at = now
        told.save(update_fields=["ended_at"])
        if told.route is None or told.route.sends_resolved:
            _tell(told, Delivery.Kind.RESOLVED, event, now=now)


def _tell(told: Told, kind: Delivery.Kind, event: AlertEvent, *, now: datetime) -> None:
    receiver = told.receiver
    if not receiver.is_enabled or kind not in traits_of(receiver).takes:
        return
    if kind == Delivery.Kind.REPEATED:
        told.last_at = now
        told.save(update_fields=["last_at"])
    post(receiver, kind, event.alert, event, lane=told.lane, route=told.route, now=now)
