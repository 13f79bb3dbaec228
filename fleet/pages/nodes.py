"""The list of nodes, the page of one node, and the retirement of nodes and runs."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from numpy.typing import NDArray

from fleet.access.roles import requires
from fleet.alerts.causes import cause_name
from fleet.alerts.impact import impact_of, worst_first
from fleet.alerts.text import AlertText, brief
from fleet.charts import nodes as charts
from fleet.charts.alerts import AlertChart, leads_of
from fleet.charts.alerts import charts_of as charts_of_alert
from fleet.charts.heat import NODES_PER_PAGE
from fleet.charts.node_maps import compare_node, map_points
from fleet.charts.nodes import charts_of, note_of, unmeasured_of
from fleet.charts.windows import Window
from fleet.costs.problem_nodes import problem_nodes
from fleet.ingest.nodes import timing_of
from fleet.ingest.samples import UNDER_WAY, refusal_of
from fleet.models import Alert, InjectedFault, Node, Run, SampleRequest
from fleet.models.node import address
from fleet.pages.frozen import frozen_node, window_context
from fleet.pages.render import Filter, HtmxRequest, period_days, render_page, with_page
from fleet.pages.tables import ROWS_AT_ONCE, Column, Table, TableView, in_chunks, moment, number
from fleet.pages.text import node_headline
from fleet.runs.node_columns import (
    BY_RUN_AND_RANK,
    FIGURES,
    BoolArray,
    NodeColumns,
    newest_figure,
    node_columns,
    nodes_in_use,
)
from fleet.runs.retirement import retire, unretire
from fleet.runs.state import own_pause_s
from fleet.runs.summaries import NodeNow, nodes_now, runs_now
from telemetry import catalog
from telemetry.blocks import Block, FloatArray, IntArray
from telemetry.errors import FieldError
from telemetry.ingest.exporters import ECC
from telemetry.store.connection import Connection
from telemetry.store.hot import HotStore, hot_store
from telemetry.store.node_state import read_sidecars
from telemetry.store.refused import read_refused

NO_RUN = "none"  # in an address: of the nodes without a run
STATES = ("firing", "acknowledged", "silent", "idle", "up", "released", "retired")
LIST_PARTIALS = ("nodes",)
PARTIALS = ("headline", "lead", "standout", "vitals", "alerts", "sample", "devices", "links")


AlertsByNode = Mapping[str, Sequence[Alert]]


@dataclass(frozen=True, slots=True)
class NodeFilter(Filter):
    state: str = ""
    run: str = ""
    type: str = ""
    label: str = ""
    q: str = ""

    def retired(self) -> QuerySet[Node]:
        """Return the retired nodes that match, by run and rank."""
        is_unassigned = self.run == NO_RUN
        nodes = Node.objects.filter_by(
            run="" if is_unassigned else self.run,
            is_unassigned=is_unassigned,
            instance_type=self.type,
            text=self.q,
            label=self.label,
        )
        return for_rows(nodes.exclude(retired_at=None)).order_by(*BY_RUN_AND_RANK)

    def kept(self, columns: NodeColumns, by_node: AlertsByNode) -> BoolArray:
        """Return which of the nodes in use match: (n_nodes,)."""
        roster, kept = columns.roster, np.ones(len(columns.roster.names), bool)
        if self.run:
            keys = [key for key, name in roster.run_names.items() if name == self.run]
            kept &= np.isin(roster.run, [0] if self.run == NO_RUN else keys)
        if self.type:
            kept &= roster.types == self.type
        if self.q or self.label:
            found = Node.objects.unretired().filter_by(text=self.q, label=self.label)
            kept &= np.isin(roster.key, list(found.order_by().values_list("pk", flat=True)))
        if self.state:
            kept &= is_in_state(columns, by_node, self.state)
        return kept


def for_rows(nodes: QuerySet[Node]) -> QuerySet[Node]:
    """Read what the rows of a list show of nodes."""
    nodes = nodes.select_related("run")
    return nodes.defer("labels", "run__labels", "run__plan", "run__clock")


def is_in_state(columns: NodeColumns, by_node: AlertsByNode, state: str) -> BoolArray:
    """Return which nodes are in a state, as `NodeRow.state` says it: (n_nodes,)."""
    roster = columns.roster
    is_firing, is_accused = (np.zeros(len(roster.names), bool) for _ in range(2))
    for name, alerts in by_node.items():
        if (row := roster.row_of.get(name)) is not None:
            is_accused[row] = True
            is_firing[row] = any(alert.acknowledged_at is None for alert in alerts)
    is_seen = np.isfinite(columns.utilization) | roster.is_by_job
    masks = {
        "up": columns.is_up & is_seen,
        "idle": columns.is_up & ~is_seen,
        "silent": columns.is_silent,
        "released": columns.is_over & ~columns.is_up,
        "unknown" if columns.is_in_pause else "waiting": columns.is_awaited,
    }
    masks = {name: mask & ~is_accused for name, mask in masks.items()}
    masks |= {"firing": is_firing, "acknowledged": is_accused & ~is_firing}
    return masks.get(state, np.zeros(len(roster.names), bool))


def worst_order(columns: NodeColumns, by_node: AlertsByNode) -> IntArray:
    """Return the nodes with the worst alert first, then those that are silent: (n_nodes,)."""
    place = np.full(len(columns.roster.names), len(by_node))
    for at, name in enumerate(by_node):
        if (row := columns.roster.row_of.get(name)) is not None:
            place[row] = at
    missing = [columns.is_silent, columns.is_awaited, columns.is_up]
    return np.lexsort((np.select(missing, [0, 1, 2], 3), place))


@dataclass(frozen=True, slots=True)
class NodeRow:
    now: NodeNow
    alerts: tuple[Alert, ...] = ()

    @property
    def node(self) -> Node:
        return self.now.node

    @property
    def state(self) -> str:
        """Alerts come before connection, connection before activity."""
        if any(alert.acknowledged_at is None for alert in self.alerts):
            return "firing"
        if self.alerts:
            return "acknowledged"
        if self.now.state != "up":
            return self.now.state
        is_seen = self.now.utilization_mean is not None or self.node.source == Node.Source.STEPS
        return "up" if is_seen else "idle"

    @property
    def run_url(self) -> str:
        return address("run-detail", self.node.run.name) if self.node.run else ""

    @property
    def alert(self) -> Alert | None:
        """The worst of its open alerts."""
        return self.alerts[0] if self.alerts else None

    @property
    def what(self) -> str:
        return brief(self.alerts[0]) if self.alerts else ""

    @property
    def usd_per_hour(self) -> float | None:
        return usd_per_hour(self.alerts[0]) if self.alerts else None

    @property
    def seen_at(self) -> datetime | None:
        seen_s = self.now.last_seen_s
        return None if seen_s is None else datetime.fromtimestamp(seen_s, UTC)


def usd_per_hour(alert: Alert) -> float | None:
    return impact_of(alert).usd_per_hour


def rows_of(
    hot: HotStore, nodes: Iterable[Node], *, now: datetime, by_node: AlertsByNode | None = None
) -> list[NodeRow]:
    by_node, listed = alerts_by_node() if by_node is None else by_node, list(nodes)
    names = frozenset(node.name for node in listed)
    blocks = hot.latest({node.shard for node in listed})
    # The worst nodes are of many shards: figures of the others there are not computed.
    latest = {shard: _only(block, names) for shard, block in blocks.items()}
    return [
        NodeRow(each, tuple(by_node.get(each.node.name, ())))
        for each in nodes_now(hot, listed, now_s=now.timestamp(), latest=latest)
    ]


def _only(block: Block, names: Collection[str]) -> Block:
    rows = [row for row, name in enumerate(block.nodes) if name in names]
    values = {metric: each[rows] for metric, each in block.values.items()}
    return replace(block, nodes=tuple(block.nodes[row] for row in rows), values=values)


def alerts_by_node() -> dict[str, list[Alert]]:
    """Return the open alerts of the nodes that they accuse, the worst first."""
    by_node = defaultdict(list)
    accusing = Alert.objects.open().exclude(node=None, parts=[]).select_related("node", "run")
    for alert in sorted(accusing.defer("run__plan", "run__clock"), key=worst_first):
        for name in alert.nodes:
            by_node[name].append(alert)
    return by_node


def worst_rows(rows: Sequence[NodeRow]) -> Sequence[NodeRow]:
    """Return what a page shows of many nodes: those with an alert first, then silent ones."""
    if len(rows) <= NODES_PER_PAGE:
        return rows
    # Of those that are awaited nothing is known to be wrong.
    place = {state: number for number, state in enumerate(STATES)}
    return sorted(rows, key=lambda row: place.get(row.state, place["up"]))[:NODES_PER_PAGE]


def _run_name(row: NodeRow) -> str:
    return row.node.run.name if row.node.run else ""


NODES = Table(
    "nodes",
    "worst first",
    (
        Column("node", "Node", "node.name", order="name"),
        Column("state", "State", "state", style="wide"),
        Column("alert", "Open alert", "what", style="wide"),
        number("loss", "Lost per hour", "usd_per_hour", "USD", style="num widest"),
        Column("run", "Run", _run_name, style="wide", order="run__name"),
        number("rank", "Rank", "node.rank", style=None),
        Column("type", "Type", "node.instance_type", style="widest", order="instance_type"),
        Column("instance", "Instance", "node.instance_id", style=None),
        Column("zone", "Zone", "node.zone", style=None),
        number("cores", "Core utilization", "now.utilization_mean", "ratio", style=""),
        number("cores_min", "Lowest core", "now.utilization_min", "ratio", style=None),
        number("cores_max", "Highest core", "now.utilization_max", "ratio", style=None),
        number(
            "hbm_bytes_per_s", "HBM bandwidth", "now.hbm_bytes_per_s", "bytes/s", style="num wide"
        ),
        number("efa_latency_max_s", "Worst EFA", "now.efa_latency_max_s", "s"),
        number("ecc_uncorrected", "Uncorrected ECC", "now.ecc_uncorrected", style="num widest"),
        moment("seen", "Last seen", "seen_at", style="num wide", order="last_seen_at"),
    ),
)


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes in use, in columns, and their open alerts."""

    hot: HotStore
    now: datetime
    columns: NodeColumns
    by_node: AlertsByNode

    def keys(self, keep: NodeFilter, table: TableView) -> list[int]:
        """Return the keys of the nodes that match, in the order of a table."""
        order = worst_order(self.columns, self.by_node)
        if table.column is not None:
            order = order[table.places(self.values(table.column.key, order)[order])]
        kept = keep.kept(self.columns, self.by_node)
        return [*map(int, self.columns.roster.key[order[kept[order]]])]

    def values(self, key: str, worst: IntArray) -> NDArray[Any]:
        """Return what a column is sorted by: (n_nodes,)."""
        columns, roster = self.columns, self.columns.roster
        if key in FIGURES:
            return newest_figure(self.hot, columns, key)
        if key in ("alert", "loss"):
            values = np.full(len(roster.names), "" if key == "alert" else np.nan, object)
            for name, alerts in self.by_node.items():
                if (row := roster.row_of.get(name)) is not None:
                    alert = alerts[0]
                    values[row] = brief(alert) if key == "alert" else usd_per_hour(alert)
            return values if key == "alert" else values.astype(float)
        place = np.arange(len(roster.names))
        by_column: dict[str, NDArray[Any]] = {
            "node": np.array(roster.names),
            "state": np.argsort(worst),
            "run": np.where(roster.run > 0, place, np.nan),
            "type": roster.types,
            "cores": columns.utilization,
            "seen": columns.seen_s,
        }
        return by_column[key]

    def rows(self, keys: Sequence[int]) -> list[NodeRow]:
        known = for_rows(Node.objects.all()).in_bulk(keys)
        return self.rows_of(known[key] for key in keys if key in known)

    def rows_of(self, nodes: Iterable[Node]) -> list[NodeRow]:
        return rows_of(self.hot, nodes, now=self.now, by_node=self.by_node)


