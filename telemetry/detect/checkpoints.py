"""Checkpoints that take much longer to write than they should."""

import numpy as np

from telemetry.detect.look import Look
from telemetry.detect.problem import Problem
from telemetry.detect.standstill import standstill
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch

CAUSE = "checkpoint_slow"
# So many times as long as earlier ones, or as one of that size should take, and so much longer.
SLOWER_BY, SLOWER_THAN_DUE, LEAST_S = 1.6, 2.0, 3.0
# So many checkpoints make a habit: fewer may all have been slow.
A_HABIT = 3
# Nodes that write, of those that are heard of.
MOST = 0.5
# How long ago a slow checkpoint is news, and how far back others are looked for.
NEWS_S, EARLIER_S = 60.0, 900.0
# A checkpoint holds the weights in 16 bit and what Adam keeps in 32; nodes write their parts side
# by side at this rate, after a while of opening and closing.
BYTES_PER_PARAMETER, BYTES_PER_S, OPENING_S = 14.0, 2e9, 2.0


def due_s(*, n_parameters: float, n_nodes: int) -> float:
    """Return how long a checkpoint of a model should take on so many nodes.

    Notes
    -----
    Two bytes of weight and twelve of optimizer per parameter, sharded over the nodes, at what one
    node gets from a parallel file system: J. Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN
    Checkpointing", USENIX FAST 2021.
    """
    return OPENING_S + BYTES_PER_PARAMETER * n_parameters / max(1, n_nodes) / BYTES_PER_S


def slow_checkpoint(vitals: Vitals, steps: StepBatch) -> list[Problem]:
    """Find out whether a checkpoint is slow: one that is being written, or the newest one.

    One that is written is news for a minute. One under way shows as a step that is overdue while
    no core works and the hosts write; it has taken at least what is left of that time when a
    usual step is taken off.
    """
    taken = _taken(steps)
    at, took_s, ended_s = _newest(vitals, steps, taken)
    if took_s is None or vitals.now_s - ended_s > NEWS_S:
        return []
    usual_s, limit = _usual(vitals, taken if at is None else taken[:at], ended_s)
    if not np.isfinite(usual_s) or took_s < max(limit * usual_s, usual_s + LEAST_S):
        return []
    strength = took_s / (limit * usual_s)
    look = Look(CAUSE, strength, "checkpoint_s", took_s, usual_s, 0, "s")
    more = {"baseline_phase_s": usual_s, "phase_s": took_s}
    return [Problem(CAUSE, look, "checkpoint", ended_s - took_s, strength, more=more)]


def _newest(
    vitals: Vitals, steps: StepBatch, taken: list[tuple[int, float]]
) -> tuple[int | None, float | None, float]:
    """Return place, length and end of the newest checkpoint; no place for one under way."""
    still = standstill(vitals)
    if still is not None and still.nodes and float(still.loads.mean()) > MOST:
        return None, still.overdue_s - still.step_s, vitals.now_s
    if not taken:
        return None, None, -np.inf
    row, took_s = taken[-1]
    return len(taken) - 1, took_s, float(steps.ended_at_s[row])


def _taken(steps: StepBatch) -> list[tuple[int, float]]:
    """Return the row and the length of every checkpoint."""
    took_s = np.nan_to_num(steps.phases["checkpoint_s"]).max(axis=1, initial=0.0)
    return [(int(row), float(took_s[row])) for row in np.flatnonzero(took_s > 0)]


def _usual(
    vitals: Vitals, taken: list[tuple[int, float]], ended_at_s: float
) -> tuple[float, float]:
    """Return what a checkpoint takes (infinity: unknown), and how many times that is slow.

    The quickest of the earlier ones counts: several slow ones in a row do not become usual.
    """
    for alert in vitals.standing:
        held = alert.evidence.get("baseline_phase_s")
        if alert.cause == CAUSE and held is not None:
            return float(held), SLOWER_BY
    earlier = [took_s for _, took_s in taken]
    if not earlier and vitals.earlier is not None:
        past = vitals.earlier(vitals.now_s - EARLIER_S)
        earlier = [s for row, s in _taken(past) if past.ended_at_s[row] < ended_at_s]
    if len(earlier) >= A_HABIT or (earlier and vitals.checkpoint_s is None):
        return min(earlier), SLOWER_BY
    return min([*earlier, vitals.checkpoint_s or np.inf]), SLOWER_THAN_DUE
