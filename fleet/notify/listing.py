"""Deliveries and alerts as lists show them: what each is about, in a clause."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from django.db.models import Prefetch, prefetch_related_objects
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


def _told() -> "Prefetch[str, Any, Any]":
    """Return what brings the alerts of deliveries along, with run and node."""
    return Prefetch("alerts", Alert.objects.select_related("run", "node"))


def deliveries() -> DeliveryQuerySet:
    """Return deliveries with all that lists show of them, the newest first."""
    every = Delivery.objects.select_related("receiver", "route").prefetch_related(_told())
    return every.order_by("-created_at", "-pk")


def rows_of(*lists: DeliveryQuerySet) -> list[list[Row]]:
    """Put several lists into rows; the alerts of all of them are asked for at once."""
    found = [list(each.prefetch_related(None)) for each in lists]
    prefetch_related_objects(list(chain.from_iterable(found)), _told())
    return [rows(each) for each in found]


def rows(found: Iterable[Delivery]) -> list[Row]:
    """Put deliveries into rows."""
    return [Row.of(delivery) for delivery in found]
