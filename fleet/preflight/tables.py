"""What a preflight measured of pairs, as rows: for a table, a spreadsheet, and the pointer."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.preflight.judging import distances
from telemetry.preflight.links import FIGURES, looked_at
from telemetry.preflight.measured import Measured

WORST = 20


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair; no answer is infinite, or a bandwidth of 0."""

    node: str
    peer: str
    p50_s: float
    p99_s: float
    bandwidth_bytes_per_s: float

    @property
    def answers(self) -> bool:
        """Whether the two reach each other."""
        return bool(np.isfinite(self.p50_s))


def pair_rows(measured: Measured, *, worst: int | None = None) -> list[PairRow]:
    """Return every pair that was probed in order, or only the worst, the worst first."""
    rows, columns = np.nonzero(np.triu(measured.was_probed, 1))
    if worst is not None:
        far = distances(looked_at(measured))[rows, columns]
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
    """Write every pair as a line; what did not answer is left empty."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    table.writerow(["node", "peer", *(figure.name for figure in FIGURES)])
    for row in pair_rows(measured):
        figures = (row.p50_s, row.p99_s, row.bandwidth_bytes_per_s)
        table.writerow([row.node, row.peer, *(_cell(figure) for figure in figures)])
    return text.getvalue()


def _cell(value: float) -> str:
    return f"{value:.7g}" if np.isfinite(value) else ""


def as_json(measured: Measured) -> dict[str, Any]:
    """Return the matrices for the pointer to read; null is not measured, or no answer."""
    return {"nodes": list(measured.nodes)} | {
        figure.name: nulled(getattr(measured, figure.name)) for figure in FIGURES
    }


def nulled(values: FloatArray) -> list[list[float | None]]:
    """Return rows of four digits, null where there is no figure."""
    return [[_rounded(value) for value in row] for row in values.tolist()]


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def collectives_json(measured: Measured) -> Sequence[dict[str, Any]]:
    """Return each collective's times beside the expected ones."""
    return [
        {
            "nodes": list(each.nodes),
            "op": each.op,
            "size_bytes": each.size_bytes.tolist(),
            "time_s": nulled(each.time_s[None])[0],
            "expected_s": nulled(each.expected_s[None])[0],
        }
        for each in measured.collectives
    ]
