"""The fleet's heat map: every core of every node, by run, and the alert that accuses a node."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.urls import reverse
from django.utils.http import urlencode

from fleet.alerts.causes import cause_text
from fleet.models import Alert, Run
from fleet.models.node import address
from fleet.runs.node_columns import NodeColumns
from telemetry.blocks import FloatArray, IntArray
from telemetry.store.packing import ABSENT_RATIO, RATIO_STEPS, encode

# Of a larger fleet one row is many nodes, and a pixel is a node: a page of many thousand rows
# shows nothing. The nodes of small groups, and those with an alert, keep a row of their own.
MOST_ROWS, SMALL_GROUP, OWN_ROWS = 512, 4, 16
NODES_PER_PAGE = 100
NODES_PER_ROW = 2 * NODES_PER_PAGE
# Of more runs those that fit into a row share one.
MOST_GROUPS = 100


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row of the heat map: a node with its packed cores, and the alert about it; or nodes.

    ``stem`` is the beginning of its name that is its run's, which stands above the row; ``state``
    is empty where it is up. ``n_each`` is the number of cores per device, 0 where the node has no
    devices. A row of ``n_nodes`` has a pixel for each; the first one is at ``place`` in its run.
    Where several runs share a row, ``runs`` are their names and first pixels.
    """

    name: str
    stem: str
    tail: str
    address: str
    cores: str
    n_cores: int
    state: str = ""
    mean: float | None = None
    lowest: float | None = None
    highest: float | None = None
    n_each: int = 0
    alert: Alert | None = None
    n_nodes: int = 1
    place: int = 0
    runs: str = ""

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
    """The rows of a run, of several small ones, or of the nodes without a run.

    ``is_alike``: whether all its nodes have ``instance_type`` and ``n_cores``.
    """

    run: Run | None
    rows: Sequence[HeatRow]
    n_nodes: int
    is_alike: bool
    instance_type: str
    n_cores: int
    n_runs: int = 1

    @property
    def name(self) -> str:
        if self.n_runs > 1:
            return f"{self.n_runs} runs of up to {NODES_PER_ROW} nodes"
        return self.run.name if self.run else "no run"


def heat_groups(
    columns: NodeColumns,
    alerts: Sequence[Alert],
    runs: Mapping[int, Run],
    *,
    most_rows: int = MOST_ROWS,
    most_groups: int = MOST_GROUPS,
) -> list[HeatGroup]:
    """Arrange the nodes by run and rank; nodes without a run, of any type, come last.

    ``runs`` are those of the nodes, by key.
    """
    roster, shown = columns.roster, np.flatnonzero(columns.is_shown)
    if not shown.size:
        return []
    by_run = np.split(shown, np.flatnonzero(np.diff(roster.run[shown])) + 1)
    accusing = {alert.node_id: alert for alert in reversed(alerts) if alert.node_id}
    is_accused = np.isin(roster.key, np.array([*accusing], int))
    stands_out = is_accused | columns.is_silent
    is_large = len(shown) > most_rows
    small = [
        members
        for members in by_run
        if is_large
        and len(by_run) > most_groups
        and roster.run[members[0]]
        and len(members) <= NODES_PER_ROW
    ]
    apart = {int(members[0]) for members in small}
    # The nodes of each group, and those of them with a row of their own.
    groups: list[tuple[IntArray, IntArray]] = []
    if small:
        members = np.concatenate(small)
        groups.append((members, members[stands_out[members]][: SMALL_GROUP * OWN_ROWS]))
    for members in by_run:
        if int(members[0]) in apart:
            continue
        is_whole = not is_large or len(members) <= SMALL_GROUP
        groups.append((members, members if is_whole else members[stands_out[members]][:OWN_ROWS]))
    cores = columns.cores(np.concatenate([own for _, own in groups]))

    def group_of(members: IntArray, own: IntArray) -> HeatGroup:
        n_runs = len(small) if small and members.size and int(members[0]) in apart else 1
        rows = [
            node_row(columns, int(row), cores.get(int(row)), accusing.get(int(roster.key[row])))
            for row in own
        ]
        if n_runs > 1:
            rows += rows_of_runs(columns, small)
        elif len(own) < len(members):
            rows += rows_of_nodes(columns, members)
        first = members[0]
        is_alike = (roster.types[members] == roster.types[first]).all()
        return HeatGroup(
            runs.get(int(roster.run[first])) if n_runs == 1 else None,
            rows,
            len(members),
            bool(is_alike and (roster.n_cores[members] == roster.n_cores[first]).all()),
            roster.types[first],
            int(roster.n_cores[first]),
            n_runs,
        )

    return [group_of(members, own) for members, own in groups]


