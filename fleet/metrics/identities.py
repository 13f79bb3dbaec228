"""The labels of each node in the families of AWS's exporters."""

from collections.abc import Mapping

from django.db.models import QuerySet

from fleet.models import Node
from telemetry.exporter.neuron_exporter_names import NodeLabels, region_of

Row = tuple[str, str, str, str, str, str | None]
COLUMNS = ("name", "source", "instance_id", "instance_type", "zone", "run__name")


def identities(nodes: QuerySet[Node]) -> Mapping[str, NodeLabels]:
    """Return the labels of nodes, by name.

    Of real nodes with the same instance id only the first has the instance name that its machine
    reports; the others have their node name, so that no two have the same labels.
    """
    rows: list[Row] = list(nodes.order_by("name").values_list(*COLUMNS))
    duplicates = _duplicates(rows)
    return {row[0]: _labels(row, is_duplicate=row[0] in duplicates) for row in rows}


def _duplicates(rows: list[Row]) -> set[str]:
    """Return the nodes whose instance id a node with an earlier name has too."""
    ids = {row[2] for row in rows if row[2]}
    first: dict[str, str] = {}
    known = Node.objects.filter(instance_id__in=ids) if len(rows) == 1 else None
    pairs = (
        known.order_by("name").values_list("instance_id", "name")
        if known is not None
        else ((row[2], row[0]) for row in rows if row[2])
    )
    for instance_id, name in pairs:
        first.setdefault(instance_id, name)
    return {row[0] for row in rows if row[2] and first[row[2]] != row[0]}


def _labels(row: Row, *, is_duplicate: bool) -> NodeLabels:
    name, source, instance_id, instance_type, zone, run = row
    if source == Node.Source.SIMULATED:
        subnet = f"subnet-{zone}" if zone else ""
        base = (name, instance_id or name, instance_type, zone, region_of(zone), subnet)
        return NodeLabels(*base, runtime_tag=run or "")
    return NodeLabels(
        name if is_duplicate else "",
        instance_id,
        instance_type,
        zone,
        region_of(zone),
        is_simulated=False,
    )
