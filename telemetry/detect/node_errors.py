"""Rules about single nodes: ecc_uncorrected, device_unhealthy, exec_errors and node_idle."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.findings import LEAD_S, Finding
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_peak, node_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import CORES, RECENT_STEPS, TRAINING, recent_steps, usual_step_s
from telemetry.statistics.peers import lower_median, mean
from telemetry.steps import StepBatch

RULE = "ecc_uncorrected"
# How long an alert stays after the last error: this many gaps between errors, within these
# seconds.
GAPS, HOLD_S = 3.0, (RULES[RULE].limits["hold_s"], 3 * 3600.0)
ECC_METRICS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")


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
    by_metric = ecc_by_device(counts)
    rises = np.stack([rise(each) for each in by_metric.values()])
    unhealthy = np.flatnonzero(rises.sum(axis=(0, 1, 3)) > 0)
    return [_finding(counts, by_metric, rises[:, :, row], int(row), run=run) for row in unhealthy]


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
        name: np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[2])), constant_values=np.nan)
        for name, each in held.items()
        if each.size
    }


def memory_errors(inputs: DetectionInput) -> list[Finding]:
    return [] if inputs.counts is None else uncorrected(inputs.counts, run=inputs.run)


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
    again. They are over after three times the usual gap between two of them; of a single error
    the gap is unknown. A count that fell was reset: the device was reset or replaced.
    """
    before = evidence.get("count_before")
    if before is None or count < before:
        return True
    n_errors = count - float(before)
    gap_s = lasted_s / (n_errors - 1) if n_errors > 1 else np.inf
    return bool(quiet_s >= np.clip(GAPS * gap_s, *HOLD_S))


def counted(counts: Span, node: str) -> float | None:
    """Count of a node by its newest report; None without one."""
    row = counts.nodes.index(node)
    held = [counts.values[metric][:, row] for metric in ECC_METRICS if metric in counts.values]
    each = np.concatenate(held, axis=1) if held else np.zeros((0, 0))
    reported = np.flatnonzero(np.isfinite(each).any(axis=1))
    return float(np.nansum(each[reported[-1]])) if reported.size else None


def rise(count: FloatArray) -> FloatArray:
    """Compute the increase from each moment to the next: (n - 1, ...), never negative.

    Across a missing moment the increase appears at the next one. A decrease is a counter reset.
    """
    held = count.copy()
    for i in range(1, len(held)):
        held[i] = np.where(np.isnan(held[i]), held[i - 1], held[i])
    step = np.diff(held, axis=0)
    return np.nan_to_num(np.where(step < 0, held[1:], step), nan=0.0)


def _finding(
    counts: Span,
    by_metric: Mapping[str, FloatArray],
    rises: FloatArray,
    row: int,
    *,
    run: str | None,
) -> Finding:
    """``rises`` is (n_metrics, n_moments - 1, n_devices)."""
    node = counts.nodes[row]
    by_device = rises.sum(axis=(0, 1))
    device = int(np.argmax(by_device))
    others = np.delete(by_device, device)
    metric = list(by_metric)[int(np.argmax(rises[:, :, device].sum(axis=1)))]
    first = int(np.flatnonzero(rises.sum(axis=(0, 2)))[0])
    # Some exporters count for the node as a whole: that is stored as its first device alone.
    reported = [np.isfinite(each[:, row]).any(axis=0) for each in by_metric.values()]
    is_split = by_device.size == 1 or np.any(reported, axis=0).sum() > 1
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=RULES[RULE].severity,
        run=run,
        node=node,
        device=device if is_split else None,
        onset_s=float(counts.ticks[first + 1]),
        score=float(by_device.sum()),
        evidence={
            "n_errors": float(by_device.sum()),
            "count_before": (counted(counts, node) or 0.0) - float(by_device.sum()),
            "culprit": {
                "metric": metric,
                "value": float(by_device[device]),
                "peers_median": float(np.median(others)) if others.size else None,
                "n_peers": int(others.size),
                "unit": "count",
            },
            "devices": {
                str(i): float(by_device[i]) for i in np.flatnonzero(by_device) if is_split
            },
            "window": [float(counts.ticks[0]), float(counts.ticks[-1])],
            "charts": [{"metric": metric, "node": node, "device": device if is_split else None}],
        },
    )


