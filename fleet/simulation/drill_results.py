"""The charts of a drill: truth and detection over the same seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db.models import Q

from fleet.alerts.causes import cause_text, part_name
from fleet.charts.alerts import AlertChart
from fleet.charts.figures import Chart, Event
from fleet.charts.nodes import NodeChart, chart_of_metric, node_figure, note_of
from fleet.charts.runs import run_figure
from fleet.charts.windows import Window
from fleet.models import Alert, AlertEvent, InjectedFault, Node
from fleet.simulation.drills import previewed
from fleet.simulation.ground_truth import FaultTruth
from fleet.simulation.runs import fault_of
from fleet.simulation.scoring import (
    Firing,
    Tally,
    firing_of,
    grace_until_s,
    is_cause_right,
    is_place_right,
    match,
    tally,
)
from telemetry.simulate.plan import RunSpec
from telemetry.store.reading import LongTerm, Source

# An alert that comes a little late may be about either of two faults this close.
NEARBY = timedelta(minutes=10)
BEGINNINGS = (AlertEvent.Kind.FIRED, AlertEvent.Kind.REFIRED)


@dataclass(frozen=True, slots=True)
class DrillResult:
    fault: InjectedFault
    truth: FaultTruth
    firing: Firing | None
    alert: Alert | None
    n_repeats: int
    now_s: float

    @property
    def delay_s(self) -> float | None:
        """Seconds from the fault's start until its alert fired; None if none did."""
        return None if self.firing is None else self.firing.fired_s - self.truth.start_s

    @property
    def is_cause_right(self) -> bool:
        """Whether the alert names the kind of fault."""
        return self.firing is not None and is_cause_right(self.truth, self.firing)

    @property
    def is_place_right(self) -> bool:
        """Whether the alert names the node, and no wrong part of it."""
        return self.firing is not None and is_place_right(self.truth, self.firing)

    @property
    def cause_named(self) -> str:
        """How the cause was named: right or wrong."""
        return "right" if self.is_cause_right else "wrong"

    @property
    def place_named(self) -> str:
        """How the place was named: right or wrong."""
        return "right" if self.is_place_right else "wrong"

    @property
    def outcome(self) -> str:
        """One word: planned, waiting, noticed, missed, or faint if it need not be noticed."""
        if self.firing is not None:
            return "noticed"
        if self.now_s < self.truth.start_s:
            return "planned"
        if self.now_s <= grace_until_s(self.truth):
            return "waiting"
        return "missed" if self.truth.counts else "faint"


def drill_results(faults: Iterable[InjectedFault], *, now: datetime) -> list[DrillResult]:
    """Score faults by the alerts of their runs; select them with run and node."""
    faults, now_s = list(faults), now.timestamp()
    truths = [live_truth(fault) for fault in faults]
    pairs = match_live_alerts(truths, {fault.run_id for fault in faults}, now=now)
    matched = match(truths, [firing for firing, _ in pairs])
    repeats = list(matched.repeats.values())
    drills = []
    for i, fault in enumerate(faults):
        firing, alert = pairs[matched.noticed[i]] if i in matched.noticed else (None, None)
        drills.append(DrillResult(fault, truths[i], firing, alert, repeats.count(i), now_s))
    return drills


def drill_result(fault: InjectedFault, *, now: datetime) -> DrillResult:
    """Score one fault by the alerts of its run, together with simultaneous faults."""
    simultaneous = InjectedFault.objects.filter(
        run=fault.run, starts_at__lt=fault.ends_at + NEARBY, ends_at__gt=fault.starts_at - NEARBY
    )
    drills = drill_results(simultaneous.select_related("run", "node"), now=now)
    return next(drill for drill in drills if drill.fault.pk == fault.pk)


def live_truth(injected: InjectedFault) -> FaultTruth:
    """Return the truth of a fault in the live fleet, in Unix seconds."""
    starts_s, ends_s = injected.starts_at.timestamp(), injected.ends_at.timestamp()
    fault = msgspec.structs.replace(fault_of(injected, epoch_s=int(starts_s)), start_s=0.0)
    truth = previewed(RunSpec(**injected.run.plan), fault)
    later_s = truth.felt_until_s - truth.end_s
    return replace(
        truth, fault=fault, start_s=starts_s, end_s=ends_s, felt_until_s=ends_s + max(0.0, later_s)
    )


def match_live_alerts(
    truths: Sequence[FaultTruth], runs: set[int], *, now: datetime
) -> list[tuple[Firing, Alert]]:
    """Match every firing that may be about these faults, with its alert."""
    if not truths:
        return []
    since = datetime.fromtimestamp(min(truth.start_s for truth in truths), UTC)
    until = datetime.fromtimestamp(max(grace_until_s(truth) for truth in truths), UTC)
    beginnings = AlertEvent.objects.filter(
        Q(alert__run__in=runs) | Q(alert__run=None, alert__node=None),
        kind__in=BEGINNINGS,
        at__gte=since - timedelta(seconds=1),
        at__lte=min(now, until),
    )
    events = beginnings.select_related("alert__run", "alert__node").order_by("at", "pk")
    return [(_firing(event), event.alert) for event in events]


