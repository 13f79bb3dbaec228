"""Checkpoints that take much longer to write than they should."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import IntArray
from telemetry.detect.findings import CauseScore, Problem
from telemetry.detect.inputs import DetectionInput, node_peak, node_values
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    COMPILING,
    CORES,
    HOST,
    LOADING,
    WORKING,
    standstill,
    training_nodes,
)
from telemetry.steps import StepBatch

CAUSE = "checkpoint_slow"
# So many times as long as earlier ones, or as one of that size should take, and so much longer.
SLOWER_BY = RULES[CAUSE].limits["slower_by_ratio"]
SLOWER_THAN_DUE = RULES[CAUSE].limits["slower_than_due_ratio"]
LEAST_S = RULES[CAUSE].limits["least_s"]
# So many checkpoints make a habit: fewer may all have been slow.
ENOUGH_CHECKPOINTS = 3
# Nodes that write, of those that are heard of.
MOST = 0.5
# How long ago a slow checkpoint is news, and how far back others are looked for.
NEWS_S, EARLIER_S = 60.0, 900.0
# Hosts are looked at for so long.
LONGEST_S = 240.0
# A checkpoint holds the weights in 16 bit and what Adam keeps in 32; nodes write their parts side
# by side at this rate, after a while of opening and closing.
BYTES_PER_PARAMETER, BYTES_PER_S, OPENING_S = 14.0, 2e9, 2.0


def expected_checkpoint_s(*, n_parameters: float, n_nodes: int) -> float:
    """Return how long a checkpoint of a model should take on so many nodes.

    Notes
    -----
    Two bytes of weight and twelve of optimizer per parameter, sharded over the nodes, at what one
    node gets from a parallel file system: J. Mohan et al., "CheckFreq: Frequent, Fine-Grained DNN
    Checkpointing", USENIX FAST 2021.
    """
    return OPENING_S + BYTES_PER_PARAMETER * n_parameters / max(1, n_nodes) / BYTES_PER_S


def find_slow_checkpoint(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find out whether a checkpoint is slow: one that is being written, or the newest one.

    One that is written is news for a minute. One under way shows as a step that is overdue while
    no core works and the hosts write; it has taken at least what is left of that time when a
    usual step is taken off.
    """
    taken = _durations(steps)
    under_way = _in_progress(inputs, steps)
    if under_way is not None and (found := _check(inputs, steps, taken, under_way)):
        return [found]
    written = _newest_written(inputs, steps, taken, waits=under_way is not None)
    if written is None:
        return []
    found = _check(inputs, steps, taken[:-1], written)
    return [] if found is None else [found]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint: how long it took, or has so far, until when, and who wrote the longest."""

    took_s: float
    ended_s: float
    node: str | None


def _check(
    inputs: DetectionInput, steps: StepBatch, earlier: list[tuple[int, float]], this: Checkpoint
) -> Problem | None:
    """Return what is wrong with a checkpoint, beside the ``earlier`` ones."""
    usual_s, limit = _usual(inputs, steps, earlier, this.ended_s)
    if not np.isfinite(usual_s) or this.took_s < max(limit * usual_s, usual_s + LEAST_S):
        return None
    strength = this.took_s / (limit * usual_s)
    score = CauseScore(CAUSE, strength, "checkpoint_s", this.took_s, usual_s, 0, "s", this.node)
    extra = {"baseline_phase_s": usual_s, "phase_s": this.took_s}
    return Problem(CAUSE, score, "checkpoint", this.ended_s - this.took_s, strength, extra=extra)


def _in_progress(inputs: DetectionInput, steps: StepBatch) -> Checkpoint | None:
    """Return the checkpoint that is being written; None where none is."""
    stall = standstill(inputs)
    if stall is None or not stall.loads.any():
        return None
    held = [alert for alert in inputs.open_problems if alert.cause == CAUSE]
    writing = _writing(inputs, steps, stall.since_s, inputs.now_s)
    # Most nodes writing at one moment: a checkpoint.
    if not (stall.loads.mean() > MOST or held or bool((writing.writes.mean(axis=1) > MOST).any())):
        return None
    # While all still write nobody stands out: a node that is accused already stays so.
    node = _slowest(writing) or next((alert.node for alert in held if alert.node), None)
    return Checkpoint(stall.overdue_s - stall.step_s, inputs.now_s, node)


def _newest_written(
    inputs: DetectionInput, steps: StepBatch, taken: list[tuple[int, float]], *, waits: bool
) -> Checkpoint | None:
    """Return the newest checkpoint that is written, while it is news.

    Where an open alert speaks of it and the next one is under way, it stays news: whether that
    one is slow as well is not known yet (``waits``).
    """
    if not taken:
        return None
    row, took_s = taken[-1]
    ended_s = float(steps.ended_at_s[row])
    held = [alert for alert in inputs.open_problems if alert.cause == CAUSE]
    if inputs.now_s - ended_s > NEWS_S and not (waits and held):
        return None
    for alert in held:
        if alert.node is not None:
            return Checkpoint(took_s, ended_s, alert.node)
    writing = _writing(inputs, steps, ended_s - took_s, ended_s)
    return Checkpoint(took_s, ended_s, _slowest(writing))


@dataclass(frozen=True, slots=True)
class Writing:
    """Who wrote in which tick while no core of theirs worked: (n_ticks, n_nodes)."""

    nodes: tuple[str, ...]
    writes: NDArray[np.bool_]


def _writing(inputs: DetectionInput, steps: StepBatch, from_s: float, until_s: float) -> Writing:
    """Look at the hosts within some seconds, the newest of them where these are many."""
    back_s = int(min(inputs.now_s - from_s, LONGEST_S))
    span = inputs.hardware((CORES, HOST), max(1, back_s)).of(training_nodes(inputs, steps))
    hosts = node_values(span, HOST)
    writes = (hosts >= LOADING) & (hosts < COMPILING) & ~(node_peak(span, CORES) >= WORKING)
    return Writing(span.nodes, writes[span.ticks <= until_s])


def _slowest(writing: Writing) -> str | None:
    """Return the node that wrote for much longer than the others; None where no single one did."""
    n_nodes = len(writing.nodes)
    wrote_s = writing.writes.sum(axis=0)
    if n_nodes < 2 or not wrote_s.size:
        return None
    order = np.argsort(wrote_s)
    most, next_s = float(wrote_s[order[-1]]), float(wrote_s[order[-2]])
    return writing.nodes[order[-1]] if most >= max(SLOWER_BY * next_s, next_s + LEAST_S) else None


def _durations(steps: StepBatch) -> list[tuple[int, float]]:
    """Return the row and the length of every checkpoint."""
    took_s = np.nan_to_num(steps.phases["checkpoint_s"]).max(axis=1, initial=0.0)
    return [(int(row), float(took_s[row])) for row in np.flatnonzero(took_s > 0)]


def _n_workers(steps: StepBatch) -> IntArray:
    """Count the workers of each step."""
    return np.asarray(np.isfinite(steps.phases["compute_s"]).sum(axis=1))


def _usual(
    inputs: DetectionInput, steps: StepBatch, taken: list[tuple[int, float]], ended_at_s: float
) -> tuple[float, float]:
    """Return what a checkpoint takes (infinity: unknown), and how many times that is slow.

    The quickest of the earlier ones counts: several slow ones in a row do not become usual. Half
    as many nodes have twice as much to write each.
    """
    for alert in inputs.open_problems:
        held = alert.evidence.get("baseline_phase_s")
        if alert.cause == CAUSE and held is not None:
            return float(held), SLOWER_BY
    n_now = max(1, int(_n_workers(steps)[-1]))
    earlier = [took_s for _, took_s in taken]
    if not earlier and inputs.earlier is not None:
        past = inputs.earlier(inputs.now_s - EARLIER_S)
        n_then = _n_workers(past)
        written = [(row, s) for row, s in _durations(past) if past.ended_at_s[row] < ended_at_s]
        earlier = [
            OPENING_S + max(0.0, took_s - OPENING_S) * float(n_then[row]) / n_now
            for row, took_s in written
        ]
    if len(earlier) >= ENOUGH_CHECKPOINTS or (earlier and inputs.checkpoint_s is None):
        return min(earlier), SLOWER_BY
    n_nodes = max(1, len(training_nodes(inputs, steps)))
    due = inputs.checkpoint_s or np.inf
    return min([*earlier, due * max(1.0, len(inputs.nodes) / n_nodes)]), SLOWER_THAN_DUE
