"""Graph executions that fail, or errors of the runtime: how many of them, on which node."""

from collections.abc import Collection
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.finding import Finding
from telemetry.detect.parts.ecc import RULE as ECC
from telemetry.detect.parts.ecc import uncorrected
from telemetry.detect.peers import lower_median, mean
from telemetry.detect.readings import of_node
from telemetry.detect.rules import RULES, Severity
from telemetry.detect.vitals import Vitals

RULE = "exec_errors"
FAILED, ERRORS, DONE = (
    "executions_failed_per_s",
    "execution_errors_per_s",
    "executions_completed_per_s",
)
# Seconds looked at, oldest first: at a glance, closely where that shows any, further back while
# it lasts.
GLANCE_S, AGES_S = (1, 0), (20, 15, 10, 7, 4, 2, 1, 0)
AGES_OPEN_S = (120, 90, 60, 45, 30, 20, 10, 5, 0)
# So many of these seconds must show errors, and so many errors a second, to be no chance.
MOMENTS, LEAST_PER_S = 2, RULES[RULE].limits["least_per_s"]
# Somebody must get up where this share of executions fails, or so many errors come each second.
PAGE_RATIO, PAGE_PER_S = RULES[RULE].limits["page_ratio"], RULES[RULE].limits["page_per_s"]
LEAD_S = 120.0


def exec_errors(vitals: Vitals) -> list[Finding]:
    """Find the nodes whose executions fail or whose runtime reports errors.

    Notes
    -----
    neuron-monitor counts them per period and class. One is a hiccup that frameworks retry; a
    stream of them is a broken graph, driver or device.
    """
    if not vitals.looks or vitals.moments is None:
        return []
    known = {alert.node for alert in vitals.standing if alert.rule == RULE}
    if not known and not _any(vitals.moments((ERRORS, FAILED), GLANCE_S)):
        return []
    span = vitals.moments((ERRORS, FAILED, DONE), AGES_OPEN_S if known else AGES_S)
    found = failing(span, run=vitals.run, known=known, now_s=vitals.now_s)
    if not found:
        return []
    # Executions that fail on memory that fails are part of that finding.
    explained = {alert.node for alert in vitals.standing if alert.rule == ECC}
    explained |= {each.node for each in uncorrected(vitals.counts)} if vitals.counts else set()
    return [each for each in found if each.node not in explained]


def _any(span: Span) -> bool:
    """Tell whether anybody reports any error."""
    return bool((of_node(span, ERRORS) > 0).any() or (of_node(span, FAILED) > 0).any())


def failing(
    span: Span, *, run: str | None, now_s: float, known: Collection[str | None] = ()
) -> list[Finding]:
    """Return a finding for every node that fails at several moments; at one, where it is known."""
    rate = np.fmax(of_node(span, ERRORS), of_node(span, FAILED))
    n_moments = (rate > 0).sum(axis=0)
    least = np.array([1 if node in known else MOMENTS for node in span.nodes], dtype=int)
    per_s = np.nan_to_num(mean(rate, axis=0))
    sick = (n_moments >= least) & (per_s >= LEAST_PER_S * least / MOMENTS)
    return [_finding(span, rate, int(row), run=run, now_s=now_s) for row in np.flatnonzero(sick)]


def _finding(span: Span, rate: FloatArray, row: int, *, run: str | None, now_s: float) -> Finding:
    """Describe one node."""
    per_s, ratio = mean(rate, axis=0), _failed_ratio(span, row)
    own = float(per_s[row])
    is_bad = own >= PAGE_PER_S or (ratio is not None and ratio >= PAGE_RATIO)
    severity: Severity = "page" if is_bad else "warn"
    onset_s = float(span.ticks[np.flatnonzero(rate[:, row] > 0)[0]])
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=severity,
        run=run,
        node=span.nodes[row],
        device=None,
        onset_s=onset_s,
        score=own / LEAST_PER_S,
        evidence={
            "errors_per_s": own,
            "failed_ratio": ratio,
            "culprit": _culprit(own, np.delete(per_s, row)),
            "window": [onset_s - LEAD_S, now_s],
            "charts": [{"metric": ERRORS, "node": span.nodes[row], "device": None}],
        },
    )


def _failed_ratio(span: Span, row: int) -> float | None:
    """Return the share of a node's executions that failed; None where it executed nothing."""
    done, failed = (
        float(np.nan_to_num(mean(of_node(span, metric)[:, row], axis=0)))
        for metric in (DONE, FAILED)
    )
    return failed / (failed + done) if failed + done > 0 else None


def _culprit(own: float, others: FloatArray) -> dict[str, Any]:
    """Set a node's errors beside those of the run's others."""
    usual = float(np.nan_to_num(lower_median(others))) if others.size else None
    return {
        "metric": ERRORS,
        "value": own,
        "peers_median": usual,
        "n_peers": int(others.size),
        "unit": "per_s",
    }
