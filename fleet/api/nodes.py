"""Nodes with their latest values."""

from datetime import UTC, datetime
from typing import Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    LABELS,
    LabelFilter,
    NodeName,
    NullableText,
    ResponseSchema,
    Text,
    conflict_on,
    doc,
)
from fleet.api.paging import Page, Paging, paginate
from fleet.models import Alert, Node, Run, alert_history
from fleet.models.problem import ProblemError
from fleet.runs.retirement import retire, unretire
from fleet.runs.summaries import STALE_AFTER_S, NodeNow, nodes_now
from telemetry.store.hot import HotStore, hot_store

router = Router(tags=["nodes"])
NODE_FIELDS = {"run", "team", "instance_type", "source", "label"}


class NodeFigures(ResponseSchema, source=NodeNow):
    """Values of a node's newest report; null where unknown or silent."""

    utilization_mean = doc(
        "Share of the last second that cores computed, 0 to 1, mean of cores.", 0.93
    )
    utilization_min = doc("The same of the least busy core.")
    utilization_max = doc("The same of the busiest core.")
    hbm_bytes_per_s = doc("HBM bytes read and written per second, all devices.")
    device_memory_used_bytes = doc("HBM bytes in use, all devices.")
    efa_latency_max_s = doc("Probe latency of the slowest EFA device, in seconds.")
    ecc_uncorrected = doc("Count of uncorrected memory errors.")
    flops_per_s = doc("FLOPs per second as the runtime counts them, all cores that report them.")
    flops_ratio = doc(
        "The same over the dense BF16 peak of these cores, 0 to 1; null for an instance type "
        "without a known peak.",
        0.41,
    )
    power_mean_ratio = doc("Power over its maximum, 0 to 1, mean of devices and of a minute.")
    execution_latency_p50_s = doc("Latency of graph executions, median, in seconds.")
    execution_latency_p99_s = doc("The same, 99th percentile.")
    execution_latency_p100_s = doc("The same, slowest.")


class CauseHistory(ResponseSchema, source=alert_history.CauseHistory):
    """Alerts of one cause of which a node was the root cause."""

    cause = doc("Cause.", "slow_core")
    n_alerts = doc("Number of alerts.", 2)
    n_runs = doc("Number of runs with such an alert.", 2)
    last_at = doc("Time when the last one fired, UTC.")


class AlertHistory(ResponseSchema, source=alert_history.AlertHistory):
    """Alerts of the last 30 days of which a node was the root cause."""

    days = doc("Length of the history in days.", 30)
    n_alerts = doc("Number of alerts, without drills.", 4)
    n_runs = doc("Number of runs with such an alert.", 3)
    n_drills = doc("Number of alerts that drills caused.", 0)
    last_at = doc("Time when the last one fired, UTC; null without alerts.")
    causes: list[CauseHistory] = doc("The alerts by cause, most alerts first.")
    n_others = doc("Other nodes of its instance type.", 63)
    others_median = doc("Median number of alerts of these nodes; null without other nodes.", 0.0)
    is_unusual = doc("Whether chance is unlikely to give one of these nodes so many alerts.")


class NodeOut(ResponseSchema, source=Node):
    """One node."""

    name = doc("Unique name, used in URLs.", "llama-03")
    instance_type = doc("Instance type.", "trn1.32xlarge")
    instance_id = doc("EC2 instance ID; empty if unknown.")
    zone = doc("Availability zone; empty if unknown.")
    ultraserver_id = doc("UltraServer it is part of; empty if none or unknown.")
    labels: dict[str, str] = doc(LABELS, {"namespace": "ml"})
    source = doc(
        "Source of its data: simulated, neuron-monitor or step-reports.", "neuron-monitor"
    )
    run: NullableText = doc("Name of its run.", "llama")
    rank = doc("Rank within the run.", 3)
    n_cores = doc("NeuronCores, as the runtime counts them.", 32)
    n_devices = doc("Accelerators.", 16)
    n_efa = doc("EFA devices.", 8)
    first_seen_at = doc("Time of its first report, UTC.")
    last_seen_at = doc(
        "Time of its newest report, UTC, to the hour if older than a week; null if there was none."
    )
    state: str = doc(
        "up; waiting: not heard since trnwatch started; unknown: not heard while trnwatch itself "
        "is stopped; silent: it should report; released: its run has ended; retired.",
        "up",
    )
    retired_at = doc("Since when it is retired, UTC.")
    retired_by = doc("Who retired it or brought it back; empty: automatically, or neither.")
    now: NodeFigures = doc("Values of its newest report.")
    alert_history: AlertHistory = doc("Alerts of the last 30 days of which it was the root cause.")
    url: str = doc("Path of its page.", "/nodes/llama-03/")


