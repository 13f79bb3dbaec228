"""Allocated but idle: a node of a run that trains, whose cores have done nothing for long."""

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import Span
from telemetry.detect.finding import Finding
from telemetry.detect.readings import peak
from telemetry.detect.rules import RULES
from telemetry.detect.standstill.standstill import (
    CORES,
    RECENT_STEPS,
    TRAINING,
    recent,
    usual_step_s,
)
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

RULE = "node_idle"
IDLE, IDLE_S = RULES[RULE].limits["idle_ratio"], RULES[RULE].limits["idle_s"]
# A node must have done nothing at all of these moments, oldest first.
AGES_S = (int(IDLE_S), 480, 360, 240, 120, 60, 15, 0)
# The run itself must be making steps: one within so many step times, and seconds.
ALIVE_STEPS, ALIVE_S = 3.0, 60.0
# What lasts ten minutes need not be looked for in every second.
EVERY_S, FOR_S = 30, 3


def node_idle(vitals: Vitals) -> list[Finding]:
    """Find the nodes that are paid for and that nobody uses.

    A node that the run's steps name as having had no part was left out on purpose; one that is not
    heard of is silent, not idle. A worker that claims steps while its cores never do anything
    computes elsewhere, on its host for example: it idles as well.
    """
    is_known = any(alert.rule == RULE for alert in vitals.standing)
    is_due = is_known or int(vitals.now_s) % EVERY_S < FOR_S
    if not (vitals.looks and is_due and vitals.moments) or not _makes_steps(
        vitals, recent(vitals)
    ):
        return []
    suspects = _expected(vitals)
    if not suspects:
        return []
    glance = vitals.moments((CORES,), (0,)).of(suspects)
    resting = np.flatnonzero(_rests(glance).all(axis=0))
    if not resting.size:
        return []
    span = vitals.moments((CORES,), AGES_S).of([suspects[row] for row in resting])
    idle = _rests(span).all(axis=0)
    return [_finding(vitals, span, int(row)) for row in np.flatnonzero(idle)]


def _makes_steps(vitals: Vitals, steps: StepBatch) -> bool:
    """Tell whether the run has trained for as long as a node must have idled, and does now."""
    if vitals.phase != TRAINING or not len(steps):
        return False
    if vitals.phase_since_s is not None and vitals.now_s - vitals.phase_since_s < IDLE_S:
        return False
    patience_s = max(ALIVE_S, ALIVE_STEPS * usual_step_s(steps))
    # Where the run itself stood still, by a long checkpoint perhaps, everybody did nothing.
    longest_s = float(np.nanmax(vitals.steps.step_s, initial=0.0))
    return max(longest_s, vitals.now_s - float(steps.ended_at_s[-1])) <= patience_s


def _expected(vitals: Vitals) -> list[str]:
    """Return the nodes that should be computing: all but those left out on purpose."""
    steps = vitals.steps.last(RECENT_STEPS)
    told = np.asarray(np.isfinite(steps.phases["compute_s"]).any(axis=0))
    part: dict[str | None, bool] = {}
    for worker, has_part in zip(steps.workers, told.tolist(), strict=True):
        node = vitals.node_of(worker)
        part[node] = part.get(node, False) or has_part
    return [node for node in vitals.nodes if part.get(node, True)]


def _rests(span: Span) -> NDArray[np.bool_]:
    """Return who reports, and has no core that does anything: (n_ticks, n_nodes)."""
    return np.asarray(peak(span, CORES) < IDLE)


def _finding(vitals: Vitals, span: Span, row: int) -> Finding:
    """Describe one idle node."""
    node = span.nodes[row]
    value = float(np.nanmax(peak(span, CORES)[:, row]))
    listed = {vitals.node_of(worker) for worker in vitals.steps.workers}
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=RULES[RULE].severity,
        run=vitals.run,
        node=node,
        device=None,
        onset_s=float(span.ticks[0]),
        score=1.0,
        evidence={
            "idle_s": IDLE_S,
            "limit_s": IDLE_S,
            "claims_steps": node in listed,
            "culprit": {
                "metric": CORES,
                "value": value,
                "peers_median": None,
                "n_peers": len(vitals.nodes) - 1,
                "unit": "ratio",
            },
            "window": [vitals.now_s - IDLE_S, vitals.now_s],
            "charts": [{"metric": CORES, "node": node, "device": None}],
        },
    )
