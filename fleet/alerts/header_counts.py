"""The counts in the header of every page, read in one query."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django.db import DatabaseError
from django.db.models import Count, QuerySet, Value
from django.http import HttpRequest
from django.utils import timezone

from fleet.access.roles import reads_anonymously
from fleet.models import Alert, Delivery

CACHED = "trnwatch_header_counts"


@dataclass(frozen=True, slots=True)
class HeaderCounts:
    """Unacknowledged alerts, dead and late deliveries."""

    n_unacknowledged: int = 0
    n_dead: int = 0
    n_late: int = 0

    @classmethod
    def now(cls, *, now: datetime) -> Self:
        counted = [
            _counted("n_unacknowledged", Alert.objects.open().unacknowledged()),
            _counted("n_dead", Delivery.objects.dead()),
            _counted("n_late", Delivery.objects.late(now)),
        ]
        return cls(**dict(counted[0].union(*counted[1:], all=True)))


def _counted(name: str, rows: QuerySet[Any, Any]) -> QuerySet[Any, Any]:
    """Select a row of a name and a count; no row where the count is zero."""
    named = rows.order_by().annotate(what=Value(name)).values("what")
    counted: QuerySet[Any, Any] = named.annotate(n=Count("pk")).values_list("what", "n")
    return counted


def header_counts(request: HttpRequest | None) -> HeaderCounts:
    """Read the counts that a request may see, once per request; zeros without a database."""
    is_signed_in = getattr(getattr(request, "user", None), "is_authenticated", False)
    if request is None or not (is_signed_in or reads_anonymously(request)):
        return HeaderCounts()
    if CACHED not in request.META:
        try:
            request.META[CACHED] = HeaderCounts.now(now=timezone.now())
        except DatabaseError:
            return HeaderCounts()
    counts: HeaderCounts = request.META[CACHED]
    return counts