HEALTH_RULE, HEALTH = "device_unhealthy", "device_unhealthy"
# What is read of devices at a few moments of the last minutes.
STATE_METRICS = (*ECC_METRICS, HEALTH)
# A state is valid for this long after its report.
STATE_S = RULES[HEALTH_RULE].limits["state_s"]
UNHEALTHY_RATIO = 0.5


def device_health(states: Span) -> FloatArray:
    """Newest reported state of each device: (n_nodes, n_devices), NaN where unknown."""
    reported = states.values.get(HEALTH)
    if reported is None or not reported.size:
        return np.full((len(states.nodes), 1), np.nan)
    held = np.full(reported.shape[1:], np.nan)
    for state in reported[states.ticks >= states.ticks[-1] - STATE_S]:
        held = np.where(np.isnan(state), held, state)
    return held


def unhealthy_devices(states: Span, *, run: str | None = None) -> list[Finding]:
    """Find the nodes with devices that a health check of their vendor rejects.

    One finding per node; with several such devices it names none.
    """
    if not (device_health(states) >= UNHEALTHY_RATIO).any():
        return []
    reported, found = states.values[HEALTH], []
    for row, state in enumerate(device_health(states)):
        rejected = np.flatnonzero(state >= UNHEALTHY_RATIO)
        if not rejected.size:
            continue
        was = (reported[:, row, rejected] >= UNHEALTHY_RATIO).any(axis=1)
        device = int(rejected[0])
        others = np.delete(state, device)
        known = others[np.isfinite(others)]
        found.append(
            Finding(
                rule=HEALTH_RULE,
                cause=HEALTH_RULE,
                severity=RULES[HEALTH_RULE].severity if run else "warn",
                run=run,
                node=states.nodes[row],
                device=device if rejected.size == 1 else None,
                onset_s=float(states.ticks[np.flatnonzero(was)[0]]),
                score=float(rejected.size),
                evidence={
                    "devices": rejected.tolist(),
                    "n_devices": int(np.isfinite(state).sum()),
                    "culprit": {
                        "metric": HEALTH,
                        "value": 1.0,
                        "peers_median": float(np.median(known)) if known.size else None,
                        "n_peers": int(known.size),
                        "unit": "count",
                    },
                    "window": [float(states.ticks[0]), float(states.ticks[-1])],
                    "charts": [],
                },
            )
        )
    return found


def rejected_devices(inputs: DetectionInput) -> list[Finding]:
    return [] if inputs.counts is None else unhealthy_devices(inputs.counts, run=inputs.run)


MISSING_RULE = "device_missing"
# Moments in a row at which the node reports others: one report may lack a part of its values.
MISSING_MOMENTS = 2


def reporting_devices(states: Span) -> NDArray[np.bool_]:
    """Which devices have an ECC count: (n_moments, n_nodes, n_devices).

    The driver counts for each device, also for one that no process uses.
    """
    found: NDArray[np.bool_] = np.zeros((len(states.ticks), len(states.nodes), 1), bool)
    for each in ecc_by_device(states).values():
        found = found | np.isfinite(each)
    return found


def missing_devices(
    states: Span, *, run: str | None = None, known: Mapping[str, Collection[int]] | None = None
) -> list[Finding]:
    """Find the nodes of which some devices no longer report, while others do.

    One finding per node; with several such devices it names none. ``known`` are those that open
    alerts name, by node: they are missing until they report.
    """
    reports, found = reporting_devices(states), []
    for row, node in enumerate(states.nodes):
        moments = np.flatnonzero(reports[:, row].any(axis=1))
        newest, before = moments[-MISSING_MOMENTS:], moments[:-MISSING_MOMENTS]
        if newest.size < MISSING_MOMENTS:
            continue
        held = reports[before, row]
        was_there = held.any(axis=0)
        was_there[[each for each in (known or {}).get(node, ()) if each < was_there.size]] = True
        gone = np.flatnonzero(was_there & ~reports[newest, row].any(axis=0))
        if not gone.size:
            continue
        with_them = before[held[:, gone].any(axis=1)]
        last_s = float(states.ticks[with_them[-1] if with_them.size else moments[0]])
        n_reporting = int(reports[newest[-1], row].sum())
        found.append(
            Finding(
                rule=MISSING_RULE,
                cause=MISSING_RULE,
                severity=RULES[MISSING_RULE].severity if run else "warn",
                run=run,
                node=node,
                device=int(gone[0]) if gone.size == 1 else None,
                onset_s=last_s,
                score=float(gone.size),
                evidence={
                    "devices": gone.tolist(),
                    "n_reporting": n_reporting,
                    "n_devices": n_reporting + int(gone.size),
                    "window": [last_s - LEAD_S, float(states.ticks[-1])],
                    "charts": [],
                },
            )
        )
    return found


