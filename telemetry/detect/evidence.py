"""The figures that a finding rests on, as plain JSON for the page that shows it."""

from typing import Any

import numpy as np

from telemetry.blocks import METRICS, FloatArray
from telemetry.detect.look import ruled_out_figures
from telemetry.detect.peers import mean, middle
from telemetry.detect.steps.case import Case
from telemetry.detect.steps.localise import Verdict

# The charts begin this long before the onset, so that what was normal can be seen.
LEAD_S = 120.0
WORST_WORKERS = 64


def share_evidence(case: Case, verdict: Verdict) -> dict[str, Any]:
    """Return the evidence of the headline rule; docs/rules.md explains every key."""
    after, vitals = case.after, case.vitals
    wait = float(case.newest.wait_ratio.mean())
    transfer = float(case.newest.transfer_ratio.mean())
    look = verdict.look
    return {
        "share_ratio": wait + transfer,
        "wait_ratio": wait,
        "transfer_ratio": transfer,
        "limit_ratio": vitals.limit_ratio,
        "resolve_ratio": vitals.resolve_ratio,
        "kind": verdict.kind,
        "step": int(after.step[-1]),
        "step_s": middle(case.newest.step_s),
        "baseline_step_s": _baseline(case),
        "changed": list(case.changed),
        "culprit": look.figure() if look else None,
        "wait_by_worker": _wait_by_worker(case),
        "late_workers": [after.workers[i] for i in verdict.lateness.late],
        "unreported": _unreported(case),
        "ruled_out": ruled_out_figures(verdict.ruled_out),
        "onset_s": case.onset_s,
        "window": [case.onset_s - LEAD_S, vitals.now_s],
        "charts": _charts(verdict),
    }


def _baseline(case: Case) -> float | None:
    """Return how long a step took before; None where that was not seen or is not comparable."""
    if case.before is None or case.changed:
        return None
    return middle(case.before.step_s)


def _wait_by_worker(case: Case) -> dict[str, float]:
    """Return the seconds each worker waits per step; of a large run those that wait least."""
    wait: FloatArray = mean(case.after.phases["wait_s"], axis=0)
    order = np.argsort(wait)[:WORST_WORKERS]
    shown = sorted(int(i) for i in order if np.isfinite(wait[i]))
    return {case.after.workers[i]: float(wait[i]) for i in shown}


def _unreported(case: Case) -> list[str]:
    """Return the workers that reported no step since the onset."""
    known = np.isfinite(case.after.phases["wait_s"]).any(axis=0)
    return [case.after.workers[i] for i in np.flatnonzero(~known)]


def _charts(verdict: Verdict) -> list[dict[str, Any]]:
    """Return what is worth drawing beside the steps: the hardware that gives the culprit away."""
    look = verdict.look
    if look is None or look.node is None or look.metric not in METRICS:
        return []
    return [{"metric": look.metric, "node": look.node, "device": look.device}]
