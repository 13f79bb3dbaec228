"""The list of alerts: which to list, and what each row says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from fleet.incidents.likes import nth_this_week, recurring, where_of
from fleet.models import Alert
from fleet.views.filters import Filter
from fleet.words.sentences import Told, told

STATES = ("firing", "acknowledged", "silenced", "resolved")
SINCE: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}


@dataclass(frozen=True, slots=True)
class AlertFilter(Filter):
    """Which alerts to list."""

    state: str = ""
    rule: str = ""
    run: str = ""
    node: str = ""
    who: str = ""
    since: str = ""

    def keep(self, alerts: QuerySet[Alert], *, now: datetime) -> QuerySet[Alert]:
        """Keep the alerts asked for, whatever their state."""
        if self.rule:
            alerts = alerts.filter(rule=self.rule)
        if self.run:
            alerts = alerts.filter(run__name=self.run)
        if self.node:
            alerts = alerts.filter(node__name=self.node)
        if self.who:
            alerts = alerts.filter(Q(acknowledged_by=self.who) | Q(assigned_to=self.who))
        if self.since in SINCE:
            alerts = alerts.filter(fired_at__gte=now - SINCE[self.since])
        return alerts.select_related("run", "node", "silence")

    def open(self, *, now: datetime) -> QuerySet[Alert]:
        """Return the open ones asked for: worst first, those that nobody has before the others."""
        alerts = self.keep(Alert.objects.open().worst_first(), now=now)
        is_muted = Q(silence__starts_at__lte=now, silence__ends_at__gt=now)
        match self.state:
            case "firing":
                return alerts.filter(acknowledged_at=None).exclude(is_muted)
            case "acknowledged":
                return alerts.exclude(acknowledged_at=None)
            case "silenced":
                return alerts.filter(is_muted)
            case "resolved":
                return alerts.none()
        return alerts

    def resolved(self, *, now: datetime) -> QuerySet[Alert]:
        """Return the resolved ones asked for, the latest first."""
        over = Alert.objects.exclude(resolved_at=None).order_by("-resolved_at", "-pk")
        return self.keep(over, now=now) if self.state in ("", "resolved") else over.none()


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One line of the list: an alert in words, and how often it came lately."""

    told: Told
    nth: int
    is_silenced: bool

    @property
    def alert(self) -> Alert:
        """The alert itself."""
        return self.told.alert

    @property
    def recurring(self) -> str:
        """Say that it is not here for the first time this week."""
        return recurring(self.nth, where_of(self.alert))


def rows_of(alerts: Iterable[Alert], *, now: datetime) -> list[AlertRow]:
    """Put alerts in rows; those that are silenced come after those that are not."""
    listed = list(alerts)
    nth = nth_this_week(listed)
    rows = [
        AlertRow(told(alert, now=now), nth.get(alert.pk, 1), alert.is_silenced(now))
        for alert in listed
    ]
    return sorted(rows, key=lambda row: row.is_silenced)
