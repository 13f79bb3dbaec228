"""What one scrape gets to see: read at once from all stores, written piece by piece."""

from datetime import datetime

from fleet.models import Node
from fleet.notify.families import notification_families
from fleet.prometheus.costs import budget_families, run_alert_family
from fleet.prometheus.exposition import (
    alert_families,
    expected_nodes,
    node_info_family,
    run_families,
)
from fleet.prometheus.identities import identities
from fleet.prometheus.spread import duration_family
from telemetry.dropin.efa import efa_families
from telemetry.dropin.families import neuron_families
from telemetry.exposition import look, node_families
from telemetry.families import Told
from telemetry.longterm.families import long_term_families
from telemetry.service_families import service_families
from telemetry.store.hot import HotStore
from telemetry.store.last_reports import kept_reports


def everything(hot: HotStore, *, now: datetime, with_nodes: bool = True) -> list[Told]:
    """Return every family of trnwatch's own names: nodes (unless left out), runs, alerts, service.

    The names of AWS's exporters are on a page of their own: `neuron`.
    """
    nodes = whole_fleet(hot, now=now) if with_nodes else []
    return [
        *nodes,
        node_info_family(),
        *run_families(hot, now=now),
        *alert_families(),
        duration_family(now=now),
        run_alert_family(),
        *budget_families(now=now),
        *notification_families(now=now),
        *service_families(hot),
        *long_term_families(now=now),
    ]


def whole_fleet(hot: HotStore, *, now: datetime) -> list[Told]:
    """Return the hardware families of all nodes."""
    return [*node_families(hot, now_s=now.timestamp(), expected=expected_nodes())]


def one_node(hot: HotStore, node: Node, *, now: datetime) -> list[Told]:
    """Return the families of one node alone."""
    is_expected = node.run is None or node.run.finished_at is None
    expected = [node.name] if is_expected else []
    scene = look(hot, now_s=now.timestamp(), only={node.name: node.shard})
    families = node_families(hot, now_s=now.timestamp(), expected=expected, scene=scene)
    return [*families, node_info_family(Node.objects.filter(pk=node.pk))]


def neuron(hot: HotStore, *, now: datetime, node: Node | None = None) -> list[Told]:
    """Return the families of AWS's exporters: of every node, or of one alone."""
    rows = Node.objects.all() if node is None else Node.objects.filter(pk=node.pk)
    only = None if node is None else {node.name: node.shard}
    scene = look(hot, now_s=now.timestamp(), only=only)
    who = identities(rows)
    real = [name for name in scene.up if name in who and not who[name].is_simulated]
    return [
        *neuron_families(scene, who, kept_reports(hot, real)),
        *efa_families(hot, scene, who, is_alone=node is not None),
    ]
