"""Apply all rules to one run."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.detect.causes import CLASS_OF, HARDWARE_CAUSES, LINK_CAUSES, NOT_URGENT
from telemetry.detect.checkpoints import find_slow_checkpoint
from telemetry.detect.fabric import find_efa_symptoms
from telemetry.detect.findings import (
    LEAD_S,
    Finding,
    Problem,
    onset_of_alert,
    problem_of_alert,
    ruled_out_json,
)
from telemetry.detect.input_stall import find_input_stall, find_loading_nodes
from telemetry.detect.inputs import (
    AccessRecorder,
    DetectionInput,
    times_transfer,
)
from telemetry.detect.losses import find_intermittent_loss
from telemetry.detect.node_errors import (
    exec_errors,
    lost_devices,
    memory_errors,
    node_idle,
    rejected_devices,
)
from telemetry.detect.pace import (
    HALF,
    NEWEST_STEPS,
    PERSISTS_STEPS,
    RECENT_STEPS,
    comparable_steps,
)
from telemetry.detect.parts import POWER, find_unhealthy_hardware
from telemetry.detect.progress import find_slow_progress
from telemetry.detect.recompile import recompile
from telemetry.detect.rules import RULES, names_of
from telemetry.detect.share import ROUNDING, SHARE, STEPS_TO_RESOLVE, apply_share_rule
from telemetry.detect.slow import (
    find_late_worker,
    find_late_workers,
    find_slow_compute,
    find_slow_exchange,
    find_slow_executions,
    find_slow_steps,
)
from telemetry.detect.stopped import hang, missing_workers
from telemetry.detect.stragglers import find_longer_stage, find_uneven_work
from telemetry.detect.symptoms import causes_json, with_best_cause
from telemetry.detect.training_loss import loss_not_finite, loss_spike
from telemetry.statistics.change_points import noise
from telemetry.statistics.peers import middle
from telemetry.steps import StepBatch

# A fault of hardware that was seen so many seconds ago still explains slow executions. Early in
# it, its parts were not like that before.
OUTLASTS_S = (20, 60, 120)
# After so many steps in a row in which a worker waits for its data, it is no chance.
CERTAIN_STALLS = 3
# Evidence that only timed steps give.
SPLIT_KINDS = ("waiting", "transferring")
# Without the accused node, so many workers show what is usual.
ENOUGH_OTHERS = 3
# From this many workers on, sequence lengths average out.
MANY_WORKERS = 24


def find_slowdowns(inputs: DetectionInput, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return what slows the run: at most one finding per problem.

    Hardware symptoms come first. Step symptoms count where no hardware symptom explains them. A
    share above its limit takes over the problem that explains it.
    """
    steps = inputs.steps.reported
    is_open = any("kind" in alert.evidence for alert in inputs.open_problems)
    problems = (
        find_unhealthy_hardware(inputs) + find_efa_symptoms(inputs)
        if inputs.reads_hardware
        else []
    )
    if not len(steps):
        of_run = find_slow_checkpoint(inputs, steps) or find_slow_progress(inputs)
        if of_run and not problems and not is_open:
            # Hardware is well again before executions show it.
            of_run = [] if _unhealthy_lately(inputs) else of_run
        lasting = _outlasting(inputs, problems, of_run)
        problems = _unexplained(inputs, problems + lasting + of_run, seen=problems)
        return _performance_findings(inputs, steps, problems)
    timed = steps.timed
    of_steps = find_slow_checkpoint(inputs, comparable_steps(steps))
    of_steps = of_steps or find_loading_nodes(inputs, steps)
    cache = inputs.healthy_steps
    # Steps that are known to be healthy need no second look while no alert is open.
    is_watched = bool(of_steps or inputs.open_problems or open_rules)
    if cache is not None and not is_watched and cache.is_healthy(inputs.steps):
        return _performance_findings(inputs, steps, _unexplained(inputs, problems, seen=problems))
    recorder = AccessRecorder(inputs)
    held = {alert.node for alert in inputs.open_problems if alert.cause in HARDWARE_CAUSES}
    accused = held | {problem.node for problem in problems}
    of_steps += _step_problems(recorder.inputs, steps, timed, accused)
    longer = min(
        (p for p in of_steps if p.kind == "step"), key=attrgetter("onset_s"), default=None
    )
    if timed is not steps and longer is not None:
        # Only while steps take longer: executions of a healthy node differ for minutes, too.
        of_steps = find_slow_executions(inputs, comparable_steps(steps), longer) + of_steps
        if len(timed) and not any(each.node for each in of_steps):
            of_steps = find_late_worker(inputs, comparable_steps(timed), longer) + of_steps
    if of_steps and not problems and not is_open:
        # The last slow step ends after its hardware is well again.
        lately = _unhealthy_lately(recorder.inputs)
        of_steps = [p for p in of_steps if not any(_explains(inputs, o, p) for o in lately)]
    lasting = _outlasting(inputs, problems, of_steps)
    confirmed = [p for p in of_steps if _is_confirmed(p, problems + lasting)]
    rest = _unexplained(inputs, problems + lasting + confirmed, seen=problems)
    share = None
    # Without a timed exchange the share is unknown.
    is_known = steps.is_timed_now and not _is_timed_since_alert(inputs, timed)
    if is_known and timed is not steps:
        # What a trace showed of an alert that has ended is no new one.
        is_known = float(timed.allreduce_share_ratio[-1]) > inputs.limit_ratio
    if is_known or (steps.is_timed_now and SHARE in open_rules):
        share, rest = apply_share_rule(inputs, timed, rest, is_open=SHARE in open_rules)
    is_quiet = not (of_steps or share or recorder.was_read or inputs.open_problems or open_rules)
    if cache is not None:
        cache.note(inputs.steps, is_healthy=is_quiet)
    found = ([share] if share else []) + _performance_findings(inputs, steps, rest)
    return [_with_recovery(inputs, steps, timed, each) for each in found]


