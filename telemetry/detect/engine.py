"""Apply all rules to one run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telemetry.blocks import METRICS, FloatArray
from telemetry.detect.causes import CLASS_OF, CLASSES, UNKNOWN, explanations_json, symptoms_json
from telemetry.detect.checkpoints import find_slow_checkpoint
from telemetry.detect.fabric import find_efa_symptoms, score_links
from telemetry.detect.findings import (
    KIND_OF,
    LINK_CAUSES,
    RULE_OF_NODE,
    CauseScore,
    Finding,
    Problem,
    Symptom,
    ruled_out_json,
    score_of_alert,
    strongest,
)
from telemetry.detect.hang import hang
from telemetry.detect.inputs import (
    AccessRecorder,
    DetectionInput,
    OpenProblem,
    reported_steps,
    times_transfer,
    with_timed_exchange,
)
from telemetry.detect.intermittent import find_intermittent_loss
from telemetry.detect.node_errors import exec_errors, node_idle, uncorrected
from telemetry.detect.pace import comparable_steps
from telemetry.detect.progress import find_slow_progress
from telemetry.detect.recompile import recompile
from telemetry.detect.rules import RULES, Severity
from telemetry.detect.share import (
    BASELINE_STEPS,
    NEWEST_STEPS,
    Kind,
    ShareCase,
    episode,
    open_case,
)
from telemetry.detect.silicon import find_unhealthy_hardware
from telemetry.detect.slow import (
    find_input_stall,
    find_late_workers,
    find_loading_nodes,
    find_slow_compute,
    find_slow_exchange,
    find_slow_steps,
)
from telemetry.detect.stragglers import POWER, Lateness, find_longer_stage, lateness, score_workers
from telemetry.detect.symptoms import scope_of, symptoms_of, with_best_cause
from telemetry.detect.uneven import find_uneven_work
from telemetry.statistics.peers import mean, middle
from telemetry.steps import StepBatch

LAYOUT = "communication-bound layout"
# The second rise is explained only if it is at least this share of the first.
SECOND_KIND_RATIO = 0.3
# A rise below this part of the limit is normal variation.
SMALL_RISE_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``score`` is the cause that holds (None: unknown), ``ruled_out`` those that do not."""

    score: CauseScore | None
    kind: str
    lateness: Lateness
    ruled_out: tuple[CauseScore, ...] = ()

    @property
    def cause(self) -> str:
        return self.score.cause if self.score else UNKNOWN

    @property
    def is_layout(self) -> bool:
        """Whether nothing is broken: the layout of the run needs that much communication."""
        return self.kind == LAYOUT


def diagnose_share(case: ShareCase) -> Diagnosis:
    """Find the cause of a share above its limit, and a culprit if the measurements show one.

    The larger rise, waiting or transferring, is explained first. The other one is tried where the
    first has no explanation and the other is at least SECOND_KIND_RATIO of it.
    """
    late = lateness(case.after)
    scores: list[CauseScore] = []
    for kind in _kinds_to_explain(case):
        new = score_workers(case, late) if kind == "waiting" else score_links(case)
        scores += new
        if best := strongest(new):
            return Diagnosis(best, kind, late, _ruled_out(scores, best))
    shown = LAYOUT if _is_layout(case) else case.kind
    return Diagnosis(None, shown, late, _ruled_out(scores, None))


def _kinds_to_explain(case: ShareCase) -> list[Kind]:
    rise_s = case.rise_s
    kinds: list[Kind] = sorted(rise_s, key=lambda kind: -rise_s[kind])
    least_s = SECOND_KIND_RATIO * max(rise_s.values())
    return [kind for kind in kinds if rise_s[kind] >= least_s]


def _is_layout(case: ShareCase) -> bool:
    """Whether the transfer always took that long, or does since the run was changed."""
    if case.takes_no_longer:
        return True
    if case.kind == "waiting":
        return False
    always = case.share_rise_ratio < SMALL_RISE_RATIO * case.inputs.limit_ratio
    return case.before is None or always or bool(case.changed)


def _ruled_out(scores: list[CauseScore], best: CauseScore | None) -> tuple[CauseScore, ...]:
    return tuple(score for score in scores if score is not best and not score.stands_out)


# Charts begin this long before the onset to show the normal level.
LEAD_S = 120.0
WORST_WORKERS = 64