def lost_devices(inputs: DetectionInput) -> list[Finding]:
    if inputs.counts is None:
        return []
    open_ = (each for each in inputs.open_problems if each.rule == MISSING_RULE and each.node)
    known = {str(each.node): each.evidence.get("devices", ()) for each in open_}
    return missing_devices(inputs.counts, run=inputs.run, known=known)


def whole_nodes(states: Span) -> list[str]:
    """Nodes of which every device reported last; the others keep their alerts about missing ones.

    What was found must not end as long as it lasts: between two reports of a node the newest
    moments are others, and may not show it.
    """
    reports, found = reporting_devices(states), []
    for row, node in enumerate(states.nodes):
        moments = np.flatnonzero(reports[:, row].any(axis=1))
        if moments.size and reports[moments[-1], row].all():
            found.append(node)
    return found


ERRORS_RULE = "exec_errors"
FAILED, ERRORS, DONE = (
    "executions_failed_per_s",
    "execution_errors_per_s",
    "executions_completed_per_s",
)
# Ages (seconds) to read, oldest first: a quick check, more where it shows errors, and further back
# while an alert is open.
GLANCE_S, AGES_S = (1, 0), (20, 15, 10, 7, 4, 2, 1, 0)
AGES_OPEN_S = (120, 90, 60, 45, 30, 20, 10, 5, 0)
# Moments with errors, and errors per second, that rule out chance.
MOMENTS, LEAST_PER_S = 2, RULES[ERRORS_RULE].limits["least_per_s"]
# A page from this share of failed executions, or this many errors per second.
PAGE_RATIO, PAGE_PER_S = (
    RULES[ERRORS_RULE].limits["page_ratio"],
    RULES[ERRORS_RULE].limits["page_per_s"],
)


def exec_errors(inputs: DetectionInput) -> list[Finding]:
    """Find nodes whose executions fail or whose runtime reports errors.

    Notes
    -----
    neuron-monitor counts them per period and class. One is a hiccup that frameworks retry; a
    stream of them is a broken graph, driver or device.
    """
    if not inputs.reads_hardware or inputs.hardware_at is None:
        return []
    known = {alert.node for alert in inputs.open_problems if alert.rule == ERRORS_RULE}
    glance = None if known else inputs.hardware_at((ERRORS, FAILED), GLANCE_S)
    if glance and not any((node_values(glance, each) > 0).any() for each in (ERRORS, FAILED)):
        return []
    span = inputs.hardware_at((ERRORS, FAILED, DONE), AGES_OPEN_S if known else AGES_S)
    found = failing(span, run=inputs.run, known=known, now_s=inputs.now_s)
    if not found:
        return []
    # Failed executions on a node with memory errors or an unhealthy device belong to that finding.
    reasons = (RULE, HEALTH_RULE)
    explained = {alert.node for alert in inputs.open_problems if alert.rule in reasons}
    explained |= {each.node for each in memory_errors(inputs) + rejected_devices(inputs)}
    return [each for each in found if each.node not in explained]


