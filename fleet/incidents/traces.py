"""What a run's steps themselves tell of checkpoints, pauses, and changes of batch and size."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from fleet.templatetags.units import duration, si
from telemetry.blocks import FloatArray
from telemetry.steps import StepBatch
from telemetry.store.history import worker_minutes
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

    Minute by minute, for those outlive the hot tier with all their workers: nothing of this is
    kept a second time.
    """
    minutes = worker_minutes(source, run, start_s=start_s, end_s=end_s)
    if len(minutes) < 2:
        return []
    return [
        *_checkpoints(minutes),
        *_pauses(minutes),
        *_batches(minutes),
        *_sizes(minutes),
    ]


def _checkpoints(minutes: StepBatch) -> list[Trace]:
    """Find the minutes in which checkpoints were written; those next to each other are one."""
    n_steps = np.diff(minutes.step, prepend=minutes.step[0] - 1)
    saved_s = _mean(minutes.phases["checkpoint_s"]) * n_steps
    return [
        _trace(
            minutes.ended_at_s[first] - saved_s[first],
            "checkpoint",
            f"took {duration(float(saved_s[first : last + 1].sum()))}",
        )
        for first, last in _stretches(saved_s >= LEAST_CHECKPOINT_S)
    ]


def _pauses(minutes: StepBatch) -> list[Trace]:
    """Find where no step was under way: between two ends lies more than their steps took."""
    step_s = minutes.step_s
    idle_s = np.diff(minutes.ended_at_s) - np.diff(minutes.step) * step_s[1:]
    least_s = max(PAUSE_S, PAUSE_STEPS * float(np.nanmedian(step_s)))
    return [
        _trace(minutes.ended_at_s[i], "pause", f"no step for {duration(float(idle_s[i]))}")
        for i in np.flatnonzero(idle_s > least_s)
    ]


def _batches(minutes: StepBatch) -> list[Trace]:
    """Find where steps became larger or smaller; a minute of both kinds belongs to the change."""
    tokens = minutes.tokens
    moved = np.abs(np.diff(tokens)) > SAME_TOKENS_RATIO * np.maximum(tokens[:-1], 1)
    return [
        _trace(
            minutes.ended_at_s[first],
            "batch",
            f"{si(float(tokens[first]))} tokens per step became {si(float(tokens[last + 1]))}",
        )
        for first, last in _stretches(moved)
    ]


def _sizes(minutes: StepBatch) -> list[Trace]:
    """Find where the number of workers that report changed and stayed so for a minute."""
    if len(minutes) < 3:
        return []
    n_workers = np.isfinite(minutes.worker_step_s).sum(axis=1)
    stays = np.append(n_workers[1:-1] == n_workers[2:], [False])
    return [
        _trace(
            minutes.ended_at_s[i],
            "scale",
            f"{n_workers[i]} workers became {n_workers[i + 1]}",
        )
        for i in np.flatnonzero((np.diff(n_workers) != 0) & stays)
    ]


def _stretches(is_so: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return first and last index of each stretch of trues."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_so, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in edges.reshape(-1, 2)]


def _trace(at_s: float, kind: str, text: str) -> Trace:
    return Trace(datetime.fromtimestamp(float(at_s), UTC), kind, text)


def _mean(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1))
