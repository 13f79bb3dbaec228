"""Alerts: the list, one alert with its timeline, and actions on it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from django.db import transaction
from django.db.models import Max
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router
from ninja.params.functions import Header

from fleet import alerts
from fleet.alerts.impact import Impact, impact_of
from fleet.alerts.matchers import matchers_of, written
from fleet.alerts.silences import LONGEST
from fleet.alerts.text import headline, plain
from fleet.api.auth import caller, needs
from fleet.api.fields import (
    LINE,
    NON_BLANK_LINE,
    Key,
    LabelFilter,
    NullableText,
    OneOf,
    OptionalTime,
    RequestSchema,
    ResponseSchema,
    Text,
    WholeNumber,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, check_unchanged, paginate
from fleet.models import Alert, AlertEvent
from fleet.models.problem import ProblemError
from telemetry.detect import RULES
from telemetry.errors import FieldError

router = Router(tags=["alerts"])
Rule = Annotated[str, OneOf(("", *RULES))]
FalseReason = Literal[
    "noise", "planned_work", "wrong_cause", "wrong_node", "already_known", "other"
]
IF_MATCH: Any = Header(
    None,
    alias="If-Match",
    description="The `version` of the alert in quotes: act only if nothing has happened since.",
)
# Acts on an alert by a payload, for a caller at a time; returns why it could not, or nothing.
Act = Callable[[Alert, Any, str, datetime], str]


class ImpactOut(ResponseSchema, source=Impact):
    """What an alert costs while it lasts, at worst; null where unknown."""

    step_factor = doc("Time of a step over its usual time; null where no step ends.", 1.62)
    lost_ratio = doc("Share of the time in which nothing is gained, 0 to 1.", 0.38)
    usd_per_hour = doc("What the run's nodes cost in that share of an hour.", 164.2)
    stands_still = doc("Whether no step ends.")
    is_least = doc("Whether other runs are affected, which are not counted.")
    lacks_price = doc("Whether time is lost, and the price of the nodes is not set.")


class AlertOut(ResponseSchema, source=Alert):
    """One problem: a rule broken by one subject, until it is resolved."""

    id = doc("Number of the alert.", 42)
    version: str = doc(
        "Changes with every event of its timeline; send it quoted as `If-Match`.", "42-137"
    )
    rule = doc("The broken rule.", "allreduce_share")
    title: str = doc("The rule as text.")
    cause = doc("The likely cause, or unknown.", "slow_core")
    severity = doc("page or warn.", "page")
    state = doc("firing, acknowledged, recovering or resolved.", "firing")
    is_silenced: bool = doc("Whether notifications are muted now.")
    subject = doc("What breaks the rule.", "run:llama")
    run: NullableText = doc("Name of the affected run.", "llama")
    team: str | None = doc("Team of the run.")
    node: NullableText = doc("Name of the implicated node.", "llama-03")
    device = doc("Number of the implicated part of the node.")
    part: NullableText = doc("What `device` numbers: core, device or efa_device.", "core")
    score = doc("Evidence over threshold; fires at 1.")
    onset_at = doc("When the signal changed, UTC.")
    fired_at = doc("When the alert fired, UTC.")
    last_seen_at = doc("When the rule was last broken, UTC.")
    resolved_at = doc("When it was resolved, UTC.")
    acknowledged_at = doc("When it was acknowledged, UTC.")
    acknowledged_by: NullableText = doc("Who acknowledged it.", "ada")
    marked_false_at = doc("When it was marked as false, UTC.")
    marked_false_by: NullableText = doc("Who marked it as false.", "ada")
    false_reason: NullableText = doc(
        "Why: noise, planned_work, wrong_cause, wrong_node, already_known or other.", "noise"
    )
    false_comment: NullableText = doc("What else that person said.", "scrape gap, not the node")
    assigned_at = doc("When it was assigned, UTC.")
    assigned_to: NullableText = doc("Who it is assigned to.", "ada")
    is_drill = doc("Whether a drill caused it.")
    n_firings = doc("How often it has fired.")
    flapping_since = doc("Since when it has been flapping, UTC.")
    silence: int | None = doc("Number of the silence that mutes it.")
    earlier: int | None = doc("The same problem within the hour before.")
    url: str = doc("Path of its page.", "/alerts/42/")
    impact: ImpactOut = doc("What it costs while it lasts.")


class EventOut(ResponseSchema, source=AlertEvent):
    """One event of an alert's timeline."""

    at = doc("When, UTC.")
    kind = doc("What happened.", "acknowledged")
    by: NullableText = doc("Who did it; null: trnwatch itself.", "ada")
    text = doc("Details or comment.")


