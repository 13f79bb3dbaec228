"""The shift handover: what happened, what is open, and notes for the next shift."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from django.db import transaction
from django.db.models import Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from fleet.access.roles import assignable_users
from fleet.alerts.actions import assign
from fleet.alerts.causes import cause_name
from fleet.alerts.matchers import error_of
from fleet.alerts.quality import RECENT, Quality, quality
from fleet.alerts.text import AlertText
from fleet.models import Alert, AlertEvent, HandoverNote, Silence
from telemetry.detect import RULES
from telemetry.detect.causes import UNKNOWN
from telemetry.errors import FieldError, whole_number

LONGEST_NOTE = 5000


@transaction.atomic
def hand_over(
    text: str, *, by: str, to: str, since: datetime, now: datetime, assigns: bool = False
) -> HandoverNote:
    """Save the note of a shift; with ``assigns``, assign the alerts of its writer to ``to``.

    Raises FieldError if the text is empty or too long, or ``to`` is not the name of an operator.
    """
    text = text.strip()
    if not text:
        raise FieldError("text", "is empty. Write what the next shift should know.")
    if len(text) > LONGEST_NOTE:
        raise FieldError("text", f"is longer than {LONGEST_NOTE:,} characters. Shorten it.")
    if to and not assignable_users().filter(username=to).exists():
        raise FieldError("to", f"{to[:40]!r} is not an operator. Choose a name from the list.")
    if assigns and not to:
        raise FieldError("to", "is empty. Choose who gets your alerts.")
    if assigns:
        for alert in Alert.objects.open():
            if alert.owner == by != to:
                assign(alert, to=to, by=by, comment="shift handover", now=now)
    return HandoverNote.objects.create(at=now, since=min(since, now), by=by, to=to, text=text)


# An acknowledged alert without a timeline entry for so long is shown as stale.
STALE_AFTER = timedelta(hours=4)
OLD, ENDS_SOON = timedelta(days=1), timedelta(minutes=30)
WEEK = timedelta(days=7)
DEFAULT_SHIFT, LONGEST_SHIFT = timedelta(hours=8), timedelta(days=7)
Kind = AlertEvent.Kind
BY_PEOPLE = (
    *(Kind.COMMENTED, Kind.ACKNOWLEDGED, Kind.UNACKNOWLEDGED, Kind.ASSIGNED, Kind.RESOLVED),
    *(Kind.MARKED_FALSE, Kind.UNMARKED_FALSE),
)
LIMIT = 200


def with_updates(alerts: QuerySet[Alert]) -> QuerySet[Alert]:
    """Annotate each alert with the time of its last timeline entry: ``updated_at``."""
    latest = AlertEvent.objects.filter(alert=OuterRef("pk")).order_by("-at").values("at")[:1]
    return alerts.annotate(updated_at=Subquery(latest))


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of an alert, since when, and how long it has had no timeline entry."""

    by: str
    since: datetime
    updated_at: datetime
    idle: timedelta

    @property
    def is_stale(self) -> bool:
        return self.idle > STALE_AFTER

    @classmethod
    def of(cls, alert: Alert, *, now: datetime) -> Self | None:
        """Return the owner of an alert that is annotated by ``with_updates``; None without one."""
        if not alert.owner:
            return None
        since = alert.assigned_at if alert.assigned_to else alert.acknowledged_at
        since = since or alert.fired_at
        updated_at = getattr(alert, "updated_at", None) or since
        return cls(alert.owner, since, updated_at, now - updated_at)


@dataclass(frozen=True, slots=True)
class AgedSilence:
    silence: Silence
    is_active: bool
    is_old: bool
    ends_soon: bool
    # Why its matchers are invalid, so that it silences nothing.
    error: str = ""

    @classmethod
    def of(cls, silence: Silence, *, now: datetime) -> Self:
        is_active = silence.is_active(now)
        return cls(
            silence,
            is_active=is_active,
            is_old=is_active and now - silence.starts_at > OLD,
            ends_soon=is_active and silence.ends_at - now <= ENDS_SOON,
            error=error_of(silence.matchers),
        )

    @property
    def matchers(self) -> str:
        return self.silence.matchers.replace("`", "'") or "everything"


@dataclass(frozen=True, slots=True)
class OpenAlert:
    alert: Alert
    headline: SafeString
    owned: Ownership | None
    silence: Silence | None


