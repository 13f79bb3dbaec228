"""All that slows a run, from its steps and its hardware together: a finding for each problem."""

from collections.abc import Collection
from typing import Any

import numpy as np

from telemetry.blocks import METRICS, FloatArray
from telemetry.detect.evidence import LEAD_S
from telemetry.detect.finding import UNKNOWN, Finding
from telemetry.detect.headline import SHARE, all_reduce
from telemetry.detect.look import ruled_out_figures
from telemetry.detect.parts.fabric import fabric
from telemetry.detect.parts.silicon import silicon
from telemetry.detect.peers import middle
from telemetry.detect.problem import KIND_OF, Problem
from telemetry.detect.rules import RULES, Severity
from telemetry.detect.sighting import LINK_CAUSES, RULE_OF_NODE, Sighting, remembered
from telemetry.detect.steps.case import NEWEST_STEPS
from telemetry.detect.steps.checkpoints import slow_checkpoint
from telemetry.detect.steps.loading import loading
from telemetry.detect.steps.pace import comparable
from telemetry.detect.steps.slow import (
    arriving_late,
    computing_slowly,
    moving_slowly,
    taking_longer,
)
from telemetry.detect.steps.stages import longer_stage
from telemetry.detect.steps.starved import starved
from telemetry.detect.steps.uneven import uneven
from telemetry.detect.vitals import Standing, Vitals, divided, reported
from telemetry.detect.witness import Witness
from telemetry.steps import StepBatch

# So many workers are a large crowd.
LARGE = 24
# Nobody need get up at night for uneven work, or for what has no culprit yet.
NOT_URGENT = ("seq_imbalance", "stage_imbalance", UNKNOWN)


