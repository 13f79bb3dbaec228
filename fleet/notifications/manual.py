"""What people do about notifications: send a dead one again, drop it, test a receiver."""

import uuid
from datetime import datetime

from django.db import transaction

from fleet.alerts.events import enqueue_delivery
from fleet.models import ConfigurationChange, Delivery, Receiver
from fleet.notifications.channels import CHANNELS
from fleet.notifications.delivery import DeliveryClient, DeliveryResult
from fleet.notifications.messages import Message
from telemetry.errors import FieldError

KIND, State = Delivery.Kind, Delivery.State
LONGEST_NOTE = 300
STARTS = frozenset({KIND.FIRING, KIND.REPEATED, KIND.CHANGED})


def record_change(text: str, *, by: str, now: datetime) -> None:
    """Add a line to the log of changes of receivers and routes."""
    ConfigurationChange.objects.create(at=now, by=by, text=text[:LONGEST_NOTE])


@transaction.atomic
def send_again(delivery: Delivery, *, by: str, note: str, now: datetime) -> None:
    """Put a dead delivery back into the outbox, under the same key.

    If one of its alerts was resolved in the meantime, the resolution follows.
    """
    _settle(delivery, State.PENDING, by=by, note=note, n_attempts=0, next_try_at=now)
    if delivery.kind not in STARTS:
        return
    for alert in delivery.alerts.exclude(resolved_at=None):
        enqueue_delivery(
            delivery.receiver,
            KIND.RESOLVED,
            alert,
            alert.events.filter(kind="resolved").last(),
            group_key=delivery.group_key,
            route=delivery.route,
            now=now,
        )


def drop(delivery: Delivery, *, by: str, note: str, now: datetime) -> None:
    """Give up a dead delivery for good, with a reason."""
    if not note.strip():
        raise FieldError("note", "is empty. Say why the notification can be dropped.")
    _settle(delivery, State.DROPPED, by=by, note=note, ended_at=now)


def _settle(delivery: Delivery, state: str, *, by: str, note: str, **fields: object) -> None:
    dead = Delivery.objects.dead().filter(pk=delivery.pk)
    note = note.strip()[:LONGEST_NOTE] or delivery.note
    if not dead.update(state=state, handled_by=by, note=note, **fields):
        raise FieldError("delivery", "is no longer dead: another user was faster.")


def send_test(
    receiver: Receiver, client: DeliveryClient, *, by: str, now: datetime
) -> DeliveryResult:
    """Send a test to a receiver at once, without the outbox."""
    key = f"test-{uuid.uuid4().hex}"
    text = f"{by} tests whether trnwatch reaches {receiver.name}. No alert is firing."
    message = Message(KIND.TEST, key, now, (), list_url=f"{client.base_url}/alerts/", text=text)
    body = CHANNELS[receiver.kind].render(message)
    return client.send(receiver, body, key=key, now=now)
