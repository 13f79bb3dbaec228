"""Rules about single nodes: what devices count and report, failing executions, idle nodes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.findings import LEAD_S, Finding
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_peak, node_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CORES,
    RECENT_STEPS,
    TRAINING,
    Flags,
    Limit,
    recent_steps,
    usual_step_s,
)
from telemetry.statistics.peers import lower_median, mean
from telemetry.steps import StepBatch

RULE, HEALTH_RULE, MISSING_RULE = "ecc_uncorrected", "device_unhealthy", "device_missing"
ERRORS_RULE, IDLE_RULE = "exec_errors", "node_idle"
ECC_METRICS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
HEALTH = "device_unhealthy"
# What is read of devices at a few moments of the last minutes.
STATE_METRICS = (*ECC_METRICS, HEALTH)


def _figure(metric: str, value: float, others: FloatArray, unit: str) -> dict[str, Any]:
    """Return a culprit beside the usual one of the others that are known."""
    known = others[np.isfinite(others)]
    return {
        "metric": metric,
        "value": value,
        "peers_median": float(lower_median(known)) if known.size else None,
        "n_peers": int(known.size),
        "unit": unit,
    }


def _of_node(
    rule: str,
    run: str | None,
    node: str | None,
    onset_s: float,
    evidence: Mapping[str, Any],
    *,
    score: float = 1.0,
    device: int | None = None,
    is_urgent: bool = True,
    nodes: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        rule=rule,
        cause=rule,
        severity=RULES[rule].severity if is_urgent else "warn",
        run=run,
        node=node,
        device=device,
        onset_s=onset_s,
        score=score,
        nodes=nodes,
        evidence=evidence,
    )


# Setting and assumption: an alert stays for so long after the last error, and no longer.
HOLD_S = (RULES[RULE].limits["hold_s"], 3 * 3600.0)
# Poisson: a quiet of three usual gaps has a chance of 5 % (exp -3) while errors go on.
GAPS = 3.0


def memory_errors(inputs: DetectionInput) -> list[Finding]:
    return [] if inputs.counts is None else uncorrected(inputs.counts, run=inputs.run)


def uncorrected(counts: Span, *, run: str | None = None) -> list[Finding]:
    """Find the nodes whose uncorrected ECC counts rose within the span.

    Parameters
    ----------
    counts : Span
        ECC_METRICS at two or more moments, oldest first. Two ticks ten minutes apart will do; how
        far they lie apart is how long a finding outlives the last error.
    run : str, optional
        The run that the nodes train.

    Returns
    -------
    One finding per node, of the device that counted most; of none where only the node counts.

    Notes
    -----
    A count that stood there when watching began is history, not news: only a rise is a finding.
    A count that fell was reset, and counts from zero again.
    """
    if len(counts.ticks) < 2 or not has_changed(counts):
        return []
    by_metric, found = ecc_by_device(counts), []
    rises = np.stack([rise(each) for each in by_metric.values()])
    reports = reporting_devices(counts).any(axis=0).sum(axis=1)
    for row in np.flatnonzero(rises.sum(axis=(0, 1, 3)) > 0).tolist():
        node, own = counts.nodes[row], rises[:, :, row]
        by_device = own.sum(axis=(0, 1))
        worst, n_errors = int(np.argmax(by_device)), float(by_device.sum())
        metric = list(by_metric)[int(np.argmax(own[:, :, worst].sum(axis=1)))]
        first = int(np.flatnonzero(own.sum(axis=(0, 2)))[0])
        # Some exporters count for the node as a whole: that is stored as its first device alone.
        is_split = by_device.size == 1 or reports[row] > 1
        device = worst if is_split else None
        value, others = float(by_device[worst]), np.delete(by_device, worst)
        evidence = {
            "n_errors": n_errors,
            "count_before": (counted(counts, node) or 0.0) - n_errors,
            "culprit": _figure(metric, value, others, "count"),
            "devices": {
                str(i): float(by_device[i]) for i in np.flatnonzero(by_device) if is_split
            },
            "window": [float(counts.ticks[0]), float(counts.ticks[-1])],
            "charts": [{"metric": metric, "node": node, "device": device}],
        }
        onset_s = float(counts.ticks[first + 1])
        found.append(_of_node(RULE, run, node, onset_s, evidence, score=n_errors, device=device))
    return found


def has_changed(counts: Span) -> bool:
    """Whether any ECC count differs between two moments; nearly always none does."""
    held = (counts.values[each] for each in ECC_METRICS if each in counts.values)
    return any((np.fmax.reduce(each) > np.fmin.reduce(each)).any() for each in held if each.size)


def ecc_by_device(counts: Span) -> dict[str, FloatArray]:
    """Return the ECC counts by metric: (n_moments, n_nodes, n_devices), equally wide.

    A sender may count one kind of errors only, or one of them for the node as a whole.
    """
    held = {each: counts.values[each] for each in ECC_METRICS if each in counts.values}
    width = max((each.shape[2] for each in held.values()), default=0)
    return {
        name: each
        if each.shape[2] == width
        else np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[2])), constant_values=np.nan)
        for name, each in held.items()
        if each.size
    }


def rise(count: FloatArray) -> FloatArray:
    """Compute the increase from each moment to the next: (n - 1, ...), never negative.

    Across a missing moment the increase appears at the next one. A decrease is a counter reset.
    """
    held = count.copy()
    for i in range(1, len(held)):
        held[i] = np.where(np.isnan(held[i]), held[i - 1], held[i])
    step = np.diff(held, axis=0)
    return np.nan_to_num(np.where(step < 0, held[1:], step), nan=0.0)


def counted(counts: Span, node: str) -> float | None:
    """Count of a node by its newest report; None without one."""
    row = counts.nodes.index(node)
    held = [each[:, row] for each in ecc_by_device(counts).values()]
    each = np.concatenate(held, axis=1) if held else np.zeros((0, 0))
    reported = np.flatnonzero(np.isfinite(each).any(axis=1))
    return float(np.nansum(each[reported[-1]])) if reported.size else None


def is_settled(
    evidence: Mapping[str, Any], count: float, *, quiet_s: float, lasted_s: float
) -> bool:
    """Tell whether memory has been quiet for long enough that an open alert may end.

    Parameters
    ----------
    evidence : as the finding had it
    count : errors that the node has counted so far
    quiet_s, lasted_s : seconds
        Since nothing has been found, and from the first error until then.

    Notes
    -----
    Errors may come minutes or hours apart, and each alone would be found, forgotten and found
    again. They are over when a process of their rate would have shown another; of a single error
    the rate is unknown. A count that fell was reset: the device was reset or replaced.
    """
    before = evidence.get("count_before")
    if before is None or count < before:
        return True
    n_errors = count - float(before)
    gap_s = lasted_s / (n_errors - 1) if n_errors > 1 else np.inf
    return bool(quiet_s >= np.clip(GAPS * gap_s, *HOLD_S))


# A state is valid for this long after its report.
STATE_S = RULES[HEALTH_RULE].limits["state_s"]


def device_health(states: Span) -> FloatArray:
    """Newest reported state of each device: (n_nodes, n_devices), NaN where unknown, 1 is bad."""
    reported = states.values.get(HEALTH)
    if reported is None or not reported.size:
        return np.full((len(states.nodes), 1), np.nan)
    held = np.full(reported.shape[1:], np.nan)
    for state in reported[states.ticks >= states.ticks[-1] - STATE_S]:
        held = np.where(np.isnan(state), held, state)
    return held


def rejected_devices(inputs: DetectionInput) -> list[Finding]:
    return [] if inputs.counts is None else unhealthy_devices(inputs.counts, run=inputs.run)


def unhealthy_devices(states: Span, *, run: str | None = None) -> list[Finding]:
    """Find the nodes with devices that a health check of their vendor rejects.

    One finding per node; with several such devices it names none.
    """
    health, found = device_health(states), []
    is_bad = health > 0.5
    for row in np.flatnonzero(is_bad.any(axis=1)).tolist():
        rejected = np.flatnonzero(is_bad[row]).tolist()
        was = (states.values[HEALTH][:, row, rejected] > 0.5).any(axis=1)
        evidence = {
            "devices": rejected,
            "n_devices": int(np.isfinite(health[row]).sum()),
            "culprit": _figure(HEALTH, 1.0, np.delete(health[row], rejected[0]), "count"),
            "window": [float(states.ticks[0]), float(states.ticks[-1])],
            "charts": [],
        }
        onset_s = float(states.ticks[np.flatnonzero(was)[0]])
        found.append(_of_devices(HEALTH_RULE, run, states.nodes[row], onset_s, evidence))
    return found


def _of_devices(
    rule: str, run: str | None, node: str, onset_s: float, evidence: Mapping[str, Any]
) -> Finding:
    """Return the finding of a node's ``devices``; of several it names none."""
    devices = evidence["devices"]
    device = devices[0] if len(devices) == 1 else None
    n = float(len(devices))
    # Nothing trains on a node without a run.
    is_urgent = run is not None
    return _of_node(
        rule, run, node, onset_s, evidence, score=n, device=device, is_urgent=is_urgent
    )


