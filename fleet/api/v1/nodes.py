"""Nodes: which there are, whether they report, and what they say now."""

from typing import Literal

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import NodeName, Text
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.nodes import NodeOut, NodePage
from fleet.models import Node
from fleet.summaries import STALE_AFTER_S, nodes_now
from telemetry.store.hot import HotStore, open_store
from telemetry.store.packing import unpack_block

router = Router(tags=["nodes"])


class NodeFilter(Paging):
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

    def keep(self, nodes: QuerySet[Node]) -> QuerySet[Node]:
        """Keep the nodes asked for, but for their state."""
        if self.run:
            nodes = nodes.filter(run__name=self.run)
        if self.team:
            nodes = nodes.filter(run__team=self.team)
        if self.instance_type:
            nodes = nodes.filter(instance_type=self.instance_type)
        if self.source:
            nodes = nodes.filter(source=self.source)
        return nodes


def _in_state(nodes: QuerySet[Node], state: str, hot: HotStore) -> QuerySet[Node]:
    """Keep the nodes in a state: who was heard lately, Redis knows."""
    if not state:
        return nodes
    oldest = timezone.now().timestamp() - STALE_AFTER_S
    up = {name for name, seen in hot.last_seen().items() if seen >= oldest}
    if state == "up":
        return nodes.filter(name__in=up)
    is_released = state == "released"
    return nodes.exclude(name__in=up).filter(run__finished_at__isnull=not is_released)


def _told(nodes: list[Node], hot: HotStore) -> list[NodeOut]:
    packed = hot.latest_packed({node.shard for node in nodes})
    latest = {
        shard: unpack_block(shard, tick, blob, layout)
        for shard, (tick, layout, blob) in packed.items()
    }
    told = nodes_now(hot, nodes, now_s=timezone.now().timestamp(), latest=latest)
    return [NodeOut.of(each) for each in told]


@router.get("", response=NodePage, openapi_extra=needs("read"), summary="List nodes")
def node_list(request: HttpRequest, asked: Query[NodeFilter]) -> NodePage:
    """Nodes by name, each with its newest report."""
    hot = open_store(settings.REDIS_URL)
    nodes = _in_state(asked.keep(Node.objects.select_related("run")), asked.state, hot)
    rows, links = paged(request, nodes, asked, by="name")
    return NodePage(items=_told(rows, hot), next=links.next, prev=links.prev)


@router.get("/{name}", response=NodeOut, openapi_extra=needs("read"), summary="One node")
def node_one(request: HttpRequest, name: Path[NodeName]) -> NodeOut:
    """One node, with its newest report."""
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    return _told([node], open_store(settings.REDIS_URL))[0]
