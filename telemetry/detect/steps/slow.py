"""Steps that take longer than they used to: whose work, or what, takes the time."""

from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.changes import rise
from telemetry.detect.finding import UNKNOWN
from telemetry.detect.look import Look, strongest
from telemetry.detect.peers import lower_median, median, middle
from telemetry.detect.problem import Kind, Problem
from telemetry.detect.rules import RULES
from telemetry.detect.sighting import RULE_OF_NODE, remembered
from telemetry.detect.steps.case import CHANGED_RATIO
from telemetry.detect.steps.links import link_looks
from telemetry.detect.steps.overall import overall_looks
from telemetry.detect.steps.pace import HALF, Lift, case_since, lift, n_newest, quick, work_s
from telemetry.detect.steps.share import own_s
from telemetry.detect.steps.stragglers import Lateness, lateness
from telemetry.detect.steps.uneven import CROWD
from telemetry.detect.steps.workers import worker_looks
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

# A phase may take so much of a step more than it used to before anybody asks why.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# Where no cause is found a problem must last, and cost, more before somebody is called.
UNKNOWN_RATIO = RULES["step_slow"].limits["unknown_ratio"]
UNKNOWN_S, UNKNOWN_STEPS = 25.0, 4
# A stumble may make a worker late twice in a row; by this much it does not.
VERY_LATE_RATIO, ENOUGH_LATE = 0.12, 3
# Several workers of one stage do not stumble at once.
STAGE_LATE_RATIO = 0.05
# Slow clocks are slow by the same factor in each of these steps, within this part of it.
STEADY_STEPS, UNSTEADY = 3, 0.3
# So many workers that are slower by the same factor, within this part of it, say so in one step.
ENOUGH_ALIKE, ALIKE = 3, 0.15


