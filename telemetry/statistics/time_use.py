"""Use of the time of a run: each second belongs to training or to one kind of overhead."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch

# In display order. A second has the last kind that applies.
SORTS = (
    *("training", "communication", "input", "saving"),
    *("compiling", "warming_up", "repeated", "idle", "untold"),
)
SETTLED, WARM, AGAIN = range(3)
OF_PHASE = {
    "compute_s": "training",
    "wait_s": "communication",
    "transfer_s": "communication",
    "input_s": "input",
    "checkpoint_s": "saving",
    "other_s": "saving",
}
# (6, 9): which phase counts as which sort.
INTO = np.array([[float(OF_PHASE[phase] == sort) for sort in SORTS] for phase in PHASES])
TRAINING, SAVING, COMPILING, WARMING_UP, REPEATED, IDLE, UNSTORED = (
    SORTS.index(sort)
    for sort in ("training", "saving", "compiling", "warming_up", "repeated", "idle", "untold")
)
OTHER = PHASES.index("other_s")
# The step under way is assumed to be like the last ones.
USUAL_STEPS = 20


def nothing() -> FloatArray:
    return np.zeros((0, 2))


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """Part of a run's time, and what is known besides its steps. Times in Unix seconds.

    ``compiled`` (n, 2) are disjoint compile times, in order. ``last_step`` is the step before the
    slice; None before the first step, when the run was starting. Steps below ``warm_step`` are
    warm-up; ``again`` (m, 2) are ranges of steps (after, up to) that repeated lost work. Steps
    before ``stored_from_s`` are not stored. ``goes_on``: the next step is under way.
    """

    start_s: float
    end_s: float
    compiled: FloatArray
    last_step: int | None = None
    warm_step: int = 0
    again: FloatArray = field(default_factory=nothing)
    stored_from_s: float = -np.inf
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class TimeUse:
    """``seconds`` (n_edges, 9) by rate and SORTS; ``tokens`` (3,): settled, warm-up, repeated."""

    seconds: FloatArray
    tokens: FloatArray


def spent(steps: StepBatch, stretch: TimeSlice, *, edges_s: FloatArray) -> TimeUse:
    """Compute the use of a time slice.

    Parameters
    ----------
    steps : in order; a row may be the average of several neighbours
    edges_s : (n_edges,) Unix seconds from which the tariff's rates hold, rising

    Notes
    -----
    Between two rows, ``n`` steps apart, ``n * step_s`` is stepping, divided by the share of each
    phase; the rest is compiling where reported, otherwise idle. Each second has one kind, so that
    the sum is the length of the slice.
    """
    rows = _rows(steps, stretch)
    rates = zip([-np.inf, *edges_s[1:]], [*edges_s[1:], np.inf], strict=True)
    seconds = np.array([_seconds(rows, stretch, low, high) for low, high in rates])
    n = len(steps)
    counted, again = np.nan_to_num(steps.tokens) * rows.weight[:n], rows.again[:n]
    warm = steps.step < stretch.warm_step
    tokens = [
        ((1 - again) * counted)[~warm].sum(),
        ((1 - again) * counted)[warm].sum(),
        (again * counted).sum(),
    ]
    return TimeUse(seconds, np.array(tokens))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Each row: a gap from ``begins`` to ``turns``, then steps until ``ends``; (n,) seconds.

    ``shares`` (n, 9) divide the stepping, ``gaps`` (n,) are the kinds of unexplained gaps,
    ``again`` (n,) is the repeated share of the ``weight`` steps.
    """

    begins: FloatArray
    turns: FloatArray
    ends: FloatArray
    weight: FloatArray
    shares: FloatArray
    gaps: Sequence[int]
    again: FloatArray