def failing(
    span: Span, *, run: str | None, now_s: float, known: Collection[str | None] = ()
) -> list[Finding]:
    """Return one finding per failing node.

    A node fails with errors at several moments, or at one if its alert is open.
    """
    rate = np.fmax(node_values(span, ERRORS), node_values(span, FAILED))
    n_moments = (rate > 0).sum(axis=0)
    least = np.array([1 if node in known else MOMENTS for node in span.nodes], dtype=int)
    per_s = np.nan_to_num(mean(rate, axis=0))
    unhealthy = (n_moments >= least) & (per_s >= LEAST_PER_S * least / MOMENTS)
    done, failed = (
        np.nan_to_num(mean(node_values(span, each), axis=0)) for each in (DONE, FAILED)
    )
    found = []
    for row in np.flatnonzero(unhealthy).tolist():
        own, others = float(per_s[row]), np.delete(mean(rate, axis=0), row)
        n_executions = float(failed[row] + done[row])
        failed_ratio = float(failed[row]) / n_executions if n_executions > 0 else None
        is_bad = own >= PAGE_PER_S or (failed_ratio is not None and failed_ratio >= PAGE_RATIO)
        onset_s = float(span.ticks[np.flatnonzero(rate[:, row] > 0)[0]])
        found.append(
            Finding(
                rule=ERRORS_RULE,
                cause=ERRORS_RULE,
                severity="page" if is_bad else "warn",
                run=run,
                node=span.nodes[row],
                onset_s=onset_s,
                score=own / LEAST_PER_S,
                evidence={
                    "errors_per_s": own,
                    "failed_ratio": failed_ratio,
                    "culprit": {
                        "metric": ERRORS,
                        "value": own,
                        "peers_median": float(np.nan_to_num(lower_median(others)))
                        if others.size
                        else None,
                        "n_peers": int(others.size),
                        "unit": "per_s",
                    },
                    "window": [onset_s - LEAD_S, now_s],
                    "charts": [{"metric": ERRORS, "node": span.nodes[row], "device": None}],
                },
            )
        )
    return found


IDLE_RULE = "node_idle"
IDLE = RULES[IDLE_RULE].limits["idle_ratio"]
IDLE_METRICS = (CORES, ECC_METRICS[0])
# A node must be idle at all of these ages, oldest first, as shares of the limit.
IDLE_AGES = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.025, 0.0)
# The run itself must make steps: one within this many step times, and seconds.
ALIVE_STEPS, ALIVE_S = 3.0, 60.0
# A condition of ten minutes needs no check every second.
EVERY_S, FOR_S = 30, 3
# Nodes that became idle within these seconds are one finding.
TOGETHER_S = 120.0
SEVERAL = 2
# Steps are stored for 15 minutes, enough to see a change of scale ten minutes ago.
HISTORY_S = 900.0
# A node that waits for a slow one works in each step.
WAITS_STEPS = 2.0
# A step may end shortly after its last node became idle.
SETTLES_S = 5.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A run that continued with fewer nodes; ``left`` are the nodes that left."""

    at_s: float
    n_before: int
    n_after: int
    left: tuple[str, ...]


def node_idle(inputs: DetectionInput) -> list[Finding]:
    """Find nodes that cost money and do no work.

    Nodes that became idle together are one finding; after a change of scale it names the change. A
    single node without part in the steps was drained on purpose. A node that does not report is
    silent, not idle. A worker that reports steps while its cores stay idle computes elsewhere, for
    example on its host: its node is idle too.
    """
    known = [alert for alert in inputs.open_problems if alert.rule == IDLE_RULE]
    is_due = bool(known) or int(inputs.now_s) % EVERY_S < FOR_S
    steps = recent_steps(inputs)
    since_s = inputs.phase_since_s
    idle_s = inputs.limit(IDLE_RULE, "idle_s")
    is_new = since_s is not None and inputs.now_s - since_s < idle_s
    if not (inputs.reads_hardware and is_due and inputs.hardware_at):
        return []
    if inputs.phase != TRAINING or is_new:
        return []
    named = {node for alert in known for node in _nodes_of(alert)}
    # While the run stands still, all nodes are idle: no new accusations.
    is_alive = _makes_steps(inputs, steps) if len(inputs.steps) else _mostly_works(inputs)
    idle, since_s = _resting(inputs, [n for n in inputs.nodes if n in named or is_alive])
    idle = _without_waiting(inputs, idle, known=named, step_s=usual_step_s(steps))
    if not idle:
        return []
    group = next((alert for alert in known if alert.node is None), None)
    scale = _scale_down(inputs, idle, group)
    # All but those without part in the steps since the nodes became idle should compute.
    newest = inputs.steps.last(RECENT_STEPS)
    first = int(np.searchsorted(newest.ended_at_s, inputs.now_s - idle_s + SETTLES_S))
    parts = _parts(inputs, newest[first:] if first < len(newest) else newest)
    expected = {node for node in inputs.nodes if node not in parts or parts[node].any()}
    expected |= set(scale.left) if scale else set()
    # Nodes of an open group alert stay accused while they are idle.
    expected |= set(_nodes_of(group)) if group else set()
    idle = {node: level for node, level in idle.items() if node in expected}
    # The group alert keeps its nodes. A node that has been idle for longer keeps its own alert.
    began_s = inputs.now_s - idle_s
    own = {alert.node for alert in known if alert.node and _since_s(alert) < began_s - TOGETHER_S}
    mine = set(_nodes_of(group)) if group else set()
    new = [node for node in idle if node not in mine and node not in own]
    joins = len(new) >= SEVERAL or (group is not None and _since_s(group) >= began_s - TOGETHER_S)
    if scale is not None and set(new) & set(scale.left):
        joins = True
    together = [node for node in idle if node in mine or (joins and node in new)]
    apart = [n for n in idle if n not in together]
    found = [_single(inputs, n, idle[n], since_s) for n in apart]
    if together:
        found.append(_group(inputs, {n: idle[n] for n in together}, scale, group, since_s))
    return found


def _makes_steps(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Whether a step ended lately, and none that is visible took too long."""
    if not len(steps):
        return False
    longest_s = float(np.nanmax(inputs.steps.step_s, initial=0.0))
    since_last_s = inputs.now_s - float(steps.ended_at_s[-1])
    return max(longest_s, since_last_s) <= max(ALIVE_S, ALIVE_STEPS * usual_step_s(steps))


