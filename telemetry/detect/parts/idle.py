"""Allocated but idle: nodes of a run that trains, whose cores have done nothing for long."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

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
from telemetry.detect.vitals import Standing, Vitals
from telemetry.steps import StepBatch

RULE = "node_idle"
IDLE, IDLE_S = RULES[RULE].limits["idle_ratio"], RULES[RULE].limits["idle_s"]
# A node must have done nothing at all of these moments, oldest first.
AGES_S = (int(IDLE_S), 480, 360, 240, 120, 60, 15, 0)
# The run itself must be making steps: one within so many step times, and seconds.
ALIVE_STEPS, ALIVE_S = 3.0, 60.0
# What lasts ten minutes need not be looked for in every second.
EVERY_S, FOR_S = 30, 3
# Nodes that stopped working within these seconds stopped for one reason: one finding for all.
TOGETHER_S = 120.0
SEVERAL = 2
# Steps are kept for 15 minutes: far enough back to see a change of scale ten minutes ago.
HISTORY_S = 900.0
# A step may end a little after the last of its nodes has gone quiet.
SETTLES_S = 5.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A run that went on with fewer nodes: when, with how many of how many, without whom."""

    at_s: float
    n_before: int
    n_after: int
    left: tuple[str, ...]


def node_idle(vitals: Vitals) -> list[Finding]:
    """Find the nodes that are paid for and that nobody uses.

    Nodes that became idle together are one finding: after a change of scale it names the change.
    A single node that the steps leave out was drained on purpose. A node that does not report
    is silent, not idle. A worker that reports steps while its cores never do anything computes
    elsewhere, on its host for example: its node is idle as well.
    """
    known = [alert for alert in vitals.standing if alert.rule == RULE]
    is_due = bool(known) or int(vitals.now_s) % EVERY_S < FOR_S
    steps = recent(vitals)
    if not (vitals.looks and is_due and vitals.moments) or not _trains(vitals, steps):
        return []
    named = {node for alert in known for node in _nodes_of(alert)}
    # While the run itself stands still everybody rests: that accuses nobody new.
    suspects = [n for n in vitals.nodes if n in named or _makes_steps(vitals, steps)]
    idle, since_s = _resting(vitals, suspects)
    if not idle:
        return []
    group = next((alert for alert in known if alert.node is None), None)
    scale = _scale_down(vitals, idle, group)
    expected = _expected(vitals) | (set(scale.left) if scale else set())
    # What an open alert for several accuses stays accused for as long as it rests.
    expected |= set(_nodes_of(group)) if group else set()
    idle = {node: level for node, level in idle.items() if node in expected}
    together = _together(vitals, idle, known, group, scale)
    apart = [n for n in idle if n not in together]
    found = [_single(vitals, n, idle[n], since_s) for n in apart]
    if together:
        found.append(_group(vitals, {n: idle[n] for n in together}, scale, group, since_s))
    return found


def _trains(vitals: Vitals, steps: StepBatch) -> bool:
    """Tell whether the run has trained for as long as a node must have idled."""
    if vitals.phase != TRAINING or not len(steps):
        return False
    return vitals.phase_since_s is None or vitals.now_s - vitals.phase_since_s >= IDLE_S


def _makes_steps(vitals: Vitals, steps: StepBatch) -> bool:
    """Tell whether the run ends steps now, and stood still in none of those in view."""
    patience_s = max(ALIVE_S, ALIVE_STEPS * usual_step_s(steps))
    longest_s = float(np.nanmax(vitals.steps.step_s, initial=0.0))
    return max(longest_s, vitals.now_s - float(steps.ended_at_s[-1])) <= patience_s


def _resting(vitals: Vitals, suspects: list[str]) -> tuple[dict[str, float], float]:
    """Return which nodes did nothing at any moment, the most that a core did, and since when."""
    if not suspects or vitals.moments is None:
        return {}, 0.0
    glance = vitals.moments((CORES,), (0,)).of(suspects)
    resting = np.flatnonzero(_rests(glance).all(axis=0))
    if not resting.size:
        return {}, 0.0
    span = vitals.moments((CORES,), AGES_S).of([suspects[row] for row in resting])
    idle, most = _rests(span).all(axis=0), peak(span, CORES)
    found = {span.nodes[row]: float(most[:, row].max()) for row in np.flatnonzero(idle)}
    return found, float(span.ticks[0])


def _rests(span: Span) -> NDArray[np.bool_]:
    """Return who reports, and has no core that does anything: (n_ticks, n_nodes)."""
    return np.asarray(peak(span, CORES) < IDLE)


def _expected(vitals: Vitals) -> set[str]:
    """Return the nodes that should be computing: all but those the steps leave out.

    Only steps since the nodes began to rest tell: a run with long steps still shows older ones.
    """
    steps = vitals.steps.last(RECENT_STEPS)
    since = int(np.searchsorted(steps.ended_at_s, vitals.now_s - IDLE_S + SETTLES_S))
    parts = _parts(vitals, steps[since:] if since < len(steps) else steps)
    return {node for node in vitals.nodes if node not in parts or parts[node].any()}


