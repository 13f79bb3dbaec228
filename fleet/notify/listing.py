"""Deliveries and alerts as lists show them: what each is about, in a clause."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from django.db.models import Prefetch
from django.utils.safestring import SafeString

from fleet.models import Alert, Delivery
from fleet.models.delivery import DeliveryQuerySet
from fleet.words.clauses import clause


@dataclass(frozen=True, slots=True)
class About:
    """An alert, and what it is about; asked for with its run and node."""

    alert: Alert
    clause: SafeString

    @classmethod
    def of(cls, alert: Alert) -> Self:
        """Say what an alert is about."""
        return cls(alert, clause(alert))


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery and the alerts it tells of."""

    delivery: Delivery
    abouts: list[About]

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Say what a delivery tells of."""
        return cls(delivery, [About.of(alert) for alert in delivery.alerts.all()])


def deliveries() -> DeliveryQuerySet:
    """Return deliveries with all that lists show of them, the newest first."""
    told = Prefetch("alerts", Alert.objects.select_related("run", "node"))
    every = Delivery.objects.select_related("receiver", "route").prefetch_related(told)
    return every.order_by("-created_at", "-pk")


def rows(found: Iterable[Delivery]) -> list[Row]:
    """Put deliveries into rows."""
    return [Row.of(delivery) for delivery in found]