def _with_recovery(
    inputs: DetectionInput, steps: StepBatch, timed: StepBatch, finding: Finding
) -> Finding:
    """Add how many of the newest steps are healthy again, of those that end the alert."""
    is_back: NDArray[np.bool_] = np.zeros(0, bool)
    evidence, enough = finding.evidence, PERSISTS_STEPS
    if finding.rule == SHARE:
        is_back = timed.allreduce_share_ratio < inputs.resolve_ratio - ROUNDING
        enough = STEPS_TO_RESOLVE
    elif finding.rule == "step_slow" and evidence["baseline_step_s"] and "every_s" not in evidence:
        rise_s = steps.step_s - evidence["baseline_step_s"]
        is_back = rise_s < HALF * rise_s[steps.ended_at_s > finding.onset_s].max(initial=0.0)
    n_healthy = int(np.logical_and.accumulate(is_back[::-1]).sum())
    if not n_healthy:
        return finding
    n_healthy = min(n_healthy, enough)
    more = {"healthy_steps": n_healthy, "steps_to_resolve": enough}
    return replace(finding, evidence={**evidence, **more})


def _is_timed_since_alert(inputs: DetectionInput, timed: StepBatch) -> bool:
    """Whether exchanges are timed only since an alert about whole steps is open.

    A trace that the alert requested is evidence about it, and no second alert: it ends in a
    minute, and so would show no end of a share above its limit.
    """
    began_s = float(timed.ended_at_s[0] - timed.step_s[0])
    return any(
        alert.evidence.get("kind") == "step" and onset_of_alert(alert, np.inf) <= began_s
        for alert in inputs.open_problems
    )


def _unhealthy_lately(inputs: DetectionInput) -> list[Problem]:
    pasts = [inputs.ago(seconds) for seconds in OUTLASTS_S]
    return [p for past in pasts for p in find_unhealthy_hardware(past) + find_efa_symptoms(past)]


