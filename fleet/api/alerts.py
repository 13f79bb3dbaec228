"""An alert as the API tells it, with its timeline and what it rests on."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from django.db import transaction
from django.db.models import Max
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router
from ninja.params.functions import Header

from fleet import alerts
from fleet.alerts import AlertError, SilenceError
from fleet.alerts.matchers import meaning, written
from fleet.api.auth import caller, needs
from fleet.api.fields import (
    Key,
    Operation,
    OptionalTime,
    RequestSchema,
    ResponseSchema,
    Text,
    WholeNumber,
    among,
    choice,
)
from fleet.api.paging import PageLinks, Paging, check_unchanged, paginate
from fleet.models import Alert, AlertEvent
from fleet.models.problem import ProblemError
from telemetry.detect import RULES


class AlertOut(ResponseSchema):
    """One problem: a rule broken by one subject, from noticing until it is over."""

    id: int = Field(description="Number of the alert.", examples=[42])
    version: str = Field(
        description="Changes with every line of its timeline; `If-Match` takes it in quotes.",
        examples=["42-137"],
    )
    rule: str = Field(description="Which rule is broken.", examples=["allreduce_share"])
    title: str = Field(description="What that means, in words.")
    cause: str = Field(description="The cause believed in, or unknown.", examples=["slow_core"])
    severity: str = Field(description="page or warn.", examples=["page"])
    state: str = Field(description="firing, acknowledged or resolved.", examples=["firing"])
    is_silenced: bool = Field(description="Whether nobody is told of it now.")
    subject: str = Field(description="What breaks the rule.", examples=["run:llama"])
    run: str | None = Field(description="The run it concerns.", examples=["llama"])
    team: str | None = Field(description="Whose run that is.")
    node: str | None = Field(description="The node that is blamed.", examples=["llama-03"])
    device: int | None = Field(description="Core, accelerator or EFA device, by cause.")
    score: float = Field(description="Evidence over threshold; 1 is just enough.")
    onset_at: datetime = Field(description="When the signal changed, UTC.")
    fired_at: datetime = Field(description="When trnwatch noticed, UTC.")
    last_seen_at: datetime = Field(description="When it was last seen broken, UTC.")
    resolved_at: datetime | None = Field(description="When it was over, UTC.")
    acknowledged_at: datetime | None = Field(description="When somebody took it, UTC.")
    acknowledged_by: str | None = Field(description="Who took it.", examples=["ada"])
    assigned_at: datetime | None = Field(description="When it was given to somebody, UTC.")
    assigned_to: str | None = Field(description="To whom.", examples=["ada"])
    is_drill: bool = Field(description="Whether a drill caused it.")
    n_firings: int = Field(description="How often it has fired.")
    flapping_since: datetime | None = Field(description="Since when it comes and goes, UTC.")
    silence: int | None = Field(description="Number of the silence that mutes it.")
    earlier: int | None = Field(description="The same problem within the hour before.")
    url: str = Field(description="Path of its page.", examples=["/alerts/42/"])

    @classmethod
    def values_of(cls, alert: Alert, *, now: datetime, last_event: int | None) -> dict[str, Any]:
        """Return the fields of an alert, asked for with run, node and silence."""
        return {
            **{name: getattr(alert, name) for name in SAME_FIELDS},
            "version": version_of(alert.pk, last_event),
            "title": RULES[alert.rule].title if alert.rule in RULES else alert.rule,
            "severity": alert.get_severity_display(),
            "state": alert.state,
            "is_silenced": alert.is_silenced(now),
            "run": alert.run.name if alert.run else None,
            "team": alert.run.team if alert.run else None,
            "node": alert.node.name if alert.node else None,
            "acknowledged_by": alert.acknowledged_by or None,
            "assigned_to": alert.assigned_to or None,
            "silence": alert.silence_id,
            "earlier": alert.earlier_id,
            "url": alert.get_absolute_url(),
        }

    @classmethod
    def of(cls, alert: Alert, *, now: datetime, last_event: int | None) -> Self:
        return cls(**cls.values_of(alert, now=now, last_event=last_event))


SAME_FIELDS = (
    "id",
    "rule",
    "cause",
    "subject",
    "device",
    "score",
    "onset_at",
    "fired_at",
    "last_seen_at",
    "resolved_at",
    "acknowledged_at",
    "assigned_at",
    "is_drill",
    "n_firings",
    "flapping_since",
)


def version_of(pk: int, last_event: int | None) -> str:
    """Return the version of an alert: every change of it adds to its timeline."""
    return f"{pk}-{last_event or 0}"


class EventOut(ResponseSchema):
    """One change in an alert's life."""

    at: datetime = Field(description="When, UTC.")
    kind: str = Field(description="What happened.", examples=["acknowledged"])
    by: str | None = Field(description="Who did it; null: trnwatch itself.", examples=["ada"])
    text: str = Field(description="What was said.")

    @classmethod
    def of(cls, event: AlertEvent) -> Self:
        return cls(at=event.at, kind=event.kind, by=event.by or None, text=event.text)


