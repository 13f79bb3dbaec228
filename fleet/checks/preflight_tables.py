"""The figures of a preflight as tables: its pairs, and its collectives by size."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from fleet.formatting import NBSP
from telemetry.checks.preflight import distances
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_pairs import FIGURES, looked_at

WORST = 20
UNITS = ("B", "KiB", "MiB", "GiB")


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair; without a response latency is infinite, and bandwidth 0."""

    node: str
    peer: str
    p50_s: float
    p99_s: float
    bandwidth_bytes_per_s: float

    @property
    def answers(self) -> bool:
        return bool(np.isfinite(self.p50_s))


def pair_rows(measured: Measured, *, worst: int | None = None) -> list[PairRow]:
    """List every probed pair in order, or only the worst, the worst first."""
    rows, columns = np.nonzero(np.triu(measured.was_probed, 1))
    if worst is not None:
        far = distances(looked_at(measured), within_class=True)[rows, columns]
        far = np.where(np.isinf(measured.p50_s[rows, columns]), np.inf, far)
        order = np.argsort(-far, kind="stable")[:worst]
        rows, columns = rows[order], columns[order]
    return [
        PairRow(
            measured.nodes[i],
            measured.nodes[j],
            *(float(getattr(measured, figure.name)[i, j]) for figure in FIGURES),
        )
        for i, j in zip(rows, columns, strict=True)
    ]


def written_csv(measured: Measured) -> str:
    """Write one line per pair; figures of a pair without a response are empty."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(["node", "peer", *(figure.name for figure in FIGURES)])
    for row in pair_rows(measured):
        figures = (row.p50_s, row.p99_s, row.bandwidth_bytes_per_s)
        cells = [f"{figure:.7g}" if np.isfinite(figure) else "" for figure in figures]
        table.writerow([row.node, row.peer, *cells])
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective of one size, over so many nodes; None where unknown."""

    size: str
    n_nodes: int
    time_s: float | None
    expected_s: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over expected."""
        return self.time_s / self.expected_s if self.time_s and self.expected_s else None


def collective_rows(measured: Measured) -> list[CollectiveRow]:
    """List the collectives over the nodes to use, or over all of them, by size."""
    last = collectives_json(measured)[-1:]
    return [
        CollectiveRow(_size_name(n_bytes), len(each["nodes"]), time_s, expected_s)
        for each in last
        for n_bytes, time_s, expected_s in zip(
            each["size_bytes"], each["time_s"], each["expected_s"], strict=True
        )
    ]


def collectives_json(measured: Measured) -> Sequence[dict[str, Any]]:
    return [
        {
            "nodes": list(each.nodes),
            "op": each.op,
            "size_bytes": each.size_bytes.tolist(),
            "time_s": _rounded(each.time_s.tolist()),
            "expected_s": _rounded(each.expected_s.tolist()),
        }
        for each in measured.collectives
    ]


def _rounded(values: Sequence[float]) -> list[float | None]:
    """Round to four digits; null where unknown."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _size_name(n_bytes: float) -> str:
    power = min(int(np.log2(max(n_bytes, 1))) // 10, len(UNITS) - 1)
    return f"{n_bytes / 1024**power:g}{NBSP}{UNITS[power]}"