def node_row(columns: NodeColumns, row: int, cores: bytes | None, alert: Alert | None) -> HeatRow:
    """Return the row of one node, with a pixel for each core; unknown ones without readings."""
    roster = columns.roster
    name, stem = roster.names[row], _stem_of(columns, row)
    n_cores, n_devices = int(roster.n_cores[row]), int(roster.n_devices[row])
    packed = cores or bytes([ABSENT_RATIO]) * n_cores
    codes = np.frombuffer(packed, "u1")
    return HeatRow(
        name,
        stem,
        name.removeprefix(stem),
        address("node-detail", name),
        base64.b64encode(packed).decode(),
        n_cores,
        columns.state(row),
        *_figures(codes[codes != ABSENT_RATIO] / RATIO_STEPS),
        n_each=max(1, n_cores // n_devices) if n_devices else 0,
        alert=alert,
    )


def rows_of_nodes(columns: NodeColumns, members: IntArray) -> Iterator[HeatRow]:
    """Yield the rows of a large run, with a pixel for each node."""
    roster = columns.roster
    run = roster.run_names.get(int(roster.run[members[0]]), "none")
    for place in range(0, len(members), NODES_PER_ROW):
        some = members[place : place + NODES_PER_ROW]
        first, last = int(some[0]), int(some[-1])
        stem = _stem_of(columns, first)
        start = roster.names[first].removeprefix(stem)
        label = f"{start} … {roster.names[last].removeprefix(_stem_of(columns, last))}"
        yield _row_of_nodes(columns, some, run=run, stem=stem, label=label, place=place)


def rows_of_runs(columns: NodeColumns, runs: Sequence[IntArray]) -> Iterator[HeatRow]:
    """Yield rows that small runs share, with a pixel for each node; no run is in two."""
    roster = columns.roster
    rows: list[list[IntArray]] = []
    n_nodes = NODES_PER_ROW
    for members in runs:
        if n_nodes + len(members) > NODES_PER_ROW:
            rows.append([])
            n_nodes = 0
        rows[-1].append(members)
        n_nodes += len(members)
    for row in rows:
        names = [roster.run_names[int(roster.run[members[0]])] for members in row]
        starts = np.cumsum([0, *map(len, row[:-1])]).tolist()
        yield _row_of_nodes(
            columns,
            np.concatenate(row),
            run=names[0],
            label=names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
            runs=",".join(f"{name} {start}" for name, start in zip(names, starts, strict=True)),
        )


def _row_of_nodes(
    columns: NodeColumns,
    members: IntArray,
    *,
    run: str,
    label: str,
    stem: str = "",
    place: int = 0,
    runs: str = "",
) -> HeatRow:
    means, first = columns.utilization[members], columns.roster.names[int(members[0])]
    query = urlencode({"run": run, "page": str(place // NODES_PER_PAGE + 1)})
    return HeatRow(
        f"{first}..{len(members)}",
        stem,
        label,
        f"{reverse('node-list')}?{query}",
        base64.b64encode(encode(means, "ratio").tobytes()).decode(),
        len(members),
        "" if columns.is_up[members].any() else columns.state(int(members[0])),
        *_figures(means[np.isfinite(means)]),
        n_nodes=len(members),
        place=place,
        runs=runs,
    )


def _figures(known: FloatArray) -> tuple[float | None, float | None, float | None]:
    """Return mean, lowest and highest; None without any."""
    if not known.size:
        return None, None, None
    return float(known.mean()), float(known.min()), float(known.max())


def _stem_of(columns: NodeColumns, row: int) -> str:
    roster = columns.roster
    run = roster.run_names.get(int(roster.run[row]), "")
    return run if run and roster.names[row].startswith(f"{run}-") else ""
