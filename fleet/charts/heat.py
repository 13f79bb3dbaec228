"""The fleet's heat map: every core of every node, by run, and the alert that blames a node."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from fleet.models import Alert, Node, Run
from fleet.summaries import NodeNow
from telemetry.blocks import Block, FloatArray

NO_DATA = 255
FULL = 254

# What the device number of an alert counts, by cause.
PARTS: Mapping[str, str] = {
    "efa_latency": "EFA",
    "efa_loss": "EFA",
    "efa_down": "EFA",
    "slow_core": "core",
    "hbm_slow": "HBM",
    "throttle": "device",
    "ecc_uncorrected": "ECC",
}


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One node of the heat map: its cores, packed, and the alert that blames it."""

    now: NodeNow
    cores: str
    alert: Alert | None

    @property
    def stem(self) -> str:
        """The beginning of the node's name that is its run's, which stands above the row."""
        node = self.now.node
        return node.run.name if node.run and node.name.startswith(f"{node.run.name}-") else ""

    @property
    def tail(self) -> str:
        """The rest of the node's name."""
        return self.now.node.name.removeprefix(self.stem)

    @property
    def what(self) -> str:
        """What is wrong with the node, in two words."""
        if self.alert is None or self.alert.rule == "node_silent":
            return "silent"
        part = PARTS.get(self.alert.cause)
        if part is None or self.alert.device is None:
            return self.alert.cause.replace("_", " ")
        return f"{part} {self.alert.device}"


@dataclass(frozen=True, slots=True)
class HeatGroup:
    """The nodes of one run, or those of none."""

    run: Run | None
    rows: Sequence[HeatRow]

    @property
    def first(self) -> Node:
        """One node that stands for its like."""
        return self.rows[0].now.node

    @property
    def is_alike(self) -> bool:
        """Whether that one speaks for all: machines without a run may be of any type."""
        types = {(row.now.node.instance_type, row.now.node.n_cores) for row in self.rows}
        return len(types) == 1


def heat_groups(
    nodes: Iterable[NodeNow], alerts: Sequence[Alert], blocks: Iterable[Block]
) -> list[HeatGroup]:
    """Lay out the nodes by run and rank; nodes without a run come last."""
    blamed = {alert.node_id: alert for alert in reversed(alerts) if alert.node_id}
    cores = _cores(blocks)

    def place(now: NodeNow) -> tuple[bool, str, int, str]:
        run = now.node.run
        return (run is None, run.name if run else "", now.node.rank, now.node.name)

    def row(now: NodeNow) -> HeatRow:
        ratio = cores.get(now.node.name) if now.is_up else None
        return HeatRow(now, packed(ratio, now.node.n_cores), blamed.get(now.node.pk))

    together = groupby(sorted(nodes, key=place), key=lambda now: now.node.run)
    return [HeatGroup(run, [row(now) for now in members]) for run, members in together]


def _cores(blocks: Iterable[Block]) -> dict[str, FloatArray]:
    """Return how busy each core of each node was: (n_cores,), 0 to 1."""
    return {
        name: block.values["core_utilization_ratio"][i]
        for block in blocks
        if "core_utilization_ratio" in block.values
        for i, name in enumerate(block.nodes)
    }


def packed(ratio: FloatArray | None, n_cores: int) -> str:
    """Write one byte per core in base64: 0 to 254, and 255 where there is no reading."""
    known = np.full(n_cores, np.nan) if ratio is None else np.clip(ratio, 0.0, 1.0)
    steps = np.where(np.isfinite(known), np.round(np.nan_to_num(known) * FULL), NO_DATA)
    return base64.b64encode(steps.astype(np.uint8).tobytes()).decode()
