"""The charts of a node: its cores, memory and links over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fleet.charts.figures import Chart, ChartLine, thinned
from fleet.charts.windows import Window
from fleet.formatting import flops, unit_of
from fleet.models import Node
from telemetry import catalog
from telemetry.blocks import METRICS, Block, FloatArray, highest, lowest, mean, sum_known
from telemetry.detect.slowdowns import FIGURE_S
from telemetry.series import Series
from telemetry.store.history import node_series
from telemetry.store.reading import LongTerm, Source

MANY_PARTS = 40
N_OUTLIERS = 4
N_PIECES = 15  # of a window: a minute each in 15 minutes
MIN_PIECE = 12  # samples
N_RECENT = 10
OUTLIER_DEVIATIONS = 6.0
NOISE_DEVIATIONS = 2.3
OUTLIER_RATIO = 0.08


def outliers(values: FloatArray) -> list[int]:
    """Return the parts that differ most from their peers, at most four.

    Parameters
    ----------
    values : (n, n_parts)
        One column per part, NaN for gaps.

    Notes
    -----
    An outlier's median distance from the median of all parts exceeds six robust deviations of
    the parts (1.4826 times the median absolute deviation), 8 % of their level, and 2.3 times its
    own noise, over any fifteenth of the window (at least twelve samples, at most a fifth) or the
    last ten samples. Pieces are short, so that an outlier of two pieces fills one of them.
    Next to the furthest one, those that are less than 8 % as far are noise.
    """
    if values.shape[1] < 3 or not len(values):
        return []
    n_pieces = max(min(5, len(values)), min(N_PIECES, len(values) // MIN_PIECE))
    pieces = [values[-N_RECENT:], *reversed(np.array_split(values, n_pieces))]
    furthest: dict[int, float] = {}
    for piece in pieces:
        for part, off in _outliers_in(piece).items():
            furthest[part] = max(off, furthest.get(part, 0.0))
    least = OUTLIER_RATIO * max(furthest.values(), default=0.0)
    return [part for part, off in furthest.items() if off >= least][:N_OUTLIERS]


def _outliers_in(recent: FloatArray) -> dict[int, float]:
    """Return how far each outlier among the parts is from its peers, the furthest first."""
    seen = np.flatnonzero(np.isfinite(recent).any(axis=0))
    reported = recent[np.isfinite(recent).any(axis=1)][:, seen].astype(float)
    if not reported.size:
        return {}
    # Common changes, such as compute and wait phases, do not count.
    apart = reported - np.nanmedian(reported, axis=1)[:, None]
    level = np.nanmedian(apart, axis=0)
    off = np.abs(level - np.median(level))
    spread = 1.4826 * np.median(off)
    alike = max(OUTLIER_DEVIATIONS * spread, OUTLIER_RATIO * abs(np.nanmedian(reported)), 1e-12)
    places = np.flatnonzero(off > np.maximum(alike, NOISE_DEVIATIONS * np.nanstd(apart, axis=0)))
    return {int(seen[i]): float(off[i]) for i in places[np.argsort(-off[places])]}


def part_lines(series: Series, part: str, *, marked: Sequence[int] = ()) -> list[ChartLine]:
    """Draw each part as a line, peers muted; of many parts only the spread.

    ``marked`` parts, the culprits of an alert, are always highlighted.
    """
    values = series.values
    n_parts = values.shape[1]
    highlighted = {*(m for m in marked if 0 <= m < n_parts), *outliers(values)}
    usual_role = "muted" if n_parts > 2 else None
    roles = {i: "bad" if i in highlighted else usual_role for i in range(n_parts)}
    drawn = sorted(highlighted) if n_parts > MANY_PARTS else range(n_parts)
    names = [part] if n_parts == 1 else [f"{part} {i}" for i in range(n_parts)]
    lines = [ChartLine(names[i], values[:, i], roles[i]) for i in drawn]
    return [*spread_lines(series), *lines] if n_parts > MANY_PARTS else lines


def spread_lines(series: Series) -> list[ChartLine]:
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    return [
        ChartLine("lowest", lowest(low, 1), "low"),
        ChartLine("mean", mean(series.values, 1), "compute"),
        ChartLine("highest", highest(high, 1), "high"),
    ]


def series_figure(
    series: Series, part: str, unit: str, *, marked: Sequence[int] = (), **more: Any
) -> Chart:
    t_s, values = thinned(series.t_s, series.values)
    low = None if series.low is None else thinned(series.t_s, series.low)[1]
    high = None if series.high is None else thinned(series.t_s, series.high)[1]
    slim = Series(series.name, t_s, values, series.every_s, low, high)  # type: ignore[arg-type]
    lines = part_lines(slim, part, marked=marked)
    return Chart(unit, lines, t_s, every_s=series.every_s, stretches=series.stretches, **more)


def sums(fetch: Callable[[str], Series], chart: "NodeChart") -> Chart:
    """Draw each metric of a chart as one line, the sum of its parts."""
    every = [fetch(metric) for metric in chart.metrics]
    thin = [thinned(series.t_s, sum_known(series.values, 1)) for series in every]
    lines = [
        ChartLine(label, values, role)
        for (_, label, role), (_, values) in zip(chart.lines, thin, strict=True)
    ]
    first = every[0]
    return Chart(
        chart.unit,
        lines,
        thin[0][0],
        scale=chart.scale,
        every_s=first.every_s,
        stretches=first.stretches,
    )


ESTIMATE = "estimate: bytes per step from a profile times steps per second"
PROBE = "measured by a probe: EFA has no latency counter"
# Metrics without a counter in neuron-monitor.
NOT_IN_NEURON_MONITOR = frozenset(
    {
        "hbm_bandwidth_bytes_per_s",
        "efa_latency_s",
        "efa_tx_bytes_per_s",
        "efa_retransmits_per_s",
        "collective_bandwidth_bytes_per_s",
        "collective_time_s",
        "device_power_ratio",
    }
)
# Metrics of processes: a report without one has none.
OF_PROCESSES = frozenset(
    {"device_memory_used_bytes", "core_flops_per_s", "execution_latency_p50_s"}
)


@dataclass(frozen=True, slots=True)
class NodeChart:
    name: str
    title: str
    metric: str
    part: str
    unit: str
    scale: str = "linear"
    help: str = ""
    mean_s: int = 1
    factor: float = 1.0
    needs: str = ""  # where a node does not report it
    lines: tuple[
        tuple[str, str, str | None], ...
    ] = ()  # metric, label, role: drawn as sums of parts

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(metric for metric, _, _ in self.lines) or (self.metric,)

    def of_peak(self, peak: float) -> "NodeChart":
        """Draw shares of a core's peak FLOPs per second."""
        about = f"per core, share of the dense BF16 peak ({flops(peak)})"
        return replace(self, unit="ratio", factor=1 / peak, help=about)

    def has_spread(self, node: Node) -> bool:
        """Whether there are too many parts for one line each."""
        return self.part == "core" and node.n_cores > MANY_PARTS


