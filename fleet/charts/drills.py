"""The charts of a drill: truth and detection over the same seconds."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from fleet.charts.alerts import AlertChart
from fleet.charts.culprits import SHOWN_BY, chart_of_metric
from fleet.charts.figures import Event, Figure
from fleet.charts.nodes import NodeChart, node_figure, note_of
from fleet.charts.runs import run_figure
from fleet.charts.windows import Window
from fleet.drills.firings import Firing
from fleet.models import InjectedFault, Node
from fleet.words.causes import part_name
from telemetry.store.source import LongTerm, Source

BEFORE_S = 240
AFTER_S = 180
# An alert that outlasts its fault by hours is not drawn to its end.
LONGEST_S = 7200


def drill_window(fault: InjectedFault, firing: Firing | None, *, now: datetime) -> Window:
    """Return the stretch that a drill is about: from before the fault to after its alert."""
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
    charts.append(AlertChart("phases", "Step time by phase", "stack", "per step, seconds"))
    return charts


def metric_of(fault: InjectedFault) -> NodeChart | None:
    """Return the chart of the metric that shows a kind of fault, where one does."""
    metric = SHOWN_BY.get(fault.kind)
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
) -> Figure | None:
    """Return one chart of a drill, the truth shaded and detection marked; None of a stranger."""
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
    if not isinstance(figure, Figure):
        return None
    truth = (fault.starts_at.timestamp(), fault.ends_at.timestamp(), "the fault")
    return replace(figure, shade=[truth], events=[*figure.events, *moments(firing)])


def marked_parts(fault: InjectedFault, node: Node) -> Sequence[int]:
    """Return the parts of a node that a fault sits on; a throttled device is all of its cores."""
    part = fault.device or 0
    if part_name(fault.kind) is None:
        return []
    if fault.kind != "throttle":
        return [part]
    return range(part * node.cores_per_device, (part + 1) * node.cores_per_device)


def moments(firing: Firing | None) -> Sequence[Event]:
    """Return when detection thinks it began, when it fired, and when it was over."""
    if firing is None:
        return []
    # Where words run into each other the first is written: that it was noticed matters most.
    known = [(firing.fired_s, "noticed", "fired"), (firing.onset_s, "onset", "onset")]
    if firing.resolved_s is not None:
        known.append((firing.resolved_s, "resolved", "resolved"))
    return known
