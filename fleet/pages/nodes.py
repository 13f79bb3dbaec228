"""Pages of the nodes: the list with its filter, and one machine in full."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import F
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.alerts.text import AlertText
from fleet.charts import nodes as charts
from fleet.charts.nodes import charts_of, note_of, unmeasured_of
from fleet.ingest.nodes import timing_of
from fleet.models import Alert, Node
from fleet.models.addresses import address
from fleet.pages import text
from fleet.pages.frozen import node_then, window_context
from fleet.pages.node_tables import hardware_of
from fleet.pages.render import Filter, HtmxRequest, render_page
from fleet.runs.summaries import NodeNow, nodes_now
from telemetry.store.connection import Connection
from telemetry.store.hot import HotStore, open_store
from telemetry.store.node_state import read_sidecars

# So many lines wait when a minute or two could not be sent.
MANY_WAITING = 90
COUNTED = {
    "n_dropped": "were dropped (spool full)",
    "n_refused": "were rejected",
    "n_skipped": "could not be read",
}


def agent_words(hot: Connection, node: Node) -> list[str]:
    """Return what is wrong with a node's agent and its devices' health, in sentences."""
    if node.source == Node.Source.SIMULATED:
        return []
    agent = read_sidecars(hot, "agent", [node.name]).get(node.name)
    driver = read_sidecars(hot, "neuron", [node.name]).get(node.name)
    return [*_agent(agent), *_driver(driver)]


def _agent(said: Mapping[str, Any] | None) -> list[str]:
    """Say what the agent lost or waits with, and what hinders it."""
    if said is None:
        return []
    words = []
    lost = [f"{said[name]:,} {what}" for name, what in COUNTED.items() if said.get(name)]
    if lost:
        words.append(f"Agent reports lost since its start: {', '.join(lost)}.")
    if said.get("n_waiting", 0) > MANY_WAITING:
        words.append(f"The agent has {said['n_waiting']:,} unsent reports.")
    if problem := said.get("problem"):
        words.append(f"Agent error: {problem.rstrip('.')}.")
    return words


def _driver(devices: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Say which parts of which devices the Neuron driver holds to be unhealthy."""
    bad = [
        f"{', '.join(device['unhealthy'])} of device {device['index']}"
        for device in devices or ()
        if device.get("unhealthy")
    ]
    return [f"The Neuron driver reports as unhealthy: {'; '.join(bad)}."] if bad else []


RUN_OR_LAST = F("run__name").asc(nulls_last=True)
STATES = ("firing", "acknowledged", "silent", "idle", "up", "released")
FILTERS = ("state", "run", "type", "q")
LIST_PARTIALS = ("nodes",)
PARTIALS = ("headline", "vitals", "alerts", "devices", "links")


