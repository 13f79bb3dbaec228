"""What must not be forgotten: alerts taken long ago without news, silences old or soon over."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max

from fleet.models import Alert, Silence

NO_NEWS = timedelta(hours=4)
OLD, ENDS_SOON = timedelta(days=1), timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Taken:
    """An alert that somebody has, and when there was last news of it."""

    alert: Alert
    since: datetime
    news_at: datetime
    is_forgotten: bool


@dataclass(frozen=True, slots=True)
class Aged:
    """A silence, and what is to be said of its age."""

    silence: Silence
    is_active: bool
    is_old: bool
    ends_soon: bool


def taken(alerts: Iterable[Alert], *, now: datetime) -> list[Taken]:
    """Return who has what since when, the oldest first; forgotten is what has had no news."""
    held = [alert for alert in alerts if alert.owner]
    news = Alert.objects.filter(pk__in=[alert.pk for alert in held])
    latest = dict(news.annotate(news_at=Max("events__at")).values_list("pk", "news_at"))
    found = []
    for alert in held:
        since = max(
            filter(None, (alert.assigned_at, alert.acknowledged_at)), default=alert.fired_at
        )
        news_at = latest.get(alert.pk) or since
        found.append(Taken(alert, since, news_at, is_forgotten=now - news_at > NO_NEWS))
    return sorted(found, key=lambda each: (each.since, each.alert.pk))


def aged(silence: Silence, *, now: datetime) -> Aged:
    """Say whether a silence is over, old, or soon over."""
    is_active = silence.is_active(now)
    return Aged(
        silence,
        is_active=is_active,
        is_old=is_active and now - silence.starts_at > OLD,
        ends_soon=is_active and silence.ends_at - now <= ENDS_SOON,
    )
