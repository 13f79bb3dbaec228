"""The charts of an alert: its evidence over the window in which it happened, frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from fleet.charts.figures import Figure, Heat, Line, Shade
from fleet.charts.nodes import BY_METRIC, NodeChart, node_figure, note_of
from fleet.charts.runs import run_figure
from fleet.charts.windows import Window
from fleet.models import Alert
from fleet.templatetags.units import percent
from fleet.words.causes import part_name
from fleet.words.evidence import Evidence
from telemetry.store.source import Source

BEFORE_S = 300
AFTER_S = 120
LONGEST_S = 3600
# Which metric shows each cause; a rule may name others in its evidence.
SHOWN_BY: Mapping[str, str] = {
    "efa_latency": "efa_latency_s",
    "efa_loss": "efa_retransmits_per_s",
    "efa_down": "efa_latency_s",
    "slow_core": "core_utilization_ratio",
    "throttle": "core_utilization_ratio",
    "hbm_slow": "hbm_bandwidth_bytes_per_s",
    "node_silent": "core_utilization_ratio",
    "node_crash": "core_utilization_ratio",
}


@dataclass(frozen=True, slots=True)
class AlertChart:
    """One chart of the alert page."""

    name: str
    title: str
    kind: str
    help: str
    note: str | None = None


def alert_window(alert: Alert, *, now: datetime) -> Window:
    """Return the stretch that an alert is about: from before its onset to after its end.

    An open alert's stretch grows for an hour; then what made it fire stays in view.
    """
    onset_s = alert.onset_at.timestamp()
    until_s = (alert.resolved_at or now).timestamp() + (AFTER_S if alert.resolved_at else 0)
    end = min(until_s, onset_s + LONGEST_S, now.timestamp())
    return Window(int(onset_s) - BEFORE_S, max(int(end), int(onset_s) + 1))


def charts_of(alert: Alert) -> Sequence[AlertChart]:
    """Return the charts that speak for an alert, the most telling first."""
    evidence = Evidence(alert.evidence)
    found = []
    if alert.run is not None:
        found.append(AlertChart("phases", "Step time by phase", "stack", "per step, seconds"))
    if (chart := culprit_chart(alert)) is not None and alert.node is not None:
        found.append(
            AlertChart(
                "culprit",
                f"{chart.title}, {alert.node}",
                "lines",
                _stands_out(alert),
                note_of(chart, alert.node),
            )
        )
    if alert.run is not None and (evidence.wait_by_worker or alert.rule == "allreduce_share"):
        found.append(AlertChart("workers", "Who waits for whom", "bars", _who_waits(alert)))
        found.append(
            AlertChart("share", "All-reduce share", "lines", "of each step; the line is the limit")
        )
    return found


def _stands_out(alert: Alert) -> str:
    if alert.device is None:
        return "the window in which it happened"
    return f"{part_name(alert.cause) or 'device'} {alert.device} stands out"


def _who_waits(alert: Alert) -> str:
    if Evidence(alert.evidence).is_waiting:
        who = f"{alert.node} waits least: " if alert.node else ""
        return f"seconds per step; {who}the culprit is the one the others wait for"
    return "seconds per step; all wait little, so nobody is late"


def culprit_chart(alert: Alert) -> NodeChart | None:
    """Return the chart of the metric that gives the culprit away, if there is one."""
    named = alert.evidence.get("charts")
    first = named[0] if isinstance(named, list) and named else None
    metric = first.get("metric") if isinstance(first, dict) else None
    return BY_METRIC.get(str(metric or SHOWN_BY.get(alert.cause)))


def alert_figure(
    hot: Source, alert: Alert, chart: str, window: Window, *, now: datetime
) -> Figure | Heat | None:
    """Return one chart of an alert, the broken stretch shaded; None where it has no such chart."""
    if chart not in {each.name for each in charts_of(alert)}:
        return None
    if chart == "culprit" and alert.node is not None:
        figure = _culprit(hot, alert, window)
    elif chart == "workers":
        figure = _workers(hot, alert, window)
    else:
        figure = run_figure(hot, alert.run, chart, window) if alert.run else None
    return replace(figure, shade=[shade_of(alert, now=now)]) if figure else None


def _culprit(hot: Source, alert: Alert, window: Window) -> Figure | None:
    chart = culprit_chart(alert)
    if chart is None or alert.node is None:
        return None
    marked = [] if alert.device is None else _parts(alert)
    figure = node_figure(hot, alert.node, chart, window, marked=marked)
    return figure if isinstance(figure, Figure) else None


def _parts(alert: Alert) -> Sequence[int]:
    """Return the parts to mark: a throttled device is all of its cores."""
    if alert.device is None or alert.node is None:
        return []
    if alert.cause != "throttle":
        return [alert.device]
    n_cores = alert.node.cores_per_device
    return range(alert.device * n_cores, (alert.device + 1) * n_cores)


def _workers(hot: Source, alert: Alert, window: Window) -> Figure | None:
    """Draw how long each worker waited, as it was when the alert fired."""
    waits = Evidence(alert.evidence).wait_by_worker
    if waits:
        values = np.array(list(waits.values()))
        return Figure("s", [Line("waiting", values, "wait")], labels=list(waits))
    broken = replace(window, start=int(alert.onset_at.timestamp()))
    return run_figure(hot, alert.run, "workers", broken) if alert.run else None


def shade_of(alert: Alert, *, now: datetime) -> Shade:
    """Return the broken stretch, with its words."""
    limit = Evidence(alert.evidence).number("limit_ratio")
    is_share = alert.rule == "allreduce_share" and limit is not None
    words = f"above {percent(limit, 0)}" if is_share else "broken"
    return (alert.onset_at.timestamp(), (alert.resolved_at or now).timestamp(), words)