def share_evidence(case: ShareCase, verdict: Diagnosis) -> dict[str, Any]:
    """Evidence of the rule allreduce_share; docs/rules.md lists the keys."""
    after, inputs = case.after, case.inputs
    wait = float(case.newest.wait_ratio.mean())
    transfer = float(case.newest.transfer_ratio.mean())
    score = verdict.score
    return {
        "share_ratio": wait + transfer,
        "wait_ratio": wait,
        "transfer_ratio": transfer,
        "limit_ratio": inputs.limit_ratio,
        "resolve_ratio": inputs.resolve_ratio,
        "kind": verdict.kind,
        "step": int(after.step[-1]),
        "step_s": middle(case.newest.step_s),
        "baseline_step_s": _baseline_step_s(case),
        "changed": list(case.changed),
        "culprit": score.figure() if score else None,
        "wait_by_worker": _wait_by_worker(case),
        "late_workers": [after.workers[i] for i in verdict.lateness.late],
        "unreported": _unreported(case),
        "ruled_out": ruled_out_json(verdict.ruled_out),
        "onset_s": case.onset_s,
        "window": [case.onset_s - LEAD_S, inputs.now_s],
        "charts": _charts(verdict),
    }


def _baseline_step_s(case: ShareCase) -> float | None:
    """Step time before; None where unknown or not comparable."""
    if case.before is None or case.changed:
        return None
    return middle(case.before.step_s)


def _wait_by_worker(case: ShareCase) -> dict[str, float]:
    """Seconds each worker waits per step; in a large run, only the workers that wait least."""
    wait: FloatArray = mean(case.after.phases["wait_s"], axis=0)
    order = np.argsort(wait)[:WORST_WORKERS]
    shown = sorted(int(i) for i in order if np.isfinite(wait[i]))
    return {case.after.workers[i]: float(wait[i]) for i in shown}


def _unreported(case: ShareCase) -> list[str]:
    """Workers without a step report since the onset."""
    known = np.isfinite(case.after.phases["wait_s"]).any(axis=0)
    return [case.after.workers[i] for i in np.flatnonzero(~known)]


def _charts(verdict: Diagnosis) -> list[dict[str, Any]]:
    """Charts of the hardware metric that identifies the culprit."""
    score = verdict.score
    if score is None or score.node is None or score.metric not in METRICS:
        return []
    return [{"metric": score.metric, "node": score.node, "device": score.device}]


SHARE = "allreduce_share"
# Earlier steps are read this far before the window.
LOOKBACK_S = 300.0
# A problem that begins this much later than the share rose is not its cause.
UNRELATED_AFTER_S = 60.0


def apply_share_rule(
    inputs: DetectionInput, steps: StepBatch, problems: list[Problem], *, is_open: bool
) -> tuple[Finding | None, list[Problem]]:
    """Apply the rule allreduce_share.

    Parameters
    ----------
    problems : by steps and hardware

    Returns
    -------
    The finding, if the share is above its limit, and the problems it does not cover. None where
    the run was changed and the all-reduce takes no longer than before: a smaller batch makes any
    share larger, which is not a fault.
    """
    since = episode(
        steps.allreduce_share_ratio,
        limit_ratio=inputs.limit_ratio,
        resolve_ratio=inputs.resolve_ratio,
        is_open=is_open,
    )
    if since is None:
        return None, problems
    case = open_case(inputs, steps, since)
    verdict = _keep_everywhere(inputs, diagnose_share(case))
    chosen = _choose_problem(inputs, verdict, problems)
    began_s = inputs.now_s if chosen is None else chosen.onset_s
    layout_s = _layout_since_s(inputs)
    if layout_s is not None and began_s - layout_s > UNRELATED_AFTER_S:
        case = replace(case, onset_s=min(case.onset_s, layout_s))
        return _share_finding(case, replace(verdict, score=None, kind=LAYOUT)), problems
    is_known = chosen is not None or verdict.score is not None or is_open
    if not is_known and (case.is_diluted or (verdict.is_layout and _predates_window(case, steps))):
        return None, problems
    if chosen is not None and chosen.score is not None:
        # The culprit of the problem replaces that of the diagnosis.
        kind = "transferring" if chosen.cause in LINK_CAUSES else "waiting"
        ruled_out = tuple(score for score in verdict.ruled_out if score.cause != chosen.cause)
        verdict = replace(verdict, score=chosen.score, kind=kind, ruled_out=ruled_out)
    rest = [p for p in problems if p is not chosen and not _is_explained(p, verdict)]
    return _named(inputs, steps, _share_finding(case, verdict), verdict, rest), rest


