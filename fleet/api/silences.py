"""Silences: what is muted until when and why; made, moved and ended as on their pages."""

from datetime import datetime, timedelta
from typing import Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet import alerts
from fleet.alerts import SilenceError
from fleet.alerts.matchers import MatcherError
from fleet.api.alerts import MAX_SILENCE_S, NON_BLANK_LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import Key, RequestSchema, ResponseSchema, Text, WholeNumber
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Silence
from fleet.models.problem import ProblemError

router = Router(tags=["silences"])
OVER = "It is over already, or was moved meanwhile."


class SilenceOut(ResponseSchema):
    """Which alerts are muted, from when until when, by whom and why."""

    id: int = Field(description="Number of the silence.", examples=[5])
    matchers: str = Field(
        description="Which alerts it means; empty: every one.",
        examples=["rule=allreduce_share run=llama"],
    )
    reason: str = Field(description="Why nobody needs to be told.")
    by: str = Field(description="Who made it.", examples=["ada"])
    starts_at: datetime = Field(description="When it was made, UTC.")
    ends_at: datetime = Field(description="When it ends, or ended, UTC.")
    expired_by: str | None = Field(description="Who ended it early.")
    is_active: bool = Field(description="Whether it holds now.")
    url: str = Field(description="Path of its page.", examples=["/silences/5/"])

    @classmethod
    def of(cls, silence: Silence, *, now: datetime) -> Self:
        return cls(
            id=silence.pk,
            matchers=silence.matchers,
            reason=silence.reason,
            by=silence.by,
            starts_at=silence.starts_at,
            ends_at=silence.ends_at,
            expired_by=silence.expired_by or None,
            is_active=silence.is_active(now),
            url=silence.get_absolute_url(),
        )


class SilencePage(PageLinks):
    """A page of silences."""

    items: list[SilenceOut] = Field(description="The silences of this page.")
    sorted_by: str = Field(default="-id", description="What was made last comes first.")


class SilenceFilter(Paging):
    """Which silences to list."""

    state: Literal["", "active", "over"] = Field("", description="Whether they hold.")
    by: Text = Field("", description="Who made them.", examples=["ada"])


class SilenceChange(RequestSchema):
    """When a silence is to end."""

    duration_s: WholeNumber = Field(
        ge=60, le=MAX_SILENCE_S, description="How long from now, in seconds.", examples=[3600]
    )


class SilenceIn(SilenceChange):
    """What to mute."""

    matchers: str = Field(
        max_length=500,
        pattern=NON_BLANK_LINE,
        description="Which alerts: `field=value`, with one of = != =~ !~ between, by spaces "
        "apart; fields are rule, cause, severity, run, node, team, subject, drill.",
        examples=["rule=allreduce_share team=~blue|green"],
    )
    reason: str = Field(
        max_length=500, pattern=NON_BLANK_LINE, description="Why.", examples=["maintenance"]
    )


@router.get("", response=SilencePage, **needs("read"), summary="List silences")
def silence_list(request: HttpRequest, query: Query[SilenceFilter]) -> SilencePage:
    """Silences, the one that was made last first."""
    now = timezone.now()
    silences = Silence.objects.filter_by(now=now, **query.fields)
    rows, links = paginate(request, silences, query, by="-pk")
    items = [SilenceOut.of(each, now=now) for each in rows]
    return SilencePage(items=items, next=links.next, prev=links.prev)


@router.post("", response={201: SilenceOut}, **needs("act"), summary="Silence alerts")
def silence_new(request: HttpRequest, payload: SilenceIn) -> Status[SilenceOut]:
    """Mute whatever the matchers mean, from now on; alerts stay visible all the same."""
    now = timezone.now()
    try:
        made = alerts.silence(
            payload.matchers,
            ends_at=now + timedelta(seconds=payload.duration_s),
            reason=payload.reason,
            by=caller(request).name,
            now=now,
        )
    except (MatcherError, SilenceError) as error:
        field = str(error).partition(":")[0]
        raise ProblemError(400, str(error), field=field) from error
    return Status(201, SilenceOut.of(made, now=now))


@router.get("/{silence_id}", response=SilenceOut, **needs("read"), summary="One silence")
def silence_one(request: HttpRequest, silence_id: Path[Key]) -> SilenceOut:
    """One silence."""
    return SilenceOut.of(get_object_or_404(Silence, pk=silence_id), now=timezone.now())


@router.post("/{silence_id}/end", response=SilenceOut, **needs("act"), summary="End a silence")
def silence_end(request: HttpRequest, silence_id: Path[Key]) -> SilenceOut:
    """End a silence now; 409 where it is over."""
    silence, now = get_object_or_404(Silence, pk=silence_id), timezone.now()
    if not alerts.expire(silence, by=caller(request).name, now=now):
        raise ProblemError(409, OVER)
    return SilenceOut.of(silence, now=now)


@router.post(
    "/{silence_id}/move",
    response=SilenceOut,
    **needs("act"),
    summary="Move the end of a silence",
)
def silence_move(
    request: HttpRequest, silence_id: Path[Key], payload: SilenceChange
) -> SilenceOut:
    """Let a silence end at another time; 409 where it is over."""
    silence, now = get_object_or_404(Silence, pk=silence_id), timezone.now()
    ends_at = now + timedelta(seconds=payload.duration_s)
    if not alerts.move_end(silence, to=ends_at, by=caller(request).name, now=now):
        raise ProblemError(409, OVER)
    return SilenceOut.of(silence, now=now)