class AlertDetail(AlertOut, source=Alert):
    """One alert with its timeline and evidence."""

    nodes = doc("Names of all implicated nodes.")
    runs = doc("Names of all affected runs.")
    victims: list[str] = doc("Names of the slowed nodes.")
    evidence: dict[str, Any] = doc(
        "The values behind it, frozen when it fired; names end in units."
    )
    cost: dict[str, Any] = doc(
        "What it has cost so far; names end in units. The loss never falls."
    )
    headline: str = doc("What is wrong and where, at worst, in one clause.")
    first: dict[str, Any] = doc("What was seen when it fired, and when.")
    worst: dict[str, Any] = doc("What was seen at worst, and when.")
    latest: dict[str, Any] = doc("What was last seen, and when.")
    timeline: list[EventOut] = doc("All its events, in order.")


class AlertPage(NewestFirst[AlertOut]):
    """A page of alerts."""


class AlertQuery(Paging):
    """Filter of alerts."""

    state: Literal["", "open", "firing", "acknowledged", "recovering", "silenced", "resolved"] = (
        doc(
            "open: not resolved. firing: open, neither acknowledged nor silenced. "
            "acknowledged, recovering, silenced: open and so. resolved.",
            default="",
        )
    )
    rule: Rule = doc("The broken rule.", "allreduce_share", default="")
    cause: Text = doc("The likely cause.", "slow_core", default="")
    severity: Literal["", "page", "warn"] = doc("Severity.", default="")
    run: Text = doc("Name of the affected run.", "llama", default="")
    node: Text = doc("Name of the implicated node.", default="")
    team: Text = doc("Team of the run, exact match.", default="")
    who: Text = doc("Who acknowledged or is assigned it.", "ada", default="")
    drill: Literal["", "yes", "no"] = doc("Whether a drill caused it.", default="")
    marked_false: Literal["", "yes", "no"] = doc("Whether it is marked as false.", default="")
    label: LabelFilter = ""
    since: OptionalTime = doc("Fired at or after: RFC 3339 or Unix seconds.", default=None)
    until: OptionalTime = doc("Fired before.", default=None)


class CommentIn(RequestSchema):
    """An optional comment on an action."""

    comment: str = doc("For the timeline.", "on it", default="", max_length=500, pattern=LINE)


class Comment(RequestSchema):
    """A comment without an action."""

    comment: str = doc(
        "What the next reader should know.",
        "swapped the node, watching",
        max_length=500,
        pattern=NON_BLANK_LINE,
    )


class Assignment(CommentIn):
    """Who to assign the alert to."""

    to: str = doc(
        "Name of an operator, lead or admin.", "ada", max_length=150, pattern=NON_BLANK_LINE
    )


class FalseMark(RequestSchema):
    """Why an alert is false."""

    reason: FalseReason = doc("The kind of mistake.", "noise")
    comment: str = doc(
        "More about it; `other` requires it.",
        "scrape gap, not the node",
        default="",
        max_length=400,
        pattern=LINE,
    )


class AlertSilenceIn(RequestSchema):
    """How long to silence the problem, and why."""

    duration_s: WholeNumber = doc(
        "Duration from now, in seconds.", 3600, ge=60, le=int(LONGEST.total_seconds())
    )
    reason: str = doc("Why.", "node being swapped", max_length=500, pattern=NON_BLANK_LINE)


@router.get("", response=AlertPage, **needs("read"), summary="List alerts")
def alert_list(request: HttpRequest, query: Query[AlertQuery]) -> AlertPage:
    """List open and resolved alerts, newest first."""
    now = timezone.now()
    alerts = Alert.objects.filter_by(now=now, **query.fields)
    alerts = alerts.select_related("run", "node", "silence").defer("victims", "parts")
    rows, links = paginate(request, alerts, query, by="-pk")
    events = AlertEvent.objects.filter(alert__in=[alert.pk for alert in rows]).order_by()
    last = dict(events.values_list("alert").annotate(last=Max("pk")))
    items = [
        AlertOut.from_object(alert, **_computed(alert, now=now, last_event=last.get(alert.pk)))
        for alert in rows
    ]
    return AlertPage(items=items, **links)


@router.get("/{alert_id}", response=AlertDetail, **needs("read"), summary="One alert")
def alert_one(request: HttpRequest, alert_id: Path[Key]) -> AlertDetail:
    """Get one alert with its timeline, evidence and cost."""
    return _detail(alert_id)


def _detail(pk: int) -> AlertDetail:
    alert = get_object_or_404(Alert.objects.select_related("run", "node", "silence"), pk=pk)
    events = list(alert.events.all())
    last = max((event.pk for event in events), default=None)
    return AlertDetail.from_object(
        alert,
        **_computed(alert, now=timezone.now(), last_event=last),
        headline=plain(headline(alert)),
        timeline=events,
    )