def _outlasting(
    inputs: DetectionInput, seen: list[Problem], of_steps: list[Problem]
) -> list[Problem]:
    """Problems with an open alert that are over in hardware but explain steps they slowed.

    A slow step ends after its node is healthy again; that is no new problem.
    """
    known = {(problem.cause, problem.node) for problem in seen}
    # Steps may name the cause more exactly by now.
    known |= {(CLASS_OF[p.cause], p.node) for p in of_steps if p.cause in CLASS_OF}
    mended = [
        problem_of_alert(alert, inputs.now_s)
        for alert in inputs.open_problems
        if alert.cause in HARDWARE_CAUSES
        and (alert.node or alert.cause in LINK_CAUSES)
        and (alert.cause, alert.node) not in known
    ]
    open_ones = [p for p in of_steps if not any(_explains(inputs, one, p) for one in seen)]
    return [one for one in mended if any(_explains(inputs, one, p) for p in open_ones)]


def _is_confirmed(problem: Problem, seen: list[Problem]) -> bool:
    """Whether the hardware confirms what the steps accuse.

    Steps describe the past: a node may be healthy again when they end, or unhealthy for too short
    a time. The only part of a node has no peers on the node. Cores that count as busy while they
    wait confirm nothing; power does not need it.
    """
    score = problem.score
    if score is None or score.node is None or score.device is None:
        return True
    if score.is_only_part or score.n_peers == 0 or score.metric == POWER:
        return True
    return any(one.node == problem.node for one in seen)


def _step_problems(
    inputs: DetectionInput, steps: StepBatch, timed: StepBatch, accused: Collection[str | None]
) -> list[Problem]:
    """Problems by steps, the most specific evidence first.

    Input time and total step time need no split. Waiting and transfer come from the ``timed``
    steps: all of ``steps``, one every few, or none.
    """
    is_timed = timed is steps
    alike = comparable_steps(steps)
    found = find_input_stall(inputs, alike)
    # A trace that has ended says nothing of now.
    is_held = any(alert.evidence.get("kind") in SPLIT_KINDS for alert in inputs.open_problems)
    if len(timed) and (steps.is_timed_now or is_held):
        split = alike if is_timed else comparable_steps(timed)
        found += find_uneven_work(inputs, split, accused=accused)
        for finder in (find_slow_exchange, find_longer_stage, find_late_workers):
            found += finder(inputs, split)
        found += _second_late_nodes(inputs, split, found)
    found += (find_slow_compute if is_timed else find_slow_steps)(inputs, alike)
    again = find_intermittent_loss(inputs, alike)
    if not any(each.node for each in again):
        return found + again
    # The long steps of one node are one problem, not one each time.
    return [each for each in found if each.kind not in ("waiting", "computing", "step")] + again


def _second_late_nodes(
    inputs: DetectionInput, steps: StepBatch, found: list[Problem]
) -> list[Problem]:
    """Find a node that is late, but less than one that was found already.

    Their own hardware must show it: in a pipeline or a tensor-parallel group over several nodes,
    others wait for the first one while they compute.
    """
    first = {problem.node for problem in found if problem.kind == "waiting"} - {None}
    others = [inputs.node_of(worker) not in first for worker in steps.workers]
    if not first or sum(others) < ENOUGH_OTHERS:
        return []
    phases = {name: np.where(others, values, np.nan) for name, values in steps.phases.items()}
    late = find_late_workers(inputs, replace(steps, phases=phases))
    return [p for p in late if p.cause in HARDWARE_CAUSES and p.node is not None]


def _unexplained(
    inputs: DetectionInput, problems: list[Problem], *, seen: list[Problem]
) -> list[Problem]:
    """Drop problems that an earlier one in the list explains.

    Parts with hardware symptoms (``seen``) do not explain each other.
    """
    kept: list[Problem] = []
    for problem in problems:
        is_part = problem.kind == "waiting" and any(problem is each for each in seen)
        # If each node of the run is slow for a reason of its own, so is the fastest.
        slow = {each.node for each in kept if each.kind == "waiting"}
        is_all = problem.kind == "computing" and slow >= set(inputs.nodes)
        is_explained = is_all or any(_explains(inputs, other, problem) for other in kept)
        if is_part or not is_explained:
            kept.append(problem)
    return kept