STATES_OF_CORES = ("up", "idle")


def nodes_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return one page of the nodes that match."""
    keep, now, hot = NodeFilter.of(filters), timezone.now(), hot_store()

    def every(table: TableView) -> Iterator[NodeRow]:
        if keep.state == "retired":
            yield from in_chunks(table.ordered(keep.retired()), nodes.rows_of)
            return
        keys = nodes.keys(keep, table)
        for start in range(0, len(keys), ROWS_AT_ONCE):
            yield from nodes.rows(keys[start : start + ROWS_AT_ONCE])

    table = NODES.by(keep.given, every)
    with_cores = keep.state in STATES_OF_CORES or keep.sort.lstrip("-") == "cores"
    columns = node_columns(hot, now_s=now.timestamp(), with_cores=with_cores)
    nodes, counts = NodeList(hot, now, columns, alerts_by_node()), nodes_in_use(columns)
    listing: Page[Any]
    if keep.state == "retired":
        listing = Paginator(table.ordered(keep.retired()), NODES_PER_PAGE).get_page(page)
        rows = nodes.rows_of(listing)
    else:
        listing = Paginator(nodes.keys(keep, table), NODES_PER_PAGE).get_page(page)
        rows = nodes.rows(list(listing))
    return {
        "table": table,
        "rows": rows,
        "page": listing,
        "n_found": listing.paginator.count,
        "n_nodes": counts.n_nodes,
        "has_filter": bool(counts.n_nodes) or Node.objects.exists(),
        "n_up": counts.n_up,
        "n_silent": counts.n_silent,
        "keep": keep,
        "stream_filters": with_page(keep.query, listing.number),
        "states": STATES,
        "runs": counts.runs,
        "has_unassigned": counts.has_unassigned,
        "types": counts.types,
    }


@require_safe
def node_list(request: HtmxRequest) -> HttpResponse:
    context = nodes_context(**request.GET.dict())
    return render_page(request, "nodes/node_list.html", context, partials=LIST_PARTIALS)


PERIODS_DAYS = (1, 7, 30, 90)
PROBLEM_NODES = Table(
    "problem-nodes",
    "most expensive first",
    (
        Column("node", "Node", "name"),
        Column("zone", "Zone", lambda row: row.node.zone if row.node else "", style=None),
        number("alerts", "Alerts", lambda row: len(row.alerts)),
        number("open", "Open alerts", "n_open", style=None),
        Column("causes", "Causes", lambda row: [cause for cause, _ in row.causes]),
        Column("runs", "Runs slowed", "runs"),
        number("lost", "Node-hours lost", "node_hours", "h"),
        number("cost", "Cost", "usd", "USD"),
        moment("latest", "Latest", "latest.fired_at"),
    ),
)


@require_safe
def problem_node_list(request: HtmxRequest) -> HttpResponse:
    """Show the nodes that alerts accused within a period, with what that has cost."""
    days = period_days(request, PERIODS_DAYS)
    problems = problem_nodes(now=timezone.now(), days=days)
    context = {
        "table": PROBLEM_NODES.by(request.GET.dict(), lambda t: t.sorted(problems)),
        "found": problems,
        "n_repeated": sum(each.is_repeated for each in problems),
        "days": days,
        "choices": PERIODS_DAYS,
    }
    return render_page(request, "nodes/problem_nodes.html", context)


def node_context(name: str) -> dict[str, Any]:
    now, hot = timezone.now(), hot_store()
    nodes = Node.objects.select_related("run").annotate(is_drilled=Exists(drills_on_nodes(now)))
    node = get_object_or_404(nodes, name=name)
    of_run = Q(run=node.run_id) if node.run_id else Q()
    open_alerts = Alert.objects.open().filter(Q(node=node) | ~Q(parts=[]) | of_run)
    open_alerts = open_alerts.select_related("run", "node")
    mine = (alert for alert in open_alerts if node.name in alert.nodes)
    alerts = sorted(mine, key=worst_first)
    texts = [AlertText(alert, now) for alert in alerts]
    blocks = hot.latest({node.shard})
    summed_up = nodes_now(hot, [node], now_s=now.timestamp(), latest=blocks)[0]
    last = blocks.get(node.shard)
    block = last if summed_up.is_up else None
    return {
        "node": node,
        "stream": f"node:{node.name}",
        # Compared when a template, or the page, asks for it.
        "comparison": partial(compare_node, hot, node),
        "lead": lead_of(texts),
        "is_measured": node.source != Node.Source.SIMULATED,
        "timing": timing_of(hot, node.name) if node.source != Node.Source.SIMULATED else None,
        "agent": agent_problems(hot, node),
        "row": NodeRow(summed_up, tuple(alerts)),
        "is_drill": vars(node)["is_drilled"] or any(alert.is_drill for alert in alerts),
        "alerts": texts,
        "headline": node_headline(
            summed_up,
            n_alerts=len(alerts),
            at=now,
            pause_s=own_pause_s(hot, now_s=now.timestamp()),
            refused=read_refused(hot, [f"node:{name}"], now_s=now.timestamp()).get(f"node:{name}"),
            of_run=runs_now(hot, [node.run], now_s=now.timestamp(), alerts=open_alerts)[0]
            if node.run
            else None,
        ),
        "samples": node_samples(hot, node, is_up=summed_up.is_up, now=now),
        "hardware": hardware_of(node, block),
        "unmeasured": unmeasured_of(node, last),
        "as_of": datetime.fromtimestamp(block.tick, UTC) if block else None,
    }


def drills_on_nodes(now: datetime) -> QuerySet[InjectedFault]:
    """Select the drills that run now on a node of an outer query, or on all of its run."""
    of_node = Q(node=OuterRef("pk")) | Q(node=None, run=OuterRef("run"))
    running = InjectedFault.objects.filter(of_node, starts_at__lte=now, ends_at__gt=now)
    return running.exclude(injected_by="")


# The requests of samples that the page of a node lists.
N_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One request of a sample, and how far it is."""

    row: SampleRequest
    state: str
    elapsed_s: float | None
    is_stored: bool

    @property
    def is_under_way(self) -> bool:
        return self.state in UNDER_WAY

    @property
    def is_sent(self) -> bool:
        """Whether the agent has all readings and sends them with its next report."""
        return self.elapsed_s is not None and self.elapsed_s > SampleRequest.LENGTH_S


