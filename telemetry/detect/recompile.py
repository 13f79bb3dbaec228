"""The rule recompile: an unannounced compilation, in progress or within a recent step."""

from collections.abc import Sequence

import numpy as np

from telemetry.detect.findings import LEAD_S, Finding, json_number
from telemetry.detect.inputs import DetectionInput, newest_measurements, node_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CLOCKS_S,
    COMPILE,
    COMPILING,
    CORES,
    HOST,
    LATE,
    MOMENTS,
    MOST,
    OLDEST_S,
    Flags,
    activities,
    hosts_between,
    is_training,
    no_step_since,
    recent_steps,
    since_ages,
    training_nodes,
    usual_step_s,
)
from telemetry.statistics.peers import mean
from telemetry.steps import StepBatch

RULE = "recompile"
LIMITS = RULES[RULE].limits
# A single host may be busy with another job, which is assumed to last so long
# (assumed: docs/physics.md). Most hosts of several are not at once.
JOB_S = 20.0


def recompile(inputs: DetectionInput) -> list[Finding]:
    """Find an unannounced compilation, in progress or in one of the newest steps.

    A compiler keeps hosts busier than anything else while cores are idle. A run that reports
    compiling or warm-up does so on purpose.
    """
    steps = recent_steps(inputs)
    if inputs.hardware_at is None or not is_training(inputs, steps):
        return []
    since_s, usual_s = no_step_since(inputs, steps), _usual_s(inputs, steps)
    if since_s is not None and _is_under_way(inputs, steps, since_s):
        lost_s = inputs.now_s - since_s
        return [_finding(inputs, steps, since_s, lost_s, usual_s, is_over=False)]
    if not len(steps):
        return []
    # One that took longer by half, and by more than clocks are off, may contain a compilation. It
    # is recent until another one is late.
    longer_s = steps.step_s - usual_s
    is_long = longer_s >= max(CLOCKS_S, MOST * usual_s)
    is_new = steps.ended_at_s >= min(inputs.now_s - LATE.seconds, steps.ended_at_s[-1])
    for row in np.flatnonzero(is_long & is_new)[::-1].tolist():
        end_s, lost_s = float(steps.ended_at_s[row]), float(longer_s[row])
        since_s = end_s - float(steps.step_s[row])
        if _compiled_within(inputs, steps, since_s, end_s, at_least_s=MOST * lost_s):
            return [_finding(inputs, steps, since_s, lost_s, usual_s, is_over=True)]
    return []


def compiled_lately(inputs: DetectionInput, nodes: Sequence[str], *, within_s: float) -> bool:
    """Whether most of these nodes compiled at some moment of the last seconds."""
    ages = np.linspace(min(within_s, OLDEST_S), 0, MOMENTS).astype(int).tolist()
    return bool(_compiled_at(inputs, nodes, tuple(dict.fromkeys(ages))).any())


def _compiled_at(inputs: DetectionInput, nodes: Sequence[str], ages_s: Sequence[int]) -> Flags:
    """Tell at which moments most nodes compiled: (n_moments,)."""
    if inputs.hardware_at is None or not nodes or not ages_s:
        return np.zeros(0, bool)
    compiles = hosts_between(inputs.hardware_at((CORES, HOST), ages_s).of(nodes), COMPILING)
    return np.asarray(mean(compiles, axis=1) > LIMITS["most_ratio"])


def _compiled_within(
    inputs: DetectionInput, steps: StepBatch, since_s: float, end_s: float, *, at_least_s: float
) -> bool:
    """Whether most nodes compiled for so long within a step, estimated by sampling."""
    # A compilation longer than the history is kept cannot be measured again when it ends.
    known = [each.evidence.get("since_s") for each in inputs.open_problems if each.rule == RULE]
    if any(each is not None and since_s - 1.0 <= float(each) <= end_s for each in known):
        return True
    # Each second of a short one, and not the first one, which is part of the step before.
    first, last = int(np.ceil(since_s)) + 1, int(end_s)
    ticks = np.unique(np.linspace(first, last, MOMENTS).astype(int))
    ages = tuple(int(inputs.now_s) - int(tick) for tick in ticks if first <= tick <= last)
    compiled = _compiled_at(inputs, training_nodes(inputs, steps), ages)
    return bool(compiled.sum() / max(1, len(ages)) * (end_s - since_s) >= at_least_s)


def _is_under_way(inputs: DetectionInput, steps: StepBatch, since_s: float) -> bool:
    """Whether a compilation is in progress, or was since the last step of an open alert."""
    nodes, every_s = training_nodes(inputs, steps), inputs.report_every_s
    is_open = any(alert.rule == RULE for alert in inputs.open_problems)
    if is_open and _compiled_at(inputs, nodes, since_ages(inputs, since_s)).any():
        return True
    if not inputs.reads_hardware or inputs.now_s - since_s < LIMITS["certain_s"]:
        return False
    said = activities(inputs, since_s)
    # One may compile for all: the others wait for its lock, or for it in their step.
    if said is not None and said.lasts_s(COMPILE, inputs.now_s) >= LIMITS["certain_s"]:
        return True
    # Until the newest report of a node arrives its seconds are unknown.
    glance = inputs.hardware((HOST,), inputs.lagging(1)).of(nodes)
    hosts = newest_measurements(node_values(glance, HOST), 1)[-1]
    if not (hosts >= COMPILING).sum() > LIMITS["most_ratio"] * len(nodes):
        return False
    # A report of a single host may begin or end within its job.
    certain_s = LIMITS["certain_s"] if len(nodes) > 1 else JOB_S + 2 * every_s
    span = inputs.hardware((CORES, HOST), inputs.lagging(int(certain_s) + 3)).of(nodes)
    share = mean(hosts_between(span, COMPILING), axis=1)
    # A report that began earlier may be of a compilation that was announced.
    is_since = span.ticks > since_s + every_s - 1
    return bool((is_since & (share > LIMITS["most_ratio"])).sum() >= certain_s)


def _usual_s(inputs: DetectionInput, steps: StepBatch) -> float:
    """Usual step time; an open alert preserves it for longer than steps are stored."""
    held = (a.evidence.get("usual_step_s") for a in inputs.open_problems if a.rule == RULE)
    return next((float(each) for each in held if each is not None), usual_step_s(steps))


def _finding(
    inputs: DetectionInput,
    steps: StepBatch,
    since_s: float,
    lost_s: float,
    usual_s: float,
    *,
    is_over: bool,
) -> Finding:
    nodes = training_nodes(inputs, steps)
    shown = [(metric, node) for metric in (HOST, CORES) for node in nodes[:1]]
    return Finding(
        rule=RULE,
        cause=RULE,
        severity="page" if lost_s > LIMITS["page_after_s"] else "warn",
        run=inputs.run,
        onset_s=since_s,
        score=lost_s / LIMITS["certain_s"],
        victims=nodes,
        evidence={
            "since_s": since_s,
            "lost_s": lost_s,
            "is_over": is_over,
            "usual_step_s": json_number(usual_s),
            "phase": inputs.phase,
            "culprit": None,
            "window": [since_s - LEAD_S, inputs.now_s],
            "charts": [{"metric": metric, "node": node, "device": None} for metric, node in shown],
        },
    )
