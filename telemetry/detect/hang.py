"""No step ends any more: who did not join the collective, or whose crash the others wait for."""

from typing import Any

import numpy as np

from telemetry.detect.findings import UNKNOWN, Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.recompile import CERTAIN_S, compiled_lately
from telemetry.detect.rules import RULES
from telemetry.detect.silence import CRASHED, SILENT
from telemetry.detect.standstill import (
    CORES,
    HOST,
    SPINNING,
    Standstill,
    lost,
    standstill,
    upper_median,
)

RULE = "hang"
# Where nobody stands out, or somebody still reads or writes, patience is due: so many steps, and
# so many seconds.
PATIENCE_STEPS = RULES[RULE].limits["patience_steps"]
PATIENCE_S = RULES[RULE].limits["patience_s"]
LONG_STEPS, LONG_S = 20.0, 600.0
LEAD_S = 120.0
SHOWN = 64


def hang(vitals: DetectionInput) -> list[Finding]:
    """Find a run whose workers wait for one that does not come.

    A run whose cores compute, whose hosts compile, read or write, or which is not meant to train,
    is late but does not hang. Nodes that crashed meanwhile and report again explain the rest.

    References
    ----------
    J. Dong et al., "Boosting Large-scale Parallel Training Efficiency with C4: A Communication-
    Driven Approach", HPCA 2025, arXiv:2406.04594: of workers in one collective, the one that did
    not start it is to blame. Here that shows in hosts and cores instead of the library's logs.
    """
    still = standstill(vitals)
    # Cores fully busy for this long cannot be one long step. Without HBM bandwidth, waiting
    # cores can look the same.
    if still is None or (
        still.works.any()
        and not (bool(still.peak.max() >= SPINNING) and _lasts(still, LONG_STEPS, LONG_S))
    ):
        return []
    # The time limit for a step counts from the end of a compilation.
    patience_s = max(PATIENCE_S, PATIENCE_STEPS * float(np.nan_to_num(still.step_s)))
    is_long = still.overdue_s > CERTAIN_S and not still.spins.any()
    if is_long and compiled_lately(vitals, still.nodes, within_s=patience_s):
        return []
    busy = np.flatnonzero(still.compiles | still.loads)
    if busy.size and not still.works.any():
        # Somebody prepares the step, or writes down the last one. That ends, or it is a hang.
        is_endless = _lasts(still, LONG_STEPS, LONG_S) and 2 * busy.size < len(still.nodes)
        return [_finding(vitals, still, tuple(busy.tolist()))] if is_endless else []
    if still.back:
        return [_crash(vitals, still, node) for node in still.back]
    if still.absent:
        return [_finding(vitals, still, still.absent)]
    # A node that fell silent with the run is its own finding, and explains this one.
    is_hang = not lost(still) and _lasts(still, PATIENCE_STEPS, PATIENCE_S)
    return [_finding(vitals, still, ())] if is_hang else []


def known_dead(vitals: DetectionInput) -> set[str]:
    """Return the nodes that fell silent as the run stopped, and whose peers all wait for them.

    What is open says so for as long as it lasts: a run that restarts no longer shows it.
    """
    dead = {alert.node for alert in vitals.standing if alert.cause == CRASHED and alert.node}
    still = standstill(vitals)
    if still is None or not still.waits.all() or still.absent:
        return dead
    return dead | lost(still)


def _lasts(still: Standstill, steps: float, seconds: float) -> bool:
    """Tell whether it has lasted for so many steps, and so many seconds."""
    return bool(still.overdue_s > max(seconds, steps * np.nan_to_num(still.step_s)))


def _finding(vitals: DetectionInput, still: Standstill, absent: tuple[int, ...]) -> Finding:
    """Describe the hang, and who is to blame where that can be told."""
    away = [still.nodes[row] for row in absent]
    node = away[0] if away else None
    return Finding(
        rule=RULE,
        cause=RULE if node else UNKNOWN,
        severity=RULES[RULE].severity,
        run=vitals.run,
        node=node,
        device=None,
        onset_s=still.since_s,
        score=still.overdue_s / still.limit_s,
        victims=tuple(name for name in still.nodes if name not in away),
        evidence=_evidence(vitals, still, absent),
    )


def _evidence(
    vitals: DetectionInput, still: Standstill, absent: tuple[int, ...]
) -> dict[str, Any]:
    """Return the figures that the page shows."""
    worst = still.nodes[absent[0]] if absent else None
    return {
        "since_s": still.since_s,
        "overdue_s": still.overdue_s,
        "limit_s": still.limit_s,
        "usual_step_s": still.step_s if np.isfinite(still.step_s) else None,
        "culprit": _culprit(still, absent) if absent else None,
        "not_joined": [still.nodes[row] for row in absent],
        "not_heard_of": list(still.mute),
        "host_by_node": {still.nodes[i]: float(still.hosts[i]) for i in _least(still)},
        "window": [still.since_s - LEAD_S, vitals.now_s],
        "charts": [{"metric": m, "node": worst, "device": None} for m in (CORES, HOST) if worst],
    }


def _culprit(still: Standstill, absent: tuple[int, ...]) -> dict[str, Any]:
    """Return how little the host of the worst one does, beside those that wait."""
    peers = np.delete(still.hosts, absent)
    return {
        "metric": HOST,
        "value": float(still.hosts[absent[0]]),
        "peers_median": upper_median(peers) if peers.size else None,
        "n_peers": int(peers.size),
        "unit": "ratio",
    }


def _least(still: Standstill) -> list[int]:
    """Return the rows of the nodes whose hosts do least: of a large run only so many."""
    return sorted(np.argsort(still.hosts, kind="stable")[:SHOWN].tolist())


def _crash(vitals: DetectionInput, still: Standstill, node: str) -> Finding:
    """Describe a node that was away meanwhile: it reports again, but its worker is lost."""
    return Finding(
        rule=SILENT,
        cause=CRASHED,
        severity=RULES[SILENT].severity,
        run=vitals.run,
        node=node,
        device=None,
        onset_s=still.since_s,
        score=still.overdue_s / still.limit_s,
        victims=tuple(name for name in still.nodes if name != node),
        evidence={
            "last_seen_s": still.since_s,
            "quiet_s": still.overdue_s,
            "limit_s": still.limit_s,
            "steps_go_on": False,
            "since_last_step_s": still.overdue_s,
            "step_s": still.step_s if np.isfinite(still.step_s) else None,
            "also_silent": [name for name in still.mute if name != node],
        },
    )
