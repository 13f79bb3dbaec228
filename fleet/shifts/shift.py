"""A shift, looked back on: what is open and whose, what is over, silenced, recurring."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max, Q, Sum
from django.utils.safestring import SafeString

from fleet.models import Alert, AlertEvent, HandOver, Silence
from fleet.shifts.ages import Aged, Taken, aged, with_news
from fleet.words.causes import cause_name
from fleet.words.sentences import told
from telemetry.detect import RULES
from telemetry.detect.finding import UNKNOWN

WEEK = timedelta(days=7)
USUAL, LONGEST = timedelta(hours=8), timedelta(days=7)
Kind = AlertEvent.Kind
SAID = (Kind.COMMENTED, Kind.ACKNOWLEDGED, Kind.UNACKNOWLEDGED, Kind.ASSIGNED, Kind.RESOLVED)
MOST = 200


@dataclass(frozen=True, slots=True)
class Held:
    """An open alert, in words, and who has it since when."""

    alert: Alert
    headline: SafeString
    taken: Taken | None
    silence: Silence | None


@dataclass(frozen=True, slots=True)
class Over:
    """An alert that ended within the shift, in words."""

    alert: Alert
    headline: SafeString
    lasted: timedelta


@dataclass(frozen=True, slots=True)
class Recurring:
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
    held: list[Held]
    over: list[Over]
    silences: list[Aged]
    recurring: list[Recurring]
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
        over=[Over(each, told(each, now=now).headline, each.lasted(now)) for each in over],
        silences=[aged(each, now=now) for each in silences.order_by("starts_at", "pk")],
        recurring=list(_recurring(since, now=now)),
        remarks=list(remarks.exclude(text="").select_related("alert")[:MOST]),
    )


def _longest_first(held: Held) -> tuple[bool, datetime]:
    """Sort what nobody has first, then what somebody has had the longest."""
    return held.taken is not None, held.taken.since if held.taken else held.alert.fired_at


def _held(alert: Alert, *, now: datetime) -> Held:
    silence = alert.silence if alert.is_silenced(now) else None
    return Held(alert, told(alert, now=now).headline, Taken.of(alert, now=now), silence)


def _recurring(since: datetime, *, now: datetime) -> Iterable[Recurring]:
    names = ("rule", "subject", "cause", "node__name")
    week = Alert.objects.filter(last_seen_at__gt=now - WEEK).values(*names)
    often = week.annotate(n=Sum("n_firings"), at=Max("last_seen_at"), latest=Max("pk"))
    back = often.filter(n__gte=2, at__gte=since)
    for row in back.order_by("-n", "rule", "subject")[:MOST]:
        yield Recurring(
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
    last = HandOver.objects.filter(at__gt=now - timedelta(days=1), at__lte=now).first()
    return now - USUAL if last is None else last.at
