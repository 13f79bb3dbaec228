"""The fleet's heat map: every part of every node, by run, and how far it is from its peers."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from django.urls import reverse
from django.utils.http import urlencode

from fleet.alerts.causes import cause_text
from fleet.charts.deviations import SIGNALS, Outlier, Signal
from fleet.charts.readings import Compared, Readings, compare
from fleet.models import Alert, Run
from fleet.models.node import address
from fleet.runs.node_columns import NodeColumns
from telemetry.blocks import FloatArray, IntArray, mean
from telemetry.store.packing import ABSENT_RATIO, RATIO_STEPS, encode

# Of a larger fleet one row is many nodes, and a pixel is a node: a page of many thousand rows
# shows nothing. The nodes of small groups, and those with an alert, keep a row of their own.
MOST_ROWS, SMALL_GROUP, OWN_ROWS = 512, 4, 16
NODES_PER_PAGE = 100
NODES_PER_ROW = 2 * NODES_PER_PAGE
# Of more runs those that fit into a row share one.
MOST_GROUPS = 100
# The byte of a strength: below 127 a cell is below its peers, above that above; 255 is unknown.
LIKE_PEERS = 127


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row of the heat map: a node with a cell for each part, and the alert about it; or nodes.

    ``values`` and ``strengths`` are a byte for each cell.

    ``stem`` is the beginning of its name that is its run's, which stands above the row; ``state``
    is empty where it is up. ``n_each`` is the number of cells per device, 0 where cells are of no
    device. A row of ``n_nodes`` has a pixel for each; the first one is at ``place`` in its run.
    Where several runs share a row, ``runs`` are their names and first pixels.
    """

    name: str
    stem: str
    tail: str
    address: str
    values: bytes
    strengths: bytes
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
    def cells(self) -> str:
        """Return the bytes of values, then those of strengths, for the page's script."""
        return base64.b64encode(self.values + self.strengths).decode()

    @property
    def filled(self) -> int:
        """Return the mean of its values as a share of the highest of its group, in percent."""
        known = [byte for byte in self.values if byte != ABSENT_RATIO]
        return round(100 * sum(known) / len(known) / RATIO_STEPS) if known else 0

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

    Values are bytes of ``most``, in the unit of the ``signal``; the ``outlier`` stands out.
    """

    run: Run | None
    rows: Sequence[HeatRow]
    n_nodes: int
    signal: Signal
    most: float
    outlier: Outlier | None
    n_runs: int = 1

    @property
    def calmness(self) -> int:
        """Order groups: 0 with an alert or a silent node, 1 where a part stands out, else 2."""
        if any(row.alert or row.state for row in self.rows):
            return 0
        return 1 if self.outlier is not None else 2

    @property
    def is_drill(self) -> bool:
        return any(row.alert is not None and row.alert.is_drill for row in self.rows)

    @property
    def is_accused(self) -> bool:
        """Whether an alert names the node in which a part stands out."""
        return any(
            row.alert and self.outlier and row.name == self.outlier.node for row in self.rows
        )

    @property
    def finding(self) -> str:
        """Say what stands out, and how far."""
        if self.outlier is None:
            return ""
        node = self.outlier.node.removeprefix(f"{self.run.name}-" if self.run else "")
        number = self.outlier.number
        part = "" if number is None else f"{self.signal.part} {number} of "
        return f"{part}{node}: {self.signal.title} {self.outlier.figures}"

    @property
    def name(self) -> str:
        if self.n_runs > 1:
            return f"{self.n_runs} runs of up to {NODES_PER_ROW} nodes"
        return self.run.name if self.run else "no run"


def heat_groups(
    columns: NodeColumns,
    alerts: Sequence[Alert],
    runs: Mapping[int, Run],
    readings: Readings,
    *,
    signal: str = "",
    only: int | None = None,
    most_rows: int = MOST_ROWS,
    most_groups: int = MOST_GROUPS,
) -> list[HeatGroup]:
    """Arrange the nodes by run, the worst next to its peers first; those without a run come last.

    ``runs`` are those of the nodes, by key; ``only`` one of them is shown. Without a ``signal``
    each run shows the one in which a node stands out most.
    """
    roster, is_shown = columns.roster, columns.is_shown
    shown = np.flatnonzero(is_shown if only is None else is_shown & (columns.roster.run == only))
    if not shown.size:
        return []
    by_run = np.split(shown, np.flatnonzero(np.diff(roster.run[shown])) + 1)
    accusing = {alert.node_id: alert for alert in reversed(alerts) if alert.node_id}
    is_accused = np.isin(roster.key, np.array([*accusing], int))
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
    # A few moments are no whole steps.
    asked = tuple(each for each in SIGNALS.values() if not each.follows_step)
    asked = (SIGNALS[signal],) if signal in SIGNALS else asked

    def group_of(some: Sequence[IntArray]) -> HeatGroup:
        """Return the group of a run, or of several small ones, compared in one signal."""
        members = np.concatenate(some)
        first, n_runs = members[0], len(some)
        each = [
            compare(
                columns,
                readings,
                of_run,
                runs.get(int(roster.run[of_run[0]])),
                signals=asked if n_runs == 1 else asked[-1:],
            )
            for of_run in some
        ]
        found = each[0] if n_runs == 1 else joined(each)
        harm = found.harm
        is_known = is_accused[members] | columns.is_silent[members]
        stands_out = is_known | (harm > 0)
        is_whole = not is_large or (n_runs == 1 and len(members) <= SMALL_GROUP)
        own = np.arange(len(members)) if is_whole else np.flatnonzero(stands_out)
        # Those that are alike keep their order: a row moves only where that says something.
        own = own[np.lexsort((-np.round(harm[own], 1), ~is_known[own]))]
        own = own if is_whole else own[: OWN_ROWS if n_runs == 1 else SMALL_GROUP * OWN_ROWS]
        rows = [
            node_row(columns, int(members[i]), found, i, accusing.get(int(roster.key[members[i]])))
            for i in own.tolist()
        ]
        if n_runs > 1:
            rows += rows_of_runs(columns, small, found)
        elif len(own) < len(members):
            rows += rows_of_nodes(columns, members, found)
        return HeatGroup(
            runs.get(int(roster.run[first])) if n_runs == 1 else None,
            rows,
            len(members),
            found.signal,
            found.most,
            found.outlier,
            n_runs,
        )

    groups = [group_of(small)] if small else []
    groups += [group_of([each]) for each in by_run if int(each[0]) not in apart]
    return sorted(groups, key=lambda group: group.calmness)


def joined(each: Sequence[Compared]) -> Compared:
    """Join the comparisons of several runs in one signal, by nodes."""
    n_parts = max(found.strength.shape[1] for found in each)

    def wide(values: FloatArray) -> FloatArray:
        missing = ((0, 0), (0, n_parts - values.shape[1]))
        return np.pad(values, missing, constant_values=np.nan)

    return Compared(
        each[0].signal,
        np.concatenate([wide(found.values) for found in each]),
        np.concatenate([wide(found.strength) for found in each]),
        None,
    )


def _cells(values: FloatArray, strength: FloatArray, most: float) -> tuple[bytes, bytes]:
    """Return a byte for each cell: of its value, and of its strength."""
    coded = np.where(np.isfinite(strength), np.rint(LIKE_PEERS * (1 + strength)), ABSENT_RATIO)
    return encode(values / most, "ratio").tobytes(), coded.astype("u1").tobytes()


def node_row(
    columns: NodeColumns, row: int, found: Compared, at: int, alert: Alert | None
) -> HeatRow:
    """Return the row of one node, with a cell for each part; unknown ones without readings."""
    roster = columns.roster
    name, stem = roster.names[row], _stem_of(columns, row)
    n_cores, n_devices = int(roster.n_cores[row]), int(roster.n_devices[row])
    values, strength = found.values[at], found.strength[at]
    is_of_cores = found.signal.part == "core"
    # Of types with fewer parts the rest is padding; a node without readings has all its cores.
    n = n_cores if is_of_cores else max(1, _last_known(strength) + 1)
    values, strength = (
        np.pad(each[:n], (0, max(0, n - len(each))), constant_values=np.nan)
        for each in (values, strength)
    )
    per_device = {"core": n_cores // n_devices if n_devices else 0, "device": 1}
    return HeatRow(
        name,
        stem,
        name.removeprefix(stem),
        address("node-detail", name),
        *_cells(values, strength, found.most),
        n,
        columns.state(row),
        *_figures(values[np.isfinite(values)]),
        n_each=per_device.get(found.signal.part, 0),
        alert=alert,
    )


def _last_known(values: FloatArray) -> int:
    known = np.flatnonzero(np.isfinite(values))
    return int(known[-1]) if known.size else 0


def rows_of_nodes(columns: NodeColumns, members: IntArray, found: Compared) -> Iterator[HeatRow]:
    """Yield the rows of a large run, with a pixel for each node."""
    roster = columns.roster
    run = roster.run_names.get(int(roster.run[members[0]]), "none")
    for place in range(0, len(members), NODES_PER_ROW):
        some = members[place : place + NODES_PER_ROW]
        first, last = int(some[0]), int(some[-1])
        stem = _stem_of(columns, first)
        start = roster.names[first].removeprefix(stem)
        label = f"{start} … {roster.names[last].removeprefix(_stem_of(columns, last))}"
        at = slice(place, place + NODES_PER_ROW)
        cells = mean(found.values[at], 1), found.furthest[at], found.most
        yield _row_of_nodes(columns, some, cells, run=run, stem=stem, label=label, place=place)


def rows_of_runs(
    columns: NodeColumns, runs: Sequence[IntArray], found: Compared
) -> Iterator[HeatRow]:
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
    begin = 0
    for row in rows:
        at = slice(begin, begin := begin + sum(map(len, row)))
        names = [roster.run_names[int(roster.run[members[0]])] for members in row]
        starts = np.cumsum([0, *map(len, row[:-1])]).tolist()
        yield _row_of_nodes(
            columns,
            np.concatenate(row),
            (mean(found.values[at], 1), found.furthest[at], found.most),
            run=names[0],
            label=names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
            runs=",".join(f"{name} {start}" for name, start in zip(names, starts, strict=True)),
        )


def _row_of_nodes(
    columns: NodeColumns,
    members: IntArray,
    cells: tuple[FloatArray, FloatArray, float],
    *,
    run: str,
    label: str,
    stem: str = "",
    place: int = 0,
    runs: str = "",
) -> HeatRow:
    means, first = cells[0], columns.roster.names[int(members[0])]
    query = urlencode({"run": run, "sort": "run", "page": str(place // NODES_PER_PAGE + 1)})
    return HeatRow(
        f"{first}..{len(members)}",
        stem,
        label,
        f"{reverse('node-list')}?{query}",
        *_cells(*cells),
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
    return f"{run}-" if run and roster.names[row].startswith(f"{run}-") else ""
