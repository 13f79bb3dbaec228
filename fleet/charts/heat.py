"""The fleet's heat map: every core of every node, by run, and the alert that accuses a node."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import numpy as np

from fleet.alerts.causes import cause_text
from fleet.models import Alert, Node, Run
from fleet.runs.summaries import NodeNow
from telemetry.blocks import Block

NO_DATA = 255
FULL = 254


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One node of the heat map: its packed cores, and the alert about it.

    ``stem`` is the beginning of its name that is its run's, which stands above the row.
    ``n_each`` is the number of cores per device, 0 where the node has no devices.
    """

    now: NodeNow
    cores: str
    alert: Alert | None
    name: str
    stem: str
    tail: str
    address: str
    n_cores: int
    n_each: int
    is_up: bool
    mean: float | None

    @classmethod
    def of(cls, now: NodeNow, cores: str, alert: Alert | None) -> Self:
        node = now.node
        name, run = node.name, node.run
        stem = run.name if run and name.startswith(f"{run.name}-") else ""
        return cls(
            now,
            cores,
            alert,
            name,
            stem,
            name.removeprefix(stem),
            node.get_absolute_url(),
            node.n_cores,
            node.cores_per_device if node.n_devices else 0,
            now.is_up,
            now.utilization_mean,
        )

    @property
    def what(self) -> str:
        if self.alert is None or self.alert.rule == "node_silent":
            return "silent"
        part = cause_text(self.alert.cause).heat
        if part is None or self.alert.device is None:
            return self.alert.cause.replace("_", " ")
        return f"{part} {self.alert.device}"


@dataclass(frozen=True, slots=True)
class HeatGroup:
    run: Run | None
    rows: Sequence[HeatRow]

    @property
    def first(self) -> Node:
        return self.rows[0].now.node

    @property
    def is_alike(self) -> bool:
        """Whether the first node represents all; nodes without a run may be of any type."""
        types = {(row.now.node.instance_type, row.now.node.n_cores) for row in self.rows}
        return len(types) == 1


def heat_groups(
    nodes: Iterable[NodeNow], alerts: Sequence[Alert], blocks: Iterable[Block]
) -> list[HeatGroup]:
    """Arrange the nodes by run and rank; nodes without a run come last."""
    accused = {alert.node_id: alert for alert in reversed(alerts) if alert.node_id}
    cores = packed_cores(blocks)

    def place(now: NodeNow) -> tuple[bool, str, int, str]:
        run = now.node.run
        return (run is None, run.name if run else "", now.node.rank, now.node.name)

    def row(now: NodeNow) -> HeatRow:
        known = cores.get(now.node.name) if now.is_up else None
        return HeatRow.of(now, known or unknown_cores(now.node.n_cores), accused.get(now.node.pk))

    together = groupby(sorted(nodes, key=place), key=lambda now: now.node.run)
    return [HeatGroup(run, [row(now) for now in members]) for run, members in together]


def packed_cores(blocks: Iterable[Block]) -> dict[str, str]:
    """Return the utilization of each core: one byte per core in base64, by node.

    0 to 254 mean idle to busy, and 255 for no reading.
    """
    packed = {}
    for block in blocks:
        if (ratio := block.values.get("core_utilization_ratio")) is not None:
            steps = np.round(np.clip(np.nan_to_num(ratio), 0.0, 1.0) * FULL)
            rows = np.where(np.isfinite(ratio), steps, NO_DATA).astype(np.uint8)
            for name, row in zip(block.nodes, rows, strict=True):
                packed[name] = base64.b64encode(row.tobytes()).decode()
    return packed


def unknown_cores(n_cores: int) -> str:
    return base64.b64encode(bytes([NO_DATA]) * n_cores).decode()
