"""What a finding about slow steps shows: figures of its steps, and the nodes that it slows."""

from dataclasses import replace
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.findings import LEAD_S, CauseScore, Problem
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.steps import N_SINCE
from telemetry.statistics.peers import median, middle, noise
from telemetry.steps import StepBatch

# How many of the newest steps describe the present.
NEWEST_STEPS = 5


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


def own_time(
    inputs: DetectionInput, node: str | None, *, since_s: float
) -> tuple[float, float, int]:
    """Seconds a step that a node's latest worker works, and the usual other one; and how many.

    Of the newest steps since then; NaN where the exchange, in which others wait, is not timed.
    """
    steps = inputs.steps.reported
    newest = steps[steps.ended_at_s - steps.step_s >= since_s].timed.last(NEWEST_STEPS)
    own = newest.sum_phases(("compute_s", "input_s", "other_s"))
    own_s = median(np.where(np.isfinite(newest.phases["wait_s"]), own, np.nan).T)
    is_here = np.array([inputs.node_of(worker) == node for worker in newest.workers], bool)
    here, others = own_s[is_here & np.isfinite(own_s)], own_s[~is_here & np.isfinite(own_s)]
    if not here.size or not others.size:
        return np.nan, np.nan, 0
    return float(here.max()), float(median(others)), len(others)


def clearer(before: CauseScore | None, now: CauseScore) -> CauseScore:
    """Return the figure of a culprit at worst: a part is well again before its alert ends."""
    place = (now.metric, now.node, now.device)
    if before is None or (before.metric, before.node, before.device) != place:
        return now
    was_off, is_off = (abs(each.value - each.peers_median) for each in (before, now))
    is_clearer = is_off > was_off or not np.isfinite(was_off)
    return now if is_clearer else replace(before, cause=now.cause, part=now.part)


def evidence_of(inputs: DetectionInput, steps: StepBatch, problem: Problem) -> dict[str, Any]:
    """docs/rules.md lists the keys."""
    score = problem.score
    began = int(np.searchsorted(steps.ended_at_s, problem.onset_s))
    before, newest = steps[:began], steps[began + 1 :].last(NEWEST_STEPS)
    return {
        "kind": problem.kind,
        "step_s": middle(newest.step_s) if len(newest) else None,
        "step_scatter_s": noise(steps[began + 1 :].last(N_SINCE).step_s),
        "baseline_step_s": middle(before.step_s) if len(before) > 2 else None,
        "wait_ratio": _mean(newest.wait_ratio),
        "transfer_ratio": _mean(newest.transfer_ratio),
        "culprit": score.figure() if score else None,
        "late_workers": list(problem.late),
        "onset_s": problem.onset_s,
        "window": [problem.onset_s - LEAD_S, inputs.now_s],
        "charts": score.charts if score else [],
        **problem.extra,
    }


def _mean(ratio: FloatArray) -> float | None:
    """Mean over steps with a known ratio; None (unknown, not zero) without one."""
    known = ratio[np.isfinite(ratio)]
    return float(known.mean()) if known.size else None