def _named(
    inputs: DetectionInput,
    steps: StepBatch,
    finding: Finding,
    verdict: Diagnosis,
    others: list[Problem],
) -> Finding:
    """Let the table of causes name the finding, and add the table to its evidence."""
    if verdict.is_layout:
        return finding
    kind: Kind = "transferring" if verdict.kind == "transferring" else "waiting"
    problem = Problem(verdict.cause, verdict.score, kind, finding.onset_s, finding.score)
    problem = with_best_cause(inputs, steps, problem, others)
    table = _causes_json(inputs, steps, problem, others)
    evidence = {**finding.evidence, **table}
    return replace(finding, cause=problem.cause, device=problem.device, evidence=evidence)


def _layout_since_s(inputs: DetectionInput) -> float | None:
    """When the open alert says that the layout needs that much communication.

    A problem that begins much later gets its own alert.
    """
    for alert in inputs.open_problems:
        onset_s = alert.evidence.get("onset_s")
        is_layout = alert.cause == UNKNOWN and alert.evidence.get("kind") == LAYOUT
        if alert.rule == SHARE and is_layout and onset_s is not None:
            return float(onset_s)
    return None


def _keep_everywhere(inputs: DetectionInput, verdict: Diagnosis) -> Diagnosis:
    """Accuse no single node while the open alert accuses the same device of most nodes."""
    score = verdict.score
    for alert in inputs.open_problems:
        is_everywhere = alert.rule == SHARE and alert.node is None and alert.device is not None
        if score and is_everywhere and (alert.cause, alert.device) == (score.cause, score.device):
            return replace(verdict, score=replace(score, node=None))
    return verdict


def _predates_window(case: ShareCase, steps: StepBatch) -> bool:
    """Whether the run was like this before the window, without an alert."""
    if case.before is not None or case.inputs.earlier is None:
        return False
    earlier = case.inputs.earlier(float(steps.ended_at_s[0]) - LOOKBACK_S)
    return bool((earlier.ended_at_s < steps.ended_at_s[0] - 1.0).sum() >= BASELINE_STEPS)


def _choose_problem(
    inputs: DetectionInput, verdict: Diagnosis, problems: list[Problem]
) -> Problem | None:
    """Return the problem behind the share: the one with the same culprit, else the strongest.

    The problem of the open alert comes first while it lasts, so that the alert does not alternate
    between two culprits.
    """
    reported = [p for p in problems if p.score is not None]
    possible = [p for p in reported if _can_explain(p, verdict)]
    held = {
        (alert.cause, alert.node)
        for alert in inputs.open_problems
        if alert.rule == SHARE or "share_ratio" in alert.evidence
    }
    # An accused node stays accused if a stronger problem of another kind appears. A problem
    # without a node does not.
    candidates = possible + [p for p in reported if p.node is not None]
    if (same := next((p for p in candidates if (p.cause, p.node) in held), None)) is not None:
        return same
    if verdict.score is not None:
        matching = (
            p for p in possible if _has_same_culprit(p, verdict) or _is_late(inputs, p, verdict)
        )
        chosen = next(matching, None)
        if chosen is not None or verdict.cause != UNKNOWN:
            return chosen
    return max(possible, key=lambda p: p.strength, default=None)


def _is_late(inputs: DetectionInput, problem: Problem, verdict: Diagnosis) -> bool:
    """Whether the accused node is what the diagnosis takes for a long stage."""
    late = {inputs.node_of(inputs.steps.workers[i]) for i in verdict.lateness.late}
    is_stage = verdict.cause == "stage_imbalance"
    return is_stage and problem.node is not None and late == {problem.node}


def _can_explain(problem: Problem, verdict: Diagnosis) -> bool:
    """Whether a problem raises the share in the observed way."""
    is_link = problem.cause in LINK_CAUSES
    if problem.kind in {"computing", "checkpoint", "step"}:
        return False
    return is_link == (verdict.kind != "waiting")


def _has_same_culprit(problem: Problem, verdict: Diagnosis) -> bool:
    """Whether a problem has the culprit of the diagnosis, or neither has one."""
    score = verdict.score
    if score is None:
        return False
    if score.node is None or problem.node is None:
        return problem.cause == score.cause
    return problem.node == score.node