def _explains(inputs: DetectionInput, one: Problem, other: Problem) -> bool:
    """Whether the second problem is another view of the first."""
    if other.kind == "step":
        # Without a split, anything that slows steps can be the reason.
        return one.kind != "checkpoint"
    if other.kind == "transferring":
        return one.cause in LINK_CAUSES and _is_same_link(one, other)
    is_compute = other.kind == "computing" or other.cause == "seq_imbalance"
    if is_compute and one.cause in LINK_CAUSES and not times_transfer(inputs.steps):
        # Transfer that is not timed is part of what seems computed.
        return True
    if other.kind == "computing":
        alone = len(inputs.nodes) == 1 and one.kind == "waiting"
        # Among many workers the fastest have no long sequences.
        is_uneven = one.cause == "seq_imbalance" and len(inputs.steps.workers) < MANY_WORKERS
        return alone or is_uneven
    if other.kind == "waiting":
        nodes = {inputs.node_of(worker) for worker in other.late[:1]} | {other.node}
        # With uneven work some worker is late in every step. Only hardware evidence accuses a
        # node.
        is_uneven = one.cause == "seq_imbalance" and bool(other.late)
        # A bad link delays all workers alike.
        return is_uneven or (
            one.kind != "transferring" and one.node is not None and one.node in nodes
        )
    return False


def _is_same_link(one: Problem, other: Problem) -> bool:
    """Whether two link problems can be one. A fabric problem hides no link with another cause."""
    if one.node is None and other.node is not None:
        return one.cause == other.cause
    return other.node is None or one.node == other.node


def _performance_findings(
    inputs: DetectionInput, steps: StepBatch, problems: list[Problem]
) -> list[Finding]:
    """Return one finding per rule and subject: the one with an open alert, else the strongest.

    A second part of a node is a finding about the steps of the run.
    """
    problems = [with_best_cause(inputs, steps, each, problems) for each in problems]
    with_alert = {(alert.rule, alert.cause, alert.node) for alert in inputs.open_problems}
    order = sorted(
        problems, key=lambda p: ((p.rule, p.cause, p.node) not in with_alert, -p.strength)
    )
    found: dict[tuple[str, str | None], Finding] = {}
    for problem in order:
        rule = RULES[problem.rule]
        subject = (rule.name, problem.node if rule.subject == "node" else None)
        other = found.get(subject)
        is_part = problem.device is not None and rule.subject == "node"
        if other and is_part and (other.cause, other.device) != (problem.cause, problem.device):
            rule = RULES["step_slow"]
            subject = (rule.name, None)
        if subject in found:
            continue
        began = replace(problem, onset_s=_began_s(inputs, problem))
        table = causes_json(inputs, steps, began, problems)
        is_vague = problem.cause in NOT_URGENT and problem.node is None
        # A loader waits twice in a row by chance, hardly ever three times.
        is_vague |= problem.extra.get("stalled_steps", CERTAIN_STALLS) < CERTAIN_STALLS
        found[subject] = Finding(
            rule=rule.name,
            cause=problem.cause,
            severity="warn" if is_vague else rule.severity,
            run=inputs.run,
            node=problem.node,
            device=problem.device,
            onset_s=problem.onset_s,
            score=problem.strength,
            victims=performance_victims(inputs, steps, problem),
            evidence=evidence_of(inputs, steps, problem) | table,
        )
    return list(found.values())


def _began_s(inputs: DetectionInput, problem: Problem) -> float:
    """Return the onset of a device's or node's problem that has an open alert, under any rule.

    What has happened since then is no baseline: when steps recover before the device does, they
    are not faster than usual.
    """
    began_s = [
        float(each.evidence.get("onset_s") or problem.onset_s)
        for each in inputs.open_problems
        if (each.cause, each.node, each.device) == (problem.cause, problem.node, problem.device)
    ]
    is_of_node = RULES[problem.rule].subject == "node"
    return min(problem.onset_s, *began_s) if is_of_node and began_s else problem.onset_s


def _mean_ratio(ratio: FloatArray) -> float | None:
    """Mean over steps with a known ratio; None (unknown, not zero) without one."""
    reported = ratio[np.isfinite(ratio)]
    return float(reported.mean()) if reported.size else None


