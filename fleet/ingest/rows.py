"""Rows of real nodes, created and updated by what is reported of them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.models import Node
from fleet.models.filters import merged_labels
from fleet.runs.retirement import BACK
from telemetry import catalog
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import NodeIdentity, Shape
from telemetry.ingest.timing import shard_of

# A token cannot fill the database with nodes that do not exist. The largest cluster has 31,250
# (500,000 chips), and some are replaced.
MAX_NODES = 40_000
UNKNOWN_TYPE = "unknown"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
NAME_RULE = "letters, digits, dots, dashes and underscores, at most 80"
# A machine boots for minutes: two that take turns faster share one name, in two of our processes.
TURNS = timedelta(minutes=10)


def check_room(name: str) -> None:
    """Refuse one more node where there are too many real ones in use."""
    if Node.objects.real().unretired().count() >= MAX_NODES:
        reason = (
            f"{name} is new or retired, and {MAX_NODES:,} real nodes are all we take; "
            "retire those that are gone"
        )
        raise RefusedError("node", reason)


def store_row(
    name: str, identity: NodeIdentity, shape: Shape, n_efa: int, *, row: Node | None = None
) -> Node:
    """Create or update the node's row, and return it; facts that a report lacks stay unchanged.

    ``row`` saves reading it.
    """
    kind = catalog.instances().get(identity.instance_type)
    reported: dict[str, str | int] = {
        "instance_type": identity.instance_type[:40],
        "instance_id": identity.instance_id[:40],
        "zone": identity.zone[:40],
        "ultraserver_id": identity.ultraserver_id[:40],
        "n_cores": shape.n_cores,
        "n_devices": shape.n_devices,
        # Without EFA data the catalog has the number of devices.
        "n_efa": n_efa or (kind.n_efa if kind else 0),
    }
    facts: dict[str, Any] = {fact: value for fact, value in reported.items() if value}
    node = row or Node.objects.filter(name=name).first()
    if node is None or node.retired_at:
        check_room(name)
    facts |= BACK
    if node is None:
        new = {
            "instance_type": UNKNOWN_TYPE,
            "source": Node.Source.NEURON_MONITOR,
            "shard": shard_of(name),
            "first_seen_at": datetime.now(UTC),
            # Some exporters say nothing of devices, or of cores.
            **dict.fromkeys(("n_cores", "n_devices", "n_efa"), 0),
        }
        node, _ = Node.objects.get_or_create(name=name, defaults=new | facts)
    if node.source == Node.Source.STEPS:
        # Known only from its training job so far.
        facts |= {"source": Node.Source.NEURON_MONITOR, "shard": shard_of(name)}
    elif node.source != Node.Source.NEURON_MONITOR:
        raise RefusedError("node", f"{name} is a simulated node; use another name (node=NAME)")
    facts |= replacement_of(node, identity, now=datetime.now(UTC))
    if any(getattr(node, fact) != value for fact, value in facts.items()):
        Node.objects.filter(pk=node.pk).update(**facts)
        for fact, value in facts.items():
            setattr(node, fact, value)
    return node


def is_other_machine(name: str, before: str, now: str) -> bool:
    """Whether a node's instance id is of another machine; its name as an id tells nothing."""
    return before != now and all(each not in ("", name) for each in (before, now))


def replacement_of(node: Node, identity: NodeIdentity, *, now: datetime) -> dict[str, Any]:
    """Return what to store where another machine took the node's name; raises RefusedError."""
    new = identity.instance_id[:40]
    if new == node.name and node.instance_id:
        return {"instance_id": node.instance_id}
    # Ids of other kinds (of an operating system, say) do not compare with those of EC2.
    if not (new.startswith("i-") and node.instance_id.startswith("i-")):
        return {}
    if not is_other_machine(node.name, node.instance_id, new):
        return {}
    if node.replaced_id == new and node.replaced_at and now - node.replaced_at < TURNS:
        ago_s = (now - node.replaced_at).total_seconds()
        reason = f"{node.name} is {node.instance_id} since {ago_s:.0f} s ago; use another name"
        raise RefusedError("instance_info.instance_id", reason)
    ultraserver_id = identity.ultraserver_id[:40]
    return {"replaced_at": now, "replaced_id": node.instance_id, "ultraserver_id": ultraserver_id}


def store_labels(name: str, labels: Mapping[str, str], *, row: Node | None = None) -> None:
    """Add labels to a node's row, if there is one; a zone fills its column if that is empty."""
    node = row or Node.objects.filter(name=name).first()
    if node is None:
        return
    zone = node.zone or labels.get("zone", "")[:40]
    merged = merged_labels(node.labels, {k: v for k, v in labels.items() if k != "zone"})
    if (node.zone, node.labels) != (zone, merged):
        Node.objects.filter(pk=node.pk).update(zone=zone, labels=merged)


def row_shape(name: str) -> Shape | None:
    node = Node.objects.filter(name=name).first()
    return Shape(node.n_devices, node.n_cores) if node and node.n_devices else None
