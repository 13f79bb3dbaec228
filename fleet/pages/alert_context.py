"""The context of an alert: causes considered, similar alerts, and changes before its onset."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from django.db.models import IntegerField, OuterRef, Q, Subquery, Value
from numpy.typing import NDArray

from fleet.alerts.causes import PART_NAMES, cause_name, part_name
from fleet.alerts.evidence import Evidence, finite
from fleet.alerts.impact import NOTICEABLE_RATIO, Impact
from fleet.alerts.text import headline
from fleet.charts.frozen import as_of
from fleet.charts.markers import checkpoints
from fleet.formatting import duration, si
from fleet.models import Alert, AlertEvent, Annotation, InjectedFault
from fleet.trials.observed import restarts_of
from telemetry.detect.causes import SIGNATURES, UNKNOWN
from telemetry.detect.quantities import SYMPTOMS
from telemetry.simulate.faults import FAULTS
from telemetry.store.history import run_steps, worker_minutes
from telemetry.store.reading import Source

LOOKED_BACK = timedelta(days=90)
WEEK = timedelta(days=7)
LOOKED_AT = 300
SHOWN = 5
COMMENT_KINDS = (AlertEvent.Kind.ACKNOWLEDGED, AlertEvent.Kind.COMMENTED, AlertEvent.Kind.RESOLVED)
Problem = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class RelatedAlert:
    """Another alert of the same run or node, and the last comment on it."""

    alert: Alert
    comment: str
    comment_by: str


@dataclass(frozen=True)
class SimilarAlert(RelatedAlert):
    """An earlier one, and what of it is the same."""

    same: str

    @property
    def headline(self) -> str:
        return headline(self.alert)

    @property
    def lasted(self) -> timedelta:
        """How long it lasted; of an open one, until it was last seen."""
        return self.alert.lasted(self.alert.last_seen_at)


@dataclass(frozen=True, slots=True)
class SimilarAlerts:
    """Earlier alerts similar to one, and how often the same problem fired within the week."""

    alerts: Sequence[SimilarAlert]
    nth_this_week: int
    where: str

    @property
    def recurring(self) -> str:
        return recurring(self.nth_this_week, self.where)


def problem_of(alert: Alert) -> Problem:
    """Return what makes two alerts the same problem: the cause at its culprit, or the subject."""
    if alert.node_id is not None and alert.cause != UNKNOWN:
        return (alert.cause, alert.node_id, alert.device)
    return (alert.rule, alert.cause, alert.subject)


def neighbours_of(
    alert: Alert, *, until: datetime, at: datetime | None = None
) -> Sequence[RelatedAlert]:
    """Return the other alerts of the same subject, node or run, the latest first, in one query.

    With ``at``, return their state and comments at that time, in one more query.
    """
    near = Q(rule=alert.rule, subject=alert.subject)
    near |= Q(node=alert.node_id) if alert.node_id is not None else Q()
    near |= Q(run=alert.run_id) if alert.run_id is not None else Q()
    since = alert.fired_at - LOOKED_BACK
    others = Alert.objects.filter(near, fired_at__gte=since, fired_at__lte=until)
    remarks = AlertEvent.objects.filter(alert=OuterRef("pk"), kind__in=COMMENT_KINDS)
    remarks = remarks if at is None else remarks.filter(at__lte=at)
    last = remarks.exclude(by="").exclude(text="").order_by("-at", "-pk")
    commented = others.annotate(
        remark=Subquery(last.values("text")[:1]), remark_by=Subquery(last.values("by")[:1])
    )
    recent = commented.exclude(pk=alert.pk).select_related("run", "node").order_by("-fired_at")
    recent = recent if at is None else recent.prefetch_related("events")
    return [
        RelatedAlert(
            each if at is None else as_of(each, each.events.all(), at=at),
            vars(each)["remark"] or "",
            vars(each)["remark_by"] or "",
        )
        for each in recent[:LOOKED_AT]
    ]


def similar_alerts(alert: Alert, neighbours: Sequence[RelatedAlert]) -> SimilarAlerts:
    """Return similar earlier alerts, the most similar first, then the newest.

    More than the run must be the same.
    """
    mine, where, n_week = problem_of(alert), where_of(alert), 0
    alike: list[tuple[int, float, SimilarAlert]] = []
    for each in neighbours:
        other = each.alert
        if other.fired_at >= alert.fired_at:
            continue
        is_problem = problem_of(other) == mine
        n_week += is_problem and other.fired_at >= alert.fired_at - WEEK
        is_cause = other.cause == alert.cause
        is_node = alert.node_id is not None and other.node_id == alert.node_id
        is_rule = (other.rule, other.subject) == (alert.rule, alert.subject)
        if not ((is_cause and alert.cause != UNKNOWN) or is_node or is_rule):
            continue
        if is_problem:
            same = f"same {where}, same cause"
        elif is_node:
            same = "same node, same cause" if is_cause else "same node"
        else:
            same = "same cause" if is_cause else "same rule"
        closeness = is_problem * 4 + is_node * 2 + is_cause
        age_s = (alert.fired_at - other.fired_at).total_seconds()
        similar = SimilarAlert(other, each.comment, each.comment_by, same)
        alike.append((-closeness, age_s, similar))
    alike.sort(key=lambda each: each[:2])
    return SimilarAlerts([each for *_, each in alike[:SHOWN]], n_week + 1, where)


def where_of(alert: Alert) -> str:
    """Return the kind of place: core, EFA device, node, run."""
    if alert.node_id is None:
        return "run" if alert.run_id is not None else "fleet"
    return PART_NAMES[alert.part] if alert.part else "node"


def nth_this_week(alerts: Sequence[Alert]) -> Mapping[int, int]:
    """Return for each alert how often its problem fired within a week, in one query."""
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
    """Return "3rd time this week on this core"; empty the first time."""
    if nth < 2:
        return ""
    ending = {2: "nd", 3: "rd"}.get(nth % 10, "th") if nth % 100 not in (12, 13) else "th"
    ending = "st" if nth % 10 == 1 and nth % 100 != 11 else ending
    return f"{nth}{ending} time this week on this {where}"


LEAST_CHECKPOINT_S = 1.0
# A pause is this many step times, and seconds, without a step.
PAUSE_STEPS, PAUSE_S = 3.0, 15.0
SAME_TOKENS_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class RecentChange:
    """A change around the onset; ``before_s`` is negative after it.

    ``is_within``: it lies in the step that was hit first. The onset is the start of that step, so
    it may be the cause.
    """

    at: datetime
    kind: str
    text: str
    by: str = ""
    url: str = ""
    before_s: float = 0.0
    is_within: bool = False

    @property
    def after_s(self) -> float:
        return -self.before_s


def traces_of(source: Source, run: str, *, start_s: float, end_s: float) -> Sequence[RecentChange]:
    """Return checkpoints, pauses, and changes of batch and size that the steps of a run show.

    Uses minutes of steps: they are stored for long, with all workers.
    """
    minutes = worker_minutes(source, run, start_s=start_s, end_s=end_s)
    if len(minutes) < 2:
        return []
    ended_at_s, step_s, tokens = minutes.ended_at_s, minutes.step_s, minutes.tokens
    traces: list[tuple[float, str, str]] = []
    # Checkpoints; adjacent minutes are one.
    known = np.isfinite(minutes.phases["checkpoint_s"])
    total_s = np.where(known, minutes.phases["checkpoint_s"], 0.0).sum(axis=1)
    n_steps = np.diff(minutes.step, prepend=minutes.step[0] - 1)
    saved_s = total_s / np.maximum(known.sum(axis=1), 1) * n_steps
    for first, last in _stretches(saved_s >= LEAST_CHECKPOINT_S):
        took = duration(float(saved_s[first : last + 1].sum()))
        traces.append((ended_at_s[first] - saved_s[first], "checkpoint", f"took {took}"))
    # Pauses: more time between two ends than the steps in between took.
    idle_s = np.diff(ended_at_s) - np.diff(minutes.step) * step_s[1:]
    least_s = max(PAUSE_S, PAUSE_STEPS * float(np.nanmedian(step_s)))
    traces += [
        (ended_at_s[i], "pause", f"no steps for {duration(float(idle_s[i]))}")
        for i in np.flatnonzero(idle_s > least_s)
    ]
    # Changes of tokens per step; a minute with both values belongs to the change.
    moved = np.abs(np.diff(tokens)) > SAME_TOKENS_RATIO * np.maximum(tokens[:-1], 1)
    for first, last in _stretches(moved):
        before, after = (si(float(tokens[i])) for i in (first, last + 1))
        traces.append((ended_at_s[first], "batch", f"{before} tokens per step became {after}"))
    # Changes in the number of reporting workers that lasted a minute.
    n_workers = np.isfinite(minutes.worker_step_s).sum(axis=1)
    stays = np.append(n_workers[1:-1] == n_workers[2:], [False])
    for i in np.flatnonzero((np.diff(n_workers) != 0) & stays):
        text = f"{n_workers[i]} workers became {n_workers[i + 1]}"
        traces.append((ended_at_s[i], "scale", text))
    return [
        RecentChange(datetime.fromtimestamp(float(at_s), UTC), kind, text)
        for at_s, kind, text in traces
    ]


def _stretches(is_so: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and last index of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_so, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


# Annotations may matter for longer than frequent events of the run.
ANNOTATED_BEFORE = timedelta(hours=24)
SEEN_BEFORE = timedelta(hours=1)
AFTER = timedelta(minutes=10)
MOST = 12
# Times are stored in microseconds; the onset of steps is the end of one less its duration.
TINY_S, SAME_START_S = 1e-3, 0.5


def changes_of(
    source: Source, alert: Alert, neighbours: Iterable[RelatedAlert], *, now: datetime
) -> Sequence[RecentChange]:
    """Return the changes around an alert's onset, the latest first.

    ``neighbours`` are other alerts of its run or node. Of more than a dozen changes, those
    nearest to the onset.
    """
    until, since = until_of(alert, now=now), alert.onset_at - SEEN_BEFORE
    changes = list(_annotations_and_drills(alert, until))
    for other in (neighbour.alert for neighbour in neighbours):
        is_near = (other.run_id, other.node_id) != (None, None)
        if is_near and since <= other.fired_at <= until:
            url, text = other.get_absolute_url(), str(headline(other))
            changes.append(RecentChange(other.fired_at, "alert", text, url=url))
    if alert.run is not None:
        start_s, end_s = since.timestamp(), until.timestamp()
        changes += traces_of(source, alert.run.name, start_s=start_s, end_s=end_s)
    is_any_after = any(each.at > alert.onset_at for each in changes)
    hit_s = _first_hit_s(source, alert) if is_any_after else 0.0
    changes = [_placed(each, alert.onset_at, hit_s=hit_s) for each in changes]
    nearest = sorted(changes, key=lambda change: abs(change.before_s))[:MOST]
    return sorted(nearest, key=lambda change: change.at, reverse=True)


def _first_hit_s(source: Source, alert: Alert) -> float:
    """Return how many seconds after the onset the step ended that was hit first; 0 if unknown."""
    if alert.run is None:
        return 0.0
    onset_s = alert.onset_at.timestamp()
    steps = run_steps(
        source, alert.run.name, start_s=onset_s, end_s=onset_s + AFTER.total_seconds()
    )
    after = np.flatnonzero(steps.ended_at_s - onset_s > TINY_S)
    if not len(after):
        return 0.0
    first = int(after[0])
    began_s = float(steps.ended_at_s[first] - steps.step_s[first])
    # An onset within a step, as of hardware, is more exact than the step.
    is_start = abs(began_s - onset_s) <= SAME_START_S
    return float(steps.ended_at_s[first]) - onset_s if is_start else 0.0


def _placed(change: RecentChange, onset_at: datetime, *, hit_s: float) -> RecentChange:
    before_s = (onset_at - change.at).total_seconds()
    # The onset of hardware is a whole second.
    before_s = 0.0 if -1.0 <= before_s < 0 and not hit_s else before_s
    is_within = -hit_s <= before_s < 0
    return replace(change, before_s=0.0 if is_within else before_s, is_within=is_within)


# The run has written a checkpoint within this time, or nothing is known of it.
CHECKPOINT_WITHIN_S = 7_200.0


@dataclass(frozen=True, slots=True)
class Restart:
    """What a restart without the culprit costs, in seconds, and the share of time it saves."""

    repeated_s: float
    start_s: float
    lost_ratio: float

    @property
    def pays_after_s(self) -> float:
        return (self.repeated_s + self.start_s) / self.lost_ratio


def restart_of(source: Source, alert: Alert, impact: Impact, *, now: datetime) -> Restart | None:
    """Weigh a restart of an alert's run against going on; None where a figure is unknown.

    Lost are the steps since the last checkpoint, at their usual pace, and the time that the last
    start took. Saved is what the alert costs.
    """
    run, usual_s = alert.run, finite(alert.cost.get("usual_s")) or 0.0
    lost_ratio = impact.lost_ratio or 0.0
    is_costly = usual_s > 0 and lost_ratio >= NOTICEABLE_RATIO
    if run is None or not alert.is_open or not alert.nodes or not is_costly:
        return None
    starts, end_s = restarts_of(run, run.started_at, now), now.timestamp()
    if not starts:
        return None
    steps = run_steps(source, run.name, start_s=end_s - CHECKPOINT_WITHIN_S, end_s=end_s)
    saved = checkpoints(steps)
    if not saved:
        return None
    begun, ready = starts[-1]
    n_since = int(steps.step[-1] - steps.step[np.searchsorted(steps.ended_at_s, saved[-1].at_s)])
    return Restart(n_since * usual_s, (ready - begun).total_seconds(), lost_ratio)


def until_of(alert: Alert, *, now: datetime) -> datetime:
    return min(alert.resolved_at or now, alert.onset_at + AFTER)


def _annotations_and_drills(alert: Alert, until: datetime) -> Iterable[RecentChange]:
    """Yield annotations and faults that users injected, in one query; not the demo's faults."""
    around = Annotation.objects.within(alert.onset_at - ANNOTATED_BEFORE, until)
    about = around.about(run=alert.run_id, node=alert.node_id)
    annotated = about.annotate(device=Value(None, IntegerField()), is_drill=Value(value=False))
    rows = annotated.order_by().values_list(
        "at", "kind", "text", "by", "node__name", "device", "is_drill"
    )
    if alert.is_drill:
        drills = InjectedFault.objects.filter(
            run=alert.run_id, starts_at__lte=until, ends_at__gte=alert.onset_at - SEEN_BEFORE
        )
        by_users = drills.exclude(injected_by="").annotate(
            text=Value(""), is_drill=Value(value=True)
        )
        rows = rows.union(
            by_users.order_by().values_list(
                "starts_at", "kind", "text", "injected_by", "node__name", "device", "is_drill"
            ),
            all=True,
        )
    for at, kind, text, by, node, device, is_drill in rows:
        if is_drill:
            title = FAULTS[kind].title if kind in FAULTS else cause_name(kind)
            where = f" on {node}" if node else ""
            part = part_name(kind)
            which = f", {part} {device}" if part and device is not None else ""
            yield RecentChange(at, "drill", f"{title}{where}{which}", by)
        else:
            is_elsewhere = node is not None and node != (alert.node.name if alert.node else None)
            yield RecentChange(at, kind, f"{node}: {text}" if is_elsewhere else text, by)


