"""Compare steps with the past of the run: which phase takes longer, and since when."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.rules import RULES
from telemetry.statistics.change_points import noise, rise
from telemetry.statistics.peers import median, middle
from telemetry.steps import EXCHANGE, StepBatch, once

# Minimum steps of a baseline, and the steps that describe the present.
BASELINE_STEPS = 3
RECENT_STEPS = 12
NEWEST_STEPS = 5
# A larger relative change of tokens or workers was made on purpose.
CHANGED_RATIO = 0.02
# A report that is sent again arrives within this time.
REPORTS_LATE_S = 8.0
# So many steps in a row at their usual length end an earlier rise.
RECOVERED_STEPS = 5
# Of one step, at most this part of the reports is lost, or one.
MOST_LOST = 0.1
# After a pause as long as this, the processes have restarted, and their first steps take longer.
PAUSED_S, WARM_UP_STEPS = 10.0, 3
# Newest steps that confirm a rise: seconds, and steps. A single longer step is enough if its rise
# is clear.
PERSISTS_S, PERSISTS_STEPS, CLEARLY = 5.0, 2, 2.0
# Required rise in deviations of the normal variation.
DEVIATIONS = 4.0
# A rise varies from step to step if its deviation is above this share of it.
STEADY = 0.1
# The fastest fifth of the workers ignores a few late ones.
QUICK = 0.2
# An open alert resolves at this share of the limit.
HALF = RULES["step_slow"].limits["half_ratio"]


@dataclass(frozen=True, slots=True)
class PhaseRise:
    """``usual`` before, ``now``, and ``at``, the row of the first step with the higher value."""

    usual: float
    now: float
    at: int

    @property
    def excess(self) -> float:
        return self.now - self.usual


@once
def comparable_steps(steps: StepBatch) -> StepBatch:
    """Keep steps with the tokens and the number of workers of the newest one.

    A step with twice the tokens, or half the workers, takes twice as long without a problem, and
    so do the first ones after a restart. While all are first ones, all are kept.

    A worker whose report of one step is lost has a part in that step. One that leaves the run
    makes it start again: without a pause, its newest report is lost, and so may be those of a few
    others. While a step in between may still come, those after it wait: without it, long steps
    would seem to follow each other.
    """
    may_come = steps.ended_at_s[1:] - steps.step_s[1:] > steps.ended_at_s[-1:] - REPORTS_LATE_S
    if may_come.any():
        n_steps = np.diff(steps.step)
        awaited = np.flatnonzero((n_steps > np.median(n_steps)) & may_come)
        steps = steps[: awaited[0] + 1] if len(awaited) else steps
    known = np.isfinite(steps.phases["compute_s"])
    has_part = known.copy()
    has_part[1:-1] |= known[:-2] & known[2:]
    n_lost = has_part[-2].sum() - known[-1].sum() if len(steps) > 1 else 0
    if 0 < n_lost <= max(1, MOST_LOST * known.shape[1]):
        has_part[-1] |= has_part[-2] & (_paused_s(steps)[-1] <= PAUSED_S)
    n_workers = has_part.sum(axis=1)
    tokens = np.nan_to_num(steps.tokens)
    alike = np.abs(tokens - tokens[-1]) <= CHANGED_RATIO * abs(tokens[-1])
    rows = alike & (n_workers == n_workers[-1])
    settled = rows & ~_warms_up(steps)
    rows = settled if settled.any() else rows
    return steps if rows.all() else steps[rows]


def _warms_up(steps: StepBatch) -> NDArray[np.bool_]:
    """Whether each step is one of the first, of the run or after a pause: (n_steps,) flags."""
    first = np.append(0, steps.step[_paused_s(steps) > PAUSED_S])
    since = np.searchsorted(first, steps.step, side="right") - 1
    return np.asarray(steps.step - first[since] < WARM_UP_STEPS)


def _paused_s(steps: StepBatch) -> FloatArray:
    """Time between each step and the one before it, less what missing steps took: (n_steps,)."""
    n_missing = np.diff(steps.step, prepend=steps.step[0] - 1) - 1
    usual_s = float(median(steps.step_s))
    began_s = steps.ended_at_s - steps.step_s - n_missing * usual_s
    return np.asarray(began_s - np.concatenate(([began_s[0]], steps.ended_at_s[:-1])))


@once
def work_s(steps: StepBatch) -> FloatArray:
    """Step time without checkpoints, evaluations and pauses: (n_steps,) seconds."""
    worked_s = steps.sum_phases(("compute_s", "input_s"))
    exchanged_s = steps.sum_phases(EXCHANGE)
    # An untimed exchange is part of the compute time.
    if np.isfinite(exchanged_s).all():
        worked_s = worked_s + exchanged_s
    else:
        worked_s = worked_s + np.where(np.isnan(exchanged_s), 0.0, exchanged_s)
        worked_s = worked_s + _rests_in_traced_steps_s(steps)
    known = np.isfinite(worked_s)
    if known.all() and worked_s.shape[1]:
        return np.asarray(worked_s.sum(axis=1) / worked_s.shape[1])
    return np.asarray(np.where(known, worked_s, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def _rests_in_traced_steps_s(steps: StepBatch) -> FloatArray:
    """Time between executions: (n_steps, n_workers) seconds, 0 in steps without a trace.

    A trace separates it; in the other steps of the run it is part of the compute time. Where jobs
    report what else they did, that is left out of all steps alike.
    """
    other_s, transfer_s = steps.phases["other_s"], steps.phases["transfer_s"]
    is_reported = (other_s[np.isnan(transfer_s)] > 0).any()
    return np.where((transfer_s == 0) & ~is_reported, np.nan_to_num(other_s), 0.0)


def n_newest(steps: StepBatch, *, seconds: float = PERSISTS_S, least: int = 1) -> int:
    """Count the newest steps that cover the required seconds, at most half of all."""
    lasted_s = np.cumsum(work_s(steps)[::-1])
    n_steps = int(np.searchsorted(lasted_s, seconds)) + 1
    return max(least, min(n_steps, len(steps) // 2))


def quickest_fifth(values: FloatArray) -> FloatArray:
    """Return the upper bound of the fastest fifth of workers: (n_steps, n_workers) to (n_steps,).

    It rises only if all workers become slower.
    """
    known = np.sort(values, axis=1)
    n = np.isfinite(known).sum(axis=1)
    at = np.floor(QUICK * np.maximum(n - 1, 0)).astype(int)
    return np.asarray(np.take_along_axis(known, at[:, None], axis=1)[:, 0])


def find_rise(
    x: FloatArray,
    *,
    least: float,
    n_now: int,
    usual: float | None = None,
    n_to_resolve: int = PERSISTS_STEPS,
    n_since: int = 0,
    clearly: float = CLEARLY,
) -> PhaseRise | None:
    """Find a rise that lasts until now.

    Parameters
    ----------
    x : (n_steps,)
        The figure, oldest first, none NaN.
    least : same unit as x
        The minimum rise that counts.
    n_now : steps
        How many of the newest say how it is now.
    usual : same unit as x, optional
        What it was when an open alert fired: then half of ``least`` keeps the alert open.
    n_to_resolve : steps
        How many of the newest must be back for an open alert to end; one of long ones.
    n_since : steps
        How many have ended since the onset of the open alert: it also ends when half of the
        newest ones are back, as single long ones come by chance.
    clearly
        How many times the minimum rise a single step must show.

    Notes
    -----
    The likeliest change point (Hinkley 1970) splits the window; the median before it is what is
    usual. Both newest steps must bear it out; a single one only where it is a long one, and
    twice as clear.

    Examples
    --------
    >>> find_rise(np.array([1.0, 1, 1, 1, 1, 1.5, 1.5, 1.5]), least=0.1, n_now=2)
    PhaseRise(usual=1.0, now=1.5, at=5)
    """
    if x.size < n_now:
        return None
    now = middle(x[-n_now:])
    if usual is not None:
        back = x - usual < HALF * least
        is_varied = (
            noise(x[~back]) > STEADY * (middle(x[~back]) - usual) if (~back).any() else False
        )
        is_over = back[-(n_to_resolve if is_varied else min(n_now, n_to_resolve)) :].all()
        if n_since >= RECENT_STEPS <= x.size:
            is_over |= middle(x[-RECENT_STEPS:]) - usual < HALF * least
        if is_over:
            return None
        at = int(np.flatnonzero(back)[-1]) + 1 if back.any() else 0
        return PhaseRise(usual, now, min(at, x.size - 1))
    change = rise(x, floor=least / 6)
    if change is None or change.at < BASELINE_STEPS:
        return None
    at = change.at
    before = middle(x[:at])
    is_low = x - before < HALF * (now - before)
    in_row = np.convolve(is_low, np.ones(RECOVERED_STEPS), mode="full")[: x.size]
    recovered = np.flatnonzero(in_row[at:] >= RECOVERED_STEPS) + at
    if now > before and (recovered.size or is_low[at:].mean() > HALF):
        # What was long ago, such as a single very long step, is not when it began.
        at = int(np.flatnonzero(is_low)[-1]) + 1
        before = middle(x[:at])
    n_high = min(PERSISTS_STEPS, max(1, x.size - at))
    enough = least if n_high == PERSISTS_STEPS else clearly * least
    # A varying figure must rise clearly above its variation.
    enough = max(enough, DEVIATIONS * noise(x[:at]) / np.sqrt(n_high))
    is_high = x.size - at >= n_now and now - before >= enough
    if not is_high or float(x[-n_high:].min()) - before < HALF * least:
        return None
    return PhaseRise(before, now, at)


def busy_s(steps: StepBatch) -> FloatArray:
    """Time without waiting and transfer: (n_steps, n_workers) seconds."""
    return steps.worker_step_s - steps.phases["wait_s"] - steps.phases["transfer_s"]


# Hardware is read for this many steps, within these seconds, and this long before the onset.
ENOUGH_STEPS, RECENT_S, BEFORE_S = 4, (15.0, 60.0), 15
# A smaller rise (share of the step) explains nothing.
NOTICEABLE_RATIO = 0.02
# Up to this ratio a duration counts as unchanged.
SAME = 1.1

ExchangeKind = Literal["waiting", "transferring"]


@dataclass(frozen=True, slots=True)
class ShareCase:
    """A run with its share above the limit.

    ``before``: steps of the last healthy stretch, None without one. ``after``: steps from the
    onset to the last one above the limit, at most RECENT_STEPS. ``newest``: the last few steps,
    resolved or not.
    """

    inputs: DetectionInput
    before: StepBatch | None
    after: StepBatch
    newest: StepBatch
    onset_s: float

    @property
    def rise_s(self) -> Mapping[ExchangeKind, float]:
        """Rise of wait and transfer per step: seconds.

        Without a rise, or without a baseline, the absolute values.
        """
        now: dict[ExchangeKind, float] = {
            "waiting": _typical(self.after, "wait_s"),
            "transferring": _typical(self.after, "transfer_s"),
        }
        if self.before is None:
            return now
        rise: dict[ExchangeKind, float] = {
            "waiting": now["waiting"] - _typical(self.before, "wait_s"),
            "transferring": now["transferring"] - _typical(self.before, "transfer_s"),
        }
        return rise if max(rise.values()) > self._least_rise_s else now

    @property
    def share_rise_ratio(self) -> float:
        """Rise of the share; the whole share without a baseline."""
        now = middle(self.after.allreduce_share_ratio)
        return now - (middle(self.before.allreduce_share_ratio) if self.before else 0.0)

    @property
    def kind(self) -> ExchangeKind:
        """The larger rise."""
        rise_s = self.rise_s
        return "waiting" if rise_s["waiting"] > rise_s["transferring"] else "transferring"

    @property
    def changed(self) -> tuple[str, ...]:
        """What was changed at the onset: the batch, or the number of workers."""
        if self.before is None:
            return ()
        figures = {
            "batch": (self.before.tokens, self.after.tokens),
            "scale": (_n_workers(self.before), _n_workers(self.after)),
        }
        middles = {name: (middle(was), middle(now)) for name, (was, now) in figures.items()}
        return tuple(
            name
            for name, (was, now) in middles.items()
            if np.isfinite([was, now]).all() and abs(now - was) > CHANGED_RATIO * abs(was)
        )

    @property
    def is_from_shorter_step(self) -> bool:
        """Whether the run was changed and communication takes no longer.

        The share rose because the rest of the step became shorter: nothing is slower.
        """
        return bool(self.changed) and self.takes_no_longer

    @property
    def takes_no_longer(self) -> bool:
        """Whether wait and transfer take no longer than before."""
        if self.before is None:
            return False
        return all(
            _typical(self.after, phase) <= SAME * _typical(self.before, phase) + least_s
            for phase, least_s in (("transfer_s", 0.0), ("wait_s", self._least_rise_s))
        )

    @property
    def _least_rise_s(self) -> float:
        """Minimum rise that counts: seconds per step."""
        return NOTICEABLE_RATIO * middle(self.after.step_s)


def open_baseline(
    inputs: DetectionInput, steps: StepBatch, *, cause: str | None = None, kind: str | None = None
) -> float | None:
    """Baseline in an open alert of a cause or kind about steps with the same tokens."""
    now = float(steps.tokens[-1])
    for alert in inputs.open_problems:
        baseline_s, was = (alert.evidence.get(key) for key in ("baseline_phase_s", "tokens"))
        is_of = alert.cause == cause if cause else alert.evidence.get("kind") == kind
        # Where tokens are unknown they count as the same.
        is_same = was is None or not np.isfinite(now) or abs(now - was) <= CHANGED_RATIO * abs(was)
        if is_of and is_same and baseline_s is not None:
            return float(baseline_s)
    return None


def case_since(inputs: DetectionInput, steps: StepBatch, at: int) -> ShareCase:
    """Return a ShareCase for steps that are slow since a row."""
    before, after = steps[:at], steps[at:]
    return ShareCase(
        inputs=inputs,
        before=before if len(before) >= BASELINE_STEPS else None,
        after=after.last(RECENT_STEPS),
        newest=after.last(NEWEST_STEPS),
        onset_s=float(steps.ended_at_s[at] - steps.step_s[at]),
    )


def _typical(steps: StepBatch, phase: str) -> float:
    """Median over steps of the mean over workers."""
    return middle(np.nanmean(steps.phases[phase], axis=1))


def _n_workers(steps: StepBatch) -> FloatArray:
    return np.asarray(np.isfinite(steps.phases["compute_s"]).sum(axis=1), dtype=float)


def hardware_before_and_after(
    case: ShareCase, metrics: Sequence[str], *, nodes: Collection[str] = ()
) -> tuple[Span, Span]:
    """Read hardware before the onset, and during the newest steps above the limit.

    Of ``nodes``, or of all; only ticks with data. If no tick is younger than the onset, the newest
    one is used.
    """
    until_s = float(case.after.ended_at_s[-1])
    last_s = np.clip(ENOUGH_STEPS * middle(case.after.step_s), *RECENT_S)
    began_s = float(case.after.ended_at_s[0] - case.after.step_s[0])
    from_s = max(case.onset_s, began_s, until_s - float(last_s))
    span = case.inputs.hardware(metrics, int(case.inputs.now_s - from_s) + 1 + BEFORE_S)
    if nodes:
        span = span.of([name for name in span.nodes if name in nodes])
    spoken = np.zeros(len(span.ticks), dtype=bool)
    for values in span.values.values():
        spoken |= np.isfinite(values).any(axis=(1, 2))
    middle_s = span.ticks - 0.5 * span.every_s  # a tick covers the second before it
    since = spoken & (middle_s >= from_s) & (middle_s <= until_s)
    if spoken.any() and not since.any():
        since[np.flatnonzero(spoken)[-1]] = True
    return _rows(span, spoken & (span.ticks <= case.onset_s)), _rows(span, since)


def _rows(span: Span, rows: NDArray[np.bool_]) -> Span:
    values = {name: array[rows] for name, array in span.values.items()}
    return replace(span, ticks=span.ticks[rows], values=values)