PARTS = {"node": "host", "core": "core", "device": "device", "efa": "EFA"}


def _chart(name: str, title: str, metric: str, **more: Any) -> NodeChart:
    """Describe the chart of a metric, which gives its part and its unit."""
    unit = unit_of(metric) or "count"
    return NodeChart(name, title, metric, PARTS[METRICS[metric].part], unit, **more)


_ALL = (
    _chart(
        "cores",
        "Core utilization",
        "core_utilization_ratio",
        help="lowest, mean and highest core, and outliers",
    ),
    _chart(
        "efa-latency",
        "EFA probe latency",
        "efa_latency_s",
        scale="log",
        help="per device, log scale",
        needs="EFA latency needs a probe.",
    ),
    _chart(
        "hbm",
        "HBM bandwidth",
        "hbm_bandwidth_bytes_per_s",
        help="per device, read and written",
        needs="HBM bandwidth can be estimated from a profile.",
    ),
    _chart(
        "efa-throughput",
        "EFA throughput",
        "efa_tx_bytes_per_s",
        help="all devices, sent and received",
        lines=(
            ("efa_tx_bytes_per_s", "sent", "transfer"),
            ("efa_rx_bytes_per_s", "received", "compute"),
        ),
    ),
    _chart(
        "efa-retransmits",
        "EFA retransmits",
        "efa_retransmits_per_s",
        help=f"per device, mean of {FIGURE_S} s",
        mean_s=FIGURE_S,  # counts come in bursts, and alerts name this mean
    ),
    _chart(
        "collective-bandwidth",
        "Collective bandwidth",
        "collective_bandwidth_bytes_per_s",
        help="across nodes, the fastest collective",
    ),
    _chart(
        "collective-time",
        "Collective time",
        "collective_time_s",
        scale="log",
        help="across nodes, the longest collective and its wait, log scale",
        needs="Bandwidth and time of collectives need NCCL Inspector.",
    ),
    _chart("memory", "Device memory", "device_memory_used_bytes", help="per device, allocated"),
    _chart("flops", "Core FLOPs", "core_flops_per_s", help="per core, as the runtime counts them"),
    _chart(
        "execution-latency",
        "Execution latency",
        "execution_latency_p50_s",
        scale="log",
        help="graph executions, log scale",
        lines=(
            ("execution_latency_p50_s", "median", None),
            ("execution_latency_p99_s", "99th percentile", None),
            ("execution_latency_p100_s", "slowest", None),
        ),
    ),
    _chart(
        "power",
        "Device power",
        "device_power_ratio",
        help="per device, mean of a minute over the maximum",
        needs="Device power needs the agent.",
    ),
    _chart("vcpu", "Host vCPUs", "vcpu_usage_ratio", help="share in use"),
    _chart("host-memory", "Host memory", "host_memory_used_bytes", help="in use"),
)
NODE_CHARTS: Mapping[str, NodeChart] = {chart.name: chart for chart in _ALL}
OF_NCCL = frozenset({"collective-bandwidth", "collective-time"})
BY_METRIC: Mapping[str, NodeChart] = {chart.metric: chart for chart in _ALL}


