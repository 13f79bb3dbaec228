"""What callers do about an alert: the same as people do on its page, told on its timeline."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Max
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Router

from fleet import alerting
from fleet.alerting import AlertError, SilenceError
from fleet.api.v1.access import needs
from fleet.api.v1.alerts import detail_of
from fleet.api.v1.caching import check_unchanged
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import Body, Key, Whole
from fleet.api.v1.shapes.alerts import AlertDetail, version_of
from fleet.matching import meaning, written
from fleet.models import Alert
from fleet.problem import ProblemError

router = Router(tags=["alerts"])
OVER = "It is over already: there is nothing left to do."
SAID = r"^[^\x00-\x1f\x7f]*$"
SAYING = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
LONGEST_S = 30 * 86_400
Act = Callable[[Alert, str, datetime], str]
an_act = partial(router.post, response=AlertDetail, openapi_extra=needs("act"))


class Remark(Body):
    """What to write on the timeline beside what is done."""

    comment: str = Field(
        "", max_length=500, pattern=SAID, description="For the timeline.", examples=["on it"]
    )


class Comment(Body):
    """A remark of its own."""

    comment: str = Field(
        max_length=500,
        pattern=SAYING,
        description="What the next reader should know.",
        examples=["swapped the node, watching"],
    )


class Assignment(Remark):
    """Whom to give it to."""

    to: str = Field(
        max_length=150,
        pattern=SAYING,
        description="Name of somebody who may act: an operator, lead or admin.",
        examples=["ada"],
    )


class Muting(Body):
    """For how long nobody needs to be told of the problem, and why."""

    duration_s: Whole = Field(
        ge=60, le=LONGEST_S, description="How long from now, in seconds.", examples=[3600]
    )
    reason: str = Field(
        max_length=500, pattern=SAYING, description="Why.", examples=["node being swapped"]
    )


@an_act("/{alert_id}/acknowledge", summary="Take an alert")
def alert_acknowledge(request: HttpRequest, alert_id: Path[Key], said: Remark) -> AlertDetail:
    """Take an alert; whoever had it first keeps it, and others are answered 409."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerting.acknowledge(alert, by=by, comment=said.comment, now=now):
            return ""
        return _meanwhile(alert, "{0.acknowledged_by} has it already.")

    return _answer(request, alert_id, act)


@an_act("/{alert_id}/unacknowledge", summary="Give an alert back")
def alert_unacknowledge(request: HttpRequest, alert_id: Path[Key], said: Remark) -> AlertDetail:
    """Give an alert back: nobody has it any more."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerting.unacknowledge(alert, by=by, comment=said.comment, now=now):
            return ""
        return _meanwhile(alert, "Nobody has it: there is nothing to give back.")

    return _answer(request, alert_id, act)


@an_act("/{alert_id}/assign", summary="Give an alert to somebody")
def alert_assign(request: HttpRequest, alert_id: Path[Key], said: Assignment) -> AlertDetail:
    """Give an alert to somebody who may act; 409 where nobody of that name may."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerting.assign(alert, to=said.to, by=by, comment=said.comment, now=now):
            return ""
        return _meanwhile(alert, "It went to {0.assigned_to} meanwhile.")

    return _answer(request, alert_id, act)


@an_act("/{alert_id}/comment", summary="Say something about an alert")
def alert_comment(request: HttpRequest, alert_id: Path[Key], said: Comment) -> AlertDetail:
    """Add a remark to an alert's timeline."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        alerting.comment(alert, by=by, text=said.comment, now=now)
        return ""

    return _answer(request, alert_id, act)


@an_act("/{alert_id}/resolve", summary="Call an alert over")
def alert_resolve(request: HttpRequest, alert_id: Path[Key], said: Remark) -> AlertDetail:
    """Call over what trnwatch can no longer see; 409 where it was seen broken a minute ago."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        done = alerting.resolve_by_hand(alert, by=by, comment=said.comment, now=now)
        return "" if done else OVER

    return _answer(request, alert_id, act)


@an_act("/{alert_id}/silence", summary="Silence the problem of an alert")
def alert_silence(request: HttpRequest, alert_id: Path[Key], said: Muting) -> AlertDetail:
    """Silence whatever is this problem, under whichever rule it is seen; others are told of."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        alerting.silence(
            written(meaning(alert)),
            ends_at=now + timedelta(seconds=said.duration_s),
            reason=said.reason,
            by=by,
            now=now,
        )
        return ""

    return _answer(request, alert_id, act)


def _meanwhile(alert: Alert, said: str) -> str:
    """Say why an act did not come to pass: somebody else was first, or the alert is over."""
    alert.refresh_from_db()
    return said.format(alert) if alert.is_open else OVER


def _answer(request: HttpRequest, pk: int, act: Act) -> AlertDetail:
    """Act if nothing has changed since the caller looked, and tell the alert as it is then."""
    with transaction.atomic():
        held = Alert.objects.select_for_update(of=("self",)).select_related("run", "node")
        alert = get_object_or_404(held, pk=pk)
        last = alert.events.aggregate(last=Max("pk"))["last"]
        check_unchanged(request, version_of(pk, last))
        try:
            refusal = act(alert, caller(request).name, timezone.now())
        except (AlertError, SilenceError) as error:
            refusal = str(error)
    if refusal:
        raise ProblemError(409, refusal)
    return detail_of(pk)
