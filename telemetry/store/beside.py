"""What nodes said last beside their values: EFA counters, the driver's sysfs, the agent's health.

Redis keeps a hash per kind (``beside:efa``, ``beside:neuron``, ``beside:agent``): of each node a
JSON object ``{"at": Unix seconds, "said": …}``.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from telemetry.store.connection import Connection

Kind = Literal["efa", "neuron", "agent"]


@dataclass(frozen=True, slots=True)
class Said:
    """What a node said of one kind, and when, by our clock."""

    at: float
    said: Any


def keep_beside(hot: Connection, told: Iterable[tuple[str, float, Mapping[str, object]]]) -> None:
    """Keep the newest of each kind, given as (node, Unix seconds, what it said by kind)."""
    commands = [
        ("HSET", f"beside:{kind}", node, msgspec.json.encode(Said(at_s, said)))
        for node, at_s, kinds in told
        for kind, said in kinds.items()
    ]
    if commands:
        hot.ask_all(commands)


def said_beside(hot: Connection, kind: Kind, nodes: Collection[str]) -> dict[str, Said]:
    """Return what nodes said last of a kind; those that never did are left out."""
    if not nodes:
        return {}
    held: list[bytes | None] = hot.ask("HMGET", f"beside:{kind}", *nodes)
    return {
        node: msgspec.json.decode(said, type=Said)
        for node, said in zip(nodes, held, strict=True)
        if said is not None
    }