def _is_explained(problem: Problem, verdict: Diagnosis) -> bool:
    """Whether a problem is another view of what raises the share."""
    if _has_same_culprit(problem, verdict):
        # A node can have both a bad link and a late worker.
        if (problem.cause in LINK_CAUSES) != (verdict.kind != "waiting"):
            return False
        devices = {problem.device, verdict.score.device if verdict.score else None}
        return None in devices or len(devices) == 1 or problem.cause == verdict.cause
    is_symptom = problem.score is None or (problem.node is None and bool(problem.late))
    return is_symptom and problem.kind == verdict.kind


def _share_finding(case: ShareCase, verdict: Diagnosis) -> Finding:
    share = float(case.newest.allreduce_share_ratio.mean())
    score = verdict.score
    return Finding(
        rule=SHARE,
        cause=verdict.cause,
        # A layout or a change of the run does not justify a page.
        severity="warn" if verdict.is_layout else RULES[SHARE].severity,
        run=case.inputs.run,
        node=score.node if score else None,
        device=score.device if score else None,
        onset_s=case.onset_s,
        score=share / case.inputs.limit_ratio,
        victims=_share_victims(case, verdict),
        evidence=share_evidence(case, verdict),
    )


def _share_victims(case: ShareCase, verdict: Diagnosis) -> tuple[str, ...]:
    """Training nodes that are slowed without being the cause."""
    node_of, workers = case.inputs.node_of, case.after.workers
    culprits = {verdict.score.node} if verdict.score else set()
    if verdict.cause == "stage_imbalance":
        culprits = {node_of(workers[i]) for i in verdict.lateness.late}
    reported = np.isfinite(case.after.phases["wait_s"]).any(axis=0)
    training = {node_of(workers[i]) for i in np.flatnonzero(reported)}
    return tuple(node for node in case.inputs.nodes if node in training - culprits)


# A fault of hardware that was seen so many seconds ago still explains slow executions. Early in
# it, its parts were not like that before.
OUTLASTS_S = (20, 60, 120)
# From this many workers on, sequence lengths average out.
MANY_WORKERS = 24
# Uneven work, or an unknown cause without a node, does not justify a page.
NOT_URGENT = ("seq_imbalance", "stage_imbalance", UNKNOWN, *CLASSES)


