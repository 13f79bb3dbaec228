"""What one scrape gets to see: read at once from all stores, written piece by piece."""

from datetime import datetime

from django.db.models import QuerySet

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
    """Return every family there is: nodes (unless they have pages of their own), runs, alerts."""
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
    """Return the families of all nodes, under our names and under those of AWS' exporters."""
    return _told(hot, Node.objects.all(), now=now, expected=expected_nodes(), only=None)


def one_node(hot: HotStore, node: Node, *, now: datetime) -> list[Told]:
    """Return the families of one node alone."""
    rows = Node.objects.filter(pk=node.pk)
    is_expected = node.run is None or node.run.finished_at is None
    expected = [node.name] if is_expected else []
    only = {node.name: node.shard}
    return [*_told(hot, rows, now=now, expected=expected, only=only), node_info_family(rows)]


def _told(
    hot: HotStore,
    nodes: QuerySet[Node],
    *,
    now: datetime,
    expected: list[str],
    only: dict[str, str] | None,
) -> list[Told]:
    scene = look(hot, now_s=now.timestamp(), only=only)
    who = identities(nodes)
    real = [name for name in scene.up if name in who and not who[name].is_simulated]
    kept = kept_reports(hot, real)
    return [
        *node_families(hot, now_s=now.timestamp(), expected=expected, scene=scene),
        *neuron_families(scene, who, kept),
        *efa_families(hot, scene, who, is_alone=only is not None),
    ]