def lost_devices(inputs: DetectionInput) -> list[Finding]:
    if inputs.counts is None:
        return []
    open_ = (each for each in inputs.open_problems if each.rule == MISSING_RULE and each.node)
    known = {str(each.node): each.evidence.get("devices", ()) for each in open_}
    return missing_devices(inputs.counts, run=inputs.run, known=known)


def reporting_devices(states: Span) -> Flags:
    """Which devices have an ECC count: (n_moments, n_nodes, n_devices).

    The driver counts for each device, also for one that no process uses.
    """
    found: Flags = np.zeros((len(states.ticks), len(states.nodes), 1), bool)
    for each in ecc_by_device(states).values():
        found = found | np.isfinite(each)
    return found


def missing_devices(
    states: Span, *, run: str | None = None, known: Mapping[str, Collection[int]] | None = None
) -> list[Finding]:
    """Find the nodes of which some devices no longer report, while others do.

    They are missing in the newest two reports of the node: one may lack a part of its values.
    ``known`` are those that open alerts name, by node: they are missing until they report.
    """
    reports, found = reporting_devices(states), []
    was_there, is_heard = np.asarray(reports.any(axis=0)), np.asarray(reports.any(axis=2))
    for node, devices in (known or {}).items():
        if node in states.nodes:
            row = states.nodes.index(node)
            was_there[row, [each for each in devices if each < was_there.shape[1]]] = True
    is_newest = is_heard & (is_heard[::-1].cumsum(axis=0)[::-1] <= 2)
    missing = was_there & ~(reports & is_newest[..., None]).any(axis=0)
    for row in np.flatnonzero(missing.any(axis=1) & (is_newest.sum(axis=0) == 2)).tolist():
        node, gone = states.nodes[row], np.flatnonzero(missing[row])
        moments = np.flatnonzero(is_heard[:, row])
        newest, before = moments[-2:], moments[:-2]
        held = reports[before, row]
        with_them = before[held[:, gone].any(axis=1)]
        last_s = float(states.ticks[with_them[-1] if with_them.size else moments[0]])
        n_reporting = int(reports[newest[-1], row].sum())
        evidence = {
            "devices": gone.tolist(),
            "n_reporting": n_reporting,
            "n_devices": n_reporting + int(gone.size),
            "window": [last_s - LEAD_S, float(states.ticks[-1])],
            "charts": [],
        }
        found.append(_of_devices(MISSING_RULE, run, node, last_s, evidence))
    return found


