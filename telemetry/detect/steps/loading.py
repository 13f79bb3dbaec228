"""Nodes whose cores rest while their hosts load and their peers compute: input, still to come."""

import numpy as np

from telemetry.detect.look import Look
from telemetry.detect.peers import lower_median, mean
from telemetry.detect.problem import Problem
from telemetry.detect.readings import of_node, peak
from telemetry.detect.sighting import remembered
from telemetry.detect.standstill.standstill import (
    COMPILING,
    CORES,
    HOST,
    LOADING,
    LOOK_S,
    WORKING,
    training_nodes,
    usual_step_s,
)
from telemetry.detect.vitals import Standing, Vitals
from telemetry.steps import StepBatch

CAUSE = "input_stall"
# Shorter steps tell by themselves soon enough; input that always takes so long is no news.
LONG_STEP_S, USUALLY_S = 7.0, 2.0
# So many of the nodes may load while at least so many compute.
FEW, MOST = 0.25, 0.5


def loading(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find the nodes that hold up a long step by waiting for their data, before it ends.

    Notes
    -----
    J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021: cores that
    starve rest while the host reads and decodes. One look covers all of LOOK_S seconds.
    """
    since_s = float(steps.ended_at_s[-1])
    kept = [alert for alert in vitals.standing if _lasts(alert, since_s)]
    if kept:
        return [_problem(remembered(each), float(each.evidence["onset_s"])) for each in kept]
    if not vitals.looks or usual_step_s(steps) < LONG_STEP_S or vitals.now_s - since_s < LOOK_S:
        return []
    nodes = training_nodes(vitals, steps)
    span = vitals.hardware((CORES, HOST), LOOK_S).of(nodes)
    most, hosts = peak(span, CORES), mean(of_node(span, HOST), axis=0)
    rests = np.asarray((most < WORKING).all(axis=0))
    loads = rests & (hosts >= LOADING) & (hosts < COMPILING)
    if not 0 < loads.sum() <= max(1, FEW * len(nodes)) or (~rests).mean() < MOST:
        return []
    worst = int(np.argmax(np.where(loads, hosts, 0)))
    usual = float(mean(steps.phases["input_s"][:, _workers(vitals, steps, nodes[worst])], 0).max())
    if usual > USUALLY_S:
        return []
    peers = float(lower_median(hosts))
    look = Look(
        CAUSE, 1.0, HOST, float(hosts[worst]), peers, len(nodes) - 1, "ratio", nodes[worst]
    )
    return [_problem(look, float(span.ticks[0]) - 1.0)]


def _lasts(alert: Standing, since_s: float) -> bool:
    """Tell whether an alert speaks of the step that is under way."""
    is_ours = alert.cause == CAUSE and alert.evidence.get("phase_s", 0) is None
    return is_ours and float(alert.evidence.get("onset_s") or 0) >= since_s - 1.0


def _workers(vitals: Vitals, steps: StepBatch, node: str) -> list[int]:
    return [i for i, worker in enumerate(steps.workers) if vitals.node_of(worker) == node]


def _problem(look: Look, onset_s: float) -> Problem:
    return Problem(CAUSE, look, "input", onset_s, look.strength, more={"phase_s": None})
