"""What Alertmanagers must be told again and again: that what fires still fires."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fleet.models import Delivery, Receiver
from fleet.notify.attempt import Courier
from fleet.notify.channels.alertmanager import postable
from fleet.notify.notice import item_of

MOST_PER_POST = 500
LONGEST_ERROR = 300


@dataclass
class Refresher:
    """Knows which Alertmanagers are due, and tells them everything that lasts."""

    every: timedelta = timedelta(seconds=60)
    _next: dict[int, datetime] = field(default_factory=dict)

    def due(self, *, now: datetime) -> list[Receiver]:
        """Return the Alertmanagers to be told now."""
        enabled = Receiver.objects.enabled().filter(kind=Receiver.Kind.ALERTMANAGER)
        return [each for each in enabled if now >= self._next.setdefault(each.pk, now)]

    def tell(self, receiver: Receiver, courier: Courier, *, now: datetime) -> None:
        """State all that lasts; meanwhile nothing else may be sent to this receiver."""
        self._next[receiver.pk] = now + self.every
        lasting = receiver.told.filter(ended_at=None, alert__resolved_at=None).order_by("-since")
        told = list(lasting.select_related("alert__run", "alert__node")[:MOST_PER_POST])
        if not told:
            return
        body = [
            postable(
                item_of(each.alert, each.labels, base_url=courier.base_url, now=now),
                kind=Delivery.Kind.FIRING,
                now=now,
            )
            for each in told
        ]
        outcome = courier.send(receiver, body, key=f"refresh-{now.timestamp():.0f}", now=now)
        if not outcome.is_sent:
            known = Receiver.objects.filter(pk=receiver.pk)
            known.update(last_failed_at=now, last_error=outcome.why[:LONGEST_ERROR])
