"""The fleet's heat map: every core of every node, by run, and the alert that accuses a node."""

import base64
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import numpy as np
from django.urls import reverse
from django.utils.http import urlencode
from numpy.typing import NDArray

from fleet.alerts.causes import cause_text
from fleet.models import Alert, Node, Run
from fleet.runs.summaries import NodeNow
from telemetry.blocks import Block, FloatArray

NO_DATA = 255
FULL = 254
# Of a larger fleet one row is many nodes, and a pixel is a node: a page of many thousand rows
# shows nothing. The nodes of small groups, and those with an alert, keep a row of their own.
MOST_ROWS, SMALL_GROUP, OWN_ROWS = 512, 4, 16
NODES_PER_PAGE = 100
NODES_PER_ROW = 2 * NODES_PER_PAGE


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row of the heat map: a node with its packed cores, and the alert about it; or nodes.

    ``stem`` is the beginning of its name that is its run's, which stands above the row.
    ``n_each`` is the number of cores per device, 0 where the node has no devices. A row of
    ``n_nodes`` has a pixel for each; the first one is at ``place`` in its run.
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
    lowest: float | None
    highest: float | None
    n_nodes: int = 1
    place: int = 0

    @classmethod
    def of(cls, now: NodeNow, cores: str, alert: Alert | None) -> Self:
        node = now.node
        stem = _stem_of(node)
        return cls(
            now,
            cores,
            alert,
            node.name,
            stem,
            node.name.removeprefix(stem),
            node.get_absolute_url(),
            node.n_cores,
            node.cores_per_device if node.n_devices else 0,
            now.is_up,
            now.utilization_mean,
            now.utilization_min,
            now.utilization_max,
        )

    @classmethod
    def of_nodes(cls, nodes: Sequence[NodeNow], place: int) -> Self:
        """Return a row with a pixel for each node."""
        first, last = nodes[0].node, nodes[-1].node
        stem = _stem_of(first)
        means = np.array([now.utilization_mean if now.is_up else None for now in nodes], float)
        known = means[np.isfinite(means)]
        mean, lowest, highest = (
            float(of(known)) if known.size else None for of in (np.mean, np.min, np.max)
        )
        query = {"run": first.run.name if first.run else "none"}
        query |= {"page": str(place // NODES_PER_PAGE + 1)}
        return cls(
            nodes[0],
            base64.b64encode(_steps(means).tobytes()).decode(),
            None,
            f"{first.name}..{len(nodes)}",
            stem,
            f"{first.name.removeprefix(stem)} … {last.name.removeprefix(_stem_of(last))}",
            f"{reverse('node-list')}?{urlencode(query)}",
            len(nodes),
            0,
            any(now.is_up for now in nodes),
            mean,
            lowest,
            highest,
            len(nodes),
            place,
        )

    @property
    def what(self) -> str:
        if self.alert is None or self.alert.rule == "node_silent":
            return "silent"
        part = cause_text(self.alert.cause).heat
        if part is None or self.alert.device is None:
            return self.alert.cause.replace("_", " ")
        return f"{part} {self.alert.device}"


def _stem_of(node: Node) -> str:
    run = node.run
    return run.name if run and node.name.startswith(f"{run.name}-") else ""


@dataclass(frozen=True, slots=True)
class HeatGroup:
    """The rows of a run; ``is_alike``: whether its first node represents all of them."""

    run: Run | None
    rows: Sequence[HeatRow]
    first: Node
    n_nodes: int
    is_alike: bool


def heat_groups(
    nodes: Iterable[NodeNow],
    alerts: Sequence[Alert],
    blocks: Iterable[Block],
    *,
    most_rows: int = MOST_ROWS,
) -> list[HeatGroup]:
    """Arrange the nodes by run and rank; nodes without a run, of any type, come last."""
    accused = {alert.node_id: alert for alert in reversed(alerts) if alert.node_id}

    def place(now: NodeNow) -> tuple[bool, str, int, str]:
        run = now.node.run
        return (run is None, run.name if run else "", now.node.rank, now.node.name)

    ordered = sorted(nodes, key=place)
    by_run = {run: list(each) for run, each in groupby(ordered, key=lambda now: now.node.run)}
    if len(ordered) <= most_rows:
        own = by_run
    else:
        own = {
            run: members
            if len(members) <= SMALL_GROUP
            else [now for now in members if now.node.pk in accused or now.is_silent][:OWN_ROWS]
            for run, members in by_run.items()
        }
    cores = packed_cores(blocks, {now.node.name for each in own.values() for now in each})

    def row(now: NodeNow) -> HeatRow:
        known = cores.get(now.node.name) if now.is_up else None
        return HeatRow.of(now, known or unknown_cores(now.node.n_cores), accused.get(now.node.pk))

    return [
        HeatGroup(
            run,
            [*map(row, own[run]), *([] if own[run] is members else _rows_of_nodes(members))],
            members[0].node,
            len(members),
            len({(now.node.instance_type, now.node.n_cores) for now in members}) == 1,
        )
        for run, members in by_run.items()
    ]


def _rows_of_nodes(members: Sequence[NodeNow]) -> list[HeatRow]:
    return [
        HeatRow.of_nodes(members[first : first + NODES_PER_ROW], first)
        for first in range(0, len(members), NODES_PER_ROW)
    ]


def _steps(ratio: FloatArray) -> NDArray[np.uint8]:
    """Return a byte of each ratio: 0 to 254 mean idle to busy, and 255 no reading."""
    steps = np.round(np.clip(np.nan_to_num(ratio), 0.0, 1.0) * FULL)
    return np.where(np.isfinite(ratio), steps, NO_DATA).astype(np.uint8)


def packed_cores(blocks: Iterable[Block], names: Collection[str]) -> dict[str, str]:
    """Return the utilization of each core of some nodes: one byte per core in base64, by node.

    0 to 254 mean idle to busy, and 255 for no reading.
    """
    packed = {}
    for block in blocks:
        ratio = block.values.get("core_utilization_ratio")
        rows = [row for row, name in enumerate(block.nodes) if name in names]
        if ratio is not None and rows:
            for row, steps in zip(rows, _steps(ratio[rows]), strict=True):
                packed[block.nodes[row]] = base64.b64encode(steps.tobytes()).decode()
    return packed


def unknown_cores(n_cores: int) -> str:
    return base64.b64encode(bytes([NO_DATA]) * n_cores).decode()