# Causes that are less probable are folded.
UNLIKELY = 0.05
# Causes shown at once: the likely and possible ones, and the rejected ones that are nearest.
SHOWN_CAUSES = 4
VERDICTS: Mapping[str, str] = {
    "named": "likely",
    "possible": "possible",
    "no symptoms": "not measured",
}
# Names of symptoms, each with the direction that was seen, or expected where it is missing.
Directions = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ConsideredCause:
    """A row of the table of causes.

    ``share`` is how probable it is; None where causes were not weighed.
    """

    name: str
    verdict: str
    share: float | None
    seen: Directions
    missing: Directions
    contradicting: Directions
    unmeasured: Directions

    @property
    def is_possible(self) -> bool:
        if self.share is not None:
            return self.share >= UNLIKELY
        return self.verdict in {"likely", "possible"}


# Symptoms that a cause lowers.
LOWERED = {(row.name, n) for row in SIGNATURES for n, sign in row.symptoms.items() if sign < 0}
# The place of each symptom in the table of causes.
ORDER = {name: i for i, name in enumerate(SYMPTOMS.values())}


@dataclass(frozen=True, slots=True)
class ConsideredCauses:
    """The table of causes of an alert, the likely one first, and its symptoms by direction."""

    rows: Sequence[ConsideredCause]
    symptoms: Mapping[str, Sequence[str]]

    @property
    def n_possible(self) -> int:
        return sum(row.is_possible for row in self.rows)

    @property
    def is_weighed(self) -> bool:
        return any(row.share is not None for row in self.rows)

    @property
    def n_shown(self) -> int:
        if self.is_weighed:
            return self.n_possible
        least = max(SHOWN_CAUSES, self.n_possible)
        return len(self.rows) if len(self.rows) == least + 1 else least

    @property
    def first(self) -> Sequence[ConsideredCause]:
        return self.rows[: self.n_shown]

    @property
    def more(self) -> Sequence[ConsideredCause]:
        return self.rows[self.n_shown :]


