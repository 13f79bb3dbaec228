"""A real node's row in the database: made when it first reports, and kept up to date."""

from collections.abc import Mapping
from datetime import UTC, datetime

from fleet.models import Node
from telemetry import catalog
from telemetry.ingest.reading import Identity, Shape
from telemetry.ingest.refusal import RefusedError
from telemetry.ingest.timing import shard_of

# A token cannot fill the database with nodes that do not exist.
MAX_NODES = 4_000
UNKNOWN_TYPE = "unknown"


def store_row(name: str, identity: Identity, shape: Shape, n_efa: int) -> None:
    """Create the node's row, or bring it up to date; what a report does not say stays."""
    kind = catalog.instances().get(identity.instance_type)
    said: dict[str, str | int] = {
        "instance_type": identity.instance_type[:40],
        "instance_id": identity.instance_id[:40],
        "zone": identity.zone[:40],
        "n_cores": shape.n_cores,
        "n_devices": shape.n_devices,
        # Where nobody counts them, the catalogue knows how many there are.
        "n_efa": n_efa or (kind.n_efa if kind else 0),
    }
    facts = {fact: value for fact, value in said.items() if value}
    node = Node.objects.filter(name=name).first() or _create(name, facts)
    if node.source == Node.Source.STEPS:
        # Known by its training job so far: from now on it speaks for itself.
        facts |= {"source": Node.Source.NEURON_MONITOR, "shard": shard_of(name)}
    elif node.source != Node.Source.NEURON_MONITOR:
        raise RefusedError("node", f"{name} is a simulated node; use another name (node=NAME)")
    if any(getattr(node, fact) != value for fact, value in facts.items()):
        Node.objects.filter(pk=node.pk).update(**facts)


def row_shape(name: str) -> Shape | None:
    """Return what a node is known to have, None where it is not known."""
    node = Node.objects.filter(name=name).first()
    return Shape(node.n_devices, node.n_cores) if node and node.n_devices else None


def _create(name: str, facts: Mapping[str, str | int]) -> Node:
    """Create the node's row, if the fleet has room for it."""
    real = Node.objects.filter(source=Node.Source.NEURON_MONITOR)
    if real.count() >= MAX_NODES:
        raise RefusedError("node", f"{name} is new, and {MAX_NODES:,} real nodes are all we take")
    new = {
        "instance_type": UNKNOWN_TYPE,
        "source": Node.Source.NEURON_MONITOR,
        "shard": shard_of(name),
        "first_seen_at": datetime.now(UTC),
    }
    node, _ = Node.objects.get_or_create(name=name, defaults=new | dict(facts))
    return node