def _rows(steps: StepBatch, stretch: TimeSlice) -> _Rows:
    before = int(steps.step[0]) - 1 if len(steps) else 0
    if stretch.last_step is not None:
        before = stretch.last_step
    weight = np.append(np.diff(steps.step, prepend=before).clip(min=1), 1).astype(float)
    ends = np.append(np.minimum(steps.ended_at_s, stretch.end_s), stretch.end_s)
    begins = np.minimum(np.append(stretch.start_s, ends[:-1]), ends)
    step_s, shares = steps.step_s, _shares(steps)
    usual_s = float(np.nanmedian(step_s[-USUAL_STEPS:])) if len(steps) and stretch.goes_on else 0.0
    usual = shares[-USUAL_STEPS:].mean(axis=0) if len(steps) else np.eye(len(SORTS))[IDLE]
    shares = np.vstack([shares, usual])
    step_s = np.append(np.where(np.isnan(step_s), np.inf, step_s), usual_s)
    warm = np.append(steps.step < stretch.warm_step, False)
    shares[warm] = np.eye(len(SORTS))[WARMING_UP]
    up_to = np.append(steps.step, steps.step[-1:] + 1 if len(steps) else 0.0)
    again = _covered(stretch.again, up_to - weight, up_to, -np.inf, np.inf) / weight
    shares *= 1 - again[:, None]
    shares[:, REPEATED] += again
    gaps = [IDLE] * len(ends)
    gaps[0] = WARMING_UP if stretch.last_step is None else IDLE
    turns = ends - np.minimum(weight * step_s, ends - begins)
    return _Rows(begins, turns, ends, weight, shares, gaps, again)


def _shares(steps: StepBatch) -> FloatArray:
    """Shares of each step by kind: (n_steps, 9), summing to one; without phases it trained."""
    phases_s = np.stack([steps.phases[phase] for phase in PHASES], axis=-1)
    known = np.isfinite(phases_s)
    mean_s = np.where(known, phases_s, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    is_known = np.asarray(known.any(axis=1))
    is_divided = is_known[:, :OTHER].any(axis=1) & (mean_s.sum(axis=1) > 0)
    total_s = np.where(is_divided, mean_s.sum(axis=1), 1.0)
    shares = mean_s / total_s[:, None] @ INTO
    shares[~is_divided] = np.eye(len(SORTS))[TRAINING]
    return np.asarray(shares)


def _seconds(rows: _Rows, stretch: TimeSlice, low: float, high: float) -> FloatArray:
    """Seconds by kind between two times: (9,)."""
    gap = _within(rows.begins, rows.turns, low, high)
    stored_from = np.clip(stretch.stored_from_s, rows.begins, rows.turns)
    unstored = _within(rows.begins, stored_from, low, high)
    compiled = _covered(stretch.compiled, stored_from, rows.turns, low, high)
    parts = _within(rows.turns, rows.ends, low, high)[:, None] * rows.shares
    # Steps report compilation within them as other time.
    amid = _covered(stretch.compiled, rows.turns, rows.ends, low, high)
    amid = np.minimum(amid, parts[:, SAVING])
    parts[:, SAVING] -= amid
    parts[:, COMPILING] += amid + compiled
    parts[:, UNSTORED] += unstored
    parts[np.arange(len(parts)), rows.gaps] += gap - unstored - compiled
    return np.asarray(parts.sum(axis=0))


def _within(begins: FloatArray, ends: FloatArray, low: float, high: float) -> FloatArray:
    """Seconds of each interval between two times: (n,)."""
    return np.array(np.maximum(np.minimum(ends, high) - np.maximum(begins, low), 0.0))


def _covered(
    spans: FloatArray, begins: FloatArray, ends: FloatArray, low: float, high: float
) -> FloatArray:
    """Seconds of each interval in spans and between two times: (n,)."""
    if not len(spans):
        return np.zeros(len(begins))
    lasted = np.append(0.0, np.cumsum(spans[:, 1] - spans[:, 0]))
    moments, so_far = spans.ravel(), np.repeat(lasted, 2)[1:-1]
    low_s, high_s = np.clip(begins, low, high), np.clip(ends, low, high)
    until = np.interp(high_s, moments, so_far, right=lasted[-1])
    since = np.interp(low_s, moments, so_far, right=lasted[-1])
    return np.array(np.maximum(until - since, 0.0))


def merged(spans: Sequence[tuple[float, float]]) -> FloatArray:
    """Union of spans (from, to): (n, 2), disjoint and in order."""
    joined: list[list[float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        elif end > begin:
            joined.append([begin, end])
    return np.array(joined).reshape(-1, 2)