def moving_slowly(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find gradients that take longer to exchange than they used to."""
    found = _risen(vitals, steps, median(steps.phases["transfer_s"]), "transferring")
    if found is None:
        return []
    looks = _as_believed(vitals, link_looks(case_since(vitals, steps, found.at)), "transferring")
    return _problems(vitals, steps, found, looks, "transferring")


def computing_slowly(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find computing that takes even the quickest workers longer than it used to."""
    quickest_s = quick(steps.phases["compute_s"])
    found = _risen(vitals, steps, quickest_s, "computing")
    if found is None or not _is_steady(vitals, steps, quickest_s[found.at :], found):
        return []
    looks = _as_believed(vitals, overall_looks(vitals, steps, found), "computing")
    return _problems(vitals, steps, found, looks, "computing")


def taking_longer(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find steps that take longer than they used to where nobody times the exchange.

    Whether workers compute, wait or transfer for longer is not known then, so a lower clock
    cannot be told from a slower network; memories that move fewer bytes a step still can. While
    a machine is accused the first slow step says that its fault still lasts.
    """
    found = _risen(vitals, steps, work_s(steps), "step")
    if found is None:
        return []
    looks = [each for each in overall_looks(vitals, steps, found) if each.cause != "throttle"]
    accused = any(each.node and each.cause in RULE_OF_NODE for each in vitals.standing)
    looks = _as_believed(vitals, looks, "step")
    return _problems(vitals, steps, found, looks, "step", is_explained=accused)


def _is_steady(vitals: Vitals, steps: StepBatch, after_s: FloatArray, found: Lift) -> bool:
    """Tell whether a few workers compute for longer by as much in every step.

    Of many the quickest fifth says so by itself; few may each have drawn a long sequence.
    """
    if len(steps.workers) >= CROWD or _usual(vitals, steps, "computing") is not None:
        return True
    if len(steps.workers) >= ENOUGH_ALIKE and _are_slower_alike(steps, found):
        return True
    newest = after_s[-STEADY_STEPS:]
    n_steps = STEADY_STEPS if len(steps.workers) < 3 else STEADY_STEPS - 1
    return len(newest) >= n_steps and float(np.ptp(newest)) <= UNSTEADY * found.excess


def _are_slower_alike(steps: StepBatch, found: Lift) -> bool:
    """Tell whether all workers are slower by the same factor: nobody draws sequences so."""
    compute = steps.phases["compute_s"]
    factor = compute[-1] / median(compute[: found.at].T)
    excess = float(median(factor)) - 1.0
    return excess > 0 and float(np.ptp(factor)) <= ALIKE * excess


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
    may_be = _may_be_chance(steps, found, late, looks) or _may_be_layout(found, looks)
    if may_be and _usual(vitals, steps, "waiting") is None:
        return []
    names = tuple(steps.workers[i] for i in late.late)
    return _problems(vitals, steps, found, looks, "waiting", late=names)


def _lag(vitals: Vitals, steps: StepBatch, excess: FloatArray, n_now: int) -> Lift | None:
    """Return by how much the latest worker is late, more than it used to be."""
    least_s = LEAST_RATIO * middle(work_s(steps))
    calm = excess < HALF * least_s
    # One step in between may pass: somebody else stumbled.
    quiet = np.flatnonzero(calm[1:] & calm[:-1])
    at = int(quiet[-1]) + 2 if quiet.size else 0
    # Of a run whose steps are never calm, the likeliest change tells what was usual.
    change = rise(excess, floor=least_s / 6) if at < ENOUGH_LATE else None
    at = change.at if change is not None else at
    usual = max(0.0, middle(excess[:at])) if at >= ENOUGH_LATE else 0.0
    found = Lift(usual, middle(excess[-n_now:]), min(at, len(steps) - 1))
    is_held = _usual(vitals, steps, "waiting") is not None
    enough_s = least_s * (HALF if is_held else 1.0)
    n_high = min(2, len(steps) - found.at)
    # Each of the newest steps must bear it out: one stumble of a worker that always was a little
    # late does not.
    if found.excess < enough_s or float(excess[-n_high:].min()) - found.usual < HALF * least_s:
        return None
    return found


def _may_be_chance(steps: StepBatch, found: Lift, late: Lateness, looks: list[Look]) -> bool:
    """Tell whether a worker may be late by stumbling, though no part of its machine is sick.

    Stumbles are rare, but workers are many: a single worker must be late in three steps, or very
    late in two; several of one stage that are late together are no chance.
    """
    best = _known(looks)
    if best is not None and best.node is not None:
        return False
    n_steps, ratio = len(steps) - found.at, found.excess / middle(work_s(steps))
    very = ratio >= VERY_LATE_RATIO
    if best is not None and best.cause == "stage_imbalance" and len(late.late) > 1:
        return n_steps < ENOUGH_LATE and ratio < STAGE_LATE_RATIO
    return n_steps < (ENOUGH_LATE - 1 if very else ENOUGH_LATE)


def _may_be_layout(found: Lift, looks: list[Look]) -> bool:
    """Tell whether a worker may be late because it has more to do, as it always had."""
    best = _known(looks)
    return found.at < ENOUGH_LATE and (best is None or best.node is None)


def _known(looks: list[Look]) -> Look | None:
    """Return the look that convinces, if it names a cause."""
    best = strongest(looks)
    return best if best is not None and best.cause != UNKNOWN else None


def _risen(vitals: Vitals, steps: StepBatch, x: FloatArray, kind: Kind) -> Lift | None:
    """Return the rise of a phase against the run's past, or against what an open alert says."""
    least_s = LEAST_RATIO * middle(work_s(steps))
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


def _as_believed(vitals: Vitals, looks: list[Look], kind: Kind) -> list[Look]:
    """Keep to the cause that an open alert names: hardware mends before slow steps end."""
    for alert in vitals.standing:
        held = alert.evidence
        is_told = held.get("kind") == kind and held.get("baseline_phase_s") is not None
        if is_told and alert.cause != UNKNOWN:
            same = [e for e in looks if (e.cause, e.node) == (alert.cause, alert.node)]
            return [each for each in same if each.stands_out] or [remembered(alert)]
    return looks


def _alike(was: Any, now: float) -> bool:
    """Tell whether steps are of the same tokens; where nobody says so they are."""
    return was is None or not np.isfinite(now) or abs(now - was) <= CHANGED_RATIO * abs(was)


def _problems(
    vitals: Vitals,
    steps: StepBatch,
    found: Lift,
    looks: list[Look],
    kind: Kind,
    *,
    late: tuple[str, ...] = (),
    is_explained: bool = False,
) -> list[Problem]:
    """Name the cause that convinces; without one only what lasts and costs is a problem.

    ``is_explained``: an open alert of a machine explains it anyway.
    """
    best = strongest(looks)
    after = steps[found.at :]
    step_s = middle(work_s(steps))
    ratio = found.excess / step_s
    if not is_explained and _known(looks) is None and _usual(vitals, steps, kind) is None:
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