class AlertDetail(AlertOut):
    """One alert with its timeline and its evidence."""

    nodes: list[str] = Field(description="Names of all nodes that it accuses.")
    victims: list[str] = Field(description="Names of nodes that are slowed.")
    evidence: dict[str, Any] = Field(
        description="The figures it rests on, frozen when it fired; units end their names."
    )
    cost: dict[str, Any] = Field(description="What it has cost; units end the names.")
    timeline: list[EventOut] = Field(description="Everything that happened to it, in order.")


class AlertPage(PageLinks):
    """A page of alerts."""

    items: list[AlertOut] = Field(description="The alerts of this page.")
    sorted_by: str = Field(default="-id", description="What fired last comes first.")


router = Router(tags=["alerts"])
Rule = Annotated[str, among(("", *RULES)), choice(("", *RULES))]


class AlertQuery(Paging):
    """Which alerts to list."""

    state: Literal["", "open", "firing", "acknowledged", "silenced", "resolved"] = Field(
        "",
        description="open: not over. firing: open, nobody has it, not silenced. acknowledged: "
        "open, somebody has it. silenced: open, nobody is told of it. resolved: over.",
    )
    rule: Rule = Field("", description="Which rule is broken.", examples=["allreduce_share"])
    cause: Text = Field("", description="The cause believed in.", examples=["slow_core"])
    severity: Literal["", "page", "warn"] = Field("", description="How urgent.")
    run: Text = Field("", description="Name of the run it concerns.", examples=["llama"])
    node: Text = Field("", description="Name of the node that is blamed.")
    team: Text = Field("", description="Whose run it is, exactly.")
    who: Text = Field("", description="Who took it, or was given it.", examples=["ada"])
    drill: Literal["", "yes", "no"] = Field("", description="Whether a drill caused it.")
    since: OptionalTime = Field(
        None, description="Fired then or later: RFC 3339, or Unix seconds."
    )
    until: OptionalTime = Field(None, description="Fired before then.")


@router.get("", response=AlertPage, **needs("read"), summary="List alerts")
def alert_list(request: HttpRequest, query: Query[AlertQuery]) -> AlertPage:
    """Alerts, open and over, the one that fired first last comes first."""
    now = timezone.now()
    alerts = Alert.objects.filter_by(now=now, **query.fields)
    alerts = alerts.select_related("run", "node", "silence").defer("victims", "evidence")
    rows, links = paginate(request, alerts, query, by="-pk")
    events = AlertEvent.objects.filter(alert__in=[alert.pk for alert in rows]).order_by()
    last = dict(events.values_list("alert").annotate(last=Max("pk")))
    items = [AlertOut.of(alert, now=now, last_event=last.get(alert.pk)) for alert in rows]
    return AlertPage(items=items, next=links.next, prev=links.prev)


def detail_of(pk: int) -> AlertDetail:
    """Tell one alert with everything; raises Http404."""
    alert = get_object_or_404(Alert.objects.select_related("run", "node", "silence"), pk=pk)
    events = list(alert.events.all())
    last = max((event.pk for event in events), default=None)
    return AlertDetail(
        **AlertOut.values_of(alert, now=timezone.now(), last_event=last),
        nodes=alert.nodes,
        victims=alert.victims,
        evidence=alert.evidence,
        cost=alert.cost,
        timeline=[EventOut.of(event) for event in events],
    )


@router.get("/{alert_id}", response=AlertDetail, **needs("read"), summary="One alert")
def alert_one(request: HttpRequest, alert_id: Path[Key]) -> AlertDetail:
    """One alert, with its timeline, its evidence and what it has cost."""
    return detail_of(alert_id)


OVER = "It is over already: there is nothing left to do."
LINE = r"^[^\x00-\x1f\x7f]*$"
NON_BLANK_LINE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
MAX_SILENCE_S = 30 * 86_400
Act = Callable[[Alert, str, datetime], str]


def action(path: str, summary: str) -> Callable[[Operation], Operation]:
    """Return the route of an operation that changes one alert."""
    return router.post(path, response=AlertDetail, **needs("act"), summary=summary)


IF_MATCH: Any = Header(
    None,
    alias="If-Match",
    description="The `version` of the alert in quotes: act only if nothing has happened since.",
)


class CommentIn(RequestSchema):
    """What to write on the timeline beside what is done."""

    comment: str = Field(
        "", max_length=500, pattern=LINE, description="For the timeline.", examples=["on it"]
    )


