"""Rows of the notification pages: deliveries with their alerts, and what each route matches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Self

from django.db.models import Prefetch, Q, prefetch_related_objects
from django.utils.safestring import SafeString

from fleet.alerts.events import routes_of
from fleet.alerts.matchers import matches, parse_matchers
from fleet.alerts.text import headline
from fleet.models import Alert, Delivery, Receiver, Route
from fleet.models.delivery import DeliveryQuerySet
from telemetry.errors import FieldError

RECENT = timedelta(days=1)
MOST = 200
N_SHOWN = 12


@dataclass(frozen=True, slots=True)
class AlertSummary:
    """An alert with its headline; it needs its run and node."""

    alert: Alert
    headline: SafeString

    @classmethod
    def of(cls, alert: Alert) -> Self:
        return cls(alert, headline(alert))


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    delivery: Delivery
    summaries: list[AlertSummary]

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        return cls(delivery, [AlertSummary.of(alert) for alert in delivery.alerts.all()])


def _with_alerts() -> "Prefetch[str, Any, Any]":
    return Prefetch("alerts", Alert.objects.select_related("run", "node"))


def deliveries() -> DeliveryQuerySet:
    """Select deliveries with everything that lists show of them, the newest first."""
    every = Delivery.objects.select_related("receiver", "route").prefetch_related(_with_alerts())
    return every.order_by("-created_at", "-pk")


def rows_of(*lists: DeliveryQuerySet) -> list[list[DeliveryRow]]:
    """Convert several lists to rows, with one query for the alerts of all of them."""
    listed = [list(each.prefetch_related(None)) for each in lists]
    prefetch_related_objects(list(chain.from_iterable(listed)), _with_alerts())
    return [rows(each) for each in listed]


def rows(found: Iterable[Delivery]) -> list[DeliveryRow]:
    return [DeliveryRow.of(delivery) for delivery in found]


@dataclass(slots=True)
class RoutePreview:
    route: Route
    alerts: list[Alert] = field(default_factory=list)
    error: str = ""

    @property
    def receivers(self) -> list[Receiver]:
        return list(self.route.receivers.all())

    @property
    def summaries(self) -> list[AlertSummary]:
        return [AlertSummary.of(alert) for alert in self.alerts[:N_SHOWN]]

    @property
    def n_more(self) -> int:
        """How many alerts are not in ``summaries``."""
        return max(0, len(self.alerts) - N_SHOWN)

    @property
    def has_no_receiver(self) -> bool:
        enabled = any(receiver.is_enabled for receiver in self.receivers)
        return not (enabled or self.route.n_devices)


def recent_alerts(*, now: datetime) -> list[Alert]:
    """List the open alerts and those of the last day, the newest first."""
    wanted = Alert.objects.filter(Q(resolved_at=None) | Q(fired_at__gt=now - RECENT))
    return list(wanted.select_related("run", "node").order_by("-fired_at")[:MOST])


def preview(
    table: Sequence[Route], alerts: Iterable[Alert]
) -> tuple[list[RoutePreview], list[Alert]]:
    """List what each route takes, and the alerts that no route takes."""
    previews = {}
    for route in table:
        previews[route.pk] = RoutePreview(route)
        try:
            parse_matchers(route.matchers)
        except FieldError as error:
            previews[route.pk].error = str(error)
    unrouted = []
    for alert in alerts:
        routes = list(routes_of(alert, table))
        for route in routes:
            previews[route.pk].alerts.append(alert)
        if not routes:
            unrouted.append(alert)
    return list(previews.values()), unrouted


def matching(matchers: str, alerts: Iterable[Alert]) -> list[Alert]:
    """Filter alerts by matchers; raises FieldError where these are invalid."""
    parsed = parse_matchers(matchers)
    return [alert for alert in alerts if matches(parsed, alert)]
