"""What the sender does besides sending: reminders, the vigil, signs of life, and forgetting."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.models import Delivery, SenderPulse, Told
from fleet.notify.heartbeat import Heartbeat
from fleet.notify.reminders import remind

log = logging.getLogger(__name__)

FORGET_EVERY = timedelta(hours=1)
LONGEST_ERROR = 300


@dataclass
class Chores:
    """Everything that is done every few seconds."""

    name: str
    started_at: datetime
    keep_vigil: Callable[[datetime], bool]
    heartbeat: Heartbeat
    keep_days: int
    _forgot_at: datetime | None = None

    def do(self, *, now: datetime) -> None:
        """Do each of them once."""
        is_watched = self.keep_vigil(now)
        if is_watched:
            self.heartbeat.beat(now=now)
        SenderPulse.objects.update_or_create(
            name=self.name,
            defaults={
                "started_at": self.started_at,
                "seen_at": now,
                "is_watched": is_watched,
                "beat_at": self.heartbeat.beat_at,
                "beat_error": self.heartbeat.error[:LONGEST_ERROR],
            },
        )
        remind(now=now)
        if self._forgot_at is None or now - self._forgot_at >= FORGET_EVERY:
            forget(before=now - timedelta(days=self.keep_days))
            SenderPulse.objects.filter(seen_at__lt=now - FORGET_EVERY).delete()
            self._forgot_at = now


def forget(*, before: datetime) -> None:
    """Let go of what arrived, or was dropped by hand, long ago; what is dead waits for people."""
    done = (Delivery.State.SENT, Delivery.State.DROPPED)
    Delivery.objects.filter(state__in=done, ended_at__lt=before).delete()
    Told.objects.filter(ended_at__lt=before).delete()