class Comment(RequestSchema):
    """A remark of its own."""

    comment: str = Field(
        max_length=500,
        pattern=NON_BLANK_LINE,
        description="What the next reader should know.",
        examples=["swapped the node, watching"],
    )


class Assignment(CommentIn):
    """Whom to give it to."""

    to: str = Field(
        max_length=150,
        pattern=NON_BLANK_LINE,
        description="Name of somebody who may act: an operator, lead or admin.",
        examples=["ada"],
    )


class AlertSilenceIn(RequestSchema):
    """For how long nobody needs to be told of the problem, and why."""

    duration_s: WholeNumber = Field(
        ge=60, le=MAX_SILENCE_S, description="How long from now, in seconds.", examples=[3600]
    )
    reason: str = Field(
        max_length=500, pattern=NON_BLANK_LINE, description="Why.", examples=["node being swapped"]
    )


@action("/{alert_id}/acknowledge", summary="Take an alert")
def alert_acknowledge(
    request: HttpRequest, alert_id: Path[Key], payload: CommentIn, if_match: str | None = IF_MATCH
) -> AlertDetail:
    """Take an alert; whoever had it first keeps it, and others are answered 409."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerts.acknowledge(alert, by=by, comment=payload.comment, now=now):
            return ""
        return _meanwhile(alert, "{0.acknowledged_by} has it already.")

    return _change(request, alert_id, if_match, act)


@action("/{alert_id}/unacknowledge", summary="Give an alert back")
def alert_unacknowledge(
    request: HttpRequest, alert_id: Path[Key], payload: CommentIn, if_match: str | None = IF_MATCH
) -> AlertDetail:
    """Give an alert back: nobody has it any more."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerts.unacknowledge(alert, by=by, comment=payload.comment, now=now):
            return ""
        return _meanwhile(alert, "Nobody has it: there is nothing to give back.")

    return _change(request, alert_id, if_match, act)


@action("/{alert_id}/assign", summary="Give an alert to somebody")
def alert_assign(
    request: HttpRequest, alert_id: Path[Key], payload: Assignment, if_match: str | None = IF_MATCH
) -> AlertDetail:
    """Give an alert to somebody who may act; 409 where nobody of that name may."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        if alerts.assign(alert, to=payload.to, by=by, comment=payload.comment, now=now):
            return ""
        return _meanwhile(alert, "It went to {0.assigned_to} meanwhile.")

    return _change(request, alert_id, if_match, act)


@action("/{alert_id}/comment", summary="Say something about an alert")
def alert_comment(
    request: HttpRequest, alert_id: Path[Key], payload: Comment, if_match: str | None = IF_MATCH
) -> AlertDetail:
    """Add a remark to an alert's timeline."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        alerts.comment(alert, by=by, text=payload.comment, now=now)
        return ""

    return _change(request, alert_id, if_match, act)


@action("/{alert_id}/resolve", summary="Call an alert over")
def alert_resolve(
    request: HttpRequest, alert_id: Path[Key], payload: CommentIn, if_match: str | None = IF_MATCH
) -> AlertDetail:
    """Call over what trnwatch can no longer see; 409 where it was seen broken a minute ago."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        done = alerts.resolve_by_hand(alert, by=by, comment=payload.comment, now=now)
        return "" if done else OVER

    return _change(request, alert_id, if_match, act)


@action("/{alert_id}/silence", summary="Silence the problem of an alert")
def alert_silence(
    request: HttpRequest,
    alert_id: Path[Key],
    payload: AlertSilenceIn,
    if_match: str | None = IF_MATCH,
) -> AlertDetail:
    """Silence whatever is this problem, under whichever rule it is seen; others are told of."""

    def act(alert: Alert, by: str, now: datetime) -> str:
        alerts.silence(
            written(meaning(alert)),
            ends_at=now + timedelta(seconds=payload.duration_s),
            reason=payload.reason,
            by=by,
            now=now,
        )
        return ""

    return _change(request, alert_id, if_match, act)


def _meanwhile(alert: Alert, said: str) -> str:
    """Say why an act did not come to pass: somebody else was first, or the alert is over."""
    alert.refresh_from_db()
    return said.format(alert) if alert.is_open else OVER


def _change(request: HttpRequest, pk: int, if_match: str | None, act: Act) -> AlertDetail:
    """Act if nothing has changed since the caller looked, and tell the alert as it is then."""
    with transaction.atomic():
        held = Alert.objects.select_for_update(of=("self",)).select_related("run", "node")
        alert = get_object_or_404(held, pk=pk)
        last = alert.events.aggregate(last=Max("pk"))["last"]
        check_unchanged(if_match, version_of(pk, last))
        try:
            refusal = act(alert, caller(request).name, timezone.now())
        except (AlertError, SilenceError) as error:
            refusal = str(error)
    if refusal:
        raise ProblemError(409, refusal)
    return detail_of(pk)