def _firing(event: AlertEvent) -> Firing:
    alert = event.alert
    firing = firing_of(alert, epoch_s=0.0, fired_s=event.at.timestamp())
    firing.resolved_s = alert.resolved_at.timestamp() if alert.resolved_at else None
    return firing


def score_of(drills: Sequence[DrillResult]) -> Tally:
    """Count how the faults that are over were noticed; ignore other alerts."""
    over = [drill for drill in drills if drill.outcome in {"noticed", "missed", "faint"}]
    noticed = [drill.firing for drill in over if drill.firing is not None]
    return tally([drill.truth for drill in over], noticed, duration_s=0.0)


def by_kind(drills: Sequence[DrillResult]) -> list[tuple[str, dict[str, Any]]]:
    """Return the score of every kind of fault that was drilled, the most drilled first."""
    kinds: dict[str, list[DrillResult]] = {}
    for drill in drills:
        kinds.setdefault(drill.fault.kind, []).append(drill)
    often = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    return [(kind, score_of(kinds[kind]).score()) for kind in often]


BEFORE_S = 240
AFTER_S = 180
# An alert that outlasts its fault by hours is not drawn to its end.
LONGEST_S = 7200


def drill_window(fault: InjectedFault, firing: Firing | None, *, now: datetime) -> Window:
    """Return the time range of a drill: from before the fault to after its alert."""
    start, now_s = int(fault.starts_at.timestamp()) - BEFORE_S, now.timestamp()
    end_s = fault.ends_at.timestamp()
    if firing is not None:
        over_s = now_s if firing.resolved_s is None else firing.resolved_s
        end_s = min(max(end_s, over_s), start + LONGEST_S)
    return Window(start, max(start + 1, int(min(now_s, end_s + AFTER_S))))


def charts_of(fault: InjectedFault) -> Sequence[AlertChart]:
    """Return the charts of a drill: the metric of the part that is hit, then the steps."""
    charts = []
    chart = metric_of(fault)
    if chart is not None and fault.node is not None:
        part = part_name(fault.kind)
        stands_out = f"{part} {fault.device or 0} is hit" if part else "the node that is hit"
        note = note_of(chart, fault.node)
        title = f"{chart.title}, {fault.node}"
        charts.append(AlertChart("metric", title, "lines", stands_out, note))
    charts.append(AlertChart("share", "All-reduce share", "lines", "of each step"))
    charts.append(
        AlertChart("phases", "Step time by phase", "stack", "seconds per step, mean of workers")
    )
    return charts


def metric_of(fault: InjectedFault) -> NodeChart | None:
    """Return the chart of the metric that shows a kind of fault; None if there is none."""
    metric = cause_text(fault.kind).metric
    if metric is None or fault.node is None:
        return None
    chart = chart_of_metric(metric)
    return chart if fault.node.n_efa or chart.part != "EFA" else None


def drill_figure(
    source: Source,
    fault: InjectedFault,
    firing: Firing | None,
    chart: str,
    window: Window,
    *,
    long_term: LongTerm | None = None,
) -> Chart | None:
    """Return one chart of a drill, the fault shaded and detection marked; None if unknown."""
    if chart not in {each.name for each in charts_of(fault)}:
        return None
    metric = metric_of(fault)
    if chart == "metric" and metric is not None and fault.node is not None:
        marked = marked_parts(fault, fault.node)
        figure = node_figure(
            source, fault.node, metric, window, marked=marked, long_term=long_term
        )
    else:
        figure = run_figure(source, fault.run, chart, window, long_term=long_term)
    if not isinstance(figure, Chart):
        return None
    truth = (fault.starts_at.timestamp(), fault.ends_at.timestamp(), "the fault")
    return replace(figure, shade=[truth], events=[*figure.events, *moments(firing)])


def marked_parts(fault: InjectedFault, node: Node) -> Sequence[int]:
    """Return the parts of a node that a fault affects: for a throttled device its cores."""
    part = fault.device or 0
    if part_name(fault.kind) is None:
        return []
    if fault.kind != "throttle":
        return [part]
    return range(part * node.cores_per_device, (part + 1) * node.cores_per_device)


def moments(firing: Firing | None) -> Sequence[Event]:
    """List when the alert fired, its estimated onset, and when it resolved; empty if none."""
    if firing is None:
        return []
    # Where labels overlap, the chart writes the first only.
    known = [Event(firing.fired_s, "detected", "fired"), Event(firing.onset_s, "onset", "onset")]
    if firing.resolved_s is not None:
        known.append(Event(firing.resolved_s, "resolved", "resolved"))
    return known
