"""The outbox's way out: who sends what, by compare-and-set, and how it ended."""

import random
from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q

from fleet.models import Delivery, Receiver
from fleet.models.delivery import DeliveryQuerySet
from fleet.notify.outcomes import Outcome, Patience
from fleet.notify.undelivered import tell_others

LONGEST_ERROR = 300
State = Delivery.State


def due(*, now: datetime, busy: Collection[int], limit: int) -> list[Delivery]:
    """Return what is to be sent now, the longest overdue first, none to busy receivers."""
    found = Delivery.objects.due(now).filter(receiver__is_enabled=True)
    found = found.exclude(receiver__in=busy).order_by("next_try_at", "pk")
    return list(found.select_related("receiver", "route")[:limit])


def claim(delivery: Delivery, *, by: str, lease: timedelta, now: datetime) -> bool:
    """Take a delivery if it is still as we read it; False where somebody was quicker."""
    as_read = Q(pk=delivery.pk, state=delivery.state, n_attempts=delivery.n_attempts)
    if delivery.state == State.SENDING:
        as_read &= Q(claimed_by=delivery.claimed_by, claimed_until=delivery.claimed_until)
    taken = Delivery.objects.filter(as_read).update(
        state=State.SENDING,
        n_attempts=F("n_attempts") + 1,
        claimed_by=by,
        claimed_until=now + lease,
    )
    if taken:
        delivery.state, delivery.claimed_by = State.SENDING, by
        delivery.n_attempts, delivery.claimed_until = delivery.n_attempts + 1, now + lease
    return bool(taken)


def extend(held: Collection[int], *, by: str, lease: timedelta, now: datetime) -> None:
    """Keep what we still send."""
    mine = Delivery.objects.filter(pk__in=held, state=State.SENDING, claimed_by=by)
    mine.update(claimed_until=now + lease)


def fix_body(delivery: Delivery, body: object) -> bool:
    """Fix what is sent, once and for all attempts; False where the delivery is no longer ours."""
    delivery.body = body
    return bool(_mine(delivery).update(body=body))


def _mine(delivery: Delivery) -> DeliveryQuerySet:
    return Delivery.objects.filter(
        pk=delivery.pk,
        state=State.SENDING,
        claimed_by=delivery.claimed_by,
        n_attempts=delivery.n_attempts,
    )


@transaction.atomic
def settle(
    delivery: Delivery,
    outcome: Outcome,
    *,
    patience: Patience,
    dice: random.Random,
    now: datetime,
) -> str:
    """Write down how an attempt ended; gives the delivery's new state, or "" if not ours."""
    waited = now - delivery.created_at
    is_over = outcome.is_final or patience.is_over(delivery.n_attempts, waited)
    state = State.SENT if outcome.is_sent else State.DEAD if is_over else State.PENDING
    pause = patience.pause(delivery.n_attempts, dice=dice)
    changed = _mine(delivery).update(
        state=state,
        ended_at=None if state == State.PENDING else now,
        next_try_at=now + max(pause, outcome.retry_after or pause),
        claimed_by="",
        claimed_until=None,
        last_status=outcome.status,
        last_error=outcome.why[:LONGEST_ERROR],
    )
    if not changed:
        return ""
    _count(delivery.receiver_id, outcome, state, now=now)
    if state == State.DEAD:
        tell_others(delivery, outcome.why, now=now)
    return state


def _count(receiver: int, outcome: Outcome, state: str, *, now: datetime) -> None:
    """Add the attempt to what the receiver is known for."""
    this = Receiver.objects.filter(pk=receiver)
    if outcome.is_sent:
        this.update(n_sent=F("n_sent") + 1, last_sent_at=now)
        return
    this.update(
        n_failed=F("n_failed") + 1,
        n_dead=F("n_dead") + int(state == State.DEAD),
        last_failed_at=now,
        last_error=outcome.why[:LONGEST_ERROR],
    )
