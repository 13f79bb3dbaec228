"""The charts of an alert: its evidence over the window in which it happened, frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fleet.alerts.causes import cause_text, part_text
from fleet.alerts.evidence import WAITED, Evidence, has_late_worker
from fleet.alerts.record import recorded
from fleet.charts.figures import Chart, ChartLine, Heat, Mark, Shade
from fleet.charts.nodes import NodeChart, chart_of_metric, node_figure, note_of
from fleet.charts.runs import PER_STEP, run_figure, with_gaps, worker_places
from fleet.charts.windows import Window
from fleet.formatting import figure as written
from fleet.formatting import percent, seconds
from fleet.models import Alert, Node, Run
from telemetry.blocks import METRICS, FloatArray, IntArray, mean
from telemetry.detect import names_of
from telemetry.detect.causes import phase_of
from telemetry.detect.evidence import NEWEST_STEPS
from telemetry.statistics.peers import median
from telemetry.steps import StepBatch
from telemetry.store.history import node_series, run_steps, worker_minutes
from telemetry.store.reading import LongTerm, Source
from telemetry.units import MINUTE_S

MOST_CHARTS = 3
# More peers than this are not drawn one by one.
MOST_PEERS = 32
# Each peer from the durable tier costs a query.
MOST_PEERS_BY_MINUTE = 8


def culprit_charts(alert: Alert) -> Sequence[NodeChart]:
    """Return the charts of the metrics that reveal the culprit, the most relevant first."""
    if alert.node is None:
        return []
    named = alert.evidence.get("charts")
    charts = [each for each in named if isinstance(each, dict)] if isinstance(named, list) else []
    given = [chart.get("metric") for chart in charts] or [cause_text(alert.cause).metric]
    wanted = dict.fromkeys(str(metric) for metric in given if metric)
    shown = [chart_of_metric(metric) for metric in wanted if metric in METRICS]
    return [c for c in shown if alert.node.n_efa or c.part != "EFA"][:MOST_CHARTS]


def culprit_figure(
    source: Source,
    alert: Alert,
    chart: NodeChart,
    window: Window,
    *,
    long_term: LongTerm | None = None,
) -> Chart | None:
    """Draw a metric of the culprit: its parts, or its node next to the other nodes."""
    if alert.node is None:
        return None
    is_host = METRICS[chart.metric].part == "node"
    if is_host and alert.run is not None:
        figure: object = _next_to_peers(source, alert.node, chart, window)
    else:
        marked = marked_parts(alert)
        figure = node_figure(source, alert.node, chart, window, marked=marked, long_term=long_term)
    if not isinstance(figure, Chart):
        return None
    return replace(figure, marks=marks_of(alert, chart))


def marked_parts(alert: Alert) -> Sequence[int]:
    """Return the parts to highlight: a throttled device marks all of its cores."""
    if alert.device is None or alert.node is None:
        return []
    if alert.part != "device":
        return [alert.device]
    n_cores = alert.node.cores_per_device
    return range(alert.device * n_cores, (alert.device + 1) * n_cores)


def marks_of(alert: Alert, chart: NodeChart) -> Sequence[Mark]:
    """Return the levels to draw: the usual level of peers, and the firing threshold."""
    culprit = Evidence(recorded(alert).alert.evidence).culprit
    if culprit.metric != chart.metric or culprit.unit != chart.unit:
        return []
    levels = (("peers", culprit.peers_median), ("threshold", culprit.limit))
    return [
        (value, f"{name} {written(value, culprit.unit)}", name)
        for name, value in levels
        if value is not None
    ]


def stands_out(alert: Alert) -> str:
    if alert.device is None:
        return "the affected window"
    return f"{part_text(alert.part, alert.device)} stands out"


def _next_to_peers(source: Source, node: Node, chart: NodeChart, window: Window) -> Chart | None:
    """Draw a node total next to those of the other nodes of its run."""
    peers = list(Node.objects.filter(run=node.run_id).exclude(pk=node.pk).order_by("rank", "name"))
    hot = source.newest().get(node.shard, 0)
    is_hot = window.start >= hot - source.keep_s
    shown = peers[: MOST_PEERS if is_hot else MOST_PEERS_BY_MINUTE]
    lines, every_s = [], 1
    t_s: IntArray | FloatArray = np.zeros(0)
    end = min(window.end, hot) if window.is_live else window.end
    if is_hot:
        t_s, columns = _seconds(source, [*shown, node], chart.metric, window.start, end)
    else:
        columns, every_s = {}, 60
        for each in [*shown, node]:
            series = node_series(
                source,
                shard=each.shard,
                node=each.name,
                metric=chart.metric,
                start=window.start,
                end=end,
            )
            if series.values.shape[1]:
                t_s, every_s = series.t_s, series.every_s
                columns[each.name] = series.values[:, 0]
    for name, values in columns.items():
        lines.append(ChartLine(name, values, "bad" if name == node.name else "muted"))
    if node.name not in columns:
        return None
    return Chart(chart.unit, lines, t_s, every_s=every_s, window=(window.start, window.end))


Columns = tuple[IntArray | FloatArray, Mapping[str, FloatArray]]


def _seconds(source: Source, nodes: Sequence[Node], metric: str, start: int, end: int) -> Columns:
    shards = tuple(dict.fromkeys(node.shard for node in nodes))
    names = {node.name for node in nodes}
    span = source.window(shards, (metric,), start=start, end=end, only=names)
    values = span.values.get(metric)
    if values is None:
        return np.zeros(0), {}
    known = {name: i for i, name in enumerate(span.nodes)}
    return span.ticks, {
        node.name: values[:, known[node.name], 0] for node in nodes if node.name in known
    }


BEFORE_S = 300
AFTER_S = 120
LONGEST_S = 3600
# Phases in which workers are compared if a cause loses the time there: name and title.
COMPARED_PHASES: Mapping[str, tuple[str, str]] = {
    "input_s": ("input", "Input by worker"),
    "checkpoint_s": ("checkpoint", "Checkpoint by worker"),
}


@dataclass(frozen=True, slots=True)
class AlertChart:
    name: str
    title: str
    kind: str
    help: str
    note: str | None = None


def alert_window(alert: Alert, *, now: datetime) -> Window:
    """Return the window of an alert: from before its onset to after its end, an hour at most."""
    onset_s = alert.onset_at.timestamp()
    is_over = alert.resolved_at is not None and alert.resolved_at <= now
    until = alert.resolved_at if is_over and alert.resolved_at else now
    until_s = until.timestamp() + (AFTER_S if is_over else 0)
    end = min(until_s, onset_s + LONGEST_S, now.timestamp())
    return Window(int(onset_s) - BEFORE_S, max(int(end), int(onset_s) + 1))


OF_LOSS = names_of(lambda rule: rule.charts_loss)


OwnTimes = tuple[StepBatch, FloatArray, NDArray[np.bool_]]

# What a worker does itself, while the others wait for it.
OWN_PHASES = ("compute_s", "input_s", "other_s")
OWN_TIME = f"compute, input and other, {PER_STEP}"


def charts_of(alert: Alert) -> Sequence[AlertChart]:
    """Return the charts that support an alert, the most relevant first."""
    culprits = [
        AlertChart(
            "culprit" if not i else f"culprit-{i + 1}",
            f"{chart.title}, {alert.node}",
            "lines",
            stands_out(alert),
            note_of(chart, alert.node),
        )
        for i, chart in enumerate(culprit_charts(alert))
        if alert.node is not None
    ]
    if alert.run is None:
        return culprits
    phases = AlertChart("phases", "Step time by phase", "stack", f"{PER_STEP}, mean of workers")
    # A node rule is shown by its own metric, a run rule by the steps.
    of_node = alert.subject.startswith("node:")
    charts = [*culprits, phases] if of_node else [phases, *culprits]
    phase = phase_of(alert.cause)
    if phase is not None and phase in COMPARED_PHASES and _own_time_of(alert) is None:
        title = COMPARED_PHASES[phase][1]
        words = "the longest, seconds" if phase == "checkpoint_s" else "seconds per step"
        return [*charts, AlertChart("workers", title, "bars", f"{words}, during the alert")]
    evidence = Evidence(alert.evidence)
    if evidence.by_node:
        words = "host vCPUs in use: computing or polling, or neither"
        charts.append(AlertChart("by-node", "vCPU use by host", "bars", words))
    if _own_time_of(alert) is not None:
        title = f"Own time of {alert.node}"
        charts.insert(0, AlertChart("own-time", title, "lines", f"{OWN_TIME}, next to its peers"))
        charts.append(AlertChart("workers", "Own time by worker", "bars", OWN_TIME))
    elif evidence.wait_by_worker or alert.rule in WAITED:
        words = PER_STEP
        if has_late_worker(alert):
            words = (
                f"{PER_STEP}; all others {'wait' if alert.is_open else 'waited'} for {alert.node}"
            )
        elif evidence.is_transferring:
            words = f"{PER_STEP}; most time is transfer, not waiting for one worker"
        charts.append(AlertChart("workers", "Wait by worker", "bars", words))
    if alert.rule == "allreduce_share":
        words = "of each step; the line is the limit"
        charts.append(AlertChart("share", "All-reduce share", "lines", words))
    if alert.rule in OF_LOSS:
        drawn = AlertChart("loss", "Training loss", "lines", "as the job reports it")
        charts.insert(len(culprits), drawn)
    return charts


def leads_of(charts: Sequence[AlertChart]) -> Sequence[AlertChart]:
    """Return the two charts that tell most: the culprit against its peers, and the steps."""
    wanted = ("by-node", "culprit", "own-time", "workers", "loss", "share")
    ranked = sorted(
        charts, key=lambda each: wanted.index(each.name) if each.name in wanted else len(wanted)
    )
    steps = [each for each in charts if each.name == "phases"]
    return [*[each for each in ranked if each.name != "phases"][: 2 - len(steps)], *steps]


def alert_figure(
    source: Source,
    alert: Alert,
    chart: str,
    window: Window,
    *,
    now: datetime,
    long_term: LongTerm | None = None,
) -> Chart | Heat | None:
    """Return one chart of an alert, the affected window shaded; None if it has no such chart.

    What the database no longer keeps is read from ``long_term``, except single workers.
    """
    if chart not in {each.name for each in charts_of(alert)}:
        return None
    if chart.startswith("culprit"):
        number = int(chart.removeprefix("culprit").removeprefix("-") or 1)
        culprit = culprit_charts(alert)[number - 1]
        figure = culprit_figure(source, alert, culprit, window, long_term=long_term)
    elif chart == "by-node":
        shown = Evidence(alert.evidence).by_node
        figure = Chart(
            "ratio", [ChartLine("vCPUs", np.array(list(shown.values())))], labels=list(shown)
        )
    elif chart == "workers":
        figure = _workers(source, alert, window)
    elif chart == "own-time":
        figure = _own_time(source, alert, window)
    else:
        run = alert.run
        figure = run_figure(source, run, chart, window, long_term=long_term) if run else None
    if isinstance(figure, Chart) and alert.node is not None:
        nodes = [label.partition("/")[0] for label in figure.labels]
        if alert.node.name in nodes:
            place = nodes.index(alert.node.name)
            figure = replace(figure, culprit=(place, culprit_words(alert, chart)))
    if figure is not None and chart == "phases":
        figure = replace(figure, marks=_usual(alert))
    if isinstance(figure, Chart):
        figure = replace(figure, rest=rest_of(alert, chart))
    return replace(figure, shade=[shade_of(alert, now=now)]) if figure else None


def rest_of(alert: Alert, chart: str) -> tuple[float, float | None] | None:
    """Return when a resolved alert was at its worst, and the figure that its text has from then.

    None for the latest values: of an open alert, and of one without a record.
    """
    seen = recorded(alert)
    if seen.worst is None or alert.is_open:
        return None
    evidence = Evidence(seen.alert.evidence)
    figures = {
        "culprit": evidence.culprit.value,
        "own-time": _own_time_of(alert),
        "phases": evidence.number("step_s"),
        "share": evidence.number("share_ratio"),
    }
    return seen.worst.at_s, figures.get(chart)


def own_time_chart(alert: Alert) -> AlertChart | None:
    """Return the chart that sets a slow worker apart: in means of workers it does not show."""
    return next((each for each in charts_of(alert) if each.name == "own-time"), None)


def culprit_words(alert: Alert, chart: str) -> str:
    """Say what the bar of a culprit means: of waits and loads it is the shortest."""
    if chart == "by-node":
        return "has not joined" if alert.is_open else "never joined"
    if (
        chart == "workers"
        and has_late_worker(alert)
        and _own_time_of(alert) is None
        and phase_of(alert.cause) not in COMPARED_PHASES
    ):
        return f"all others {'wait' if alert.is_open else 'waited'} for it"
    return "culprit"


def _usual(alert: Alert) -> Sequence[Mark]:
    evidence = Evidence(recorded(alert).alert.evidence)
    usual_s = evidence.number("baseline_step_s") or evidence.number("usual_step_s")
    return [] if usual_s is None else [(usual_s, f"before {seconds(usual_s)}", "peers")]


def _workers(source: Source, alert: Alert, window: Window) -> Chart | None:
    """Draw how long each worker waited, or its delay, during the alert."""
    if alert.run is None:
        return None
    broken = replace(window, start=int(alert.onset_at.timestamp()))
    if (own_s := _own_time_of(alert)) is not None:
        return _own_time_by_worker(source, alert, broken, own_s)
    phase = phase_of(alert.cause)
    if phase is not None and phase in COMPARED_PHASES:
        return _phase(source, alert.run, phase, broken)
    waits = Evidence(alert.evidence).wait_by_worker
    if waits:
        line, names = ChartLine("waiting", np.array(list(waits.values())), "wait"), list(waits)
        return Chart("s", [line], labels=names, places=worker_places(names))
    return run_figure(source, alert.run, "workers", broken)


def _phase(source: Source, run: Run, phase: str, window: Window) -> Chart:
    """Draw one phase by worker: the mean, or the maximum if the phase is intermittent."""
    label = COMPARED_PHASES[phase][0]
    steps = _steps_by_worker(source, run, window)
    values = steps.phases[phase]
    longest = np.fmax.reduce(values, axis=0, initial=np.nan)
    shown = longest if phase == "checkpoint_s" else mean(values.T, 1)
    return Chart(
        "s",
        [ChartLine(label, shown, label)],
        labels=steps.workers,
        places=worker_places(steps.workers),
    )


def _steps_by_worker(source: Source, run: Run, window: Window) -> StepBatch:
    """Read the steps of each worker, or their means by minute where single ones are gone."""
    steps = run_steps(source, run.name, start_s=window.start, end_s=window.end)
    if len(steps.workers) == run.n_nodes:
        return steps
    first = window.start - window.start % MINUTE_S
    return worker_minutes(source, run.name, start_s=first, end_s=window.end)


def _own_time_of(alert: Alert) -> float | None:
    """Return the own time of its culprit that its text names; None if it names another figure."""
    culprit = Evidence(recorded(alert).alert.evidence).culprit
    return culprit.value if culprit.metric == "own_s" else None


def _own_times(source: Source, alert: Alert, window: Window) -> OwnTimes | None:
    """Return steps by worker, the own time of each: (n_steps, n_workers), and who is accused."""
    run, node = alert.run, alert.node
    if run is None or node is None:
        return None
    steps = _steps_by_worker(source, run, window).reported.timed
    is_here = np.array([name.partition("/")[0] == node.name for name in steps.workers], bool)
    return (steps, steps.sum_phases(OWN_PHASES), is_here) if len(steps) and is_here.any() else None


def _own_time(source: Source, alert: Alert, window: Window) -> Chart | None:
    """Draw how long the culprit works per step, and the median of its peers."""
    known = _own_times(source, alert, window)
    if known is None:
        return None
    steps, own_s, is_here = known
    drawn = [(str(alert.node), np.fmax.reduce(own_s[:, is_here], axis=1), "bad")]
    if n_peers := int((~is_here).sum()):
        peers = f"median of {n_peers} peers" if n_peers > 1 else "its peer"
        drawn.append((peers, median(own_s[:, ~is_here]), "compute"))
    t_s, values = with_gaps(steps, np.stack([own for _, own, _ in drawn], axis=1))
    lines = [ChartLine(label, values[:, i], role) for i, (label, _, role) in enumerate(drawn)]
    return Chart("s", lines, t_s, window=(window.start, window.end), has_gaps=True)


def _own_time_by_worker(
    source: Source, alert: Alert, window: Window, own_s: float
) -> Chart | None:
    """Draw how long each worker works per step, in those steps of which the text is."""
    known = _own_times(source, alert, window)
    if known is None:
        return None
    steps, own, is_here = known
    newest = sliding_window_view(own, min(NEWEST_STEPS, len(own)), axis=0)
    medians = median(newest)
    far_s = np.abs(np.fmax.reduce(medians[:, is_here], axis=1) - own_s)
    shown = medians[int(np.argmin(np.nan_to_num(far_s, nan=np.inf)))]
    return Chart(
        "s",
        [ChartLine("own time", shown, "compute")],
        labels=steps.workers,
        places=worker_places(steps.workers),
    )


def shade_of(alert: Alert, *, now: datetime) -> Shade:
    limit = Evidence(alert.evidence).number("limit_ratio")
    is_share = alert.rule == "allreduce_share" and limit is not None
    words = f"all-reduce above {percent(limit, 0)}" if is_share else "began"
    return (alert.onset_at.timestamp(), (alert.resolved_at or now).timestamp(), words)
