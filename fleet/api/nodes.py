"""Nodes with their latest values."""

from datetime import UTC, datetime
from typing import Literal

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.auth import needs
from fleet.api.fields import NodeName, NullableText, ResponseSchema, Text
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Alert, Node
from fleet.runs.summaries import STALE_AFTER_S, nodes_now
from telemetry.store.hot import HotStore, open_store
from telemetry.store.packing import unpack_block

router = Router(tags=["nodes"])
NODE_FIELDS = {"run", "team", "instance_type", "source"}


class NodeFigures(ResponseSchema):
    """Values of a node's newest report; null where unknown or silent."""

    utilization_mean: float | None = Field(
        description="Share of the last second that cores computed, 0 to 1, mean of cores.",
        examples=[0.93],
    )
    utilization_min: float | None = Field(description="The same of the least busy core.")
    utilization_max: float | None = Field(description="The same of the busiest core.")
    hbm_bytes_per_s: float | None = Field(
        description="HBM bytes read and written per second, all devices."
    )
    device_memory_used_bytes: float | None = Field(description="HBM bytes in use, all devices.")
    efa_latency_max_s: float | None = Field(
        description="Probe latency of the slowest EFA device, in seconds."
    )
    ecc_uncorrected: int | None = Field(description="Count of uncorrected memory errors.")


class CauseHistory(ResponseSchema):
    """Alerts of one cause that name a node as culprit."""

    cause: str = Field(description="Cause.", examples=["slow_core"])
    n_alerts: int = Field(description="Number of alerts.", examples=[2])
    n_runs: int = Field(description="Number of runs with such an alert.", examples=[2])
    last_at: datetime = Field(description="Time when the last one fired, UTC.")


class AlertHistory(ResponseSchema):
    """Alerts of the last 30 days that name a node as culprit."""

    days: int = Field(description="Length of the history in days.", examples=[30])
    n_alerts: int = Field(description="Number of alerts, without drills.", examples=[4])
    n_runs: int = Field(description="Number of runs with such an alert.", examples=[3])
    n_drills: int = Field(description="Number of alerts that drills caused.", examples=[0])
    last_at: datetime | None = Field(
        description="Time when the last one fired, UTC; null without alerts."
    )
    causes: list[CauseHistory] = Field(description="The alerts by cause, most alerts first.")
    n_others: int = Field(description="Other nodes of its instance type.", examples=[63])
    others_median: float | None = Field(
        description="Median number of alerts of these nodes; null without other nodes.",
        examples=[0.0],
    )
    is_unusual: bool = Field(
        description="Whether chance is unlikely to give one of these nodes so many alerts."
    )


class NodeOut(ResponseSchema):
    """One node."""

    name: str = Field(description="Unique name, used in URLs.", examples=["llama-03"])
    instance_type: str = Field(description="Instance type.", examples=["trn1.32xlarge"])
    instance_id: str = Field(description="EC2 instance ID; empty if unknown.")
    zone: str = Field(description="Availability zone; empty if unknown.")
    source: str = Field(
        description="Source of its data: simulated, neuron-monitor or step-reports.",
        examples=["neuron-monitor"],
    )
    run: NullableText = Field(description="Name of its run.", examples=["llama"])
    rank: int = Field(description="Rank within the run.", examples=[3])
    n_cores: int = Field(description="NeuronCores, as the runtime counts them.", examples=[32])
    n_devices: int = Field(description="Accelerators.", examples=[16])
    n_efa: int = Field(description="EFA devices.", examples=[8])
    first_seen_at: datetime = Field(description="Time of its first report, UTC.")
    last_seen_at: datetime | None = Field(
        description="Time of its newest report, UTC; null if there was none in a week."
    )
    state: str = Field(
        description="up; silent: it should report; released: its run has ended.", examples=["up"]
    )
    now: NodeFigures = Field(description="Values of its newest report.")
    alert_history: AlertHistory = Field(
        description="Alerts of the last 30 days that name it as culprit."
    )
    url: str = Field(description="Path of its page.", examples=["/nodes/llama-03/"])


class NodePage(PageLinks):
    """A page of nodes."""

    items: list[NodeOut] = Field(description="The nodes of this page.")
    sorted_by: str = Field(default="name", description="Order: name, by code points.")


class NodeQuery(Paging):
    """Filter of nodes."""

    run: Text = Field("", description="Name of the run.", examples=["llama"])
    team: Text = Field("", description="Team of the run, exact match.")
    instance_type: Text = Field("", description="Instance type.", examples=["trn2.48xlarge"])
    source: Literal["", "simulated", "neuron-monitor", "step-reports"] = Field(
        "", description="Source of the data."
    )
    state: Literal["", "up", "silent", "released"] = Field(
        "", description="up; silent: should report; released: its run has ended."
    )


def _serialize(nodes: list[Node], hot: HotStore) -> list[NodeOut]:
    at = timezone.now()
    histories = Alert.objects.histories(nodes, until=at)
    packed = hot.latest_packed({node.shard for node in nodes})
    latest = {
        shard: unpack_block(shard, tick, blob, layout)
        for shard, (tick, layout, blob) in packed.items()
    }
    return [
        NodeOut.from_object(
            now.node,
            last_seen_at=now.last_seen_s and datetime.fromtimestamp(now.last_seen_s, UTC),
            state="up" if now.is_up else "silent" if now.is_silent else "released",
            now=NodeFigures.from_object(now),
            alert_history=AlertHistory.from_object(
                history := histories[now.node.name],
                causes=[CauseHistory.from_object(each) for each in history.causes],
            ),
            url=now.node.get_absolute_url(),
        )
        for now in nodes_now(hot, nodes, now_s=at.timestamp(), latest=latest)
    ]


@router.get("", response=NodePage, **needs("read"), summary="List nodes")
def node_list(request: HttpRequest, query: Query[NodeQuery]) -> NodePage:
    """List nodes by name, each with its latest values."""
    hot = open_store(settings.REDIS_URL)
    oldest_s = timezone.now().timestamp() - STALE_AFTER_S
    up = {name for name, seen_s in hot.last_seen().items() if seen_s >= oldest_s}
    nodes = Node.objects.filter_by(**query.model_dump(include=NODE_FIELDS))
    nodes = nodes.in_state(query.state, up=up).select_related("run")
    rows, links = paginate(request, nodes, query, by="name")
    return NodePage(items=_serialize(rows, hot), **links)


@router.get("/{name}", response=NodeOut, **needs("read"), summary="One node")
def node_one(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """Get one node with its latest values."""
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    return _serialize([node], open_store(settings.REDIS_URL))[0]