def _parts(vitals: Vitals, steps: StepBatch) -> dict[str, NDArray[np.bool_]]:
    """Return in which steps each node that the steps list had a part: (n_steps,) by node."""
    told = np.isfinite(steps.phases["compute_s"])
    parts: dict[str, NDArray[np.bool_]] = {}
    for i, worker in enumerate(steps.workers):
        node = vitals.node_of(worker)
        if node is not None:
            parts[node] = parts[node] | told[:, i] if node in parts else told[:, i]
    return parts


def _scale_down(vitals: Vitals, idle: Collection[str], group: Standing | None) -> Scale | None:
    """Return the change of scale that left several of these nodes without work, if one is seen.

    An open alert remembers it for longer than the steps of that time are kept.
    """
    held = _held_scale(group)
    known = set(_nodes_of(group)) if group else set()
    new = [node for node in idle if node not in known]
    if len(new) < SEVERAL or vitals.earlier is None:
        return held
    history = vitals.earlier(vitals.now_s - HISTORY_S)
    if not len(history):
        return held
    parts = _parts(vitals, history)
    lasts = {
        node: int(np.flatnonzero(parts[node])[-1])
        for node in new
        if node in parts and parts[node].any() and not parts[node][-1]
    }
    if not lasts:
        return held
    ends, row = history.ended_at_s, max(lasts.values())
    left = tuple(n for n, last in lasts.items() if ends[last] >= ends[row] - TOGETHER_S)
    if len(left) < SEVERAL:
        return held
    n_before = sum(bool(each[row]) for each in parts.values())
    n_after = sum(bool(each[-1]) for each in parts.values())
    return Scale(float(ends[row]), n_before, n_after, left)


def _held_scale(group: Standing | None) -> Scale | None:
    """Return the change of scale that an open alert names."""
    told = group.evidence.get("scaled_down") if group else None
    if not told:
        return None
    return Scale(float(told["at_s"]), int(told["n_before"]), int(told["n_after"]), ())


def _together(
    vitals: Vitals,
    idle: Collection[str],
    known: Collection[Standing],
    group: Standing | None,
    scale: Scale | None,
) -> list[str]:
    """Return the nodes of the one finding for several; empty where each is its own.

    The open alert for several keeps its nodes down to the last. A node that has been idle for
    longer than the others keeps its own alert.
    """
    began_s = vitals.now_s - IDLE_S
    own = {alert.node for alert in known if alert.node and _since_s(alert) < began_s - TOGETHER_S}
    mine = set(_nodes_of(group)) if group else set()
    new = [node for node in idle if node not in mine and node not in own]
    joins = len(new) >= SEVERAL or (group is not None and _since_s(group) >= began_s - TOGETHER_S)
    if scale is not None and set(new) & set(scale.left):
        joins = True
    return [node for node in idle if node in mine or (joins and node in new)]


def _since_s(alert: Standing) -> float:
    """Return since when the nodes of an open alert have been idle; long ago where it is silent."""
    since_s = alert.evidence.get("since_s")
    return -np.inf if since_s is None else float(since_s)


def _nodes_of(alert: Standing) -> tuple[str, ...]:
    """Return the nodes that an open alert accuses."""
    if alert.node is not None:
        return (alert.node,)
    return tuple(alert.evidence.get("nodes") or ())


def _single(vitals: Vitals, node: str, level: float, since_s: float) -> Finding:
    """Describe one idle node."""
    for alert in vitals.standing:
        if alert.rule == RULE and alert.node == node:
            since_s = min(since_s, float(alert.evidence.get("since_s", since_s)))
    listed = {vitals.node_of(worker) for worker in vitals.steps.workers}
    return _finding(vitals, {node: level}, since_s, {"claims_steps": node in listed}, node=node)


def _group(
    vitals: Vitals,
    idle: Mapping[str, float],
    scale: Scale | None,
    group: Standing | None,
    since_s: float,
) -> Finding:
    """Describe several nodes that became idle together, and the change of scale that did it."""
    if group is not None:
        since_s = min(since_s, float(group.evidence.get("since_s", since_s)))
    parts = _parts(vitals, vitals.steps.last(1))
    more = {
        "nodes": list(idle),
        "claims_steps": any(bool(parts[node].any()) for node in idle if node in parts),
        "scaled_down": None
        if scale is None
        else {"at_s": scale.at_s, "n_before": scale.n_before, "n_after": scale.n_after},
    }
    return _finding(vitals, idle, since_s, more)


def _finding(
    vitals: Vitals,
    idle: Mapping[str, float],
    since_s: float,
    more: Mapping[str, Any],
    *,
    node: str | None = None,
) -> Finding:
    """Describe idle nodes; without ``node`` the finding is about their run."""
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=RULES[RULE].severity,
        run=vitals.run,
        node=node,
        device=None,
        onset_s=since_s,
        score=1.0,
        nodes=tuple(idle),
        evidence={
            "idle_s": IDLE_S,
            "limit_s": IDLE_S,
            "since_s": since_s,
            "culprit": {
                "metric": CORES,
                "value": max(idle.values()),
                "peers_median": None,
                "n_peers": len(vitals.nodes) - len(idle),
                "unit": "ratio",
            },
            "window": [since_s, vitals.now_s],
            "charts": [{"metric": CORES, "node": next(iter(idle)), "device": None}],
            **more,
        },
    )
