"""Reminders: what fires, and nobody has taken, is said again."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from fleet.matching import MatcherError
from fleet.models import Delivery, Told
from fleet.outbox.posting import post
from fleet.outbox.traits import traits_of
from fleet.silences.muting import silences_of


def remind(*, now: datetime) -> int:
    """Put reminders into the outbox for what fires and nobody has taken; gives how many."""
    lasting = Told.objects.filter(
        ended_at=None,
        alert__resolved_at=None,
        alert__acknowledged_at=None,
        receiver__is_enabled=True,
        route__repeat_s__gt=0,
    )
    due = [
        told
        for told in lasting.select_related("receiver", "route", "alert__run", "alert__node")
        if told.route is not None
        and traits_of(told.receiver).is_reminded
        and now - told.last_at >= timedelta(seconds=told.route.repeat_s)
    ]
    return sum(_remind(told, now=now) for told in due if not _is_silenced(told, now=now))


def _is_silenced(told: Told, *, now: datetime) -> bool:
    try:
        return bool(silences_of(told.alert, now=now))
    except MatcherError:
        return False


@transaction.atomic
def _remind(told: Told, *, now: datetime) -> bool:
    """Write one reminder, unless another sender has just done so."""
    as_read = Told.objects.filter(pk=told.pk, ended_at=None, last_at=told.last_at)
    if not as_read.update(last_at=now, n_repeats=F("n_repeats") + 1):
        return False
    kind = Delivery.Kind.REPEATED
    post(told.receiver, kind, told.alert, None, lane=told.lane, route=told.route, now=now)
    return True
