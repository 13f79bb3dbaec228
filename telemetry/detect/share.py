"""The rule allreduce_share: too much of each step is exposed gradient communication."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.rules import RULES
from telemetry.statistics.change_points import rise
from telemetry.statistics.peers import middle
from telemetry.steps import StepBatch

_LIMITS = RULES["allreduce_share"].limits
STEPS_TO_FIRE = int(_LIMITS["steps_to_fire"])
STEPS_TO_RESOLVE = int(_LIMITS["steps_to_resolve"])
# With single-precision input, a share of exactly the limit must not exceed it.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Episode:
    """Steps ``start`` (inclusive) to the newest, in which the rule is broken.

    ``healthy_from`` is the first row after the previous episode, where a baseline may begin.
    """

    start: int
    healthy_from: int


def streaks(flags: NDArray[np.bool_], length: int) -> IntArray:
    """Rows that complete ``length`` true flags in a row."""
    total = np.concatenate([[0], np.cumsum(flags)])
    full = np.flatnonzero(total[length:] - total[:-length] == length)
    return np.asarray(full + length - 1, dtype=int)


def episode(
    share_ratio: FloatArray, *, limit_ratio: float, resolve_ratio: float, is_open: bool
) -> Episode | None:
    """Find the episode that lasts at the newest step.

    Parameters
    ----------
    share_ratio : (n_steps,), 0 to 1
        All-reduce share of each step, oldest first, none NaN.
    limit_ratio, resolve_ratio : 0 to 1
        Broken by two steps in a row above the first; mended by five in a row below the second.
    is_open : bool
        Whether the rule was broken when last looked at: decides where the window holds neither.

    Returns
    -------
    The episode that lasts at the newest step, or None.

    Notes
    -----
    A Schmitt trigger that needs no memory: of breaking and mending, the later one in the window
    holds. Asking once per step or once per hundred steps gives the same answer.
    """
    fired = streaks(share_ratio > limit_ratio + ROUNDING, STEPS_TO_FIRE)
    mended = streaks(share_ratio < resolve_ratio - ROUNDING, STEPS_TO_RESOLVE)
    last_mended = int(mended[-1]) if mended.size else -1
    since = fired[fired > last_mended]
    if since.size:
        start = int(since[0]) - STEPS_TO_FIRE + 1
        return Episode(start, _healthy_from(fired, mended, start))
    return Episode(0, 0) if is_open and last_mended < 0 else None


def _healthy_from(fired: IntArray, mended: IntArray, start: int) -> int:
    """Return the first of the five good steps that ended the previous episode."""
    earlier = fired[fired < start]
    if not earlier.size:
        return 0
    return int(mended[mended > earlier[-1]][0]) - STEPS_TO_RESOLVE + 1


def busy_s(steps: StepBatch) -> FloatArray:
    """Time without waiting and transfer: (n_steps, n_workers) seconds."""
    return steps.worker_step_s - steps.phases["wait_s"] - steps.phases["transfer_s"]


# Minimum steps of a baseline, and the steps that describe the present.
BASELINE_STEPS = 3
RECENT_STEPS = 12
NEWEST_STEPS = 5
# Hardware is read for this many steps, within these seconds, and this long before the onset.
ENOUGH_STEPS, RECENT_S, LEAD_S = 4, (15.0, 60.0), 15
# Steps after the first one above the limit that help to find the onset.
SETTLING_STEPS = 8
# Minimum deviation assumed for the share of a healthy run.
SHARE_NOISE = 0.005
# A smaller rise (share of the step) explains nothing.
FELT_RATIO = 0.02
# Up to this ratio a duration counts as unchanged.
SAME = 1.1
# A larger relative change of tokens or workers was made on purpose.
CHANGED_RATIO = 0.02

Kind = Literal["waiting", "transferring"]


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
    def rise_s(self) -> Mapping[Kind, float]:
        """Rise of wait and transfer per step: seconds.

        Without a rise, or without a baseline, the absolute values.
        """
        now: dict[Kind, float] = {
            "waiting": _typical(self.after, "wait_s"),
            "transferring": _typical(self.after, "transfer_s"),
        }
        if self.before is None:
            return now
        rise: dict[Kind, float] = {
            "waiting": now["waiting"] - _typical(self.before, "wait_s"),
            "transferring": now["transferring"] - _typical(self.before, "transfer_s"),
        }
        return rise if max(rise.values()) > self._felt_s else now

    @property
    def share_rise_ratio(self) -> float:
        """Rise of the share; the whole share without a baseline."""
        now = middle(self.after.allreduce_share_ratio)
        return now - (middle(self.before.allreduce_share_ratio) if self.before else 0.0)

    @property
    def kind(self) -> Kind:
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
        return tuple(name for name, (was, now) in figures.items() if _differs(was, now))

    @property
    def is_diluted(self) -> bool:
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
            for phase, least_s in (("transfer_s", 0.0), ("wait_s", self._felt_s))
        )

    @property
    def _felt_s(self) -> float:
        """Minimum rise that counts: seconds per step."""
        return FELT_RATIO * middle(self.after.step_s)


def open_case(inputs: DetectionInput, steps: StepBatch, episode: Episode) -> ShareCase:
    """Find the onset and the baseline.

    The onset is the likeliest rise up to shortly after the share crossed the limit: a share that
    goes from 10 % to 24 % to 26 % began with the 24 %.
    """
    first = episode.healthy_from
    share = steps.allreduce_share_ratio
    change = rise(share[first : episode.start + SETTLING_STEPS], floor=SHARE_NOISE)
    onset = episode.start if change is None else min(first + change.at, episode.start)
    before = steps[first:onset]
    over = np.flatnonzero(share > inputs.limit_ratio)
    until = int(over[-1]) + 1 if over.size else len(steps)
    after = steps[onset:until]
    return ShareCase(
        inputs=inputs,
        before=before if len(before) >= BASELINE_STEPS else None,
        after=after.last(RECENT_STEPS),
        newest=steps[episode.start :].last(NEWEST_STEPS),
        onset_s=float(steps.ended_at_s[onset] - steps.step_s[onset]),
    )


def _typical(steps: StepBatch, phase: str) -> float:
    """Median over steps of the mean over workers."""
    return middle(np.nanmean(steps.phases[phase], axis=1))


def _n_workers(steps: StepBatch) -> FloatArray:
    return np.asarray(np.isfinite(steps.phases["compute_s"]).sum(axis=1), dtype=float)


def _differs(was: FloatArray, now: FloatArray) -> bool:
    """Whether two medians differ by more than CHANGED_RATIO."""
    a, b = middle(was), middle(now)
    return bool(np.isfinite(a) and np.isfinite(b) and abs(b - a) > CHANGED_RATIO * abs(a))


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
    span = case.inputs.hardware(metrics, int(case.inputs.now_s - from_s) + 1 + LEAD_S)
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