def performance_victims(
    inputs: DetectionInput, steps: StepBatch, problem: Problem
) -> tuple[str, ...]:
    """Nodes that train with the culprit: a synchronous step waits for its slowest."""
    if not len(steps) or problem.kind == "checkpoint":
        return ()
    reported = np.isfinite(steps.phases["compute_s"][-1])
    training = {inputs.node_of(steps.workers[i]) for i in np.flatnonzero(reported)}
    culprits = {problem.node, *(inputs.node_of(worker) for worker in problem.late)}
    return tuple(node for node in inputs.nodes if node in training - culprits)


def evidence_of(inputs: DetectionInput, steps: StepBatch, problem: Problem) -> dict[str, Any]:
    """docs/rules.md lists the keys."""
    score = problem.score
    began = int(np.searchsorted(steps.ended_at_s, _began_s(inputs, problem)))
    before, newest = steps[:began], steps[began + 1 :].last(NEWEST_STEPS)
    return {
        "kind": problem.kind,
        "step_s": middle(newest.step_s) if len(newest) else None,
        "step_scatter_s": noise(steps[began + 1 :].last(RECENT_STEPS).step_s),
        "baseline_step_s": middle(before.step_s) if len(before) > 2 else None,
        "wait_ratio": _mean_ratio(newest.wait_ratio),
        "transfer_ratio": _mean_ratio(newest.transfer_ratio),
        "culprit": score.figure() if score else None,
        "late_workers": list(problem.late),
        "ruled_out": ruled_out_json(problem.ruled_out),
        "onset_s": problem.onset_s,
        "window": [problem.onset_s - LEAD_S, inputs.now_s],
        "charts": score.charts if score else [],
        **problem.extra,
    }


Finder = Callable[[DetectionInput], list[Finding]]
# Rules that do not depend on others. Add a new one here.
INDEPENDENT_RULES: Mapping[str, Finder] = {
    "hang": hang,
    "workers_missing": missing_workers,
    "recompile": recompile,
    "exec_errors": exec_errors,
    "node_idle": node_idle,
    "ecc_uncorrected": memory_errors,
    "device_unhealthy": rejected_devices,
    "device_missing": lost_devices,
    "loss_not_finite": loss_not_finite,
    "loss_spike": loss_spike,
}


# Evaluated together by `find_slowdowns`.
SLOWDOWNS = names_of(lambda rule: rule.slows_steps and rule.reads == "measurements")


def find(
    inputs: DetectionInput,
    *,
    open_rules: Collection[str] = (),
    rules: Mapping[str, Finder] = INDEPENDENT_RULES,
    guard: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    slowdowns: Callable[..., list[Finding]] = find_slowdowns,
) -> list[Finding]:
    """All rules that the run breaks now.

    ``open_rules``: the rules with an open alert on this run. It matters only where the window
    contains neither a start nor an end of a problem. Without steps no step rule fires or resolves:
    leave such alerts unchanged. ``rules`` are the independent ones. Each rule runs in
    ``guard(name)``, which may suppress its exceptions; the others are evaluated all the same.
    """
    found = list[Finding]()
    slow: Finder = partial(slowdowns, open_rules=open_rules)
    for name, rule in {"step_slow": slow, **rules}.items():
        with guard(name):
            found += (each for each in rule(inputs) if _exceeds_own_limit(inputs, each))
    return found


def _exceeds_own_limit(inputs: DetectionInput, finding: Finding) -> bool:
    """Whether a finding is above the limit that its run has of its own, if it has one.

    Such a limit is not below that of the rule. A finding without the figure stays.
    """
    name, over, under = RULES[finding.rule].own_limit or ("", "", None)
    limit = inputs.own_limits.get(f"{finding.rule}.{name}")
    figure = finding.evidence.get(over)
    usual = finding.evidence.get(under) if under else 1.0
    if limit is None or figure is None or not usual:
        return True
    if finding.rule != "step_slow":
        return bool(figure / usual >= limit)
    is_open = any(each.rule == finding.rule for each in inputs.open_problems)
    half = RULES[finding.rule].limits["half_ratio"] if is_open else 1.0
    return bool(figure / usual - 1.0 >= limit * half)