def whole_nodes(states: Span) -> list[str]:
    """Nodes of which every device reported last; the others keep their alerts about missing ones.

    What was found must not end as long as it lasts: between two reports of a node the newest
    moments are others, and may not show it.
    """
    reports = reporting_devices(states)
    is_heard = np.asarray(reports.any(axis=2))
    newest = len(reports) - 1 - is_heard[::-1].argmax(axis=0)
    is_whole = np.asarray(reports[newest, np.arange(len(states.nodes))].all(axis=1))
    return [node for node, whole in zip(states.nodes, is_whole.tolist(), strict=True) if whole]


FAILED, ERRORS = "executions_failed_per_s", "execution_errors_per_s"
DONE = "executions_completed_per_s"
# Ages (seconds) to read, oldest first: a quick check, more where it shows errors, and further back
# while an alert is open.
GLANCE_S, AGES_S = (1, 0), (20, 15, 10, 7, 4, 2, 1, 0)
AGES_OPEN_S = (120, 90, 60, 45, 30, 20, 10, 5, 0)
# Moments with errors that rule out a hiccup, which frameworks retry.
MOMENTS = 2


def exec_errors(inputs: DetectionInput) -> list[Finding]:
    """Find nodes whose executions fail or whose runtime reports errors.

    Notes
    -----
    neuron-monitor counts them per period and class. One is a hiccup; a stream of them is a broken
    graph, driver or device.
    """
    if not inputs.reads_hardware or inputs.hardware_at is None:
        return []
    known = {alert.node for alert in inputs.open_problems if alert.rule == ERRORS_RULE}
    if not known:
        glance = inputs.hardware_at((ERRORS, FAILED), GLANCE_S)
        if not any((node_values(glance, each) > 0).any() for each in (ERRORS, FAILED)):
            return []
    span = inputs.hardware_at((ERRORS, FAILED, DONE), AGES_OPEN_S if known else AGES_S)
    found = failing(span, run=inputs.run, known=known, now_s=inputs.now_s)
    # Failed executions on a node with memory errors or an unhealthy device belong to that finding.
    explained = {each.node for each in inputs.open_problems if each.rule in (RULE, HEALTH_RULE)}
    if found:
        explained |= {each.node for each in memory_errors(inputs) + rejected_devices(inputs)}
    return [each for each in found if each.node not in explained]


