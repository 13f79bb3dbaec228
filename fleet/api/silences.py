"""Silences of alerts: create, extend or shorten, and end."""

from datetime import datetime, timedelta
from typing import Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router, Status

from fleet import alerts
from fleet.alerts.matchers import error_of
from fleet.alerts.silences import LONGEST
from fleet.api.auth import caller, needs
from fleet.api.fields import (
    NON_BLANK_LINE,
    Key,
    NullableText,
    RequestSchema,
    ResponseSchema,
    Text,
    WholeNumber,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.models import Silence
from fleet.models.problem import ProblemError
from telemetry.errors import FieldError

router = Router(tags=["silences"])
OVER = "It has already ended, or its end was changed meanwhile."


class SilenceOut(ResponseSchema, source=Silence):
    """A silence."""

    id = doc("Number of the silence.", 5)
    matchers = doc("Matchers of alerts; empty: every alert.", "rule=allreduce_share run=llama")
    reason = doc("Why.")
    by = doc("Who created it.", "ada")
    starts_at = doc("Start, UTC.")
    ends_at = doc("End, UTC.")
    expired_by: NullableText = doc("Who ended it early.")
    is_active: bool = doc("Whether it is active now.")
    invalid_because: NullableText = doc(
        "Why its matchers are invalid, so that it silences nothing."
    )
    url: str = doc("Path of its page.", "/silences/5/")


class SilencePage(NewestFirst[SilenceOut]):
    """A page of silences."""


class SilenceFilter(Paging):
    """Filter of silences."""

    state: Literal["", "active", "over"] = doc("State of the silence.", default="")
    by: Text = doc("Who created it.", "ada", default="")


class SilenceChange(RequestSchema):
    """The end of a silence."""

    duration_s: WholeNumber = doc(
        "Duration from now, in seconds.", 3600, ge=60, le=int(LONGEST.total_seconds())
    )


class SilenceIn(SilenceChange):
    """A silence to create."""

    matchers: str = doc(
        "Matchers separated by spaces: `field=value` with =, !=, =~ or !~. Fields: "
        "rule, cause, severity, run, node, team, subject, drill.",
        "rule=allreduce_share team=~blue|green",
        max_length=500,
        pattern=NON_BLANK_LINE,
    )
    reason: str = doc("Why.", "maintenance", max_length=500, pattern=NON_BLANK_LINE)


@router.get("", response=SilencePage, **needs("read"), summary="List silences")
def silence_list(request: HttpRequest, query: Query[SilenceFilter]) -> SilencePage:
    """List silences, newest first."""
    now = timezone.now()
    silences = Silence.objects.filter_by(now=now, **query.fields)
    rows, links = paginate(request, silences, query, by="-pk")
    return SilencePage(items=[_serialize(row, now) for row in rows], **links)


@router.post("", response={201: SilenceOut}, **needs("act"), summary="Silence alerts")
def silence_new(request: HttpRequest, payload: SilenceIn) -> Status[SilenceOut]:
    """Mute notifications of matching alerts from now on; the alerts stay visible."""
    now = timezone.now()
    try:
        made = alerts.silence(
            payload.matchers,
            ends_at=now + timedelta(seconds=payload.duration_s),
            reason=payload.reason,
            by=caller(request).name,
            now=now,
        )
    except FieldError as error:
        raise ProblemError(400, str(error), field=error.field) from error
    return Status(201, _serialize(made, now))


@router.get("/{silence_id}", response=SilenceOut, **needs("read"), summary="One silence")
def silence_one(request: HttpRequest, silence_id: Path[Key]) -> SilenceOut:
    """Get one silence."""
    return _serialize(get_object_or_404(Silence, pk=silence_id), timezone.now())


@router.post("/{silence_id}/end", response=SilenceOut, **needs("act"), summary="End a silence")
def silence_end(request: HttpRequest, silence_id: Path[Key]) -> SilenceOut:
    """End a silence now; 409 if it has ended."""
    silence, now = get_object_or_404(Silence, pk=silence_id), timezone.now()
    if not alerts.expire(silence, by=caller(request).name, now=now):
        raise ProblemError(409, OVER)
    return _serialize(silence, now)


@router.post(
    "/{silence_id}/move", response=SilenceOut, **needs("act"), summary="Change a silence's end"
)
def silence_move(
    request: HttpRequest, silence_id: Path[Key], payload: SilenceChange
) -> SilenceOut:
    """Change the end of a silence; 409 if it has ended."""
    silence, now = get_object_or_404(Silence, pk=silence_id), timezone.now()
    ends_at = now + timedelta(seconds=payload.duration_s)
    if not alerts.move_end(silence, to=ends_at, by=caller(request).name, now=now):
        raise ProblemError(409, OVER)
    return _serialize(silence, now)


def _serialize(silence: Silence, now: datetime) -> SilenceOut:
    return SilenceOut.from_object(
        silence,
        is_active=silence.is_active(now),
        invalid_because=error_of(silence.matchers),
        url=silence.get_absolute_url(),
    )