def causes_of(alert: Alert) -> ConsideredCauses:
    """Return the causes that detection considered; without rows for an alert without a table."""
    evidence = Evidence(alert.evidence)
    given, measured = evidence.figures.get("causes"), evidence.figures.get("symptoms")
    seen = {str(k): str(v) for k, v in measured.items()} if isinstance(measured, Mapping) else {}
    rows = given if isinstance(given, list) else []
    # A database may return the names in any order.
    names = sorted(seen, key=lambda name: ORDER.get(name, len(ORDER)))
    by_direction = {
        direction: [name for name in names if seen[name] == direction]
        for direction in ("raised", "lowered", "unchanged")
    }
    found = [_considered(row, seen, evidence) for row in rows if isinstance(row, Mapping)]
    if evidence.posterior:
        if UNKNOWN in evidence.posterior:
            found.append(_considered({"cause": UNKNOWN}, seen, evidence))
        found.sort(key=lambda row: -(row.share or 0.0))
    return ConsideredCauses(
        found, {direction: names for direction, names in by_direction.items() if names}
    )


def _considered(
    row: Mapping[str, object], seen: Mapping[str, str], evidence: Evidence
) -> ConsideredCause:
    name, names = str(row.get("cause")), Evidence(row).names

    def expected(key: str) -> Directions:
        return [(n, "lowered" if (name, n) in LOWERED else "raised") for n in names(key)]

    return ConsideredCause(
        "none of these" if name == UNKNOWN else cause_name(name),
        VERDICTS.get(str(row.get("verdict")), "rejected"),
        share=evidence.posterior.get(name, 0.0) if evidence.posterior else None,
        seen=expected("seen"),
        missing=expected("missing"),
        contradicting=[(each, seen.get(each, "")) for each in names("contradicting")],
        unmeasured=expected("unmeasured"),
    )