@dataclass(frozen=True, slots=True)
class NodeSamples:
    """The newest requests of samples of a node, and why none can be requested now."""

    rows: Sequence[SampleRow]
    refusal: str

    @property
    def newest(self) -> SampleRow | None:
        return self.rows[0] if self.rows else None

    @property
    def wait_s(self) -> float:
        return SampleRequest.WAIT.total_seconds()

    @property
    def length_s(self) -> int:
        return SampleRequest.LENGTH_S


def sample_row(row: SampleRequest, *, is_stored: bool, now: datetime) -> SampleRow:
    began = row.started_at
    elapsed_s = None if began is None else max(0.0, (now - began).total_seconds())
    return SampleRow(row, row.state(now), elapsed_s, is_stored)


def node_samples(hot: Connection, node: Node, *, is_up: bool, now: datetime) -> NodeSamples:
    requests = node.sample_requests.defer("answer").annotate(is_stored=Q(answer__isnull=False))
    newest = list(requests[:N_SAMPLES])
    last = newest[0] if newest else None
    rows = [sample_row(each, is_stored=each.is_stored, now=now) for each in newest]
    return NodeSamples(rows, refusal_of(hot, node, last, is_up=is_up, now=now))


def node_points(name: str, *, since_s: float) -> dict[str, Any]:
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    hot, now_s = hot_store(), timezone.now().timestamp()
    lines = charts.node_points(hot, node, since_s=since_s, now_s=now_s)
    return lines | map_points(hot, node, since_s=since_s, now_s=now_s)