def chart_of_metric(metric: str) -> NodeChart:
    return BY_METRIC.get(metric) or _chart(metric, METRICS[metric].help.rstrip("."), metric)


def note_of(chart: NodeChart, node: Node) -> str | None:
    """Explain, for a real node, which figures have no counter."""
    if node.source == Node.Source.SIMULATED:
        return None
    return {"hbm": ESTIMATE, "efa-latency": PROBE}.get(chart.name)


def charts_of(node: Node) -> Sequence[NodeChart]:
    """Return the charts of a node; the live simulation leaves some out."""
    hidden = {"EFA"} if not node.n_efa else set()
    if node.source == Node.Source.SIMULATED:
        hidden |= {"power", "flops", "execution-latency", *OF_NCCL}
    kind = catalog.instances().get(node.instance_type)
    if kind and kind.chip.vendor == "AWS":
        hidden |= OF_NCCL
    peak = node.core_peak_flops
    return [
        chart.of_peak(peak) if peak and chart.name == "flops" else chart
        for chart in _ALL
        if hidden.isdisjoint({chart.part, chart.name})
    ]


def unmeasured_of(node: Node, block: Block | None) -> Sequence[NodeChart]:
    """Return the charts without data on a real node: neuron-monitor has no such counters."""
    if node.source == Node.Source.SIMULATED:
        return []
    known = METRICS.keys() - NOT_IN_NEURON_MONITOR
    if block is not None:
        cores = block.values.get("core_utilization_ratio")
        is_idle = cores is not None and not np.isfinite(cores).any()
        # A process that executes nothing has no latency.
        is_waiting = "executions_completed_per_s" in block.values
        absent = {"execution_latency_p50_s"} if is_waiting else set()
        known = block.values.keys() | (OF_PROCESSES if is_idle else absent)
    return [chart for chart in charts_of(node) if chart.metric not in known]


def node_figure(
    hot: Source,
    node: Node,
    chart: NodeChart,
    window: Window,
    *,
    marked: Sequence[int] = (),
    long_term: LongTerm | None = None,
) -> Chart:
    """Return one chart of a node; ``marked`` parts are highlighted."""
    # Data that has not arrived yet is no gap: a live window ends at its shard's newest tick.
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

    figure = _figure(fetch, chart, marked=marked)
    return replace(figure, note=note_of(chart, node), window=(window.start, window.end))


def node_points(hot: Source, node: Node, *, since_s: float, now_s: float) -> dict[str, Any]:
    """Return the points to append."""
    start, end = int(since_s) - N_RECENT, min(int(now_s), hot.newest().get(node.shard, 0))
    if end <= since_s:
        return {}
    metrics = tuple(dict.fromkeys(m for chart in charts_of(node) for m in chart.metrics))
    span = hot.window(node.shard, metrics, start=start, end=end, only=(node.name,))
    if node.name not in span.nodes:
        return {}
    mine = span.of((node.name,))

    def fetch(metric: str) -> Series:
        return Series(metric, mine.ticks, mine.values[metric][:, 0])

    return {chart.name: _new_points(fetch, chart, node, since_s) for chart in charts_of(node)}


def _new_points(
    fetch: Callable[[str], Series], chart: NodeChart, node: Node, since_s: float
) -> dict[str, Any]:
    figure = _figure(fetch, chart)
    labels = [line.label for line in figure.lines] if chart.has_spread(node) else None
    return figure.since(since_s) | ({"labels": labels} if labels else {})


def _figure(
    fetch: Callable[[str], Series], chart: NodeChart, *, marked: Sequence[int] = ()
) -> Chart:
    if chart.lines:
        return sums(fetch, chart)
    series = rolling(fetch(chart.metric), over_s=chart.mean_s)
    low, high = (None if v is None else v * chart.factor for v in (series.low, series.high))
    series = replace(series, values=series.values * chart.factor, low=low, high=high)
    return series_figure(series, chart.part, chart.unit, marked=marked, scale=chart.scale)


def rolling(series: Series, *, over_s: int) -> Series:
    """Average each second with the ones before, ``over_s`` in all; gaps and minutes stay."""
    if over_s <= series.every_s or not len(series.t_s):
        return series
    there = np.isfinite(series.values)
    totals = [np.where(there, series.values, 0.0), there.astype(float)]
    # The difference of two running sums is the sum between them.
    ahead = np.zeros((over_s, series.values.shape[1]))
    summed = [np.concatenate([ahead, each.cumsum(axis=0)]) for each in totals]
    total, n = (each[over_s:] - each[:-over_s] for each in summed)
    means = np.divide(total, n, out=np.full(total.shape, np.nan), where=there)
    return replace(series, values=means)
