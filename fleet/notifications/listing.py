"""Deliveries and alerts as lists show them: what each is about, in a clause."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Self

from django.db.models import Prefetch, Q, prefetch_related_objects
from django.utils.safestring import SafeString

from fleet.alerts.events import routes_of
from fleet.alerts.matchers import MatcherError, matches, parse_matchers
from fleet.alerts.text import headline
from fleet.models import Alert, Delivery, Receiver, Route
from fleet.models.delivery import DeliveryQuerySet


@dataclass(frozen=True, slots=True)
class AlertSummary:
    """An alert, and what it is about; asked for with its run and node."""

    alert: Alert
    headline: SafeString

    @classmethod
    def of(cls, alert: Alert) -> Self:
        """Say what an alert is about."""
        return cls(alert, headline(alert))


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery and the alerts it tells of."""

    delivery: Delivery
    abouts: list[AlertSummary]

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Say what a delivery tells of."""
        return cls(delivery, [AlertSummary.of(alert) for alert in delivery.alerts.all()])


def _told() -> "Prefetch[str, Any, Any]":
    """Return what brings the alerts of deliveries along, with run and node."""
    return Prefetch("alerts", Alert.objects.select_related("run", "node"))


def deliveries() -> DeliveryQuerySet:
    """Return deliveries with all that lists show of them, the newest first."""
    every = Delivery.objects.select_related("receiver", "route").prefetch_related(_told())
    return every.order_by("-created_at", "-pk")


def rows_of(*lists: DeliveryQuerySet) -> list[list[DeliveryRow]]:
    """Put several lists into rows; the alerts of all of them are asked for at once."""
    found = [list(each.prefetch_related(None)) for each in lists]
    prefetch_related_objects(list(chain.from_iterable(found)), _told())
    return [rows(each) for each in found]


def rows(found: Iterable[Delivery]) -> list[DeliveryRow]:
    """Put deliveries into rows."""
    return [DeliveryRow.of(delivery) for delivery in found]


RECENT = timedelta(days=1)
MOST = 200
N_SHOWN = 12


@dataclass(slots=True)
class RoutePreview:
    """A route, what it would catch, and what is wrong with it."""

    route: Route
    alerts: list[Alert] = field(default_factory=list)
    error: str = ""

    @property
    def receivers(self) -> list[Receiver]:
        """Return where the route leads."""
        return list(self.route.receivers.all())

    @property
    def abouts(self) -> list[AlertSummary]:
        """Say what the first of the alerts are about."""
        return [AlertSummary.of(alert) for alert in self.alerts[:N_SHOWN]]

    @property
    def n_more(self) -> int:
        """How many alerts there are beyond those."""
        return max(0, len(self.alerts) - N_SHOWN)

    @property
    def leads_nowhere(self) -> bool:
        """Whether nobody would be told."""
        return not any(receiver.is_enabled for receiver in self.receivers)


def recent_alerts(*, now: datetime) -> list[Alert]:
    """Return the open alerts, and those of the last day, the newest first."""
    wanted = Alert.objects.filter(Q(resolved_at=None) | Q(fired_at__gt=now - RECENT))
    return list(wanted.select_related("run", "node").order_by("-fired_at")[:MOST])


def preview(
    table: Sequence[Route], alerts: Iterable[Alert]
) -> tuple[list[RoutePreview], list[Alert]]:
    """Return what each route catches, and the alerts that none does."""
    rows = {route.pk: RoutePreview(route, error=_error(route)) for route in table}
    lost = []
    for alert in alerts:
        taken = list(routes_of(alert, table))
        for route in taken:
            rows[route.pk].alerts.append(alert)
        if not taken:
            lost.append(alert)
    return list(rows.values()), lost


def _error(route: Route) -> str:
    try:
        parse_matchers(route.matchers)
    except MatcherError as error:
        return str(error)
    return ""


def caught(matchers: str, alerts: Iterable[Alert]) -> list[Alert]:
    """Return the alerts that matchers mean; raises MatcherError where they cannot be read."""
    parsed = parse_matchers(matchers)
    return [alert for alert in alerts if matches(parsed, alert)]
