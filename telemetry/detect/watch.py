"""All rules over the vitals of one run: what is broken now."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from telemetry.detect.case import Case, open_case
from telemetry.detect.ecc import uncorrected
from telemetry.detect.errors import exec_errors
from telemetry.detect.evidence import share_evidence
from telemetry.detect.finding import Finding
from telemetry.detect.hang import hang
from telemetry.detect.idle import node_idle
from telemetry.detect.localise import Verdict, localise
from telemetry.detect.recompile import recompile
from telemetry.detect.rules import RULES
from telemetry.detect.share import episode
from telemetry.detect.vitals import Vitals, reported

SHARE = "allreduce_share"


def memory_errors(vitals: Vitals) -> list[Finding]:
    """Apply the rule ecc_uncorrected where somebody looked at the counts."""
    return [] if vitals.counts is None else uncorrected(vitals.counts, run=vitals.run)


# Rules that stand by themselves, each a function of the vitals: one line for a new one.
BY_ITSELF: Mapping[str, Callable[[Vitals], list[Finding]]] = {
    "hang": hang,
    "recompile": recompile,
    "exec_errors": exec_errors,
    "node_idle": node_idle,
    "ecc_uncorrected": memory_errors,
}


def find(vitals: Vitals, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return every rule that the run breaks now.

    ``open_rules`` names the rules whose alert on this run is open: it decides only where the
    window itself holds neither a breaking nor a mending. A run without steps breaks no rule
    that is judged by steps, and mends none either: leave its alerts as they are.
    """
    found = all_reduce(vitals, is_open=SHARE in open_rules)
    for look in BY_ITSELF.values():
        found += look(vitals)
    return found


def all_reduce(vitals: Vitals, *, is_open: bool) -> list[Finding]:
    """Apply the headline rule: none or one finding."""
    steps = reported(vitals.steps)
    if not len(steps):
        return []
    since = episode(
        steps.allreduce_share_ratio,
        limit_ratio=vitals.limit_ratio,
        resolve_ratio=vitals.resolve_ratio,
        is_open=is_open,
    )
    if since is None:
        return []
    case = open_case(vitals, steps, since)
    return [_finding(case, localise(case))]


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
