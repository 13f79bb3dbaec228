"""The charts and the CSV of a sample of a node, and how well it was answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from fleet.charts.figures import Chart, Heat, rounded
from fleet.charts.nodes import part_lines
from fleet.formatting import csv_text
from fleet.models import Node
from telemetry.blocks import FloatArray
from telemetry.ingest.samples import SampleAnswer, SampleTable, TableName, sample_tables
from telemetry.series import Series

# By chart: title, and the table of EFA devices; cores have two.
CHARTS: Mapping[str, tuple[str, TableName | None]] = {
    "cores": ("Core utilization", None),
    "efa-sent": ("EFA bytes sent", "efa_tx"),
    "efa-received": ("EFA bytes received", "efa_rx"),
}
# A source whose readings lie this many requested periods apart did not accept the period.
SLOWER = 1.5
SOURCES: Mapping[TableName, str] = {
    "monitor": "neuron-monitor",
    "driver": "Neuron driver, time in use",
    "efa_tx": "EFA, sent",
    "efa_rx": "EFA, received",
}


@dataclass(frozen=True, slots=True)
class SampleSource:
    """How one source answered: readings got and requested, and the time between them.

    ``n_above_zero`` of the readings show something: a counter may be renewed less often than it is
    read. ``is_drawn`` tells which source of core utilization the chart shows.
    """

    name: TableName
    n: int
    n_requested: int
    spacing_s: float | None
    is_as_requested: bool
    n_above_zero: int
    is_drawn: bool
    note: str

    @property
    def title(self) -> str:
        return SOURCES[self.name]


class NodeSample:
    def __init__(self, node: Node, answer: SampleAnswer) -> None:
        self.answer = answer
        self._node = node
        self.tables = {table.name: table for table in sample_tables(answer)}

    @property
    def window(self) -> tuple[float, float]:
        return self.answer.at, self.answer.at + self.answer.length_s

    @property
    def charts(self) -> list[tuple[str, str]]:
        """Names and titles of the charts that have data."""
        return [(name, title) for name, (title, _) in CHARTS.items() if self._has(name)]

    def _has(self, name: str) -> bool:
        table = self._cores if name == "cores" else self.tables.get(CHARTS[name][1] or "monitor")
        return table is not None and len(table.t_s) > 0

    @property
    def _cores(self) -> SampleTable | None:
        """The source of core utilization with more readings above zero.

        At a tie neuron-monitor: the driver may renew its counters less often than they are read.
        """
        tables = [self.tables[name] for name in ("monitor", "driver") if name in self.tables]
        known = [table for table in tables if len(table.t_s)]
        return max(known, key=n_above_zero, default=None)

    def _every_s(self, table: SampleTable) -> float:
        """Return the time between readings: the requested period if they are about that."""
        spacing_s = table.spacing_s
        if spacing_s is None:
            return self.answer.length_s
        every_s = self.answer.every_s
        return every_s if spacing_s <= SLOWER * every_s else round(spacing_s, 1)

    def sources(self) -> list[SampleSource]:
        drawn = self._cores
        return [
            SampleSource(
                table.name,
                len(table.t_s),
                round(self.answer.length_s / self.answer.every_s),
                table.spacing_s,
                self._every_s(table) == self.answer.every_s,
                n_above_zero(table),
                table is drawn,
                table.note,
            )
            for table in self.tables.values()
        ]

    def figure(self, name: str) -> Chart | Heat:
        """Draw a chart; one without data is empty."""
        _, table_name = CHARTS[name]
        if table_name is None:
            return self._heat()
        table = self.tables.get(table_name)
        if table is None or not len(table.t_s):
            return Chart("bytes_per_s", window=self.window)
        length_s = np.diff(table.t_s, prepend=table.start_s)
        rate = table.values / np.where(length_s > 0, length_s, np.nan)[:, None]
        whole = np.full((len(rate), max(self._node.n_efa, len(table.parts))), np.nan)
        for i, part in enumerate(table.parts):
            if part.isdecimal() and int(part) < whole.shape[1]:
                whole[:, int(part)] = rate[:, i]
        series = Series(name, table.t_s, whole)  # type: ignore[arg-type]
        return Chart(
            "bytes_per_s",
            part_lines(series, "EFA"),
            table.t_s,
            every_s=self._every_s(table),
            window=self.window,
        )

    def _heat(self) -> Heat:
        table = self._cores
        if table is None:
            return Heat(np.zeros(0), (), np.zeros((0, 0)), window=self.window)
        every_s = self._every_s(table)
        n_columns = max(1, round(self.answer.length_s / every_s))
        labels, values = by_core(table, self._node)
        t_s = table.start_s + every_s * (np.arange(n_columns) + 0.5)
        # A reading is of the time since the one before; where one is missing, of its own period.
        length_s = np.diff(table.t_s, prepend=table.start_s)
        since_s = table.t_s - np.where(length_s <= SLOWER * every_s, length_s, every_s)
        row = np.minimum(np.searchsorted(table.t_s, t_s), len(table.t_s) - 1)
        is_known = (t_s > since_s[row]) & (t_s <= table.t_s[row])
        drawn = np.where(is_known[:, None], values[row], np.nan)
        return Heat(t_s, labels, drawn.T, every_s=every_s, window=self.window)

    def csv(self) -> str:
        """Write every reading of every source: utilization as a ratio, EFA as bytes."""
        rows = [("time", "source", "part", "value", "unit", "over_s")]
        for table in self.tables.values():
            unit = "bytes" if table.name.startswith("efa") else "ratio"
            over_s = np.diff(table.t_s, prepend=table.start_s)
            for t_s, length_s, row in zip(table.t_s, over_s, rounded(table.values), strict=True):
                at = datetime.fromtimestamp(t_s, UTC).isoformat(timespec="milliseconds")
                rows += [
                    (at, table.name, part, f"{value:.10g}", unit, f"{length_s:.3f}")
                    for part, value in zip(table.parts, row, strict=True)
                    if np.isfinite(value)
                ]
        return csv_text(rows)


def n_above_zero(table: SampleTable) -> int:
    """Count the readings in which any part is above zero."""
    return int((np.nan_to_num(table.values) > 0).any(axis=1).sum())


def by_core(table: SampleTable, node: Node) -> tuple[Sequence[str], FloatArray]:
    """Return labels and values by core as the runtime counts them: (n, n_cores).

    The driver counts physical cores, ``device.core``, of which a core may have several; where
    they do not fit the node they are shown as they are.
    """
    if table.name == "monitor":
        places = [(int(part), i) for i, part in enumerate(table.parts) if part.isdecimal()]
        n_cores = max([node.n_cores, *(place + 1 for place, _ in places)])
        values = np.full((len(table.t_s), n_cores), np.nan)
        for place, i in places:
            values[:, place] = table.values[:, i]
        return [f"core {i}" for i in range(n_cores)], values
    parts = [tuple(map(int, part.split("."))) for part in table.parts]
    order = sorted(range(len(parts)), key=lambda i: parts[i])
    values = table.values[:, order]
    n_each, rest = divmod(len(parts), max(1, node.n_cores))
    if rest or not n_each:
        return [f"core {table.parts[i]}" for i in order], values
    known = np.isfinite(values).reshape(len(values), node.n_cores, n_each)
    total = np.nan_to_num(values).reshape(known.shape).sum(axis=2)
    n_known = known.sum(axis=2)
    mean = np.where(n_known > 0, total, np.nan) / np.maximum(n_known, 1)
    return [f"core {i}" for i in range(node.n_cores)], mean