@dataclass(frozen=True, slots=True)
class ResolvedAlert:
    alert: Alert
    headline: SafeString
    lasted: timedelta


@dataclass(frozen=True, slots=True)
class RecurringAlert:
    """A problem that fired again during the shift, and how often it fired in seven days."""

    rule: str
    subject: str
    cause: str
    node: str | None
    n_firings: int
    latest: int

    @property
    def text(self) -> str:
        what = RULES[self.rule].title if self.rule in RULES else self.rule.replace("_", " ")
        where = self.node or self.subject.partition(":")[2]
        cause = "" if self.cause == UNKNOWN else f", {cause_name(self.cause)}"
        return f"{what}{cause}{f': {where}' if where else ''}"


@dataclass(frozen=True, slots=True)
class Shift:
    since: datetime
    until: datetime
    open: list[OpenAlert]
    resolved: list[ResolvedAlert]
    silences: list[AgedSilence]
    recurring: list[RecurringAlert]
    comments: list[AlertEvent]
    quality: list[Quality]

    @property
    def n_unowned(self) -> int:
        return sum(each.owned is None for each in self.open)

    @property
    def n_stale(self) -> int:
        return sum(each.owned is not None and each.owned.is_stale for each in self.open)


def shift_between(since: datetime, *, now: datetime) -> Shift:
    """Gather what happened since a moment, and what is open now.

    Alerts without an owner come first, then those owned the longest.
    """
    both = with_updates(Alert.objects.filter(Q(resolved_at=None) | Q(resolved_at__gte=since)))
    alerts = list(both.select_related("run", "node", "silence").order_by("fired_at", "pk"))
    open_ = [
        OpenAlert(
            alert,
            AlertText(alert, now).headline,
            Ownership.of(alert, now=now),
            alert.silence if alert.is_silenced(now) else None,
        )
        for alert in alerts
        if alert.is_open
    ]
    open_.sort(
        key=lambda each: (
            each.owned is not None,
            each.owned.since if each.owned else each.alert.fired_at,
        )
    )
    over = [(alert.resolved_at, alert.pk, alert) for alert in alerts if alert.resolved_at]
    resolved = [alert for *_, alert in sorted(over, reverse=True)[:LIMIT]]
    silences = Silence.objects.filter(ends_at__gt=since, starts_at__lte=now)
    comments = AlertEvent.objects.filter(at__gt=since, at__lte=now, kind__in=BY_PEOPLE)
    week = Alert.objects.filter(last_seen_at__gt=now - WEEK)
    often = week.values("rule", "subject", "cause", "node__name").annotate(
        n=Sum("n_firings"), at=Max("last_seen_at"), latest=Max("pk")
    )
    again = often.filter(n__gte=2, at__gte=since)
    return Shift(
        since,
        now,
        open=open_,
        resolved=[
            ResolvedAlert(each, AlertText(each, now).headline, each.lasted(now))
            for each in resolved
        ],
        silences=[
            AgedSilence.of(silence, now=now) for silence in silences.order_by("starts_at", "pk")
        ],
        recurring=[
            RecurringAlert(
                rule=row["rule"],
                subject=row["subject"],
                cause=row["cause"],
                node=row["node__name"],
                n_firings=row["n"],
                latest=row["latest"],
            )
            for row in again.order_by("-n", "rule", "subject")[:LIMIT]
        ],
        comments=list(comments.exclude(by="").exclude(text="").select_related("alert")[:LIMIT]),
        quality=quality(now=now, within=RECENT),
    )


def shift_start(hours: str, *, now: datetime) -> datetime:
    """Return when the shift began: ``hours`` ago, or at the last note of the past day."""
    if asked := whole_number(hours, most=int(LONGEST_SHIFT.total_seconds()) // 3600):
        return now - timedelta(hours=asked)
    last = HandoverNote.objects.filter(at__gt=now - timedelta(days=1), at__lte=now).first()
    return now - DEFAULT_SHIFT if last is None else last.at


def as_markdown(shift: Shift, notes: Iterable[HandoverNote], *, root: str) -> str:
    """Write a shift and its notes as Markdown; ``root`` goes before the addresses of pages."""
    return render_to_string(
        "alerts/handover.md", {"shift": shift, "notes": list(notes), "root": root}
    )