def lead_of(alerts: Sequence[AlertText]) -> AlertChart | None:
    """Return the chart that shows the worst alert best; None without any."""
    return next(iter(leads_of(charts_of_alert(alerts[0].alert))), None) if alerts else None


def map_context(request: HttpRequest, node: Node, *, window: Window) -> dict[str, Any]:
    """Return the map of a node: the signal that the address names, or the one that stands out."""
    at_s = None if window.is_live else window.end
    comparison = compare_node(hot_store(), node, at_s=at_s)
    asked = request.GET.get("signal", "")
    signal = comparison.drawn(asked)

    def links(name: str, current: str, texts: Mapping[str, str]) -> list[tuple[str, str, bool]]:
        """Link to each value of a field of the address; the empty one leaves it out."""
        choices = []
        for value, text in texts.items():
            query = request.GET.copy()
            query[name] = value
            if not value:
                del query[name]
            choices.append((text, query.urlencode(), value == current))
        return choices

    names = {"": "What stands out"} | {each.name: each.title for each in comparison.signals}
    show = "value" if request.GET.get("show") == "value" else ""
    return {
        "comparison": comparison,
        "signal": signal,
        "show": show,
        # Maps in which nothing stands out are folded, unless they are asked for.
        "has_map": bool(comparison.outlier or asked or show or at_s),
        "map_help": "workers of its run"
        if signal.is_of_steps
        else f"each {signal.part}{', highest in 30 s' * signal.follows_step}",
        "map_choices": (
            ("Signal", links("signal", asked if asked == signal.name else "", names)),
            ("Colour", links("show", show, {"": "Deviation", "value": "Value"})),
        ),
        # The waits of all workers, unless the map has them already.
        "has_waits": any(each.name == "wait" for each in comparison.signals)
        and signal.name != "wait",
    }


