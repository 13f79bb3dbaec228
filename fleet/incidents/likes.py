"""Earlier alerts like this one: the same culprit, the same cause; how they ended, who knew why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import OuterRef, Q, Subquery

from fleet.incidents.moments import as_of
from fleet.models import Alert, AlertEvent
from fleet.words.causes import part_name
from fleet.words.clauses import clause
from telemetry.detect.finding import UNKNOWN

LOOKED_BACK = timedelta(days=90)
WEEK = timedelta(days=7)
LOOKED_AT = 300
SHOWN = 5
SAID_BY_PEOPLE = (
    AlertEvent.Kind.ACKNOWLEDGED,
    AlertEvent.Kind.COMMENTED,
    AlertEvent.Kind.RESOLVED,
)
Problem = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another alert of the same run or node, and the last thing a person said of it."""

    alert: Alert
    said: str
    said_by: str


@dataclass(frozen=True, slots=True)
class Like:
    """An earlier alert, in what it is the same, and the last thing a person said of it."""

    alert: Alert
    same: str
    said: str
    said_by: str

    @property
    def headline(self) -> str:
        """What was wrong then."""
        return clause(self.alert)

    @property
    def lasted(self) -> timedelta:
        """For how long, as far as is known."""
        return self.alert.lasted(self.alert.last_seen_at)


@dataclass(frozen=True, slots=True)
class Likes:
    """The earlier alerts like one, and how often the very same problem came within the week."""

    likes: Sequence[Like]
    nth_this_week: int
    where: str

    @property
    def recurring(self) -> str:
        """Say it in words, where it is not the first time: 3rd time this week on this core."""
        return recurring(self.nth_this_week, self.where)


def problem_of(alert: Alert) -> Problem:
    """Return what makes two alerts the same problem: the cause at its culprit, or the subject."""
    if alert.node_id is not None and alert.cause != UNKNOWN:
        return (alert.cause, alert.node_id, alert.device)
    return (alert.rule, alert.cause, alert.subject)


def neighbours_of(
    alert: Alert, *, until: datetime, at: datetime | None = None
) -> Sequence[Neighbour]:
    """Return the other alerts of the same subject, node or run, the latest first, in one query.

    ``at`` asks, with one query more, how they were at a moment, and what was said by then.
    """
    near = Q(rule=alert.rule, subject=alert.subject)
    near |= Q(node=alert.node_id) if alert.node_id is not None else Q()
    near |= Q(run=alert.run_id) if alert.run_id is not None else Q()
    since = alert.fired_at - LOOKED_BACK
    others = Alert.objects.filter(near, fired_at__gte=since, fired_at__lte=until)
    remarks = AlertEvent.objects.filter(alert=OuterRef("pk"), kind__in=SAID_BY_PEOPLE)
    remarks = remarks if at is None else remarks.filter(at__lte=at)
    last = remarks.exclude(by="").exclude(text="").order_by("-at", "-pk")
    told = others.annotate(
        remark=Subquery(last.values("text")[:1]), remark_by=Subquery(last.values("by")[:1])
    )
    recent = told.exclude(pk=alert.pk).select_related("run", "node").order_by("-fired_at")
    recent = recent if at is None else recent.prefetch_related("events")
    return [
        Neighbour(
            each if at is None else as_of(each, each.events.all(), at=at),
            vars(each)["remark"] or "",
            vars(each)["remark_by"] or "",
        )
        for each in recent[:LOOKED_AT]
    ]


def likes_of(alert: Alert, neighbours: Sequence[Neighbour]) -> Likes:
    """Return the earlier alerts that have most in common with one, the closest first."""
    mine, week = problem_of(alert), alert.fired_at - WEEK
    earlier = [each for each in neighbours if each.alert.fired_at < alert.fired_at]
    n_week = sum(
        each.alert.fired_at >= week and problem_of(each.alert) == mine for each in earlier
    )
    alike = [each for each in earlier if _is_alike(alert, each.alert)]
    ranked = sorted(alike, key=lambda each: _distance(alert, each.alert))[:SHOWN]
    likes = [
        Like(each.alert, _same(alert, each.alert), each.said, each.said_by) for each in ranked
    ]
    return Likes(likes, n_week + 1, where_of(alert))


def _is_alike(alert: Alert, other: Alert) -> bool:
    """Whether there is more in common than the run."""
    is_cause = other.cause == alert.cause != UNKNOWN
    is_node = alert.node_id is not None and other.node_id == alert.node_id
    return is_cause or is_node or (other.rule, other.subject) == (alert.rule, alert.subject)


def _distance(alert: Alert, other: Alert) -> tuple[int, float]:
    """Sort by what is in common, then by age."""
    is_culprit = alert.node_id is not None and other.node_id == alert.node_id
    is_cause = other.cause == alert.cause
    closeness = (problem_of(other) == problem_of(alert)) * 4 + is_culprit * 2 + is_cause
    return (-closeness, (alert.fired_at - other.fired_at).total_seconds())


def _same(alert: Alert, other: Alert) -> str:
    if problem_of(alert) == problem_of(other):
        return f"same {where_of(alert)}, same cause"
    if alert.node_id is not None and other.node_id == alert.node_id:
        return "same node, same cause" if other.cause == alert.cause else "same node"
    return "same cause" if other.cause == alert.cause else "same rule"


def where_of(alert: Alert) -> str:
    """Name what sort of place a problem has: core, EFA device, node, run."""
    if alert.node_id is None:
        return "run" if alert.run_id is not None else "fleet"
    part = part_name(alert.cause) if alert.device is not None else None
    return {"EFA": "EFA device", None: "node"}.get(part, part or "node")


def nth_this_week(alerts: Sequence[Alert]) -> Mapping[int, int]:
    """Return for each alert the how many'th time it was within a week, in one query."""
    if not alerts:
        return {}
    since = min(alert.fired_at for alert in alerts) - WEEK
    columns = ("rule", "cause", "subject", "node_id", "device", "fired_at")
    fired = list(Alert.objects.filter(fired_at__gte=since).only(*columns))
    by_problem: dict[Problem, list[Alert]] = {}
    for each in fired:
        by_problem.setdefault(problem_of(each), []).append(each)
    counts: Counter[int] = Counter()
    for alert in alerts:
        before = by_problem.get(problem_of(alert), [])
        week = alert.fired_at - WEEK
        counts[alert.pk] = 1 + sum(week <= each.fired_at < alert.fired_at for each in before)
    return counts


def recurring(nth: int, where: str) -> str:
    """Say that a problem is not here for the first time; empty where it is."""
    if nth < 2:
        return ""
    ending = {2: "nd", 3: "rd"}.get(nth % 10, "th") if nth % 100 not in (12, 13) else "th"
    ending = "st" if nth % 10 == 1 and nth % 100 != 11 else ending
    return f"{nth}{ending} time this week on this {where}"
