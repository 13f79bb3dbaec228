"""The rule recompile: an unannounced compilation, in progress or within a recent step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.findings import LEAD_S, Finding, json_number
from telemetry.detect.inputs import (
    DetectionInput,
    newest_measurements,
    node_peak,
    node_values,
)
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    COMPILE,
    COMPILING,
    CORES,
    HOST,
    LOADING,
    OLDEST_S,
    WORKING,
    activities,
    is_training,
    no_step_since,
    recent_steps,
    since_ages,
    training_nodes,
    usual_step_s,
)
from telemetry.statistics.peers import mean
from telemetry.steps import StepBatch, once

RULE = "recompile"
# Seconds of compiling hosts with idle cores that rule out chance, and how many recent seconds are
# read.
CERTAIN_S, LOOK_S = RULES[RULE].limits["certain_s"], 8
# Before that, a host that is no compiler's may be busy; cron jobs add less than this for 20 s.
BEFORE_AGES_S, CRON_RATIO = (20, 25, 30), 0.35
# A step this much longer than usual may contain a compilation; it is reported for this long.
LONGER_S, LONGER_STEPS = 2.0, 0.5
NEWS_STEPS, NEWS_S, MOMENTS = 1, 10.0, 10
# Moments that show a compilation that has just ended.
LATELY = 12
# A standstill this long justifies a page.
PAGE_AFTER_S = RULES[RULE].limits["page_after_s"]
MOST = RULES[RULE].limits["most_ratio"]


def recompile(inputs: DetectionInput) -> list[Finding]:
    """Find an unannounced compilation, in progress or in one of the newest steps.

    A compiler keeps hosts busier than anything else while cores are idle. A run that reports
    compiling or warm-up does so on purpose.
    """
    steps = recent_steps(inputs)
    if inputs.hardware_at is None or not is_training(inputs, steps):
        return []
    since_s = no_step_since(inputs, steps)
    if since_s is not None and _is_under_way(inputs, steps, since_s):
        return [_finding(inputs, steps, since_s, inputs.now_s - since_s, is_over=False)]
    for row in _suspects(inputs, steps):
        end_s, step_s = float(steps.ended_at_s[row]), float(steps.step_s[row])
        lost_s = step_s - _usual_s(inputs, steps)
        # A compilation longer than the history is kept cannot be measured again when it ends.
        start_s = end_s - step_s
        reported = [a.evidence.get("since_s") for a in inputs.open_problems if a.rule == RULE]
        if any(each is not None and start_s - 1.0 <= float(each) <= end_s for each in reported):
            return [_finding(inputs, steps, start_s, lost_s, is_over=True)]
        # Seconds for which most nodes compiled within the step, estimated by sampling.
        first, last = int(np.ceil(start_s)) + 1, int(end_s)
        ticks = np.unique(np.linspace(first, last, MOMENTS).astype(int))
        ages = tuple(int(inputs.now_s) - int(tick) for tick in ticks if first <= tick <= last)
        seen_ratio = _ticks_seen(inputs, steps, ages) / max(1, len(ages))
        if seen_ratio * (end_s - start_s) >= 0.5 * lost_s:
            return [_finding(inputs, steps, start_s, lost_s, is_over=True)]
    return []


def compiled_lately(inputs: DetectionInput, nodes: Sequence[str], *, within_s: float) -> bool:
    """Whether most of these nodes compiled at some moment of the last seconds."""
    if inputs.hardware_at is None or not nodes:
        return False
    ages = np.linspace(min(within_s, OLDEST_S), 0, LATELY).astype(int).tolist()
    span = inputs.hardware_at((CORES, HOST), tuple(dict.fromkeys(ages))).of(nodes)
    return bool((_share(_compiles(span)) > MOST).any())


def _is_under_way(inputs: DetectionInput, steps: StepBatch, since_s: float) -> bool:
    """Whether a compilation is in progress, or was since the last step of an open alert."""
    is_open = any(alert.rule == RULE for alert in inputs.open_problems)
    lasted_s = inputs.now_s - since_s
    if is_open and (_ticks_seen(inputs, steps, since_ages(inputs, since_s)) > 0):
        return True
    if not inputs.reads_hardware or lasted_s < CERTAIN_S:
        return False
    said = activities(inputs, since_s)
    if said is not None and said.common == COMPILE:
        return True
    nodes = training_nodes(inputs, steps)
    # Until the newest report of a node arrives its seconds are unknown.
    glance = inputs.hardware((HOST,), inputs.lagging(1)).of(nodes)
    hosts = newest_measurements(node_values(glance, HOST), 1)
    if not mean((hosts >= COMPILING).astype(float), axis=1)[-1] > MOST:
        return False
    span = inputs.hardware((CORES, HOST), inputs.lagging(LOOK_S)).of(nodes)
    if len(nodes) == 1 and _was_busy(inputs, nodes, hosts[-1, 0], since_s=since_s):
        return False
    # A report that began earlier may be of a compilation that was announced.
    since = span.ticks > since_s + inputs.report_every_s - 1
    share = _share(_compiles(span))[since]
    return bool((share > MOST).sum() >= CERTAIN_S)


def _was_busy(
    inputs: DetectionInput, nodes: Sequence[str], host: float, *, since_s: float
) -> bool:
    """Whether a host wrote or read before in a standstill, and a cron job may be the rest."""
    ages = [inputs.lagging(age) for age in BEFORE_AGES_S]
    ages = [age for age in ages if inputs.now_s - age > since_s]
    if inputs.hardware_at is None or not ages:
        return False
    was = mean(node_values(inputs.hardware_at((HOST,), ages).of(nodes), HOST), axis=0)
    return bool(was.size and LOADING <= was[0] < COMPILING and host - was[0] < CRON_RATIO)


def _compiles(span: Span) -> FloatArray:
    """Nodes that compile: (n_ticks, n_nodes), NaN where missing."""
    hosts = node_values(span, HOST)
    is_so = (hosts >= COMPILING) & ~(node_peak(span, CORES) >= WORKING)
    return np.where(np.isfinite(hosts), is_so, np.nan)


def _share(flags: FloatArray | NDArray[np.bool_]) -> FloatArray:
    """Share of compiling nodes: (n_ticks,), 0 without reports."""
    return np.nan_to_num(mean(np.asarray(flags, dtype=float), axis=1))


def _ticks_seen(inputs: DetectionInput, steps: StepBatch, ages_s: Sequence[int]) -> int:
    """Count the moments at which most nodes compiled."""
    if inputs.hardware_at is None or not ages_s:
        return 0
    span = inputs.hardware_at((CORES, HOST), ages_s).of(training_nodes(inputs, steps))
    compiles = _compiles(span)
    return int((_share(compiles) > MOST).sum())


def _suspects(inputs: DetectionInput, steps: StepBatch) -> list[int]:
    """Recent steps that took much longer than usual, newest first."""
    usual_s = _usual_s(inputs, steps)
    n = len(steps)
    if not n or _longest_s(steps) - usual_s < max(LONGER_S, LONGER_STEPS * usual_s):
        return []
    fresh = np.arange(n) >= n - NEWS_STEPS
    fresh |= steps.ended_at_s >= inputs.now_s - NEWS_S
    longer_s = steps.step_s - usual_s
    is_long = longer_s >= max(LONGER_S, LONGER_STEPS * usual_s)
    return [int(row) for row in np.flatnonzero(fresh & is_long)[::-1]]


@once
def _longest_s(steps: StepBatch) -> float:
    return float(np.fmax.reduce(steps.step_s, initial=-np.inf))


def _usual_s(inputs: DetectionInput, steps: StepBatch) -> float:
    """Usual step time; an open alert preserves it for longer than steps are stored."""
    held = [a.evidence.get("usual_step_s") for a in inputs.open_problems if a.rule == RULE]
    reported = [float(each) for each in held if each is not None]
    return reported[0] if reported else usual_step_s(steps)


def _finding(
    inputs: DetectionInput, steps: StepBatch, since_s: float, lost_s: float, *, is_over: bool
) -> Finding:
    usual_s, nodes = _usual_s(inputs, steps), training_nodes(inputs, steps)
    first = nodes[0] if nodes else None
    return Finding(
        rule=RULE,
        cause=RULE,
        severity="page" if lost_s > PAGE_AFTER_S else "warn",
        run=inputs.run,
        onset_s=since_s,
        score=lost_s / CERTAIN_S,
        victims=nodes,
        evidence={
            "since_s": since_s,
            "lost_s": lost_s,
            "is_over": is_over,
            "usual_step_s": json_number(usual_s),
            "phase": inputs.phase,
            "culprit": None,
            "window": [since_s - LEAD_S, inputs.now_s],
            "charts": [
                {"metric": metric, "node": first, "device": None}
                for metric in (HOST, CORES)
                if first
            ],
        },
    )
