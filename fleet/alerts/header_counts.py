"""What every page tells of, in one question to the database: alerts, and what is not delivered."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django.db import DatabaseError
from django.db.models import Count, QuerySet, Value
from django.http import HttpRequest
from django.utils import timezone

from fleet.access.roles import reads_anonymously
from fleet.models import Alert, Delivery
from telemetry.long_term.writer import in_trouble

KEPT = "trnwatch_trouble"


@dataclass(frozen=True, slots=True)
class HeaderCounts:
    """How many alerts are unacknowledged, what was given up or not sent, what is behind."""

    n_unacknowledged: int = 0
    n_dead: int = 0
    n_late: int = 0
    n_behind: int = 0

    @classmethod
    def now(cls, *, now: datetime) -> Self:
        """Count them."""
        counted = [
            _counted("n_unacknowledged", Alert.objects.open().unacknowledged()),
            _counted("n_dead", Delivery.objects.dead()),
            _counted("n_late", Delivery.objects.late(now)),
            _counted("n_behind", in_trouble(now)),
        ]
        return cls(**dict(counted[0].union(*counted[1:], all=True)))


def _counted(name: str, rows: QuerySet[Any, Any]) -> QuerySet[Any, Any]:
    """Return a row of a name and a count; none at all where there is nothing to count."""
    named = rows.order_by().annotate(what=Value(name)).values("what")
    counted: QuerySet[Any, Any] = named.annotate(n=Count("pk")).values_list("what", "n")
    return counted


def trouble_for(request: HttpRequest | None) -> HeaderCounts:
    """Return what whoever looks at a page may know; asked once per page, and never in vain."""
    is_in = getattr(getattr(request, "user", None), "is_authenticated", False)
    if request is None or not (is_in or reads_anonymously(request)):
        return HeaderCounts()
    if KEPT not in request.META:
        try:
            request.META[KEPT] = HeaderCounts.now(now=timezone.now())
        except DatabaseError:
            # No page fails for want of a database.
            return HeaderCounts()
    trouble: HeaderCounts = request.META[KEPT]
    return trouble
