"""Check from outside Celery that the fleet is evaluated, and fire an alert where it is not."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError
from redis import Redis
from redis.exceptions import RedisError

from fleet.alerts.evaluate import BLIND
from fleet.alerts.reconcile import reconcile
from fleet.models import Alert, Watchdog
from fleet.ops.liveness import Register, late_in
from telemetry.detect import RULES, Finding
from telemetry.store.hot import HotStore

log = logging.getLogger(__name__)

REDIS_WITHIN_S = 2.0
BY = "sender"
# Shares of the time until the alert fires: how long senders must have checked themselves, and how
# much the time between two checks counts at most. With 60 s these are 40 s and 10 s, so that
# programs that start with the sender have half a minute for their first evaluation.
MISSED_RATIO, LONGEST_GAP_RATIO = 2 / 3, 1 / 6

LastEvaluation = Callable[[], datetime | None]
Programs = Callable[[datetime], Mapping[str, float] | None]


def last_evaluation(redis_url: str) -> LastEvaluation:
    """Return a function that reads when all of the fleet was last evaluated; None: unknown."""
    limits = {"socket_timeout": REDIS_WITHIN_S, "socket_connect_timeout": REDIS_WITHIN_S}
    store = HotStore(Redis.from_url(redis_url, **limits))

    def read() -> datetime | None:
        try:
            gauges = store.gauges()
        except RedisError:
            return None
        # Of several watchers, the last one.
        at_s = gauges.get("all_watched_at_s", gauges.get("watched_at_s"))
        return None if at_s is None else datetime.fromtimestamp(at_s, UTC)

    return read


def programs(redis_url: str) -> Programs:
    """Return a function that reads how long each program is overdue; None: Redis is away."""
    register = Register(redis_url, within_s=REDIS_WITHIN_S)

    def read(now: datetime) -> Mapping[str, float] | None:
        try:
            return register.overdue_s(now_s=now.timestamp())
        except RedisError:
            return None

    return read


@dataclass
class WatchMonitor:
    """Fires `monitoring_blind` when the fleet was not evaluated for long.

    Its state is in the database, so that a sender that starts continues the count of the last
    one. After a pause of all senders it waits a little: the workers may be starting too.
    """

    last_evaluation: LastEvaluation
    programs: Programs
    recent_s: float = 15.0
    blind_after_s: float = 60.0

    def check(self, *, now: datetime) -> bool:
        """Fire or resolve `monitoring_blind`; return whether the fleet is evaluated."""
        seen = self.last_evaluation()
        is_alive = seen is not None and (now - seen).total_seconds() <= self.recent_s
        known = Watchdog.check_in(
            seen=seen, now=now, longest_gap_s=self.blind_after_s * LONGEST_GAP_RATIO
        )
        quiet_s = (now - known.looked_at).total_seconds()
        is_missed = known.missed_s >= self.blind_after_s * MISSED_RATIO
        try:
            if quiet_s > self.blind_after_s and is_missed:
                last_seen_s = known.looked_at.timestamp()
                finding = Finding(
                    rule=BLIND[0],
                    cause="unknown",
                    severity=RULES[BLIND[0]].severity,
                    run=None,
                    onset_s=last_seen_s,
                    score=quiet_s / self.blind_after_s,
                    evidence={
                        "raised_by": BY,
                        "last_seen_s": last_seen_s,
                        "quiet_s": quiet_s,
                        "limit_s": self.blind_after_s,
                        **self._late(now),
                    },
                )
                reconcile([finding], evaluated=(), now=now)
            elif is_alive:
                open_ = Alert.objects.open().filter(rule=BLIND[0], subject=BLIND[1])
                if any(alert.evidence.get("raised_by") == BY for alert in open_):
                    reconcile([], evaluated={BLIND}, now=now)
        except IntegrityError:
            log.warning("another sender fired monitoring_blind at the same moment")
        return is_alive

    def _late(self, now: datetime) -> dict[str, Any]:
        """Return which programs are late, as `/readyz` names them, or that Redis is away."""
        overdue_s = self.programs(now)
        if overdue_s is None:
            return {"is_redis_away": True}
        return {"programs_late_s": late_in(overdue_s)}