def _mostly_works(inputs: DetectionInput) -> bool:
    """Whether half of the nodes worked most of the time: where no job reports its steps."""
    if inputs.hardware_at is None:
        return False
    span = inputs.hardware_at(IDLE_METRICS, _idle_ages(inputs)).of(inputs.nodes)
    works = node_peak(span, CORES) >= IDLE
    return bool(span.nodes) and float(np.median(works.mean(axis=0))) > 0.5


def _resting(inputs: DetectionInput, suspects: list[str]) -> tuple[dict[str, float], float]:
    """Idle nodes with their highest core utilization, and since when."""
    if not suspects or inputs.hardware_at is None:
        return {}, 0.0
    glance = inputs.hardware_at(IDLE_METRICS, _ages(inputs, (0,))).of(suspects)
    resting = np.flatnonzero(_rests(glance).all(axis=0))
    if not resting.size:
        return {}, 0.0
    span = inputs.hardware_at(IDLE_METRICS, _idle_ages(inputs)).of(
        [suspects[row] for row in resting]
    )
    idle, most = _rests(span).all(axis=0), node_peak(span, CORES)
    found = {
        span.nodes[row]: float(np.nanmax(most[:, row], initial=0.0))
        for row in np.flatnonzero(idle)
    }
    return found, float(span.ticks[0])


def _without_waiting(
    inputs: DetectionInput, idle: dict[str, float], *, known: Collection[str], step_s: float
) -> dict[str, float]:
    """Leave out nodes that worked in the last few steps.

    Where cores are idle while they wait for a slow node, each moment looked at may be such a wait.
    """
    new = [node for node in idle if node not in known]
    if not new or not np.isfinite(step_s):
        return idle
    last_s = min(int(WAITS_STEPS * step_s) + 1, int(inputs.limit(IDLE_RULE, "idle_s")))
    span = inputs.hardware(IDLE_METRICS, inputs.lagging(last_s)).of(new)
    rests = _rests(span) | ~span.reported
    works = {node for node, row in zip(span.nodes, rests.T, strict=True) if not row.all()}
    return {node: level for node, level in idle.items() if node not in works}


def _idle_ages(inputs: DetectionInput) -> list[int]:
    idle_s = inputs.limit(IDLE_RULE, "idle_s")
    return _ages(inputs, [round(share * idle_s) for share in IDLE_AGES])


def _ages(inputs: DetectionInput, ages_s: Sequence[int]) -> list[int]:
    """Ages of which the newest has arrived from nodes that report less often than each second."""
    delay_s = inputs.lagging(1) - 1
    return [age_s + delay_s for age_s in ages_s]


