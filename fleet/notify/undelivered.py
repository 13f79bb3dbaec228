"""When a notification is given up: whoever else can be reached is told so."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.models import Delivery, Receiver, Route
from fleet.outbox.traits import traits_of

KIND = Delivery.Kind.UNDELIVERED
# One receiver that is gone is said once in so long, however much it was to be sent.
QUIET = timedelta(hours=1)
LONGEST = 300


def tell_others(delivery: Delivery, why: str, *, now: datetime) -> None:
    """Put word into the outbox for the other receivers of the route, and of the default one."""
    if delivery.kind == KIND:
        return
    text = f"{delivery.receiver} could not be told ({delivery.get_kind_display().lower()}): {why}"
    lane = f"undelivered {delivery.receiver_id}"
    recent = Delivery.objects.filter(kind=KIND, lane=lane, created_at__gt=now - QUIET)
    known = set(recent.values_list("receiver_id", flat=True))
    for other in _others(delivery):
        if other.pk not in known and KIND in traits_of(other).takes:
            Delivery.objects.create(
                receiver=other,
                kind=KIND,
                lane=lane,
                created_at=now,
                next_try_at=now,
                note=text[:LONGEST],
            ).alerts.set(delivery.alerts.all())


def _others(delivery: Delivery) -> Iterator[Receiver]:
    routes = Route.objects.filter(Q(pk=delivery.route_id) | Q(is_default=True))
    near = Receiver.objects.enabled().filter(routes__in=routes).distinct()
    yield from near.exclude(pk=delivery.receiver_id)