@dataclass(frozen=True, slots=True)
class NodeFilter(Filter):
    """Which nodes to list."""

    state: str = ""
    run: str = ""
    type: str = ""
    q: str = ""

    def matches(self, rows: Iterable["NodeRow"]) -> list["NodeRow"]:
        """Return the rows that match; one query where more than the state is given."""
        rows = [row for row in rows if self.state in ("", row.state)]
        if not (self.run or self.type or self.q):
            return rows
        is_unassigned = self.run == "none"
        nodes = Node.objects.filter_by(
            run="" if is_unassigned else self.run,
            is_unassigned=is_unassigned,
            instance_type=self.type,
            text=self.q,
        )
        keys = set(nodes.values_list("pk", flat=True))
        return [row for row in rows if row.node.pk in keys]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One line of the list."""

    now: NodeNow
    alerts: tuple[Alert, ...] = ()

    @property
    def node(self) -> Node:
        """The machine itself."""
        return self.now.node

    @property
    def state(self) -> str:
        """The word for how it is: what is wrong comes before what it does."""
        if any(alert.acknowledged_at is None for alert in self.alerts):
            return "firing"
        if self.alerts:
            return "acknowledged"
        if not self.now.is_up:
            return "silent" if self.now.is_silent else "released"
        is_seen = self.now.utilization_mean is not None or self.node.source == Node.Source.STEPS
        return "up" if is_seen else "idle"

    @property
    def run_url(self) -> str:
        """The page of the run it works for."""
        return address("run-detail", self.node.run.name) if self.node.run else ""


def rows_of(hot: HotStore, nodes: Iterable[Node], *, now: datetime) -> list[NodeRow]:
    """Sum up nodes, each with the open alerts that blame it."""
    blamed = defaultdict(list)
    for alert in Alert.objects.open().exclude(node=None).worst_first():
        blamed[alert.node_id].append(alert)
    return [
        NodeRow(each, tuple(blamed[each.node.pk]))
        for each in nodes_now(hot, nodes, now_s=now.timestamp())
    ]


def nodes_context(**filters: str) -> dict[str, Any]:
    """Return what the list of nodes shows: those that the filters keep."""
    keep, now = NodeFilter.of(filters), timezone.now()
    nodes = Node.objects.prefetch_related("run").order_by(RUN_OR_LAST, "rank", "name")
    rows = rows_of(open_store(settings.REDIS_URL), nodes, now=now)
    n_up = sum(row.now.is_up for row in rows)
    return {
        "rows": keep.matches(rows),
        "n_nodes": len(rows),
        "n_up": n_up,
        "n_silent": sum(row.now.is_silent for row in rows),
        "keep": keep,
        "states": [state for state in STATES if any(row.state == state for row in rows)],
        "runs": sorted({row.node.run.name for row in rows if row.node.run}),
        "has_loose": any(row.node.run is None for row in rows),
        "types": sorted({row.node.instance_type for row in rows}),
    }


@require_safe
def node_list(request: HtmxRequest) -> HttpResponse:
    """List every node, or those that the filter keeps."""
    context = nodes_context(**{name: request.GET.get(name, "") for name in FILTERS})
    return render_page(request, "nodes/node_list.html", context, partials=LIST_PARTIALS)


def node_context(name: str) -> dict[str, Any]:
    """Return what changes on the page of one node."""
    now, hot = timezone.now(), open_store(settings.REDIS_URL)
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    alerts = list(node.alerts.open().worst_first().select_related("run", "node"))
    blocks = hot.latest()
    summed_up = nodes_now(hot, [node], now_s=now.timestamp(), latest=blocks)[0]
    last = blocks.get(node.shard)
    block = last if summed_up.is_up else None
    return {
        "node": node,
        "stream": f"node:{node.name}",
        "is_measured": node.source != Node.Source.SIMULATED,
        "manner": timing_of(hot, node.name) if node.source != Node.Source.SIMULATED else None,
        "agent": agent_words(hot, node),
        "row": NodeRow(summed_up, tuple(alerts)),
        "alerts": [AlertText(alert, now) for alert in alerts],
        "headline": text.of_node(summed_up, n_alerts=len(alerts), at=now),
        "hardware": hardware_of(node, block),
        "unmeasured": unmeasured_of(node, last),
        "as_of": datetime.fromtimestamp(block.tick, UTC) if block else None,
    }


def node_points(name: str, *, since_s: float) -> dict[str, Any]:
    """Return what the charts of one node append."""
    node = get_object_or_404(Node, name=name)
    hot, now_s = open_store(settings.REDIS_URL), timezone.now().timestamp()
    return charts.node_points(hot, node, since_s=since_s, now_s=now_s)


@require_safe
def node_detail(request: HtmxRequest, name: str) -> HttpResponse:
    """One node: how it is now, and how it came to be so."""
    context = node_context(name)
    node = context["node"]
    released_at = node.run.finished_at if node.run and not context["row"].now.is_up else None
    context |= window_context(request, now=timezone.now(), ended_at=released_at)
    drawn = [chart for chart in charts_of(node) if chart not in context["unmeasured"]]
    context["charts"] = [(chart, note_of(chart, node)) for chart in drawn]
    context["has_few_cores"] = node.n_cores <= 8
    context["has_links"] = any(chart.part == "EFA" for chart in drawn)
    if context["frozen"]:
        context |= node_then(node, context["window"])
    return render_page(request, "nodes/node_detail.html", context, partials=PARTIALS)