def failing(
    span: Span, *, run: str | None, now_s: float, known: Collection[str | None] = ()
) -> list[Finding]:
    """Return one finding per failing node.

    A node fails with errors at several moments, or at one if its alert is open.
    """
    limits, found = RULES[ERRORS_RULE].limits, []
    failed, done = (node_values(span, each) for each in (FAILED, DONE))
    rate = np.fmax(node_values(span, ERRORS), failed)
    per_s, failed_per_s, done_per_s = (
        np.nan_to_num(mean(each, axis=0)) for each in (rate, failed, done)
    )
    for row, node in enumerate(span.nodes):
        own, n_moments = float(per_s[row]), int((rate[:, row] > 0).sum())
        least = 1 if node in known else MOMENTS
        if n_moments < least or own < limits["least_per_s"] * least / MOMENTS:
            continue
        n_executions = float(failed_per_s[row] + done_per_s[row])
        failed_ratio = float(failed_per_s[row]) / n_executions if n_executions > 0 else None
        is_bad = own >= limits["page_per_s"] or (failed_ratio or 0.0) >= limits["page_ratio"]
        onset_s = float(span.ticks[np.flatnonzero(rate[:, row] > 0)[0]])
        evidence = {
            "errors_per_s": own,
            "failed_ratio": failed_ratio,
            "culprit": _figure(ERRORS, own, np.delete(per_s, row), "per_s"),
            "window": [onset_s - LEAD_S, now_s],
            "charts": [{"metric": ERRORS, "node": node, "device": None}],
        }
        score = own / limits["least_per_s"]
        found.append(
            _of_node(ERRORS_RULE, run, node, onset_s, evidence, score=score, is_urgent=is_bad)
        )
    return found


IDLE = RULES[IDLE_RULE].limits["idle_ratio"]
IDLE_METRICS = (CORES, ECC_METRICS[0])
# A node must be idle at all of these ages, oldest first, as shares of the limit.
IDLE_AGES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.025, 0.0)
# The run itself must make steps: the last one ended within this time. A node that waits for a slow
# one works in each step, hence in the newest two.
ALIVE, WAITS_STEPS = Limit(3.0, 60.0), 2.0
# A condition of ten minutes needs no check every second: only in so many of each half minute.
EVERY_S, FOR_S = 30, 3
# Nodes that became idle within these seconds are one finding. A step may end shortly after its
# last node became idle.
TOGETHER_S, SETTLES_S = 120.0, 5.0
# Steps are stored for 15 minutes, enough to see a change of scale ten minutes ago.
HISTORY_S = 900.0


