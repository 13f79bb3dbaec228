"""A preflight drawn: the matrices of its pairs, and its collectives by size."""

import base64
import csv
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from fleet.charts.figures import Chart, ChartLine
from fleet.formatting import NBSP, rate, seconds
from telemetry.blocks import FloatArray
from telemetry.checks.preflight import PreflightResult, distances
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_pairs import FIGURES, NodeVerdict, PairAnalysis, looked_at

# Cividis, which reads the same to colour-blind and other eyes: dark is usual, bright is slow.
STOPS = ((0, 32, 77), (57, 72, 107), (124, 123, 120), (188, 175, 111), (255, 234, 70))
N_SHADES = 64
LEAST, MOST = 0.9, 3.0  # times worse than usual
SIDE, LABELS = 340.0, 74.0
LABEL_EVERY = 13.0
LONGEST_LABEL = 11
MOST_MARKS = 200
TITLES = {
    "p50_s": "Latency, median",
    "p99_s": "Latency, 99th percentile",
    "bandwidth_bytes_per_s": "Bandwidth",
}


@dataclass(frozen=True, slots=True)
class Label:
    text: str
    y: float
    is_bad: bool


@dataclass(frozen=True, slots=True)
class MatrixMark:
    """A mark: a cell, or a whole row or column."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """The matrix of one figure over all pairs of nodes, with its marks."""

    name: str
    title: str
    usual: str
    image_url: str
    labels: Sequence[Label]
    nodes: Sequence[MatrixMark]
    pairs: Sequence[MatrixMark]
    n: int

    @property
    def side(self) -> float:
        return SIDE

    @property
    def left(self) -> float:
        return LABELS

    @property
    def width(self) -> float:
        return SIDE + LABELS

    @property
    def text_at(self) -> float:
        return LABELS - 6


def matrices(measured: Measured, found: PreflightResult | None) -> list[PairMatrix]:
    nodes = measured.nodes
    if len(nodes) < 2:
        return []
    failed: set[str] = set()
    pairs: list[MatrixMark] = []
    cell, length = SIDE / len(nodes), round(SIDE / len(nodes), 3)
    if found is not None:
        failed = {n for n, verdict in found.nodes.items() if verdict is NodeVerdict.FAIL}
        place = {node: i for i, node in enumerate(nodes)}
        ends = [(place[t.node], place[str(t.peer)]) for t in found.pairs[:MOST_MARKS]]
        pairs = [
            MatrixMark(round(i * cell, 2), round(j * cell, 2), length, length)
            for one, other in ends
            for i, j in ((one, other), (other, one))
        ]
    at = [round(i * length, 2) for i, node in enumerate(nodes) if node in failed][:MOST_MARKS]
    rows = [MatrixMark(0, y, SIDE, length) for y in at]
    rows += [MatrixMark(x, 0, length, SIDE) for x in at]
    labels = _labels(nodes, failed)
    drawn = []
    for view in looked_at(measured):
        # Each pair's factor over usual; infinite where a pair does not respond.
        if view.figure.is_rate:
            worse = np.full(view.values.shape, np.inf)
            np.divide(view.usual_of_pairs, view.values, out=worse, where=view.values > 0)
            worse = np.where(np.isnan(view.values), np.nan, worse)
        else:
            worse = np.asarray(view.values / view.usual_of_pairs)
        usual = _usual(view) if measured.was_probed.any() else ""
        name = view.figure.name
        drawn.append(
            PairMatrix(
                name, TITLES[name], usual, image_url(worse), labels, rows, pairs, len(nodes)
            )
        )
    return drawn


def _usual(view: PairAnalysis) -> str:
    write = rate if view.figure.is_rate else seconds
    if not view.classes.basis:
        return write(view.usual)
    across = float(view.usual_of_pairs[view.classes.is_across][0])
    return f"{write(view.usual)} in one rack, {write(across)} across"


def image_url(worse: FloatArray) -> str:
    """Draw a matrix as an indexed PNG in a data URL; unknown cells are transparent.

    References
    ----------
    W3C, "Portable Network Graphics Specification", third edition (2025): chunks and filters.
    """
    n = len(worse)
    scaled = (np.log(np.clip(worse, LEAST, MOST)) - np.log(LEAST)) / np.log(MOST / LEAST)
    index = np.where(np.isnan(worse), 0, 1 + np.nan_to_num(scaled) * (N_SHADES - 1))
    rows = np.zeros((n, n + 1), dtype=np.uint8)  # each begins with its filter: none
    rows[:, 1:] = index.round().astype(np.uint8)
    at = np.linspace(0, len(STOPS) - 1, N_SHADES)
    shades = np.stack(
        [np.interp(at, np.arange(len(STOPS)), channel) for channel in zip(*STOPS, strict=True)], 1
    )
    body = b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", n, n, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"\x00\x00\x00" + shades.round().astype(np.uint8).tobytes()),
            _chunk(b"tRNS", b"\x00"),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(body).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _labels(nodes: Sequence[str], failed: set[str]) -> list[Label]:
    """Label as many rows as fit, failed nodes first."""
    cell = SIDE / len(nodes)
    every = int(np.ceil(LABEL_EVERY / cell))
    shown: list[int] = []
    for i in sorted(range(len(nodes)), key=lambda i: (nodes[i] not in failed, i % every > 0, i)):
        is_wanted = nodes[i] in failed or i % every == 0
        if is_wanted and all(abs(i - other) >= every for other in shown):
            shown.append(i)
    return [
        Label(short(nodes[i]), round((i + 0.5) * cell, 2), is_bad=nodes[i] in failed)
        for i in sorted(shown)
    ]


def short(name: str) -> str:
    """Shorten a name to its end, where names differ, at a hyphen if there is one."""
    if len(name) <= LONGEST_LABEL:
        return name
    end = name[1 - LONGEST_LABEL :]
    _, _, words = end.partition("-")
    return f"\u2026{words or end}"


WORST = 20


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


def as_json(measured: Measured) -> dict[str, Any]:
    """Return the matrices for tooltips; null where not measured, or without a response."""
    return {"nodes": list(measured.nodes)} | {
        figure.name: nulled(getattr(measured, figure.name)) for figure in FIGURES
    }


def nulled(values: FloatArray) -> list[list[float | None]]:
    """Round to four digits; null where unknown."""
    return [
        [float(f"{value:.4g}") if np.isfinite(value) else None for value in row]
        for row in values.tolist()
    ]


def collectives_json(measured: Measured) -> Sequence[dict[str, Any]]:
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


UNITS = ("B", "KiB", "MiB", "GiB")


def size_name(n_bytes: float) -> str:
    power = min(int(np.log2(max(n_bytes, 1))) // 10, len(UNITS) - 1)
    return f"{n_bytes / 1024**power:g}{NBSP}{UNITS[power]}"


def collective_figure(measured: Measured) -> Chart:
    if not measured.collectives:
        return Chart("s", scale="log")
    last = measured.collectives[-1]
    lines = [ChartLine(f"expected of {len(last.nodes)} nodes", last.expected_s, "idle")]
    for each in measured.collectives:
        same = np.array_equal(each.size_bytes, last.size_bytes)
        label = f"measured, {'all ' if each is not last else ''}{len(each.nodes)} nodes"
        if same:
            lines.append(ChartLine(label, np.where(np.isfinite(each.time_s), each.time_s, np.nan)))
    labels = [size_name(size) for size in last.size_bytes]
    return Chart("s", lines, np.arange(len(labels)), labels=labels, scale="log")
