"""The charts of a node: its cores, memory and links over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fleet.charts.figures import Figure, Heat, column_s, heat_of
from fleet.charts.parts import MANY_PARTS, N_RECENT, series_figure, throughput
from fleet.charts.windows import DEFAULT, LENGTHS, Window
from fleet.models import Node
from telemetry.blocks import METRICS, Block
from telemetry.series import Series
from telemetry.store.history import node_series
from telemetry.store.source import LongTerm, Source

ESTIMATE = "estimate: bytes per step from a profile times steps per second"
PROBE = "measured by a probe: EFA itself counts no latency"
# What neuron-monitor has no counter for.
UNTOLD = frozenset(
    {
        "hbm_bandwidth_bytes_per_s",
        "efa_latency_s",
        "efa_tx_bytes_per_s",
        "efa_retransmits_per_s",
    }
)


@dataclass(frozen=True, slots=True)
class NodeChart:
    """One chart of the node page: which metric, of which parts, drawn how."""

    name: str
    title: str
    metric: str
    part: str
    unit: str
    kind: str = "lines"
    scale: str = "linear"
    help: str = ""
    mean_s: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it takes the width of the page."""
        return self.kind == "heat"

    def has_spread(self, node: Node) -> bool:
        """Whether its parts are too many for a line each: then it says which lines it has."""
        return self.kind == "lines" and self.part == "core" and node.n_cores > MANY_PARTS


_ALL = (
    NodeChart(
        "core-heat",
        "Every core",
        "core_utilization_ratio",
        "core",
        "ratio",
        kind="heat",
        help="one row per core",
    ),
    NodeChart(
        "cores",
        "Core utilization",
        "core_utilization_ratio",
        "core",
        "ratio",
        help="lowest, mean and highest core, and whoever stands out",
    ),
    NodeChart(
        "efa-latency",
        "EFA probe latency",
        "efa_latency_s",
        "EFA",
        "s",
        scale="log",
        help="per device, log scale",
    ),
    NodeChart(
        "hbm",
        "HBM bandwidth",
        "hbm_bandwidth_bytes_per_s",
        "device",
        "bytes_per_s",
        help="per device, read and written",
    ),
    NodeChart(
        "efa-throughput",
        "EFA throughput",
        "efa_tx_bytes_per_s",
        "EFA",
        "bytes_per_s",
        help="all devices, sent and received",
    ),
    NodeChart(
        "efa-retransmits",
        "EFA retransmits",
        "efa_retransmits_per_s",
        "EFA",
        "per_s",
        help="per device, packets sent again, mean of 10 s",
        mean_s=10,  # second by second, counts that come in bursts are a picket fence
    ),
    NodeChart(
        "memory",
        "Device memory",
        "device_memory_used_bytes",
        "device",
        "bytes",
        help="per device, allocated",
    ),
    NodeChart("vcpu", "Host vCPUs", "vcpu_usage_ratio", "host", "ratio", help="share in use"),
    NodeChart(
        "host-memory", "Host memory", "host_memory_used_bytes", "host", "bytes", help="in use"
    ),
)
NODE_CHARTS: Mapping[str, NodeChart] = {chart.name: chart for chart in _ALL}
BY_METRIC: Mapping[str, NodeChart] = {
    chart.metric: chart for chart in _ALL if chart.kind == "lines"
}


def note_of(chart: NodeChart, node: Node) -> str | None:
    """Say of a real node which figures no counter gives."""
    if node.source == Node.Source.SIMULATED:
        return None
    return {"hbm": ESTIMATE, "efa-latency": PROBE}.get(chart.name)


def charts_of(node: Node) -> Sequence[NodeChart]:
    """Return the charts that a node can have: no links, no link charts."""
    return [chart for chart in _ALL if node.n_efa or chart.part != "EFA"]


def unmeasured_of(node: Node, block: Block | None) -> Sequence[NodeChart]:
    """Return the charts a real node has no figures for: neuron-monitor cannot see everything."""
    if node.source == Node.Source.SIMULATED:
        return []
    told = METRICS.keys() - UNTOLD if block is None else block.values.keys()
    return [chart for chart in charts_of(node) if chart.metric not in told]