def performance(vitals: Vitals, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return what slows the run: at most one finding for each problem.

    What hardware shows comes first; what steps show beside it is told only where the hardware
    does not explain it; a share above its limit takes over the problem that explains it.
    """
    steps = reported(vitals.steps)
    problems = _of_hardware(vitals) if vitals.looks else []
    if not len(steps):
        return _findings(vitals, steps, problems)
    alike, timed = comparable(steps), divided(steps)
    of_steps = slow_checkpoint(vitals, alike) + loading(vitals, steps)
    if not of_steps and _is_calm(vitals, open_rules):
        return _findings(vitals, steps, _unexplained(vitals, problems, seen=problems))
    witness = Witness(vitals)
    accused = _accused(vitals, problems)
    if timed is steps:
        of_steps += _of_steps(witness.vitals, alike, accused)
    else:
        of_steps += _of_untimed(witness.vitals, alike, timed, accused)
    share, rest = _told(vitals, timed, problems, of_steps, is_open=SHARE in open_rules)
    is_quiet = not (of_steps or share or witness.asked or vitals.standing or open_rules)
    if vitals.recall is not None:
        vitals.recall.note(vitals.steps, is_calm=is_quiet)
    return ([share] if share else []) + _findings(vitals, steps, rest)


def _is_calm(vitals: Vitals, open_rules: Collection[str]) -> bool:
    """Tell whether the steps are known to show nothing, and no alert says otherwise."""
    if vitals.recall is None or vitals.standing or open_rules:
        return False
    return vitals.recall.is_calm(vitals.steps)


def _told(
    vitals: Vitals,
    steps: StepBatch,
    problems: list[Problem],
    of_steps: list[Problem],
    *,
    is_open: bool,
) -> tuple[Finding | None, list[Problem]]:
    """Return what the headline rule says, and the problems that it does not speak of.

    ``steps`` are those whose exchange was timed: without one nobody knows the share.
    """
    lasting = _lasting(vitals, problems, of_steps)
    borne_out = [p for p in of_steps if _is_borne_out(p, problems + lasting)]
    problems = _unexplained(vitals, problems + lasting + borne_out, seen=problems)
    if not len(steps):
        return None, problems
    return all_reduce(vitals, steps, problems, is_open=is_open)


def _of_hardware(vitals: Vitals) -> list[Problem]:
    """Return what the machines show of themselves."""
    return [_of_sighting(each) for each in silicon(vitals) + fabric(vitals)]


def _lasting(vitals: Vitals, seen: list[Problem], of_steps: list[Problem]) -> list[Problem]:
    """Return what has open alerts, is mended, and still explains the steps it slowed.

    A step that is slow ends after its machine is well again: that is no new problem.
    """
    known = {(problem.cause, problem.node) for problem in seen}
    mended = [
        _of_sighting(Sighting(remembered(alert), _onset_s(alert, vitals.now_s)))
        for alert in vitals.standing
        if alert.cause in RULE_OF_NODE and alert.node and (alert.cause, alert.node) not in known
    ]
    open_ones = [p for p in of_steps if not any(_explains(vitals, one, p) for one in seen)]
    return [one for one in mended if any(_explains(vitals, one, p) for p in open_ones)]


def _is_borne_out(problem: Problem, seen: list[Problem]) -> bool:
    """Tell whether a part that steps accuse is sick by its own account, now.

    Steps tell what was: a machine may be well again when they end, or has not shown it for long
    enough. The only part of a node has no neighbours to stand out from.
    """
    look = problem.look
    if look is None or look.node is None or look.device is None:
        return True
    if look.is_only_part or look.n_peers == 0:
        return True
    return any(one.node == problem.node for one in seen)


def _onset_s(alert: Standing, now_s: float) -> float:
    """Return since when an open alert has been so, as far as it says."""
    onset_s = alert.evidence.get("onset_s")
    return now_s if onset_s is None else float(onset_s)


def _of_sighting(each: Sighting) -> Problem:
    look = each.look
    return Problem(look.cause, look, KIND_OF[look.cause], each.onset_s, look.strength)


def _accused(vitals: Vitals, problems: list[Problem]) -> set[str | None]:
    """Return the nodes whose own hardware says that they are slow, or said so lately."""
    held = {alert.node for alert in vitals.standing if alert.cause in RULE_OF_NODE}
    return held | {problem.node for problem in problems}


def _of_steps(vitals: Vitals, steps: StepBatch, accused: Collection[str | None]) -> list[Problem]:
    """Return what the steps show, the most special evidence first."""
    found = starved(vitals, steps) + uneven(vitals, steps, accused=accused)
    looks = (moving_slowly, longer_stage, arriving_late, computing_slowly)
    return found + [problem for look in looks for problem in look(vitals, steps)]


def _of_untimed(
    vitals: Vitals, steps: StepBatch, timed: StepBatch, accused: Collection[str | None]
) -> list[Problem]:
    """Return what steps show of which nobody timed the exchange, or only of every so many.

    Input and the pace as a whole need no split. Who waits for whom, and how long bytes move, is
    told by the steps that were timed.
    """
    found = starved(vitals, steps)
    if len(timed):
        alike = comparable(timed)
        found += uneven(vitals, alike, accused=accused)
        looks = (moving_slowly, longer_stage, arriving_late)
        found += [problem for look in looks for problem in look(vitals, alike)]
    return found + taking_longer(vitals, steps)


def _unexplained(vitals: Vitals, problems: list[Problem], *, seen: list[Problem]) -> list[Problem]:
    """Leave out what another problem, earlier in the list, explains.

    Of parts that were ``seen`` to be sick none explains another of its node.
    """
    kept: list[Problem] = []
    for problem in problems:
        is_part = problem.kind == "waiting" and any(problem is each for each in seen)
        if is_part or not any(_explains(vitals, other, problem) for other in kept):
            kept.append(problem)
    return kept


def _explains(vitals: Vitals, one: Problem, other: Problem) -> bool:
    """Tell whether the second problem is the first one, seen another way."""
    if other.kind == "step":
        # Nobody knows what in the step takes longer: whatever slows steps may be it.
        return one.kind != "checkpoint"
    if other.kind == "transferring":
        return one.cause in LINK_CAUSES and _is_same_link(one, other)
    if other.kind == "computing":
        alone = len(vitals.nodes) == 1 and one.kind == "waiting"
        # Of a large crowd's quickest workers nobody drew a long sequence.
        is_uneven = one.cause == "seq_imbalance" and len(vitals.steps.workers) < LARGE
        return alone or is_uneven
    if other.kind == "waiting":
        nodes = {vitals.node_of(worker) for worker in other.late[:1]} | {other.node}
        # Uneven work makes somebody late in every step: only its own hardware convicts a machine.
        is_uneven = one.cause == "seq_imbalance" and bool(other.late)
        # A sick link makes everybody wait alike, and nobody late.
        return is_uneven or (
            one.kind != "transferring" and one.node is not None and one.node in nodes
        )
    return False


def _is_same_link(one: Problem, other: Problem) -> bool:
    """Tell whether two problems of links may be one: no fabric hides a link sick otherwise."""
    if one.node is None and other.node is not None:
        return one.cause == other.cause
    return other.node is None or one.node == other.node


def _findings(vitals: Vitals, steps: StepBatch, problems: list[Problem]) -> list[Finding]:
    """Return one finding per rule and subject: of what has an alert already, else the worst."""
    standing = {(alert.rule, alert.cause, alert.node) for alert in vitals.standing}
    order = sorted(
        problems, key=lambda p: ((p.rule, p.cause, p.node) not in standing, -p.strength)
    )
    found: dict[tuple[str, str | None], Finding] = {}
    for problem in order:
        subject = problem.node if RULES[problem.rule].subject == "node" else None
        found.setdefault((problem.rule, subject), _finding(vitals, steps, problem))
    return list(found.values())


def _finding(vitals: Vitals, steps: StepBatch, problem: Problem) -> Finding:
    """Put a problem into words that alerts understand."""
    severity: Severity = RULES[problem.rule].severity
    return Finding(
        rule=problem.rule,
        cause=problem.cause,
        severity="warn" if problem.cause in NOT_URGENT and problem.node is None else severity,
        run=vitals.run,
        node=problem.node,
        device=problem.device,
        onset_s=problem.onset_s,
        score=problem.strength,
        victims=_victims(vitals, steps, problem),
        evidence=_evidence(vitals, steps, problem),
    )


def _mean_ratio(ratio: FloatArray) -> float | None:
    """Return the mean of the steps that tell it; None where none does: unknown, never zero."""
    told = ratio[np.isfinite(ratio)]
    return float(told.mean()) if told.size else None


def _victims(vitals: Vitals, steps: StepBatch, problem: Problem) -> tuple[str, ...]:
    """Return the nodes that train with the culprit: a synchronous step waits for its slowest."""
    if not len(steps) or problem.kind == "checkpoint":
        return ()
    told = np.isfinite(steps.phases["compute_s"][-1])
    training = {vitals.node_of(steps.workers[i]) for i in np.flatnonzero(told)}
    to_blame = {problem.node, *(vitals.node_of(worker) for worker in problem.late)}
    return tuple(node for node in vitals.nodes if node in training - to_blame)


def _evidence(vitals: Vitals, steps: StepBatch, problem: Problem) -> dict[str, Any]:
    """Return the evidence; docs/rules.md explains every key."""
    look = problem.look
    began = int(np.searchsorted(steps.ended_at_s, problem.onset_s))
    before, newest = steps[:began], steps[began + 1 :].last(NEWEST_STEPS)
    is_told = look is not None and look.node is not None and look.metric in METRICS
    return {
        "kind": problem.kind,
        "step_s": middle(newest.step_s) if len(newest) else None,
        "baseline_step_s": middle(before.step_s) if len(before) > 2 else None,
        "wait_ratio": _mean_ratio(newest.wait_ratio),
        "transfer_ratio": _mean_ratio(newest.transfer_ratio),
        "culprit": look.figure() if look else None,
        "late_workers": list(problem.late),
        "ruled_out": ruled_out_figures(problem.ruled_out),
        "onset_s": problem.onset_s,
        "window": [problem.onset_s - LEAD_S, vitals.now_s],
        "charts": [{"metric": look.metric, "node": look.node, "device": look.device}]
        if look is not None and is_told
        else [],
        **problem.more,
    }
