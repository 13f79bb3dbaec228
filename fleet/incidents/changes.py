"""What changed shortly before an alert: what people said, what others saw, what the steps show."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import IntegerField, QuerySet, Value

from fleet.incidents.likes import Neighbour
from fleet.incidents.traces import Trace, traces_of
from fleet.models import Alert, Annotation, InjectedFault
from fleet.words.causes import cause_name, part_name
from fleet.words.clauses import clause
from telemetry.simulate.kinds import FAULTS
from telemetry.store.source import Source

# What people and machines say may matter for longer than what the run does all the time.
SAID_BEFORE = timedelta(hours=24)
SEEN_BEFORE = timedelta(hours=1)
AFTER = timedelta(minutes=10)
MOST = 12


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened around the onset, in words; ``before_s`` is negative after it."""

    at: datetime
    kind: str
    text: str
    by: str = ""
    url: str = ""
    before_s: float = 0.0

    @property
    def after_s(self) -> float:
        """How long after the onset; negative before it."""
        return -self.before_s


def changes_of(
    source: Source, alert: Alert, neighbours: Iterable[Neighbour], *, now: datetime
) -> Sequence[Change]:
    """Return what happened shortly before an alert began and just after, the latest first.

    ``neighbours`` are other alerts of its run or node. Of more than a dozen changes, those
    nearest to the onset.
    """
    until = until_of(alert, now=now)
    found = [
        *_said_or_drilled(alert, until),
        *_alerts(alert, neighbours, until),
        *_traces(source, alert, until),
    ]
    found = [replace(each, before_s=(alert.onset_at - each.at).total_seconds()) for each in found]
    nearest = sorted(found, key=lambda change: abs(change.before_s))[:MOST]
    return sorted(nearest, key=lambda change: change.at, reverse=True)


def until_of(alert: Alert, *, now: datetime) -> datetime:
    """Return up to when what happens may have to do with how an alert began."""
    return min(alert.resolved_at or now, alert.onset_at + AFTER)


def _said_or_drilled(alert: Alert, until: datetime) -> Iterable[Change]:
    """Tell of annotations and of faults that people put in, in one query.

    Faults of the demo's own weather are not known here.
    """
    around = Annotation.objects.within(alert.onset_at - SAID_BEFORE, until)
    about = around.about(run=alert.run_id, node=alert.node_id)
    found = about.annotate(device=Value(None, IntegerField()), is_drill=Value(value=False))
    rows = found.order_by().values_list(
        "at", "kind", "text", "by", "node__name", "device", "is_drill"
    )
    if alert.is_drill:
        rows = rows.union(_drills(alert, until), all=True)
    for at, kind, text, by, node, device, is_drill in rows:
        if is_drill:
            yield Change(at, "drill", _fault(kind, node, device), by)
        else:
            is_elsewhere = node is not None and node != (alert.node.name if alert.node else None)
            yield Change(at, kind, f"{node}: {text}" if is_elsewhere else text, by)


def _drills(alert: Alert, until: datetime) -> QuerySet[InjectedFault, tuple[Any, ...]]:
    drills = InjectedFault.objects.filter(
        run=alert.run_id, starts_at__lte=until, ends_at__gte=alert.onset_at - SEEN_BEFORE
    )
    told = drills.exclude(injected_by="").annotate(text=Value(""), is_drill=Value(value=True))
    return told.order_by().values_list(
        "starts_at", "kind", "text", "injected_by", "node__name", "device", "is_drill"
    )


def _fault(kind: str, node: str | None, device: int | None) -> str:
    title = FAULTS[kind].title if kind in FAULTS else cause_name(kind)
    where = f" on {node}" if node else ""
    part = part_name(kind)
    return f"{title}{where}" + (f", {part} {device}" if part and device is not None else "")


def _alerts(alert: Alert, neighbours: Iterable[Neighbour], until: datetime) -> Iterable[Change]:
    for other in (each.alert for each in neighbours):
        is_near = (other.run_id, other.node_id) != (None, None)
        if is_near and alert.onset_at - SEEN_BEFORE <= other.fired_at <= until:
            url = other.get_absolute_url()
            yield Change(other.fired_at, "alert", str(clause(other)), url=url)


def _traces(source: Source, alert: Alert, until: datetime) -> Iterable[Change]:
    if alert.run is None:
        return
    since = alert.onset_at - SEEN_BEFORE
    traces: Sequence[Trace] = traces_of(
        source, alert.run.name, start_s=since.timestamp(), end_s=until.timestamp()
    )
    for trace in traces:
        yield Change(trace.at, trace.kind, trace.text)
