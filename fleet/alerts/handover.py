"""A shift, handed over: what happened, what is open, what must not be forgotten."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import unescape
from typing import Self

from django.db import transaction
from django.db.models import Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from fleet.access.roles import answering
from fleet.alerts.actions import AlertError, assign
from fleet.alerts.evidence import cause_name
from fleet.alerts.text import AlertText
from fleet.formatting import duration
from fleet.models import Alert, AlertEvent, HandoverNote, Silence
from telemetry.detect import RULES
from telemetry.detect.findings import UNKNOWN

LONGEST_NOTE = 5000


@transaction.atomic
def hand_over(
    text: str, *, by: str, to: str, since: datetime, now: datetime, gives: bool = False
) -> HandoverNote:
    """Keep a note of a shift; with ``gives``, all that its writer has goes to ``to``.

    Raises
    ------
    AlertError
        Where there is no text, it is too long, or nobody who may act is called ``to``.
    """
    text = text.strip()
    if not text:
        raise AlertError("note: is empty; write what the next shift should know")
    if len(text) > LONGEST_NOTE:
        raise AlertError(f"note: is longer than {LONGEST_NOTE:,} characters; shorten it")
    if to and not answering().filter(username=to).exists():
        raise AlertError(f"to: nobody who may act is called {to[:40]!r}; choose from the list")
    if gives and not to:
        raise AlertError("to: name whom your alerts go to")
    if gives:
        for alert in Alert.objects.open():
            if alert.owner == by != to:
                assign(alert, to=to, by=by, comment="handed over", now=now)
    return HandoverNote.objects.create(at=now, since=min(since, now), by=by, to=to, text=text)


NO_NEWS = timedelta(hours=4)
OLD, ENDS_SOON = timedelta(days=1), timedelta(minutes=30)


def with_news(alerts: QuerySet[Alert]) -> QuerySet[Alert]:
    """Ask of each alert when its timeline last gained a line: ``news_at``."""
    latest = AlertEvent.objects.filter(alert=OuterRef("pk")).order_by("-at").values("at")[:1]
    return alerts.annotate(news_at=Subquery(latest))


@dataclass(frozen=True, slots=True)
class AcknowledgedAlert:
    """Who has an alert since when, and when there was last news of it."""

    by: str
    since: datetime
    news_at: datetime
    is_forgotten: bool

    @classmethod
    def of(cls, alert: Alert, *, now: datetime) -> Self | None:
        """Say it of an alert asked for with its news; None where nobody has it."""
        if not alert.owner:
            return None
        since = alert.assigned_at if alert.assigned_to else alert.acknowledged_at
        since = since or alert.fired_at
        news_at = getattr(alert, "news_at", None) or since
        return cls(alert.owner, since, news_at, is_forgotten=now - news_at > NO_NEWS)


@dataclass(frozen=True, slots=True)
class AgedSilence:
    """A silence, and what is to be said of its age."""

    silence: Silence
    is_active: bool
    is_old: bool
    ends_soon: bool


def aged(silence: Silence, *, now: datetime) -> AgedSilence:
    """Say whether a silence is over, old, or soon over."""
    is_active = silence.is_active(now)
    return AgedSilence(
        silence,
        is_active=is_active,
        is_old=is_active and now - silence.starts_at > OLD,
        ends_soon=is_active and silence.ends_at - now <= ENDS_SOON,
    )


WEEK = timedelta(days=7)
USUAL, LONGEST = timedelta(hours=8), timedelta(days=7)
Kind = AlertEvent.Kind
SAID = (Kind.COMMENTED, Kind.ACKNOWLEDGED, Kind.UNACKNOWLEDGED, Kind.ASSIGNED, Kind.RESOLVED)
MOST = 200


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An open alert, in words, and who has it since when."""

    alert: Alert
    headline: SafeString
    taken: AcknowledgedAlert | None
    silence: Silence | None


@dataclass(frozen=True, slots=True)
class ResolvedAlert:
    """An alert that ended within the shift, in words."""

    alert: Alert
    headline: SafeString
    lasted: timedelta


@dataclass(frozen=True, slots=True)
class RecurringAlert:
    """A problem that came back within the shift: how often it fired in the last seven days."""

    rule: str
    subject: str
    cause: str
    node: str | None
    n_firings: int
    latest: int

    @property
    def words(self) -> str:
        """Say what it is and where."""
        what = RULES[self.rule].title if self.rule in RULES else self.rule.replace("_", " ")
        where = self.node or self.subject.partition(":")[2]
        cause = "" if self.cause == UNKNOWN else f", {cause_name(self.cause)}"
        return f"{what}{cause}{f': {where}' if where else ''}"


@dataclass(frozen=True, slots=True)
class Shift:
    """Everything that whoever comes next should know."""

    since: datetime
    until: datetime
    held: list[OpenAlert]
    over: list[ResolvedAlert]
    silences: list[AgedSilence]
    recurring: list[RecurringAlert]
    remarks: list[AlertEvent]

    @property
    def n_unowned(self) -> int:
        """How many open alerts nobody has."""
        return sum(each.taken is None for each in self.held)

    @property
    def n_forgotten(self) -> int:
        """How many alerts somebody has, without news for long."""
        return sum(each.taken is not None and each.taken.is_forgotten for each in self.held)


