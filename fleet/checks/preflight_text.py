"""The text and tables of a preflight: its verdict, findings, limits and measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleet.formatting import NBSP, csv_text, render_lines, render_text
from fleet.models import Preflight
from telemetry.checks.preflight import (
    DEVIATIONS,
    DEVICE_SLOWER_BY,
    LOSS_RATIO,
    PreflightResult,
    distances,
)
from telemetry.checks.preflight_measurements import REST_COUNTERS, SLOWER_BY, Measured
from telemetry.checks.preflight_pairs import (
    FIGURES,
    NODE_DEVIATIONS,
    PAIR_DEVIATIONS,
    NodeVerdict,
    PreflightFinding,
    looked_at,
)

MOST_EXPLAINED, MOST_PAIRS = 4, 5


def reason(trouble: PreflightFinding, *, of: str = "") -> str:
    """Describe a finding; one about a pair is described from the side of node ``of``."""
    other = trouble.node if of == trouble.peer else trouble.peer
    return render_text("checks/_preflight.txt#reason", trouble=trouble, other=other)


def reasons(found: PreflightResult, node: str) -> list[str]:
    sentences = [reason(each, of=node) for each in found.findings_of(node)]
    stays = found.nodes[node] is NodeVerdict.HOLD and node not in {t.node for t in found.own}
    return [*sentences, *(["excluded, so that the most nodes can be used"] if stays else [])]


def sentences(preflight: Preflight, found: PreflightResult) -> list[str]:
    """Write the verdict: how many nodes can be used, which cannot and why, and the collective."""
    failed = [node for node, verdict in found.nodes.items() if verdict is NodeVerdict.FAIL]
    held = {t.node for t in found.own if t.verdict is NodeVerdict.HOLD} - set(failed)
    is_many = len(failed) > MOST_EXPLAINED
    pairs = []
    for pair in found.pairs[:MOST_PAIRS]:
        nodes = (pair.node, str(pair.peer))
        on_hold = [node for node in nodes if found.nodes[node] is NodeVerdict.HOLD]
        pairs.append((pair, on_hold[0] if len(on_hold) == 1 else ""))
    return render_lines(
        "checks/_preflight.txt#verdict",
        found=found,
        n=len(found.chosen),
        n_all=len(found.nodes),
        take=preflight.take,
        many_failed=listed(failed) if is_many else "",
        failed=[]
        if is_many
        else [(node, [reason(t) for t in found.own if t.node == node]) for node in failed],
        held=listed(sorted(held)),
        pairs=pairs,
        slower_by=SLOWER_BY,
        instance_type=preflight.instance_type,
    )


def listed(names: Sequence[str], *, most: int = 8) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


# The limits in the code, for the table of criteria.
LIMITS: Mapping[str, object] = {
    "figures": FIGURES,
    "rest_counters": REST_COUNTERS,
    "device_slower_by": DEVICE_SLOWER_BY,
    "device_deviations": DEVIATIONS,
    "loss_ratio": LOSS_RATIO,
    "node_deviations": NODE_DEVIATIONS,
    "pair_deviations": PAIR_DEVIATIONS,
    "slower_by": SLOWER_BY,
}


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
    rows = [("node", "peer", *(figure.name for figure in FIGURES))]
    for row in pair_rows(measured):
        figures = (row.p50_s, row.p99_s, row.bandwidth_bytes_per_s)
        cells = [f"{figure:.7g}" if np.isfinite(figure) else "" for figure in figures]
        rows.append((row.node, row.peer, *cells))
    return csv_text(rows)


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
            "nodes": list(collective.nodes),
            "op": collective.op,
            "size_bytes": collective.size_bytes.tolist(),
            "time_s": _rounded(collective.time_s.tolist()),
            "expected_s": _rounded(collective.expected_s.tolist()),
        }
        for collective in measured.collectives
    ]


def _rounded(values: Sequence[float]) -> list[float | None]:
    """Round to four digits; null where unknown."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _size_name(n_bytes: float) -> str:
    power = min(int(np.log2(max(n_bytes, 1))) // 10, len(UNITS) - 1)
    return f"{n_bytes / 1024**power:g}{NBSP}{UNITS[power]}"
