"""The headline rule applied: a share above its limit, and what is behind it."""

from dataclasses import replace

import numpy as np

from telemetry.detect.evidence import share_evidence
from telemetry.detect.finding import UNKNOWN, Finding
from telemetry.detect.problem import Problem
from telemetry.detect.rules import RULES
from telemetry.detect.sighting import LINK_CAUSES
from telemetry.detect.steps.case import BASELINE_STEPS, Case, open_case
from telemetry.detect.steps.localise import LAYOUT, Verdict, localise
from telemetry.detect.steps.share import episode
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

SHARE = "allreduce_share"
# How far before the window one looks for earlier steps.
LOOK_BACK_S = 300.0
# What begins so long after a share rose is not why it rose.
LATER_S = 60.0


def all_reduce(
    vitals: Vitals, steps: StepBatch, problems: list[Problem], *, is_open: bool
) -> tuple[Finding | None, list[Problem]]:
    """Apply the headline rule.

    Parameters
    ----------
    problems : what steps and hardware show otherwise

    Returns
    -------
    The finding, if the share is above its limit, and the problems that it does not speak of.
    None where somebody changed the run and the all-reduce takes no longer than it did: a smaller
    batch makes any share larger, and nobody is to be called for it.
    """
    since = episode(
        steps.allreduce_share_ratio,
        limit_ratio=vitals.limit_ratio,
        resolve_ratio=vitals.resolve_ratio,
        is_open=is_open,
    )
    if since is None:
        return None, problems
    case = open_case(vitals, steps, since)
    verdict = _everywhere_still(vitals, localise(case))
    chosen = _chosen(vitals, verdict, problems)
    began_s = vitals.now_s if chosen is None else chosen.onset_s
    layout_s = _layout_since_s(vitals)
    if layout_s is not None and began_s - layout_s > LATER_S:
        case = replace(case, onset_s=min(case.onset_s, layout_s))
        return _finding(case, replace(verdict, look=None, kind=LAYOUT)), problems
    is_told = chosen is not None or verdict.look is not None or is_open
    if not is_told and (case.is_diluted or (verdict.is_layout and _is_old(case, steps))):
        return None, problems
    if chosen is not None and chosen.look is not None:
        verdict = _believe(verdict, chosen)
    rest = [p for p in problems if p is not chosen and not _explained(p, verdict)]
    return _finding(case, verdict), rest


def _layout_since_s(vitals: Vitals) -> float | None:
    """Return since when the open alert says that the run is laid out to communicate so much.

    What falls ill long after speaks for itself: nobody is told of it by an old alert.
    """
    for alert in vitals.standing:
        onset_s = alert.evidence.get("onset_s")
        is_layout = alert.cause == UNKNOWN and alert.evidence.get("kind") == LAYOUT
        if alert.rule == SHARE and is_layout and onset_s is not None:
            return float(onset_s)
    return None


def _everywhere_still(vitals: Vitals, verdict: Verdict) -> Verdict:
    """Blame no single node for a part that the open alert says most nodes had sick."""
    look = verdict.look
    for alert in vitals.standing:
        is_everywhere = alert.rule == SHARE and alert.node is None and alert.device is not None
        if look and is_everywhere and (alert.cause, alert.device) == (look.cause, look.device):
            return replace(verdict, look=replace(look, node=None))
    return verdict


def _is_old(case: Case, steps: StepBatch) -> bool:
    """Tell whether the run was like this for longer than the window, and no alert was due then."""
    if case.before is not None or case.vitals.earlier is None:
        return False
    earlier = case.vitals.earlier(float(steps.ended_at_s[0]) - LOOK_BACK_S)
    return bool((earlier.ended_at_s < steps.ended_at_s[0] - 1.0).sum() >= BASELINE_STEPS)


