"""Steps that take longer than they used to: whose work, or what, takes the time."""

from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.case import CHANGED_RATIO
from telemetry.detect.finding import UNKNOWN
from telemetry.detect.links import link_looks
from telemetry.detect.look import Look, strongest
from telemetry.detect.overall import overall_looks
from telemetry.detect.pace import HALF, Lift, case_since, lift, n_newest, quick, work_s
from telemetry.detect.peers import lower_median, median
from telemetry.detect.problem import Kind, Problem
from telemetry.detect.share import own_s
from telemetry.detect.stragglers import lateness
from telemetry.detect.vitals import Vitals
from telemetry.detect.workers import worker_looks
from telemetry.steps import StepBatch

# A phase may take so much of a step more than it used to before anybody asks why.
LEAST_RATIO = 0.04
# Where no cause is found a problem must last, and cost, more before somebody is called.
UNKNOWN_RATIO, UNKNOWN_S, UNKNOWN_STEPS = 0.06, 25.0, 4
# A stumble may make a worker late twice in a row; by this much it does not.
VERY_LATE_RATIO, ENOUGH_LATE = 0.12, 3


def moving_slowly(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find gradients that take longer to exchange than they used to."""
    found = _risen(vitals, steps, median(steps.phases["transfer_s"]), "transferring")
    if found is None:
        return []
    looks = link_looks(case_since(vitals, steps, found.at))
    return _problems(steps, found, looks, "transferring")


def computing_slowly(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find computing that takes even the quickest workers longer than it used to."""
    found = _risen(vitals, steps, quick(steps.phases["compute_s"]), "computing")
    if found is None:
        return []
    onset_s = float(steps.ended_at_s[found.at] - steps.step_s[found.at])
    return _problems(steps, found, overall_looks(vitals, found, onset_s), "computing")


def arriving_late(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find workers that compute for longer than their peers, step after step.

    Notes
    -----
    As in the headline rule, whoever waits least is late; here its own time is compared with that
    of its peers, and with how late it used to be: a stage that always took longer is a layout.
    """
    if len(steps.workers) < 2 or len(steps) < 2:
        return []
    newest = steps[-n_newest(steps) :]
    late = lateness(newest)
    if late.pattern != "steady" or late.phase != "compute_s":
        return []
    own = own_s(steps)
    found = _lag(vitals, steps, own[:, late.worst] - lower_median(own), len(newest))
    if found is None:
        return []
    looks = worker_looks(case_since(vitals, steps, found.at), late)
    names = tuple(steps.workers[i] for i in late.late)
    return _problems(steps, found, looks, "waiting", late=names)


def _lag(vitals: Vitals, steps: StepBatch, excess: FloatArray, n_now: int) -> Lift | None:
    """Return by how much the latest worker is late, more than it used to be."""
    step_s = float(np.median(work_s(steps)))
    is_held = _usual(vitals, steps, "waiting") is not None
    least_s = LEAST_RATIO * step_s * (HALF if is_held else 1.0)
    calm = excess < HALF * LEAST_RATIO * step_s
    # One step in between may pass: somebody else stumbled.
    quiet = np.flatnonzero(calm[1:] & calm[:-1])
    at = int(quiet[-1]) + 2 if quiet.size else 0
    usual = max(0.0, float(np.median(excess[:at]))) if at >= ENOUGH_LATE else 0.0
    found = Lift(usual, float(np.median(excess[-n_now:])), min(at, len(steps) - 1))
    if found.excess < least_s or float(excess[-2:].min()) < HALF * least_s:
        return None
    soon = len(steps) - at < ENOUGH_LATE and found.excess < VERY_LATE_RATIO * step_s
    return None if soon and not is_held else found


def _risen(vitals: Vitals, steps: StepBatch, x: FloatArray, kind: Kind) -> Lift | None:
    """Return the rise of a phase against the run's past, or against what an open alert says."""
    least_s = LEAST_RATIO * float(np.median(work_s(steps)))
    usual = _usual(vitals, steps, kind)
    return lift(x, least=least_s, n_now=n_newest(steps), usual=usual)


def _usual(vitals: Vitals, steps: StepBatch, kind: Kind) -> float | None:
    """Return what a phase used to take, by an open alert about steps like these."""
    for alert in vitals.standing:
        held = alert.evidence
        if held.get("kind") != kind or held.get("baseline_phase_s") is None:
            continue
        if _alike(held.get("tokens"), float(steps.tokens[-1])):
            return float(held["baseline_phase_s"])
    return None


def _alike(was: Any, now: float) -> bool:
    """Tell whether steps are of the same tokens; where nobody says so they are."""
    return was is None or not np.isfinite(now) or abs(now - was) <= CHANGED_RATIO * abs(was)


def _problems(
    steps: StepBatch, found: Lift, looks: list[Look], kind: Kind, *, late: tuple[str, ...] = ()
) -> list[Problem]:
    """Name the cause that convinces; without one only what lasts and costs is a problem."""
    best = strongest(looks)
    after = steps[found.at :]
    step_s = float(np.median(work_s(steps)))
    ratio = found.excess / step_s
    if best is None:
        lasted_s = float(after.ended_at_s[-1] - after.ended_at_s[0] + after.step_s[0])
        if ratio < UNKNOWN_RATIO or lasted_s < UNKNOWN_S or len(after) < UNKNOWN_STEPS:
            return []
    tokens = float(steps.tokens[-1])
    return [
        Problem(
            cause=best.cause if best else UNKNOWN,
            look=best,
            kind=kind,
            onset_s=float(after.ended_at_s[0] - after.step_s[0]),
            strength=ratio / LEAST_RATIO,
            late=late,
            ruled_out=tuple(x for x in looks if x is not best and not x.stands_out),
            more={
                "phase_s": found.now,
                "baseline_phase_s": found.usual,
                "tokens": tokens if np.isfinite(tokens) else None,
            },
        )
    ]