@require_safe
def node_detail(request: HtmxRequest, name: str) -> HttpResponse:
    """Show one node, now or in a past window."""
    context = node_context(name)
    node = context["node"]
    released_at = node.run.finished_at if node.run and not context["row"].now.is_up else None
    context |= window_context(request, now=timezone.now(), ended_at=released_at)
    context |= map_context(request, node, window=context["window"])
    drawn = [chart for chart in charts_of(node) if chart not in context["unmeasured"]]
    context["charts"] = [(chart, note_of(chart, node)) for chart in drawn]
    context["has_few_cores"] = node.n_cores <= 8
    context["has_links"] = any(chart.part == "EFA" for chart in drawn)
    if context["frozen"]:
        context |= frozen_node(node, context["window"])
        # The chart of an alert is of its present diagnosis.
        context["lead"] = None
    else:
        history = Alert.objects.histories([node], until=timezone.now())[node.name]
        context["history"] = history
        context["history_causes"] = [(cause_name(cause.cause), cause) for cause in history.causes]
    partials = (*PARTIALS, "maps")
    return render_page(request, "nodes/node_detail.html", context, partials=partials)


# More unsent reports than one or two minutes without a connection explain.
MANY_UNSENT = 90
LOSSES = {
    "n_dropped": "were dropped (spool full)",
    "n_refused": "were rejected",
    "n_skipped": "could not be read",
}