def node_figure(
    hot: Source,
    node: Node,
    chart: NodeChart,
    window: Window,
    *,
    marked: Sequence[int] = (),
    long_term: LongTerm | None = None,
) -> Figure | Heat:
    """Return one chart of a node; ``marked`` parts stand out: the culprit of an alert."""
    # What has not been told yet is no gap: a live window ends where its shard does.
    newest = hot.newest().get(node.shard, window.end) if window.is_live else window.end
    end = max(window.start, min(window.end, newest))

    def fetch(metric: str) -> Series:
        return node_series(
            hot,
            shard=node.shard,
            node=node.name,
            metric=metric,
            start=window.start,
            end=end,
            long_term=long_term,
        )

    whole = (window.start, window.end)
    if chart.kind == "heat":
        return _heat(fetch(chart.metric), chart, window, end)
    if chart.name == "efa-throughput":
        return replace(throughput(fetch), window=whole)
    return series_figure(
        rolling(fetch(chart.metric), over_s=chart.mean_s),
        chart.part,
        chart.unit,
        marked=marked,
        scale=chart.scale,
        note=note_of(chart, node),
        window=whole,
    )


def _heat(series: Series, chart: NodeChart, window: Window, end: int) -> Heat:
    """Return a heat map; the column that is under way comes with the stream, once it is whole."""
    every_s = column_s(window.end - window.start, every_s=series.every_s)
    heat = heat_of(series, chart.part, every_s=every_s)
    is_fed = window.is_live and series.every_s == 1
    return replace(heat.until(end) if is_fed else heat, window=(window.start, window.end))


def node_points(hot: Source, node: Node, *, since_s: float, now_s: float) -> dict[str, Any]:
    """Return what the node's charts append: the seconds since, of heat maps whole columns."""
    start, end = int(since_s) - N_RECENT, min(int(now_s), hot.newest().get(node.shard, 0))
    if end <= since_s:
        return {}
    metrics = (*dict.fromkeys(chart.metric for chart in charts_of(node)), "efa_rx_bytes_per_s")
    span = hot.window(node.shard, metrics, start=start, end=end)
    if node.name not in span.nodes:
        return {}
    mine = span.of((node.name,))

    def fetch(metric: str) -> Series:
        return Series(metric, mine.ticks, mine.values[metric][:, 0])

    return {chart.name: _news(fetch, chart, node, since_s) for chart in charts_of(node)}


def _news(
    fetch: Callable[[str], Series], chart: NodeChart, node: Node, since_s: float
) -> dict[str, Any]:
    """Return what one chart appends."""
    if chart.kind == "heat":
        series = fetch(chart.metric)
        heat = heat_of(series, chart.part, every_s=column_s(LENGTHS[DEFAULT], every_s=1))
        # A column is whole some seconds after its middle; who has it already leaves it out.
        return heat.until(series.t_s[-1]).since(since_s - heat.every_s)
    figure = _figure(fetch, chart)
    labels = [line.label for line in figure.lines] if chart.has_spread(node) else None
    return figure.since(since_s) | ({"labels": labels} if labels else {})


def _figure(fetch: Callable[[str], Series], chart: NodeChart) -> Figure:
    if chart.name == "efa-throughput":
        return throughput(fetch)
    series = rolling(fetch(chart.metric), over_s=chart.mean_s)
    return series_figure(series, chart.part, chart.unit, scale=chart.scale)


def rolling(series: Series, *, over_s: int) -> Series:
    """Average each second with those before it, ``over_s`` in all; minutes stay as they are.

    A second that is a gap stays one; one that is there is averaged over what is there.
    """
    if over_s <= series.every_s or not len(series.t_s):
        return series
    there = np.isfinite(series.values)
    totals = [np.where(there, series.values, 0.0), there.astype(float)]
    # The difference of two running sums is the sum of what lies between them.
    ahead = np.zeros((over_s, series.values.shape[1]))
    summed = [np.concatenate([ahead, each.cumsum(axis=0)]) for each in totals]
    total, n = (each[over_s:] - each[:-over_s] for each in summed)
    mean = np.divide(total, n, out=np.full(total.shape, np.nan), where=there)
    return replace(series, values=mean)