class NodePage(Page[NodeOut]):
    """A page of nodes."""

    sorted_by: str = doc("Order: name, by code points.", default="name")


class NodeQuery(Paging):
    """Filter of nodes."""

    run: Text = doc("Name of the run.", "llama", default="")
    team: Text = doc("Team of the run, exact match.", default="")
    instance_type: Text = doc("Instance type.", "trn2.48xlarge", default="")
    source: Literal["", "simulated", "neuron-monitor", "step-reports"] = doc(
        "Source of the data.", default=""
    )
    label: LabelFilter = ""
    state: Literal["", "up", "silent", "released", "retired"] = doc(
        "up; silent: should report; released: its run has ended; retired. "
        "Default: all but the retired.",
        default="",
    )


def _serialize(nodes: list[Node], hot: HotStore) -> list[NodeOut]:
    at = timezone.now()
    histories = Alert.objects.histories(nodes, until=at)
    latest = hot.latest({node.shard for node in nodes})
    return [
        NodeOut.from_object(
            now.node,
            last_seen_at=now.last_seen_s and datetime.fromtimestamp(now.last_seen_s, UTC),
            state=now.state,
            now=now,
            alert_history=histories[now.node.name],
            url=now.node.get_absolute_url(),
        )
        for now in nodes_now(hot, nodes, now_s=at.timestamp(), latest=latest)
    ]


@router.get("", response=NodePage, **needs("read"), summary="List nodes")
def node_list(request: HttpRequest, query: Query[NodeQuery]) -> NodePage:
    """List nodes by name, each with its latest values."""
    hot = hot_store()
    now_s, quiet_s = timezone.now().timestamp(), hot.quiet_s()
    up = {
        name
        for name, seen_s in hot.last_seen().items()
        if now_s - seen_s <= max(STALE_AFTER_S, quiet_s.get(name, 0))
    }
    nodes = Node.objects.filter_by(**query.model_dump(include=NODE_FIELDS))
    nodes = nodes.in_state(query.state, up=up).select_related("run")
    rows, links = paginate(request, nodes, query, by="name")
    return NodePage(items=_serialize(rows, hot), **links)


@router.get("/{name}", response=NodeOut, **needs("read"), summary="One node")
def node_one(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """Get one node with its latest values."""
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    return _serialize([node], hot_store())[0]


@router.post("/{name}/retire", response=NodeOut, **needs("act"), summary="Retire a node")
@conflict_on("node")
def node_retire(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """Retire a node that will not report again; 409 if it reported in the last two minutes.

    Its history stays, its alerts resolve, and its next report brings it back.
    """
    set_retired(request, get_object_or_404(Node, name=name), is_retired=True)
    return node_one(request, name)


@router.post("/{name}/unretire", response=NodeOut, **needs("act"), summary="Bring a node back")
def node_unretire(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """Bring a retired node back before it reports."""
    set_retired(request, get_object_or_404(Node, name=name), is_retired=False)
    return node_one(request, name)


def set_retired(request: HttpRequest, row: Node | Run, *, is_retired: bool) -> None:
    """Retire a node or a run, or bring it back; raises ProblemError where that changes nothing."""
    by, hot = caller(request).name, hot_store()
    if is_retired and not retire(hot, row, by=by, now=timezone.now()):
        raise ProblemError(409, "It is already retired.")
    if not is_retired and not unretire(row, by=by):
        raise ProblemError(409, "It is not retired.")
