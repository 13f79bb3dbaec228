"""Which machine each node is to AWS' exporters: what names have to do with their labels."""

from collections.abc import Mapping

from django.db.models import QuerySet

from fleet.models import Node
from telemetry.exporter.neuron_exporter_names import NodeLabels, region_of

Row = tuple[str, str, str, str, str, str | None]
COLUMNS = ("name", "source", "instance_id", "instance_type", "zone", "run__name")


def identities(nodes: QuerySet[Node]) -> Mapping[str, NodeLabels]:
    """Return who every one of these nodes is, by name.

    Of real nodes under one instance id only the first goes by what the machine says its own
    name is; the others go by the names they have here, so that no two are taken for one.
    """
    rows: list[Row] = list(nodes.order_by("name").values_list(*COLUMNS))
    twins = _namesakes(rows)
    return {row[0]: _who(row, is_namesake=row[0] in twins) for row in rows}


def _namesakes(rows: list[Row]) -> set[str]:
    """Return the nodes that share their instance id with one of an earlier name."""
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


def _who(row: Row, *, is_namesake: bool) -> NodeLabels:
    """Return who a node is."""
    name, source, instance_id, instance_type, zone, run = row
    if source == Node.Source.SIMULATED:
        subnet = f"subnet-{zone}" if zone else ""
        base = (name, instance_id or name, instance_type, zone, region_of(zone), subnet)
        return NodeLabels(*base, runtime_tag=run or "")
    return NodeLabels(
        name if is_namesake else "",
        instance_id,
        instance_type,
        zone,
        region_of(zone),
        is_simulated=False,
    )