def _computed(alert: Alert, *, now: datetime, last_event: int | None) -> dict[str, Any]:
    """Return the fields of an alert that are not attributes of its row."""
    return {
        "version": _version(alert.pk, last_event),
        "title": RULES[alert.rule].title if alert.rule in RULES else alert.rule,
        "severity": alert.get_severity_display(),
        "is_silenced": alert.is_silenced(now),
        "team": alert.run.team if alert.run else None,
        "silence": alert.silence_id,
        "earlier": alert.earlier_id,
        "url": alert.get_absolute_url(),
        "impact": impact_of(alert),
    }


def _version(pk: int, last_event: int | None) -> str:
    """Return the version of an alert: every change of it adds an event."""
    return f"{pk}-{last_event or 0}"


def action(verb: str, payload: type[RequestSchema], *, summary: str) -> Callable[[Act], Act]:
    """Make ``act`` the route of an operation that changes one alert.

    It does nothing to an alert that has changed since the caller read it (`If-Match`).
    """

    def route(act: Act) -> Act:
        def changed(
            request: HttpRequest, alert_id: int, payload: Any, if_match: str | None = IF_MATCH
        ) -> AlertDetail:
            with transaction.atomic():
                locked = Alert.objects.select_for_update(of=("self",))
                alert = get_object_or_404(locked.select_related("run", "node"), pk=alert_id)
                last = alert.events.aggregate(last=Max("pk"))["last"]
                check_unchanged(if_match, _version(alert_id, last))
                try:
                    refusal = act(alert, payload, caller(request).name, timezone.now())
                except FieldError as error:
                    refusal = str(error)
            if refusal:
                raise ProblemError(409, refusal)
            return _detail(alert_id)

        changed.__name__, changed.__doc__ = act.__name__, act.__doc__
        changed.__annotations__ |= {"alert_id": Path[Key], "payload": payload}
        path = f"/{{alert_id}}/{verb}"
        router.post(path, response=AlertDetail, **needs("act"), summary=summary)(changed)
        return act

    return route


@action("acknowledge", CommentIn, summary="Acknowledge an alert")
def alert_acknowledge(alert: Alert, payload: CommentIn, by: str, now: datetime) -> str:
    """Acknowledge an alert; 409 if another user has acknowledged it."""
    return alerts.attempt(alerts.acknowledge, alert, by=by, now=now, **payload.model_dump())


@action("unacknowledge", CommentIn, summary="Unacknowledge an alert")
def alert_unacknowledge(alert: Alert, payload: CommentIn, by: str, now: datetime) -> str:
    """Unacknowledge an alert."""
    return alerts.attempt(alerts.unacknowledge, alert, by=by, now=now, **payload.model_dump())


@action("assign", Assignment, summary="Assign an alert")
def alert_assign(alert: Alert, payload: Assignment, by: str, now: datetime) -> str:
    """Assign an alert; 409 if no operator, lead or admin has that name."""
    return alerts.attempt(alerts.assign, alert, by=by, now=now, **payload.model_dump())


@action("comment", Comment, summary="Comment on an alert")
def alert_comment(alert: Alert, payload: Comment, by: str, now: datetime) -> str:
    """Add a comment to the timeline of an alert."""
    alerts.comment(alert, by=by, text=payload.comment, now=now)
    return ""


@action("mark-false", FalseMark, summary="Mark an alert as false")
def alert_mark_false(alert: Alert, payload: FalseMark, by: str, now: datetime) -> str:
    """Mark an alert as false, open or resolved; 409 if it is marked already."""
    return alerts.attempt(alerts.mark_false, alert, by=by, now=now, **payload.model_dump())


@action("unmark-false", CommentIn, summary="Remove the false mark of an alert")
def alert_unmark_false(alert: Alert, payload: CommentIn, by: str, now: datetime) -> str:
    """Remove the mark; 409 if the alert has none."""
    return alerts.attempt(alerts.unmark_false, alert, by=by, now=now, **payload.model_dump())


@action("resolve", CommentIn, summary="Resolve an alert manually")
def alert_resolve(alert: Alert, payload: CommentIn, by: str, now: datetime) -> str:
    """Resolve what trnwatch can no longer observe; 409 if it was broken within the last minute."""
    return alerts.attempt(alerts.resolve_manually, alert, by=by, now=now, **payload.model_dump())


@action("silence", AlertSilenceIn, summary="Silence the problem of an alert")
def alert_silence(alert: Alert, payload: AlertSilenceIn, by: str, now: datetime) -> str:
    """Silence this problem under every rule; other problems still notify."""
    ends_at = now + timedelta(seconds=payload.duration_s)
    matchers = written(matchers_of(alert))
    alerts.silence(matchers, ends_at=ends_at, reason=payload.reason, by=by, now=now)
    return ""