def _rests(span: Span) -> NDArray[np.bool_]:
    """Nodes that report only idle cores: (n_ticks, n_nodes).

    neuron-monitor has no figure of a core that no process holds; the counts of memory errors show
    that it reports.
    """
    peak, heard = node_peak(span, CORES), node_peak(span, ECC_METRICS[0])
    return np.asarray((peak < IDLE) | (np.isnan(peak) & np.isfinite(heard)))


def _parts(inputs: DetectionInput, steps: StepBatch) -> dict[str, NDArray[np.bool_]]:
    """Participation of each node in the steps: (n_steps,) by node."""
    reported = np.isfinite(steps.phases["compute_s"])
    parts: dict[str, NDArray[np.bool_]] = {}
    for i, worker in enumerate(steps.workers):
        node = inputs.node_of(worker)
        if node is not None:
            parts[node] = parts[node] | reported[:, i] if node in parts else reported[:, i]
    return parts


def _scale_down(
    inputs: DetectionInput, idle: Collection[str], group: OpenProblem | None
) -> Scale | None:
    """Return the change of scale that left several of these nodes idle, if any.

    An open alert preserves it for longer than steps are stored.
    """
    said = group.evidence.get("scaled_down") if group else None
    n_nodes = [int(said[key]) for key in ("n_before", "n_after")] if said else []
    held = Scale(float(said["at_s"]), n_nodes[0], n_nodes[1], ()) if said else None
    known = set(_nodes_of(group)) if group else set()
    new = [node for node in idle if node not in known]
    if len(new) < SEVERAL or inputs.earlier is None:
        return held
    history = inputs.earlier(inputs.now_s - HISTORY_S)
    if not len(history):
        return held
    parts = _parts(inputs, history)
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


def _since_s(alert: OpenProblem) -> float:
    """Onset of an idle alert; minus infinity where unknown."""
    since_s = alert.evidence.get("since_s")
    return -np.inf if since_s is None else float(since_s)


def _nodes_of(alert: OpenProblem) -> tuple[str, ...]:
    if alert.node is not None:
        return (alert.node,)
    return tuple(alert.evidence.get("nodes") or ())


def _single(inputs: DetectionInput, node: str, level: float, since_s: float) -> Finding:
    for alert in inputs.open_problems:
        if alert.rule == IDLE_RULE and alert.node == node:
            since_s = min(since_s, float(alert.evidence.get("since_s", since_s)))
    listed = {inputs.node_of(worker) for worker in inputs.steps.workers}
    return _idle_finding(
        inputs, {node: level}, since_s, {"claims_steps": node in listed}, node=node
    )


def _group(
    inputs: DetectionInput,
    idle: Mapping[str, float],
    scale: Scale | None,
    group: OpenProblem | None,
    since_s: float,
) -> Finding:
    if group is not None:
        since_s = min(since_s, float(group.evidence.get("since_s", since_s)))
    parts = _parts(inputs, inputs.steps.last(1))
    extra = {
        "nodes": list(idle),
        "claims_steps": any(bool(parts[node].any()) for node in idle if node in parts),
        "scaled_down": None
        if scale is None
        else {"at_s": scale.at_s, "n_before": scale.n_before, "n_after": scale.n_after},
    }
    return _idle_finding(inputs, idle, since_s, extra)


def _idle_finding(
    inputs: DetectionInput,
    idle: Mapping[str, float],
    since_s: float,
    extra: Mapping[str, Any],
    *,
    node: str | None = None,
) -> Finding:
    """Without ``node`` the finding is about the run."""
    return Finding(
        rule=IDLE_RULE,
        cause=IDLE_RULE,
        severity=RULES[IDLE_RULE].severity,
        run=inputs.run,
        node=node,
        onset_s=since_s,
        score=1.0,
        nodes=tuple(idle),
        evidence={
            "idle_s": inputs.limit(IDLE_RULE, "idle_s"),
            "limit_s": inputs.limit(IDLE_RULE, "idle_s"),
            "since_s": since_s,
            "culprit": {
                "metric": CORES,
                "value": max(idle.values()),
                "peers_median": None,
                "n_peers": len(inputs.nodes) - len(idle),
                "unit": "ratio",
            },
            "window": [since_s, inputs.now_s],
            "charts": [{"metric": CORES, "node": next(iter(idle)), "device": None}],
            **extra,
        },
    )
