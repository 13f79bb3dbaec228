"""What must not be forgotten: alerts taken long ago without news, silences old or soon over."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from django.db.models import OuterRef, QuerySet, Subquery

from fleet.models import Alert, AlertEvent, Silence

NO_NEWS = timedelta(hours=4)
OLD, ENDS_SOON = timedelta(days=1), timedelta(minutes=30)


def with_news(alerts: QuerySet[Alert]) -> QuerySet[Alert]:
    """Ask of each alert when its timeline last gained a line: ``news_at``."""
    latest = AlertEvent.objects.filter(alert=OuterRef("pk")).order_by("-at").values("at")[:1]
    return alerts.annotate(news_at=Subquery(latest))


@dataclass(frozen=True, slots=True)
class Taken:
    """Who has an alert since when, and when there was last news of it."""

    by: str
    since: datetime
    news_at: datetime
    is_forgotten: bool

    @classmethod
    def of(cls, alert: Alert, *, now: datetime) -> Self | None:
        """Say it of an alert asked for with its news; None where nobody has it."""
        if not alert.owner:
            return None
        since = alert.assigned_at if alert.assigned_to else alert.acknowledged_at
        since = since or alert.fired_at
        news_at = getattr(alert, "news_at", None) or since
        return cls(alert.owner, since, news_at, is_forgotten=now - news_at > NO_NEWS)


@dataclass(frozen=True, slots=True)
class Aged:
    """A silence, and what is to be said of its age."""

    silence: Silence
    is_active: bool
    is_old: bool
    ends_soon: bool


def aged(silence: Silence, *, now: datetime) -> Aged:
    """Say whether a silence is over, old, or soon over."""
    is_active = silence.is_active(now)
    return Aged(
        silence,
        is_active=is_active,
        is_old=is_active and now - silence.starts_at > OLD,
        ends_soon=is_active and silence.ends_at - now <= ENDS_SOON,
    )