def looked_back(since: datetime, *, now: datetime) -> Shift:
    """Gather what happened between two moments, and what is the matter at the second."""
    both = with_news(Alert.objects.filter(Q(resolved_at=None) | Q(resolved_at__gte=since)))
    alerts = list(both.select_related("run", "node", "silence").order_by("fired_at", "pk"))
    held = [_held(alert, now=now) for alert in alerts if alert.is_open]
    over = [alert for alert in alerts if not alert.is_open][-MOST:]
    silences = Silence.objects.filter(ends_at__gt=since, starts_at__lte=now)
    remarks = AlertEvent.objects.filter(at__gt=since, at__lte=now, kind__in=SAID).exclude(by="")
    return Shift(
        since,
        now,
        held=sorted(held, key=_longest_first),
        over=[
            ResolvedAlert(each, AlertText(each, now).headline, each.lasted(now)) for each in over
        ],
        silences=[aged(each, now=now) for each in silences.order_by("starts_at", "pk")],
        recurring=list(_recurring(since, now=now)),
        remarks=list(remarks.exclude(text="").select_related("alert")[:MOST]),
    )


def _longest_first(held: OpenAlert) -> tuple[bool, datetime]:
    """Sort what nobody has first, then what somebody has had the longest."""
    return held.taken is not None, held.taken.since if held.taken else held.alert.fired_at


def _held(alert: Alert, *, now: datetime) -> OpenAlert:
    silence = alert.silence if alert.is_silenced(now) else None
    return OpenAlert(
        alert, AlertText(alert, now).headline, AcknowledgedAlert.of(alert, now=now), silence
    )


def _recurring(since: datetime, *, now: datetime) -> Iterable[RecurringAlert]:
    names = ("rule", "subject", "cause", "node__name")
    week = Alert.objects.filter(last_seen_at__gt=now - WEEK).values(*names)
    often = week.annotate(n=Sum("n_firings"), at=Max("last_seen_at"), latest=Max("pk"))
    back = often.filter(n__gte=2, at__gte=since)
    for row in back.order_by("-n", "rule", "subject")[:MOST]:
        yield RecurringAlert(
            rule=row["rule"],
            subject=row["subject"],
            cause=row["cause"],
            node=row["node__name"],
            n_firings=row["n"],
            latest=row["latest"],
        )


def began(asked: str, *, now: datetime) -> datetime:
    """Return when the shift began: so many hours ago, or else at the last note of the day."""
    if asked.isdecimal() and 0 < int(asked) <= LONGEST.total_seconds() // 3600:
        return now - timedelta(hours=int(asked))
    last = HandoverNote.objects.filter(at__gt=now - timedelta(days=1), at__lte=now).first()
    return now - USUAL if last is None else last.at


SPECIAL = re.compile(r"([\\`*_\[\]<>#|])")


def as_markdown(shift: Shift, notes: Iterable[HandoverNote], *, address: str) -> str:
    """Write a shift and its notes as Markdown; links begin with ``address``."""
    sections: tuple[tuple[str, list[str]], ...] = (
        ("Open", [_markdown_held(each, shift.until, address) for each in shift.held]),
        ("Silenced", [_silence(each, address) for each in shift.silences]),
        ("Over", [_over(each, address) for each in shift.over]),
        ("Recurs", [_markdown_recurring(each, address) for each in shift.recurring]),
        ("Said", list(_remarks(shift))),
    )
    lines = [f"# Hand-over: {_at(shift.since)} to {_at(shift.until)}"]
    for title, entries in sections:
        lines += ["", f"## {title}: {len(entries)}", ""]
        lines += [f"- {entry}" for entry in entries] or ["Nothing."]
    for note in notes:
        lines += ["", f"## {plain(str(note))}", "", note.text]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Write a text so that Markdown leaves it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _said(headline: SafeString) -> str:
    return plain(unescape(strip_tags(headline)))


def _markdown_held(held: OpenAlert, now: datetime, address: str) -> str:
    alert, taken = held.alert, held.taken
    told = [f"{_link(alert.pk, address)} {_said(held.headline)}, since {_at(alert.fired_at)}"]
    if taken is None:
        told.append("**nobody has it**")
    else:
        told.append(f"{plain(taken.by)} has it since {_at(taken.since)}")
        if taken.is_forgotten:
            told.append(f"**no news for {duration(now - taken.news_at)}**")
    if held.silence is not None:
        told.append(f"silenced until {_at(held.silence.ends_at)}: {plain(held.silence.reason)}")
    if alert.flapping_since is not None:
        told.append(f"comes and goes, fired {alert.n_firings} times")
    return "; ".join(told)


def _silence(each: AgedSilence, address: str) -> str:
    silence = each.silence
    link = f"[silence {silence.pk}]({address}{silence.get_absolute_url()})"
    verb = "until" if each.is_active else "over since"
    code = silence.matchers.replace("`", "'") or "everything"
    age = "; **older than a day**" if each.is_old else ""
    who = f"{plain(silence.by)}: {plain(silence.reason)}"
    return f"{link} `{code}` {verb} {_at(silence.ends_at)}, by {who}{age}"


def _over(over: ResolvedAlert, address: str) -> str:
    alert = over.alert
    by = plain(alert.owner) or "nobody"
    ended = f"over {_at(alert.resolved_at)}" if alert.resolved_at else "over"
    return (
        f"{_link(alert.pk, address)} {_said(over.headline)}, {ended} "
        f"after {duration(over.lasted)}; taken by {by}"
    )


def _markdown_recurring(each: RecurringAlert, address: str) -> str:
    last = _link(each.latest, address)
    return f"{plain(each.words)}: {each.n_firings} times in 7 days, last {last}"


def _remarks(shift: Shift) -> Iterator[str]:
    for event in shift.remarks:
        done = event.get_kind_display().lower()
        yield f"{_at(event.at)} {plain(event.by)} {done}: {plain(event.text)}"


def _link(pk: int, address: str) -> str:
    return f"[alert {pk}]({address}/alerts/{pk}/)"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
