"""What people do about notifications: send a dead one again, drop it, test a receiver."""

import uuid
from datetime import datetime

from django.db import transaction

from fleet.alerts.events import post, traits_of
from fleet.models import Delivery, NotificationChange, Receiver
from fleet.notifications.channels import CHANNELS
from fleet.notifications.delivery import DeliveryClient, DeliveryResult
from fleet.notifications.messages import Message

KIND, State = Delivery.Kind, Delivery.State
LONGEST_NOTE = 300
STARTS = frozenset({KIND.FIRING, KIND.REPEATED, KIND.CHANGED})


class ByHandError(ValueError):
    """What was asked cannot be done; the message says why."""


def note_change(text: str, *, by: str, now: datetime) -> None:
    """Write down who changed what."""
    NotificationChange.objects.create(at=now, by=by, text=text[:300])


@transaction.atomic
def send_again(delivery: Delivery, *, by: str, note: str, now: datetime) -> None:
    """Put a dead notification back into the outbox, under the same key.

    Where it opens something that has ended meanwhile, its end follows it.
    """
    _settle(delivery, State.PENDING, by=by, note=note, n_attempts=0, next_try_at=now)
    if delivery.kind not in STARTS or KIND.RESOLVED not in traits_of(delivery.receiver).takes:
        return
    for alert in delivery.alerts.exclude(resolved_at=None):
        post(
            delivery.receiver,
            KIND.RESOLVED,
            alert,
            alert.events.filter(kind="resolved").last(),
            group_key=delivery.group_key,
            route=delivery.route,
            now=now,
        )


def drop(delivery: Delivery, *, by: str, note: str, now: datetime) -> None:
    """Let go of a dead notification; why must be said."""
    if not note.strip():
        raise ByHandError("note: say why nobody needs to be told any more")
    _settle(delivery, State.DROPPED, by=by, note=note, ended_at=now)


def _settle(delivery: Delivery, state: str, *, by: str, note: str, **fields: object) -> None:
    dead = Delivery.objects.dead().filter(pk=delivery.pk)
    note = note.strip()[:LONGEST_NOTE] or delivery.note
    if not dead.update(state=state, handled_by=by, note=note, **fields):
        raise ByHandError("It is no longer dead: somebody was quicker.")


def try_out(
    receiver: Receiver, courier: DeliveryClient, *, by: str, now: datetime
) -> DeliveryResult:
    """Send a receiver a test at once, past the outbox, and say what came of it."""
    key = f"test-{uuid.uuid4().hex}"
    text = f"{by} tests whether trnwatch reaches {receiver.name}. No alert is firing."
    notice = Message(KIND.TEST, key, now, (), list_url=f"{courier.base_url}/alerts/", text=text)
    body = CHANNELS[receiver.kind].render(notice)
    return courier.send(receiver, body, key=key, now=now)
