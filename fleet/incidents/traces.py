"""What a run's steps themselves tell of checkpoints, pauses, and changes of batch and size."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from fleet.templatetags.units import duration, si
from telemetry.blocks import FloatArray
from telemetry.steps import StepBatch
from telemetry.store.history import run_steps, worker_minutes
from telemetry.store.source import Source

LEAST_CHECKPOINT_S = 1.0
# No step for so many usual ones, and so many seconds, is a pause.
PAUSE_STEPS, PAUSE_S = 3.0, 15.0
SAME_TOKENS_RATIO = 0.02


@dataclass(frozen=True, slots=True)
class Trace:
    """One thing that the steps show: when it began, what it was."""

    at: datetime
    kind: str
    text: str


def traces_of(source: Source, run: str, *, start_s: float, end_s: float) -> Sequence[Trace]:
    """Return what the steps of a run show of what was done with it between two moments.

    They are derived from steps each time: those outlive the hot tier, so nothing is kept twice.
    """
    steps = run_steps(source, run, start_s=start_s, end_s=end_s)
    if len(steps) < 2:
        return []
    by_worker = worker_minutes(source, run, start_s=start_s, end_s=end_s)
    return [*_checkpoints(steps), *_pauses(steps), *_batches(steps), *_sizes(by_worker)]


def _checkpoints(steps: StepBatch) -> list[Trace]:
    saved = _mean(steps.phases["checkpoint_s"])
    ends = steps.ended_at_s
    return [
        _trace(ends[i] - saved[i], "checkpoint", f"checkpoint, {duration(float(saved[i]))}")
        for i in np.flatnonzero(saved >= LEAST_CHECKPOINT_S)
    ]


def _pauses(steps: StepBatch) -> list[Trace]:
    """Find where no step was under way: between two ends lies more than their steps took."""
    took_s = np.diff(steps.step) * steps.step_s[1:]
    idle_s = np.diff(steps.ended_at_s) - took_s
    usual_s = float(np.median(steps.step_s))
    return [
        _trace(steps.ended_at_s[i], "pause", f"no step for {duration(float(idle_s[i]))}")
        for i in np.flatnonzero(idle_s > max(PAUSE_S, PAUSE_STEPS * usual_s))
    ]


def _batches(steps: StepBatch) -> list[Trace]:
    tokens = steps.tokens
    moved = np.abs(np.diff(tokens)) > SAME_TOKENS_RATIO * np.maximum(tokens[:-1], 1)
    return [
        _trace(
            steps.ended_at_s[i + 1] - steps.step_s[i + 1],
            "batch",
            f"{si(float(tokens[i]))} tokens per step became {si(float(tokens[i + 1]))}",
        )
        for i in np.flatnonzero(moved)
    ]


def _sizes(minutes: StepBatch) -> list[Trace]:
    """Find where the number of workers that report changed and stayed so for a minute."""
    if len(minutes) < 3:
        return []
    n_workers = np.isfinite(minutes.worker_step_s).sum(axis=1)
    stays = np.append(n_workers[1:-1] == n_workers[2:], False)
    changed = np.flatnonzero((np.diff(n_workers) != 0) & stays)
    return [
        _trace(
            minutes.ended_at_s[i + 1],
            "scale",
            f"{n_workers[i]} workers became {n_workers[i + 1]}",
        )
        for i in changed
    ]


def _trace(at_s: float, kind: str, text: str) -> Trace:
    return Trace(datetime.fromtimestamp(float(at_s), UTC), kind, text)


def _mean(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1))
