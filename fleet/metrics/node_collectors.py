"""The collectors of nodes, under trnwatch's own names and under those of AWS's exporters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from django.db.models import QuerySet
from prometheus_client.registry import Collector

from fleet.models import Node
from fleet.runs.state import missing_readings
from telemetry.exporter.efa_exporter import efa_families
from telemetry.exporter.exposition import (
    ArrayFamily,
    LabelRows,
    SeriesArray,
    Spec,
    format_values,
    gauge,
)
from telemetry.exporter.hardware import (
    FLOPS_RATIO,
    mean_flops,
    node_families,
    node_family,
    read_snapshot,
)
from telemetry.exporter.neuron_exporter import neuron_families
from telemetry.exporter.neuron_exporter_names import NodeLabels, region_of
from telemetry.exporter.neuron_observer import observer_families
from telemetry.store.hot import HotStore
from telemetry.store.node_state import last_reports

LABEL_COLUMNS = ("name", "source", "instance_id", "instance_type", "zone", "run__name")
NODE_INFO = gauge(
    "trnwatch_node_info",
    "What a node is, and what it trains; always 1.",
    "node",
    "run",
    "instance_type",
    "source",
    "ultraserver_id",
)
# Label names in use that the info series have, the most frequent first.
MAX_INFO_LABELS = 32


def with_labels(spec: Spec, rows: Sequence[Mapping[str, str]]) -> tuple[Spec, list[list[str]]]:
    """Add to an info series what rows are labeled with, as ``label_NAME``; and their values."""
    counted = Counter(name for labels in rows for name in labels)
    names = sorted(name for name, _ in counted.most_common(MAX_INFO_LABELS))
    more = replace(spec, labels=(*spec.labels, *(f"label_{name}" for name in names)))
    return more, [[labels.get(name, "") for name in names] for labels in rows]


@dataclass(frozen=True, eq=False, slots=True)
class HardwareCollector(Collector):
    hot: HotStore
    now: datetime
    nodes: QuerySet[Node] | None = None

    def collect(self) -> Iterable[ArrayFamily]:
        only = None if self.nodes is None else {each.name: each.shard for each in self.nodes}
        snapshot = read_snapshot(self.hot, now_s=self.now.timestamp(), only=only)
        names = _expected_nodes(self.nodes).values_list("name", flat=True)
        # Of a node whose store is missing it is not known whether it is up.
        missing = missing_readings(self.hot).nodes
        expected = [name for name in names if name not in missing]
        flops = mean_flops(snapshot)
        nodes = Node.objects.filter(name__in=flops) if flops else ()
        peaks = {node.name: peak for node in nodes if (peak := node.core_peak_flops)}
        ratios = {name: flops[name] / peak for name, peak in peaks.items()}
        return [*node_families(snapshot, expected=expected), node_family(FLOPS_RATIO, ratios)]


def _expected_nodes(nodes: QuerySet[Node] | None) -> QuerySet[Node]:
    expected = Node.objects.expected()
    return expected if nodes is None else expected.filter(pk__in=nodes.values("pk"))


@dataclass(frozen=True, eq=False, slots=True)
class NodeInfoCollector(Collector):
    """One series per expected node; its label ``run`` is empty while the node is idle."""

    nodes: QuerySet[Node] | None = None

    def collect(self) -> Iterable[ArrayFamily]:
        columns = ("name", "run__name", "instance_type", "source", "ultraserver_id")
        node_rows = list(_expected_nodes(self.nodes).values_list(*columns, "labels", "zone"))
        if not node_rows:
            return []
        zoned = [({"zone": zone} if zone else {}) | labels for *_, labels, zone in node_rows]
        spec, values = with_labels(NODE_INFO, zoned)
        rows = [
            (name, run or "", *facts, *more)
            for (name, run, *facts, _, _), more in zip(node_rows, values, strict=True)
        ]
        labels = LabelRows(dict(zip(spec.labels, zip(*rows, strict=True), strict=True)))
        array = SeriesArray(labels, (), [()], format_values(np.ones((len(rows), 1))))
        return [ArrayFamily(spec, lambda: [array])]


@dataclass(frozen=True, eq=False, slots=True)
class NeuronCollector(Collector):
    """The families of AWS's exporters, of all nodes or of some.

    ``is_alone``: the page is about one node, so its series do not name it.
    """

    hot: HotStore
    now: datetime
    nodes: QuerySet[Node] | None = None
    is_alone: bool = False

    def collect(self) -> Iterable[ArrayFamily]:
        rows: QuerySet[Node] = Node.objects.all()
        only: Mapping[str, str] | None = None
        if self.nodes is not None:
            rows, only = self.nodes, {each.name: each.shard for each in self.nodes}
        snapshot = read_snapshot(self.hot, now_s=self.now.timestamp(), only=only)
        labels = node_labels(rows)
        real = [n for n in snapshot.up if n in labels and not labels[n].is_simulated]
        reports = last_reports(self.hot, real)
        families = [
            *neuron_families(snapshot, labels, reports, is_alone=self.is_alone),
            *efa_families(self.hot, snapshot, labels, is_alone=self.is_alone),
        ]
        return [*families, *observer_families(families)]


def node_labels(nodes: QuerySet[Node]) -> Mapping[str, NodeLabels]:
    """Return the labels of all nodes, or of one, in the families of AWS's exporters, by name.

    Of real nodes with the same instance id only the first has the instance name that its machine
    reports; the others have their node name, so that no two have the same labels.
    """
    rows = list(nodes.order_by("name").values_list(*LABEL_COLUMNS))
    pairs = [(row[2], row[0]) for row in rows if row[2]]
    if len(rows) == 1:
        same = Node.objects.filter(instance_id__in=[instance_id for instance_id, _ in pairs])
        pairs = list(same.order_by("name").values_list("instance_id", "name"))
    first: dict[str, str] = {}
    for instance_id, name in pairs:
        first.setdefault(instance_id, name)
    labels = {}
    for name, source, instance_id, instance_type, zone, run in rows:
        place = (instance_type, zone, region_of(zone))
        if source == Node.Source.SIMULATED:
            subnet = f"subnet-{zone}" if zone else ""
            labels[name] = NodeLabels(
                name, instance_id or name, *place, subnet, runtime_tag=run or ""
            )
        else:
            own_name = name if instance_id and first[instance_id] != name else ""
            labels[name] = NodeLabels(own_name, instance_id, *place, is_simulated=False)
    return labels