def find_slowdowns(inputs: DetectionInput, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return what slows the run: at most one finding per problem.

    Hardware symptoms come first. Step symptoms count where no hardware symptom explains them. A
    share above its limit takes over the problem that explains it.
    """
    steps = reported_steps(inputs.steps)
    problems = (
        [_problem_of(each) for each in find_unhealthy_hardware(inputs) + find_efa_symptoms(inputs)]
        if inputs.reads_hardware
        else []
    )
    if not len(steps):
        of_run = find_slow_checkpoint(inputs, steps) or find_slow_progress(inputs)
        if of_run and not problems and not inputs.open_problems:
            # Hardware is well again before executions show it.
            pasts = (inputs.ago(seconds) for seconds in OUTLASTS_S)
            lately = any(find_unhealthy_hardware(p) or find_efa_symptoms(p) for p in pasts)
            of_run = [] if lately else of_run
        lasting = _outlasting(inputs, problems, of_run)
        problems = _unexplained(inputs, problems + lasting + of_run, seen=problems)
        return _performance_findings(inputs, steps, problems)
    alike, timed = comparable_steps(steps), with_timed_exchange(steps)
    of_steps = find_slow_checkpoint(inputs, alike) or find_loading_nodes(inputs, steps)
    if not of_steps and _is_calm(inputs, open_rules):
        return _performance_findings(inputs, steps, _unexplained(inputs, problems, seen=problems))
    recorder = AccessRecorder(inputs)
    held = {alert.node for alert in inputs.open_problems if alert.cause in RULE_OF_NODE}
    accused = held | {problem.node for problem in problems}
    if timed is steps:
        of_steps += _step_problems(recorder.inputs, alike, accused)
    else:
        of_steps += _untimed_problems(recorder.inputs, alike, timed, accused)
    share, rest = _share_and_rest(inputs, timed, problems, of_steps, is_open=SHARE in open_rules)
    is_quiet = not (of_steps or share or recorder.was_read or inputs.open_problems or open_rules)
    if inputs.calm_cache is not None:
        inputs.calm_cache.note(inputs.steps, is_calm=is_quiet)
    return ([share] if share else []) + _performance_findings(inputs, steps, rest)


def _is_calm(inputs: DetectionInput, open_rules: Collection[str]) -> bool:
    """Whether these steps are known to be healthy and no alert is open."""
    if inputs.calm_cache is None or inputs.open_problems or open_rules:
        return False
    return inputs.calm_cache.is_calm(inputs.steps)


def _share_and_rest(
    inputs: DetectionInput,
    steps: StepBatch,
    problems: list[Problem],
    of_steps: list[Problem],
    *,
    is_open: bool,
) -> tuple[Finding | None, list[Problem]]:
    """Return the finding of the rule allreduce_share, and the problems it does not cover.

    ``steps`` have a timed exchange; without one the share is unknown.
    """
    lasting = _outlasting(inputs, problems, of_steps)
    confirmed = [p for p in of_steps if _is_confirmed(p, problems + lasting)]
    problems = _unexplained(inputs, problems + lasting + confirmed, seen=problems)
    if not len(steps):
        return None, problems
    return apply_share_rule(inputs, steps, problems, is_open=is_open)


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
        _problem_of(Symptom(score_of_alert(alert), _onset_s(alert, inputs.now_s)))
        for alert in inputs.open_problems
        if alert.cause in RULE_OF_NODE
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


def _onset_s(alert: OpenProblem, now_s: float) -> float:
    onset_s = alert.evidence.get("onset_s")
    return now_s if onset_s is None else float(onset_s)


def _problem_of(each: Symptom) -> Problem:
    score = each.score
    return Problem(score.cause, score, KIND_OF[score.cause], each.onset_s, score.strength)


def _step_problems(
    inputs: DetectionInput, steps: StepBatch, accused: Collection[str | None]
) -> list[Problem]:
    """Problems by steps, the most specific evidence first."""
    found = find_input_stall(inputs, steps) + find_uneven_work(inputs, steps, accused=accused)
    finders = (find_slow_exchange, find_longer_stage, find_late_workers, find_slow_compute)
    found += [problem for finder in finders for problem in finder(inputs, steps)]
    return _with_intermittent_loss(inputs, steps, found)


def _untimed_problems(
    inputs: DetectionInput, steps: StepBatch, timed: StepBatch, accused: Collection[str | None]
) -> list[Problem]:
    """Problems by steps without a timed exchange, or with one every few steps.

    Input time and total step time need no split. Waiting and transfer come from the timed steps.
    """
    found = find_input_stall(inputs, steps)
    if len(timed):
        alike = comparable_steps(timed)
        found += find_uneven_work(inputs, alike, accused=accused)
        finders = (find_slow_exchange, find_longer_stage, find_late_workers)
        found += [problem for finder in finders for problem in finder(inputs, alike)]
    return _with_intermittent_loss(inputs, steps, found + find_slow_steps(inputs, steps))


def _with_intermittent_loss(
    inputs: DetectionInput, steps: StepBatch, found: list[Problem]
) -> list[Problem]:
    """Let the long steps of one node be one problem, not one each time."""
    again = find_intermittent_loss(inputs, steps)
    if not any(each.node for each in again):
        return found + again
    return again + [each for each in found if each.kind not in ("waiting", "computing", "step")]


def _unexplained(
    inputs: DetectionInput, problems: list[Problem], *, seen: list[Problem]
) -> list[Problem]:
    """Drop problems that an earlier one in the list explains.

    Parts with hardware symptoms (``seen``) do not explain each other.
    """
    kept: list[Problem] = []
    for problem in problems:
        is_part = problem.kind == "waiting" and any(problem is each for each in seen)
        if is_part or not any(_explains(inputs, other, problem) for other in kept):
            kept.append(problem)
    return kept


def _explains(inputs: DetectionInput, one: Problem, other: Problem) -> bool:
    """Whether the second problem is another view of the first."""
    if other.kind == "step":
        # Without a split, anything that slows steps can be the reason.
        return one.kind != "checkpoint"
    if other.kind == "transferring":
        return one.cause in LINK_CAUSES and _is_same_link(one, other)
    if other.kind == "computing":
        if one.cause in LINK_CAUSES and not times_transfer(inputs.steps):
            return True
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
    """Return one finding per rule and subject: the one with an open alert, else the strongest."""
    problems = [with_best_cause(inputs, steps, each, problems) for each in problems]
    with_alert = {(alert.rule, alert.cause, alert.node) for alert in inputs.open_problems}
    order = sorted(
        problems, key=lambda p: ((p.rule, p.cause, p.node) not in with_alert, -p.strength)
    )
    found: dict[tuple[str, str | None], Finding] = {}
    for problem in order:
        subject = problem.node if RULES[problem.rule].subject == "node" else None
        found.setdefault(
            (problem.rule, subject), _performance_finding(inputs, steps, problem, problems)
        )
    return list(found.values())


def _performance_finding(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: list[Problem]
) -> Finding:
    severity: Severity = RULES[problem.rule].severity
    return Finding(
        rule=problem.rule,
        cause=problem.cause,
        severity="warn" if problem.cause in NOT_URGENT and problem.node is None else severity,
        run=inputs.run,
        node=problem.node,
        device=problem.device,
        onset_s=problem.onset_s,
        score=problem.strength,
        victims=_performance_victims(inputs, steps, problem),
        evidence=_evidence(inputs, steps, problem) | _causes_json(inputs, steps, problem, others),
    )


def _causes_json(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: list[Problem]
) -> dict[str, Any]:
    """Which causes were weighed, and by which symptoms."""
    symptoms = symptoms_of(inputs, steps, problem, others)
    scope = scope_of(problem)
    return {
        "symptoms": symptoms_json(symptoms),
        "causes": explanations_json(symptoms, scope=scope, named=problem.cause),
    }


def _mean_ratio(ratio: FloatArray) -> float | None:
    """Mean over steps with a known ratio; None (unknown, not zero) without one."""
    reported = ratio[np.isfinite(ratio)]
    return float(reported.mean()) if reported.size else None


def _performance_victims(
    inputs: DetectionInput, steps: StepBatch, problem: Problem
) -> tuple[str, ...]:
    """Nodes that train with the culprit: a synchronous step waits for its slowest."""
    if not len(steps) or problem.kind == "checkpoint":
        return ()
    reported = np.isfinite(steps.phases["compute_s"][-1])
    training = {inputs.node_of(steps.workers[i]) for i in np.flatnonzero(reported)}
    culprits = {problem.node, *(inputs.node_of(worker) for worker in problem.late)}
    return tuple(node for node in inputs.nodes if node in training - culprits)


def _evidence(inputs: DetectionInput, steps: StepBatch, problem: Problem) -> dict[str, Any]:
    """docs/rules.md lists the keys."""
    score = problem.score
    began = int(np.searchsorted(steps.ended_at_s, problem.onset_s))
    before, newest = steps[:began], steps[began + 1 :].last(NEWEST_STEPS)
    is_known = score is not None and score.node is not None and score.metric in METRICS
    return {
        "kind": problem.kind,
        "step_s": middle(newest.step_s) if len(newest) else None,
        "baseline_step_s": middle(before.step_s) if len(before) > 2 else None,
        "wait_ratio": _mean_ratio(newest.wait_ratio),
        "transfer_ratio": _mean_ratio(newest.transfer_ratio),
        "culprit": score.figure() if score else None,
        "late_workers": list(problem.late),
        "ruled_out": ruled_out_json(problem.ruled_out),
        "onset_s": problem.onset_s,
        "window": [problem.onset_s - LEAD_S, inputs.now_s],
        "charts": [{"metric": score.metric, "node": score.node, "device": score.device}]
        if score is not None and is_known
        else [],
        **problem.extra,
    }


def memory_errors(inputs: DetectionInput) -> list[Finding]:
    return [] if inputs.counts is None else uncorrected(inputs.counts, run=inputs.run)


# Rules that do not depend on others. Add a new one here.
INDEPENDENT_RULES: Mapping[str, Callable[[DetectionInput], list[Finding]]] = {
    "hang": hang,
    "recompile": recompile,
    "exec_errors": exec_errors,
    "node_idle": node_idle,
    "ecc_uncorrected": memory_errors,
}


def find(inputs: DetectionInput, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """All rules that the run breaks now.

    ``open_rules``: the rules with an open alert on this run. It matters only where the window
    contains neither a start nor an end of a problem. Without steps no step rule fires or resolves:
    leave such alerts unchanged.
    """
    found = find_slowdowns(inputs, open_rules=open_rules)
    for rule in INDEPENDENT_RULES.values():
        found += rule(inputs)
    return found