def _chosen(vitals: Vitals, verdict: Verdict, problems: list[Problem]) -> Problem | None:
    """Return the problem behind the share: of the same culprit, else the worst that could be.

    The one that the open alert speaks of comes first, as long as it lasts: a page does not jump
    from one of two culprits to the other and back.
    """
    told = [p for p in problems if p.look is not None]
    able = [p for p in told if _could(p, verdict)]
    held = {
        (alert.cause, alert.node)
        for alert in vitals.standing
        if alert.rule == SHARE or "share_ratio" in alert.evidence
    }
    # A machine keeps the share when worse comes of another kind; what blames none does not.
    keeps = able + [p for p in told if p.node is not None]
    if (same := next((p for p in keeps if (p.cause, p.node) in held), None)) is not None:
        return same
    if verdict.look is not None:
        its = (p for p in able if _same(p, verdict) or _is_late(vitals, p, verdict))
        chosen = next(its, None)
        if chosen is not None or verdict.cause != UNKNOWN:
            return chosen
    return max(able, key=lambda p: p.strength, default=None)


def _is_late(vitals: Vitals, problem: Problem, verdict: Verdict) -> bool:
    """Tell whether a machine that accuses itself is what the verdict takes for a long stage."""
    late = {vitals.node_of(vitals.steps.workers[i]) for i in verdict.lateness.late}
    is_stage = verdict.cause == "stage_imbalance"
    return is_stage and problem.node is not None and late == {problem.node}


def _could(problem: Problem, verdict: Verdict) -> bool:
    """Tell whether a problem lifts the share in the way it was lifted."""
    is_link = problem.cause in LINK_CAUSES
    if problem.kind in {"computing", "checkpoint", "step"}:
        return False
    return is_link == (verdict.kind != "waiting")


def _same(problem: Problem, verdict: Verdict) -> bool:
    """Tell whether a problem is at the machine that the verdict blames, or blames none either."""
    look = verdict.look
    if look is None:
        return False
    if look.node is None or problem.node is None:
        return problem.cause == look.cause
    return problem.node == look.node


def _believe(verdict: Verdict, problem: Problem) -> Verdict:
    """Put a problem's culprit in the place of the verdict's own."""
    kind = "transferring" if problem.cause in LINK_CAUSES else "waiting"
    ruled_out = tuple(look for look in verdict.ruled_out if look.cause != problem.cause)
    return replace(verdict, look=problem.look, kind=kind, ruled_out=ruled_out)


def _explained(problem: Problem, verdict: Verdict) -> bool:
    """Tell whether a problem is the share's own, seen another way."""
    if _same(problem, verdict):
        # A node may have a sick link, and be late besides.
        if (problem.cause in LINK_CAUSES) != (verdict.kind != "waiting"):
            return False
        devices = {problem.device, verdict.look.device if verdict.look else None}
        return None in devices or len(devices) == 1 or problem.cause == verdict.cause
    is_symptom = problem.look is None or (problem.node is None and bool(problem.late))
    return is_symptom and problem.kind == verdict.kind


def _finding(case: Case, verdict: Verdict) -> Finding:
    """Put a verdict into words that alerts understand."""
    share = float(case.newest.allreduce_share_ratio.mean())
    look = verdict.look
    return Finding(
        rule=SHARE,
        cause=verdict.cause,
        # Nobody need get up at night for a run that was laid out, or changed, to be like this.
        severity="warn" if verdict.is_layout else RULES[SHARE].severity,
        run=case.vitals.run,
        node=look.node if look else None,
        device=look.device if look else None,
        onset_s=case.onset_s,
        score=share / case.vitals.limit_ratio,
        victims=_victims(case, verdict),
        evidence=share_evidence(case, verdict),
    )


def _victims(case: Case, verdict: Verdict) -> tuple[str, ...]:
    """Return the nodes that train and are slowed by what is not their fault."""
    node_of, workers = case.vitals.node_of, case.after.workers
    to_blame = {verdict.look.node} if verdict.look else set()
    if verdict.cause == "stage_imbalance":
        to_blame = {node_of(workers[i]) for i in verdict.lateness.late}
    told = np.isfinite(case.after.phases["wait_s"]).any(axis=0)
    training = {node_of(workers[i]) for i in np.flatnonzero(told)}
    return tuple(node for node in case.vitals.nodes if node in training - to_blame)
