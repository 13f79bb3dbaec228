"""The outbox's way in: one row per notification, written with what it tells of."""

from datetime import datetime, timedelta

from django.db.models import F

from fleet.models import Alert, AlertEvent, Delivery, Receiver, Route

# What may still join a message that has not been tried.
JOINS = {
    Delivery.Kind.FIRING: {Delivery.Kind.FIRING},
    Delivery.Kind.CHANGED: {Delivery.Kind.FIRING, Delivery.Kind.CHANGED},
    Delivery.Kind.REPEATED: {Delivery.Kind.REPEATED},
    Delivery.Kind.RESOLVED: {Delivery.Kind.RESOLVED},
}


def post(
    receiver: Receiver,
    kind: Delivery.Kind,
    alert: Alert,
    event: AlertEvent | None,
    *,
    lane: str,
    route: Route | None,
    now: datetime,
) -> Delivery:
    """Put a notification into the outbox, or into the message its group is waiting to send.

    Must be called within the transaction of what it tells of.
    """
    delivery = _waiting(receiver, kind, lane)
    if delivery is None:
        wait = route.group_wait_s if route is not None and kind in JOINS else 0
        delivery = Delivery.objects.create(
            receiver=receiver,
            route=route,
            kind=kind,
            lane=lane,
            created_at=now,
            next_try_at=now + timedelta(seconds=wait),
        )
    delivery.alerts.add(alert)
    if event is not None:
        delivery.events.add(event)
    return delivery


def _waiting(receiver: Receiver, kind: Delivery.Kind, lane: str) -> Delivery | None:
    """Return the lane's last message if this may join it, held until the transaction ends."""
    last = Delivery.objects.unfinished().filter(receiver=receiver, lane=lane).last()
    if last is None or last.kind not in JOINS.get(kind, ()):
        return None
    untried = Delivery.objects.filter(
        pk=last.pk, state=Delivery.State.PENDING, n_attempts=0, body__isnull=True
    )
    # Writing to the row makes a sender that wants to claim it wait for us, or us see its claim.
    return last if untried.update(next_try_at=F("next_try_at")) else None
