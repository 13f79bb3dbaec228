"""A node as the API tells it."""

from datetime import UTC, datetime
from typing import Literal, Self

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.auth import needs
from fleet.api.fields import NodeName, ResponseSchema, Text
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Node
from fleet.runs.summaries import STALE_AFTER_S, NodeNow, nodes_now
from telemetry.store.hot import HotStore, open_store
from telemetry.store.packing import unpack_block


class NodeFigures(ResponseSchema):
    """A node by its newest report; null where it does not say, or is silent."""

    utilization_mean: float | None = Field(
        description="Share of the last second that its cores computed, 0 to 1, mean of cores.",
        examples=[0.93],
    )
    utilization_min: float | None = Field(description="The same of the idlest core, 0 to 1.")
    utilization_max: float | None = Field(description="The same of the busiest core, 0 to 1.")
    hbm_bytes_per_s: float | None = Field(
        description="HBM bytes read and written per second, all devices."
    )
    device_memory_used_bytes: float | None = Field(description="HBM bytes in use, all devices.")
    efa_latency_max_s: float | None = Field(
        description="Probe latency in seconds, slowest EFA device."
    )
    ecc_uncorrected: int | None = Field(
        description="Memory errors not corrected, as the node counts."
    )


class NodeOut(ResponseSchema):
    """One machine that reports."""

    name: str = Field(description="Unique name, also in addresses.", examples=["llama-03"])
    instance_type: str = Field(description="What it is.", examples=["trn1.32xlarge"])
    instance_id: str = Field(description="Its id at AWS; empty where unknown.")
    zone: str = Field(description="Availability zone; empty where unknown.")
    source: str = Field(
        description="Who speaks for it: simulated, neuron-monitor or step-reports.",
        examples=["neuron-monitor"],
    )
    run: str | None = Field(description="Name of the run it works for.", examples=["llama"])
    rank: int = Field(description="Its place within the run.", examples=[3])
    n_cores: int = Field(description="NeuronCores, as the runtime counts them.", examples=[32])
    n_devices: int = Field(description="Accelerators.", examples=[16])
    n_efa: int = Field(description="EFA devices.", examples=[8])
    first_seen_at: datetime = Field(description="When it was first heard of, UTC.")
    last_seen_at: datetime | None = Field(
        description="Its newest report, UTC; null where there was none in a week."
    )
    state: str = Field(
        description="up; silent: it ought to report; released: its run is over.",
        examples=["up"],
    )
    now: NodeFigures = Field(description="Its newest report.")
    url: str = Field(description="Path of its page.", examples=["/nodes/llama-03/"])

    @classmethod
    def of(cls, now: NodeNow) -> Self:
        node = now.node
        seen_s = now.last_seen_s
        return cls(
            **{name: getattr(node, name) for name in SAME_FIELDS},
            run=node.run.name if node.run else None,
            last_seen_at=None if seen_s is None else datetime.fromtimestamp(seen_s, UTC),
            state=state_of(now),
            now=NodeFigures(**{name: getattr(now, name) for name in NodeFigures.model_fields}),
            url=node.get_absolute_url(),
        )


SAME_FIELDS = (
    "name",
    "instance_type",
    "instance_id",
    "zone",
    "source",
    "rank",
    "n_cores",
    "n_devices",
    "n_efa",
    "first_seen_at",
)


def state_of(now: NodeNow) -> str:
    """Return the word for whether a node reports."""
    if now.is_up:
        return "up"
    return "silent" if now.is_silent else "released"


class NodePage(PageLinks):
    """A page of nodes."""

    items: list[NodeOut] = Field(description="The nodes of this page.")
    sorted_by: str = Field(default="name", description="By name, as code points are ordered.")


router = Router(tags=["nodes"])


class NodeQuery(Paging):
    """Which nodes to list."""

    run: Text = Field("", description="Name of the run they work for.", examples=["llama"])
    team: Text = Field("", description="Whose run it is, exactly.")
    instance_type: Text = Field("", description="What they are.", examples=["trn2.48xlarge"])
    source: Literal["", "simulated", "neuron-monitor", "step-reports"] = Field(
        "", description="Who speaks for them."
    )
    state: Literal["", "up", "silent", "released"] = Field(
        "", description="Whether they report: up; silent, though they ought to; released."
    )


NODE_FIELDS = {"run", "team", "instance_type", "source"}


def _serialize(nodes: list[Node], hot: HotStore) -> list[NodeOut]:
    packed = hot.latest_packed({node.shard for node in nodes})
    latest = {
        shard: unpack_block(shard, tick, blob, layout)
        for shard, (tick, layout, blob) in packed.items()
    }
    told = nodes_now(hot, nodes, now_s=timezone.now().timestamp(), latest=latest)
    return [NodeOut.of(each) for each in told]


@router.get("", response=NodePage, **needs("read"), summary="List nodes")
def node_list(request: HttpRequest, query: Query[NodeQuery]) -> NodePage:
    """Nodes by name, each with its newest report."""
    hot = open_store(settings.REDIS_URL)
    oldest_s = timezone.now().timestamp() - STALE_AFTER_S
    up = {name for name, seen_s in hot.last_seen().items() if seen_s >= oldest_s}
    nodes = Node.objects.filter_by(**query.model_dump(include=NODE_FIELDS))
    nodes = nodes.in_state(query.state, up=up).select_related("run")
    rows, links = paginate(request, nodes, query, by="name")
    return NodePage(items=_serialize(rows, hot), next=links.next, prev=links.prev)


@router.get("/{name}", response=NodeOut, **needs("read"), summary="One node")
def node_one(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """One node, with its newest report."""
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    return _serialize([node], open_store(settings.REDIS_URL))[0]
