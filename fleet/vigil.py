"""Is anybody watching? Asked from outside Celery, by the process that sends notifications."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import IntegrityError
from redis import Redis
from redis.exceptions import RedisError

from fleet.alerting import reconcile
from fleet.models import Alert
from telemetry.detect import RULES, Finding
from telemetry.store.hot import HotStore

log = logging.getLogger(__name__)

BLIND = ("monitoring_blind", "fleet")
REDIS_WITHIN_S = 2.0
BY = "sender"

Look = Callable[[], datetime | None]


def last_look(redis_url: str) -> Look:
    """Return a way to ask when the fleet was last looked at; None where nobody can tell."""
    limits = {"socket_timeout": REDIS_WITHIN_S, "socket_connect_timeout": REDIS_WITHIN_S}
    store = HotStore(Redis.from_url(redis_url, **limits))

    def look() -> datetime | None:
        try:
            at_s = store.gauges().get("watched_at_s")
        except RedisError:
            return None
        return None if at_s is None else datetime.fromtimestamp(at_s, UTC)

    return look


@dataclass
class Vigil:
    """Watches the watching: alive while it looked lately, else an alert of its own."""

    look: Look
    since: datetime
    recent_s: float = 15.0
    blind_after_s: float = 60.0

    def keep(self, *, now: datetime) -> bool:
        """Whether watching is alive; raises `monitoring_blind`, or ends it, as need be."""
        # The time before we began is not ours to judge; a clock ahead of ours is no harm.
        seen = self.look()
        quiet_s = (now - max(seen or self.since, self.since)).total_seconds()
        is_alive = seen is not None and (now - seen).total_seconds() <= self.recent_s
        try:
            if quiet_s > self.blind_after_s:
                reconcile([self._blind(seen, quiet_s, now=now)], watched=(), now=now)
            elif is_alive and self._is_ours():
                reconcile([], watched={BLIND}, now=now)
        except IntegrityError:
            log.warning("monitoring_blind was raised by somebody else at the same moment")
        return is_alive

    def _is_ours(self) -> bool:
        blind = Alert.objects.open().filter(rule=BLIND[0], subject=BLIND[1])
        return any(alert.evidence.get("raised_by") == BY for alert in blind)

    def _blind(self, seen: datetime | None, quiet_s: float, *, now: datetime) -> Finding:
        onset_s = now.timestamp() - quiet_s
        return Finding(
            rule=BLIND[0],
            cause="unknown",
            severity=RULES[BLIND[0]].severity,
            run=None,
            node=None,
            device=None,
            onset_s=onset_s,
            score=quiet_s / self.blind_after_s,
            evidence={
                "raised_by": BY,
                "last_seen_s": seen.timestamp() if seen else None,
                "quiet_s": quiet_s,
                "limit_s": self.blind_after_s,
            },
        )