def node_idle(inputs: DetectionInput) -> list[Finding]:
    """Find nodes that cost money and do no work.

    Nodes that became idle together are one finding; after a change of scale it names the change. A
    single node without part in the steps was drained on purpose. A node that does not report is
    silent, not idle. A worker that reports steps while its cores stay idle computes elsewhere, for
    example on its host: its node is idle too.
    """
    known = [alert for alert in inputs.open_problems if alert.rule == IDLE_RULE]
    is_due = bool(known) or int(inputs.now_s) % EVERY_S < FOR_S
    idle_s = inputs.limit(IDLE_RULE, "idle_s")
    began_s = inputs.now_s - idle_s
    is_new = inputs.phase_since_s is not None and inputs.phase_since_s > began_s
    if not (inputs.reads_hardware and is_due) or inputs.phase != TRAINING or is_new:
        return []
    idle, since_s = _idle(inputs, {node for alert in known for node in _nodes_of(alert)})
    if not idle:
        return []
    group = next((alert for alert in known if alert.node is None), None)
    mine = set(_nodes_of(group)) if group else set()
    scale, left = _scale_down(inputs, [node for node in idle if node not in mine], group)
    # All but those without part in the steps since the nodes became idle should compute. Nodes of
    # an open group alert stay accused while they are idle.
    newest = inputs.steps.last(RECENT_STEPS)
    first = int(np.searchsorted(newest.ended_at_s, began_s + SETTLES_S))
    parts = _parts(inputs, newest[first:] if first < len(newest) else newest)
    drained = {node for node, took_part in parts.items() if not took_part.any()}
    idle = {n: level for n, level in idle.items() if n not in drained or n in mine | left}
    # The group alert keeps its nodes. A node that has been idle for longer keeps its own alert.
    own = {each.node for each in known if each.node and _since_s(each) < began_s - TOGETHER_S}
    new = {node for node in idle if node not in mine and node not in own}
    joins = len(new) > 1 or bool(new & left)
    joins = joins or (group is not None and _since_s(group) >= began_s - TOGETHER_S)
    together = {n: idle[n] for n in idle if n in mine or (joins and n in new)}
    found = []
    for node in (node for node in idle if node not in together):
        open_ = [each for each in known if each.node == node]
        found.append(_idle_finding(inputs, {node: idle[node]}, since_s, open_, node=node))
    if together:
        more = {"nodes": list(together), "scaled_down": scale}
        open_ = [group] if group else []
        found.append(_idle_finding(inputs, together, since_s, open_, more=more))
    return found


def _idle(inputs: DetectionInput, named: Collection[str]) -> tuple[dict[str, float], float]:
    """Nodes that idle, with their highest core utilization, and since when.

    While the run stands still, all nodes are idle: then only those that alerts name are looked at.
    """
    steps = recent_steps(inputs)
    is_alive = _is_alive(inputs, steps)
    suspects = [node for node in inputs.nodes if node in named or is_alive]
    if not suspects or inputs.hardware_at is None:
        return {}, 0.0
    for ages in (_idle_ages(inputs, (0.0,)), _idle_ages(inputs)):
        span = inputs.hardware_at(IDLE_METRICS, ages).of(suspects)
        suspects = [span.nodes[row] for row in np.flatnonzero(_rests(span).all(axis=0))]
        if not suspects:
            return {}, 0.0
    since_s, most = float(span.ticks[0]), node_peak(span.of(suspects), CORES)
    idle = dict(zip(suspects, np.nan_to_num(np.fmax.reduce(most)).tolist(), strict=True))
    new, step_s = [node for node in idle if node not in named], usual_step_s(steps)
    if new and np.isfinite(step_s):
        # Where cores are idle while they wait for a slow node, each moment may be such a wait.
        last_s = min(int(WAITS_STEPS * step_s) + 1, int(inputs.limit(IDLE_RULE, "idle_s")))
        seen = inputs.hardware(IDLE_METRICS, inputs.lagging(last_s)).of(new)
        rests = (_rests(seen) | ~seen.reported).all(axis=0)
        for row in np.flatnonzero(~rests):
            del idle[seen.nodes[row]]
    return idle, since_s


