"""Workers whose input comes late: on one node, or everywhere."""

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.look import Look
from telemetry.detect.peers import lower_median, median, middle
from telemetry.detect.problem import Problem
from telemetry.detect.rules import RULES
from telemetry.detect.steps.pace import CLEARLY, HALF, Lift, lift, n_newest, quick, work_s
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

CAUSE = "input_stall"
# Input may take so much of a step more than it used to, or than it takes the other workers.
LEAST_RATIO = RULES[CAUSE].limits["least_ratio"]


def starved(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find workers that wait for their data, or a whole run that does.

    Notes
    -----
    Data stalls are told from slow machines by where a worker's time goes: J. Mohan et al.,
    "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021. What all wait for is
    compared with the run's own past, what one waits for with its peers.
    """
    if len(steps) < 2:
        return []
    least_s = LEAST_RATIO * middle(work_s(steps))
    everywhere = _everywhere(vitals, steps, least_s)
    if everywhere is not None and len(steps.workers) > 1:
        return [_of_run(steps, everywhere, least_s)]
    return _of_nodes(vitals, steps, least_s)


def _everywhere(vitals: Vitals, steps: StepBatch, least_s: float) -> Lift | None:
    """Return the rise of what input takes even the quickest workers."""
    held = [s for s in vitals.standing if s.cause == CAUSE and s.node is None]
    usual = (held[0].evidence.get("culprit") or {}).get("peers_median") if held else None
    n_now = n_newest(steps)
    return lift(quick(steps.phases["input_s"]), least=least_s, n_now=n_now, usual=usual)


def _of_run(steps: StepBatch, found: Lift, least_s: float) -> Problem:
    """Describe data that come late everywhere."""
    look = Look(CAUSE, found.excess / least_s, "input_s", found.now, found.usual, 0, "s")
    return _problem(steps, look, found.at, ())


def _of_nodes(vitals: Vitals, steps: StepBatch, least_s: float) -> list[Problem]:
    """Find the nodes whose workers wait for data and the others' do not: the worst of them."""
    excess = _excess(steps, _held(vitals))
    n_now = n_newest(steps)
    newest = excess[-n_now:]
    held = {s.node for s in vitals.standing if s.cause == CAUSE}
    nodes = [vitals.node_of(worker) for worker in steps.workers]
    least = np.where([node is not None and node in held for node in nodes], HALF, 1.0) * least_s
    typical = median(newest.T)
    # One long step is enough if it says so clearly.
    both = excess[-2:].min(axis=0) >= HALF * least
    sick = (typical >= least) & (both | ((n_now == 1) & (newest[-1] >= CLEARLY * least)))
    if not sick.any():
        return []
    worst = int(np.nanargmax(np.where(sick, typical, -np.inf)))
    input_s = median(steps.phases["input_s"][-len(newest) :].T)
    look = Look(
        cause=CAUSE,
        strength=float(typical[worst] / least_s),
        metric="input_s",
        value=float(input_s[worst]),
        peers_median=float(input_s[worst] - typical[worst]),
        n_peers=int(np.isfinite(input_s).sum()) - 1,
        unit="s",
        node=nodes[worst],
    )
    low = excess[:, worst] < HALF * least_s
    at = int(np.flatnonzero(low)[-1]) + 1 if low.any() else 0
    return [_problem(steps, look, at, tuple(steps.workers[i] for i in np.flatnonzero(sick)))]


def _held(vitals: Vitals) -> float:
    """Return what input used to take, by the open alert of a node; NaN where none is open."""
    figures = [s.evidence.get("culprit") or {} for s in vitals.standing if s.cause == CAUSE]
    usual = [figure.get("peers_median") for figure in figures]
    return next((float(each) for each in usual if each is not None), float("nan"))


def _excess(steps: StepBatch, held_s: float) -> FloatArray:
    """Return how much longer each worker's input takes than usual: (n_steps, n_workers).

    Usual is what its peers take; where it has none, what it took before the open alert, else what
    it always took itself.
    """
    input_s = steps.phases["input_s"]
    if np.isfinite(input_s[-1]).sum() > 1:
        return np.asarray(input_s - lower_median(input_s)[:, None])
    return np.asarray(input_s - (held_s if np.isfinite(held_s) else quick(input_s.T)))


def _problem(steps: StepBatch, look: Look, at: int, late: tuple[str, ...]) -> Problem:
    onset_s = float(steps.ended_at_s[at] - steps.step_s[at])
    return Problem(CAUSE, look, "input", onset_s, look.strength, late)