def agent_problems(hot: Connection, node: Node) -> list[str]:
    """Return what is wrong with a node's agent and devices, in sentences."""
    if node.source == Node.Source.SIMULATED:
        return []
    problems = []
    agent = read_sidecars(hot, "agent", [node.name]).get(node.name) or {}
    lost = [f"{agent[name]:,} {what}" for name, what in LOSSES.items() if agent.get(name)]
    if lost:
        problems.append(f"Agent reports lost since its start: {', '.join(lost)}.")
    if agent.get("n_waiting", 0) > MANY_UNSENT:
        problems.append(f"The agent has {agent['n_waiting']:,} unsent reports.")
    if agent.get("stopping"):
        problems.append("The agent was asked to end, as for an upgrade, and is not back yet.")
    if problem := agent.get("problem"):
        problems.append(f"Agent error: {problem.rstrip('.')}.")
    devices = read_sidecars(hot, "neuron", [node.name]).get(node.name) or ()
    unhealthy = [
        f"{', '.join(device['unhealthy'])} of device {device['index']}"
        for device in devices
        if device.get("unhealthy")
    ]
    if unhealthy:
        problems.append(f"The Neuron driver reports as unhealthy: {'; '.join(unhealthy)}.")
    return problems


NEVER = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; None for values that were not reported."""

    number: int
    utilization_ratio: float | None
    hbm_bytes_per_s: float | None
    memory_used_bytes: float | None
    power_ratio: float | None
    mem_corrected: int | None
    mem_uncorrected: int | None
    sram_corrected: int | None
    sram_uncorrected: int | None

    @property
    def n_uncorrected(self) -> int:
        return (self.mem_uncorrected or 0) + (self.sram_uncorrected or 0)


@dataclass(frozen=True, slots=True)
class Link:
    """One EFA device; None for values that were not reported."""

    number: int
    latency_s: float | None
    tx_bytes_per_s: float | None
    rx_bytes_per_s: float | None
    retransmits_per_s: float | None
    drops_per_s: float | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The newest values of a node's parts."""

    devices: Sequence[Device]
    links: Sequence[Link]
    vcpu_usage_ratio: float | None
    host_memory_used_bytes: float | None
    memory_bytes: float | None  # of all devices, by the catalogue
    host_memory_bytes: float | None

    @property
    def has_power(self) -> bool:
        return any(device.power_ratio is not None for device in self.devices)

    @property
    def n_uncorrected(self) -> int:
        return sum(device.n_uncorrected for device in self.devices)


