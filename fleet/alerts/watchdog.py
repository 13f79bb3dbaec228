"""Is anybody watching? Asked from outside Celery, by the process that sends notifications."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import IntegrityError
from redis import Redis
from redis.exceptions import RedisError

from fleet.alerts import reconcile
from fleet.models import Alert, Watchdog
from telemetry.detect import RULES, Finding
from telemetry.store.hot import HotStore

log = logging.getLogger(__name__)

BLIND = ("monitoring_blind", "fleet")
REDIS_WITHIN_S = 2.0
BY = "sender"
# Of the time until the alert is raised, senders must have checked for so long themselves, and
# the time between two checks counts no further than so: with 60 s that is 40 s and 10 s, which
# leaves whatever starts with the sender half a minute for its first evaluation.
MISSED_RATIO, LONGEST_GAP_RATIO = 2 / 3, 1 / 6

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
class WatchMonitor:
    """Watches the watching: alive while it looked lately, else an alert of its own.

    What it knows is in the database, so a sender that starts goes on counting where the last
    one ended. After a pause of all senders it waits a little: what evaluates the fleet may be
    starting at the same time.
    """

    look: Look
    recent_s: float = 15.0
    blind_after_s: float = 60.0

    def keep(self, *, now: datetime) -> bool:
        """Whether watching is alive; raises `monitoring_blind`, or ends it, as need be."""
        seen = self.look()
        is_alive = seen is not None and (now - seen).total_seconds() <= self.recent_s
        known = Watchdog.check_in(
            seen=seen, now=now, longest_gap_s=self.blind_after_s * LONGEST_GAP_RATIO
        )
        quiet_s = (now - known.looked_at).total_seconds()
        is_missed = known.missed_s >= self.blind_after_s * MISSED_RATIO
        try:
            if quiet_s > self.blind_after_s and is_missed:
                reconcile([self._blind(known, quiet_s)], watched=(), now=now)
            elif is_alive and self._is_ours():
                reconcile([], watched={BLIND}, now=now)
        except IntegrityError:
            log.warning("monitoring_blind was raised by somebody else at the same moment")
        return is_alive

    def _is_ours(self) -> bool:
        blind = Alert.objects.open().filter(rule=BLIND[0], subject=BLIND[1])
        return any(alert.evidence.get("raised_by") == BY for alert in blind)

    def _blind(self, known: Watchdog, quiet_s: float) -> Finding:
        last_seen_s = known.looked_at.timestamp()
        return Finding(
            rule=BLIND[0],
            cause="unknown",
            severity=RULES[BLIND[0]].severity,
            run=None,
            node=None,
            device=None,
            onset_s=last_seen_s,
            score=quiet_s / self.blind_after_s,
            evidence={
                "raised_by": BY,
                "last_seen_s": last_seen_s,
                "quiet_s": quiet_s,
                "limit_s": self.blind_after_s,
            },
        )
