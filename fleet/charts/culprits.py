"""The figure that convicts: a metric of the culprit beside its peers, over the alert's window."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fleet.charts.figures import Figure, Line, Mark
from fleet.charts.nodes import BY_METRIC, NodeChart, node_figure
from fleet.charts.windows import Window
from fleet.models import Alert, Node
from fleet.words.causes import part_name
from fleet.words.evidence import Evidence
from fleet.words.wording import figure as written
from telemetry.blocks import METRICS, FloatArray, IntArray
from telemetry.store.history import node_series
from telemetry.store.source import LongTerm, Source

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
    "ecc_uncorrected": "mem_ecc_uncorrected",
}
MOST_CHARTS = 3
# Of a larger run, peers beyond these are not drawn one by one.
MOST_PEERS = 32
# Peers out of the durable tier cost a query each.
MOST_PEERS_BY_MINUTE = 8
PARTS = {"node": "host", "core": "core", "device": "device", "efa": "EFA"}
UNITS = {
    "_ratio": "ratio",
    "_bytes_per_s": "bytes_per_s",
    "_per_s": "per_s",
    "_bytes": "bytes",
    "_s": "s",
}


def culprit_charts(alert: Alert) -> Sequence[NodeChart]:
    """Return the charts of the metrics that give the culprit away, the most telling first."""
    if alert.node is None:
        return []
    named = alert.evidence.get("charts")
    given = [each.get("metric") for each in _dicts(named)] or [SHOWN_BY.get(alert.cause)]
    wanted = dict.fromkeys(str(metric) for metric in given if metric)
    charts = [chart_of_metric(metric) for metric in wanted if metric in METRICS]
    return [c for c in charts if alert.node.n_efa or c.part != "EFA"][:MOST_CHARTS]


def _dicts(value: object) -> Sequence[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def chart_of_metric(metric: str) -> NodeChart:
    """Return how a metric is drawn: as the node's page does, or plainly where it does not."""
    known = BY_METRIC.get(metric)
    if known is not None:
        return known
    unit = next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "count")
    told = METRICS[metric]
    return NodeChart(metric, told.help.rstrip("."), metric, PARTS[told.part], unit)


def culprit_figure(
    source: Source,
    alert: Alert,
    chart: NodeChart,
    window: Window,
    *,
    long_term: LongTerm | None = None,
) -> Figure | None:
    """Draw a metric of the culprit: its parts beside each other, or its node beside the others."""
    if alert.node is None:
        return None
    is_host = METRICS[chart.metric].part == "node"
    if is_host and alert.run is not None:
        figure: object = _beside_nodes(source, alert.node, chart, window)
    else:
        marked = marked_parts(alert)
        figure = node_figure(source, alert.node, chart, window, marked=marked, long_term=long_term)
    if not isinstance(figure, Figure):
        return None
    return replace(figure, marks=marks_of(alert, chart))


def marked_parts(alert: Alert) -> Sequence[int]:
    """Return the parts to mark: a throttled device is all of its cores."""
    if alert.device is None or alert.node is None:
        return []
    if alert.cause != "throttle":
        return [alert.device]
    n_cores = alert.node.cores_per_device
    return range(alert.device * n_cores, (alert.device + 1) * n_cores)


def marks_of(alert: Alert, chart: NodeChart) -> Sequence[Mark]:
    """Return the levels to draw: what peers do, and from where on it counts as broken."""
    culprit = Evidence(alert.evidence).culprit
    if culprit.metric != chart.metric or culprit.unit != chart.unit:
        return []
    levels = (("peers", culprit.peers_median), ("threshold", culprit.limit))
    return [
        (value, f"{name} {written(value, culprit.unit)}", name)
        for name, value in levels
        if value is not None
    ]


def stands_out(alert: Alert) -> str:
    """Say what to look at in the culprit's chart."""
    if alert.device is None:
        return "the window in which it happened"
    return f"{part_name(alert.cause) or 'device'} {alert.device} stands out"


def _beside_nodes(source: Source, node: Node, chart: NodeChart, window: Window) -> Figure | None:
    """Draw what a whole node does beside the other nodes of its run."""
    peers = list(Node.objects.filter(run=node.run_id).exclude(pk=node.pk).order_by("rank", "name"))
    hot = source.newest().get(node.shard, 0)
    is_hot = window.start >= hot - source.keep_s
    shown = peers[: MOST_PEERS if is_hot else MOST_PEERS_BY_MINUTE]
    lines, every_s = [], 1
    end = min(window.end, hot) if window.is_live else window.end
    if is_hot:
        t_s, columns = _seconds(source, [*shown, node], chart.metric, window.start, end)
    else:
        t_s, columns, every_s = _minutes(source, [*shown, node], chart.metric, window.start, end)
    for name, values in columns.items():
        lines.append(Line(name, values, "bad" if name == node.name else "muted"))
    if node.name not in columns:
        return None
    return Figure(chart.unit, lines, t_s, every_s=every_s, window=(window.start, window.end))


Columns = tuple[IntArray | FloatArray, Mapping[str, FloatArray]]


def _seconds(source: Source, nodes: Sequence[Node], metric: str, start: int, end: int) -> Columns:
    shards = tuple(dict.fromkeys(node.shard for node in nodes))
    span = source.window(shards, (metric,), start=start, end=end)
    values = span.values.get(metric)
    if values is None:
        return np.zeros(0), {}
    known = {name: i for i, name in enumerate(span.nodes)}
    return span.ticks, {
        node.name: values[:, known[node.name], 0] for node in nodes if node.name in known
    }


def _minutes(
    source: Source, nodes: Sequence[Node], metric: str, start: int, end: int
) -> tuple[IntArray | FloatArray, Mapping[str, FloatArray], int]:
    t_s: IntArray | FloatArray = np.zeros(0)
    columns, every_s = {}, 60
    for node in nodes:
        series = node_series(
            source, shard=node.shard, node=node.name, metric=metric, start=start, end=end
        )
        if series.values.shape[1]:
            t_s, every_s = series.t_s, series.every_s
            columns[node.name] = series.values[:, 0]
    return t_s, columns, every_s