def hardware_of(node: Node, block: Block | None) -> Hardware:
    """Read a node's row of its shard's newest block."""
    values: Mapping[str, FloatArray] = {}
    if block is not None and node.name in block.nodes:
        row = block.nodes.index(node.name)
        values = {name: array[row] for name, array in block.values.items()}

    def value(metric: str, part: int = 0) -> float | None:
        array = values.get(metric, NEVER)
        return float(array[part]) if part < array.size and np.isfinite(array[part]) else None

    def count(metric: str, part: int) -> int | None:
        number = value(metric, part)
        return None if number is None else int(number)

    try:
        instance = catalog.instance(node.instance_type)
    except ValueError:
        instance = None
    cores = values.get("core_utilization_ratio", NEVER)
    per_device: list[float | None] = [None] * node.n_devices
    if cores.size and cores.size == node.n_devices * node.cores_per_device:
        grouped = cores.reshape(node.n_devices, -1)
        per_device = [
            float(np.nanmean(row)) if np.isfinite(row).any() else None for row in grouped
        ]
    return Hardware(
        devices=[
            Device(
                i,
                per_device[i],
                value("hbm_bandwidth_bytes_per_s", i),
                value("device_memory_used_bytes", i),
                value("device_power_ratio", i),
                *(count(kind, i) for kind in ECC),
            )
            for i in range(node.n_devices)
        ],
        links=[
            Link(i, *(value(f"efa_{each.name}", i) for each in fields(Link)[1:]))
            for i in range(node.n_efa)
        ],
        vcpu_usage_ratio=value("vcpu_usage_ratio"),
        host_memory_used_bytes=value("host_memory_used_bytes"),
        memory_bytes=instance.hbm_bytes if instance else None,
        host_memory_bytes=instance.host_memory_bytes if instance else None,
    )


@require_POST
@requires("operator")
def node_retire(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, get_object_or_404(Node.objects.select_related("run"), name=name))


@require_POST
@requires("operator")
def run_retire(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, get_object_or_404(Run, name=name))


def _act(request: HttpRequest, row: Node | Run) -> HttpResponse:
    by, now = request.user.get_username(), timezone.now()
    try:
        if request.POST.get("undo") == "yes":
            done = unretire(row, by=by)
            text = "is back in use." if done else "is not retired."
        else:
            done = retire(hot_store(), row, by=by, now=now)
            text = "is retired." if done else "is already retired."
    except FieldError as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(row.get_absolute_url())
    note = messages.success if done else messages.error
    note(request, f"{row.name} {text}")
    return HttpResponseRedirect(row.get_absolute_url())