def _is_alive(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Whether a step ended lately, and none that is visible took too long.

    Where no job reports its steps, whether half of the nodes worked most of the time.
    """
    if len(inputs.steps):
        longest_s = float(np.nanmax(inputs.steps.step_s, initial=0.0))
        since_last_s = inputs.now_s - max(steps.ended_at_s[-1:].tolist(), default=-np.inf)
        return bool(max(longest_s, since_last_s) <= ALIVE.of(usual_step_s(steps)))
    if inputs.hardware_at is None:
        return False
    span = inputs.hardware_at(IDLE_METRICS, _idle_ages(inputs)).of(inputs.nodes)
    works = node_peak(span, CORES) >= IDLE
    return bool(span.nodes) and float(np.median(works.mean(axis=0))) > 0.5


def _idle_ages(inputs: DetectionInput, shares: Sequence[float] = IDLE_AGES) -> list[int]:
    """Ages of which the newest has arrived from nodes that report less often than each second."""
    idle_s = inputs.limit(IDLE_RULE, "idle_s")
    return [round(share * idle_s) + inputs.lagging(1) - 1 for share in shares]


def _rests(span: Span) -> Flags:
    """Nodes that report only idle cores: (n_ticks, n_nodes).

    neuron-monitor has no figure of a core that no process holds; the counts of memory errors show
    that it reports.
    """
    peak, heard = node_peak(span, CORES), node_peak(span, ECC_METRICS[0])
    return np.asarray((peak < IDLE) | (np.isnan(peak) & np.isfinite(heard)))


def _parts(inputs: DetectionInput, steps: StepBatch) -> dict[str, Flags]:
    """Participation of each node in the steps: (n_steps,) by node."""
    reported = np.isfinite(steps.phases["compute_s"])
    parts: dict[str, Flags] = {}
    for worker, took_part in zip(steps.workers, reported.T, strict=True):
        node = inputs.node_of(worker)
        if node is not None:
            parts[node] = parts[node] | took_part if node in parts else took_part
    return parts


def _scale_down(
    inputs: DetectionInput, new: Sequence[str], group: OpenProblem | None
) -> tuple[Mapping[str, Any] | None, set[str]]:
    """When a run continued with fewer nodes, from how many to how many; which ``new`` ones left.

    An open alert preserves it for longer than steps are stored.
    """
    held = (group and group.evidence.get("scaled_down")) or None
    if len(new) < 2 or inputs.earlier is None:
        return held, set()
    history = inputs.earlier(inputs.now_s - HISTORY_S)
    parts, ends = _parts(inputs, history), history.ended_at_s
    took_part = {node: parts[node] for node in new if node in parts and parts[node].any()}
    lasts = {node: int(np.flatnonzero(p)[-1]) for node, p in took_part.items() if not p[-1]}
    row = max(lasts.values(), default=0)
    left = {node for node, last in lasts.items() if ends[last] >= ends[row] - TOGETHER_S}
    if len(left) < 2:
        return held, set()
    n_before, n_after = (sum(bool(each[i]) for each in parts.values()) for i in (row, -1))
    return {"at_s": float(ends[row]), "n_before": n_before, "n_after": n_after}, left


def _since_s(alert: OpenProblem) -> float:
    """Onset of an idle alert; minus infinity where unknown."""
    since_s = alert.evidence.get("since_s")
    return -np.inf if since_s is None else float(since_s)


def _nodes_of(alert: OpenProblem) -> tuple[str, ...]:
    return (alert.node,) if alert.node is not None else tuple(alert.evidence.get("nodes") or ())


def _idle_finding(
    inputs: DetectionInput,
    idle: Mapping[str, float],
    since_s: float,
    open_: Sequence[OpenProblem],
    *,
    node: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Finding:
    """Without ``node`` the finding is about the run; ``open_`` is its alert, if there is one."""
    since_s = min(since_s, *(s for s in map(_since_s, open_) if np.isfinite(s)), since_s)
    steps = inputs.steps if node else inputs.steps.last(1)
    parts, idle_s = _parts(inputs, steps), inputs.limit(IDLE_RULE, "idle_s")
    evidence = {
        "idle_s": idle_s,
        "limit_s": idle_s,
        "since_s": since_s,
        "claims_steps": any(n in parts and (bool(node) or parts[n].any()) for n in idle),
        "culprit": {
            "metric": CORES,
            "value": max(idle.values()),
            "peers_median": None,
            "n_peers": len(inputs.nodes) - len(idle),
            "unit": "ratio",
        },
        "window": [since_s, inputs.now_s],
        "charts": [{"metric": CORES, "node": next(iter(idle)), "device": None}],
        **(more or {}),
    }
    return _of_node(IDLE_RULE, inputs.run, node, since_s, evidence, nodes=tuple(idle))
