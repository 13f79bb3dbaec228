"""The headline rule: too much of each step is spent in the gradient all-reduce."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.detect.rules import RULES
from telemetry.steps import StepBatch

_LIMITS = RULES["allreduce_share"].limits
STEPS_TO_FIRE = int(_LIMITS["steps_to_fire"])
STEPS_TO_RESOLVE = int(_LIMITS["steps_to_resolve"])
# Seconds may come in single precision: a share of exactly the limit must not look above it.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of steps, rows ``start`` (inclusive) to the newest, in which the rule is broken.

    ``healthy_from`` is the first row after the previous episode: where a baseline may begin.
    """

    start: int
    healthy_from: int


def streaks(flags: NDArray[np.bool_], length: int) -> IntArray:
    """Return the rows at which ``flags`` has been true ``length`` times running."""
    total = np.concatenate([[0], np.cumsum(flags)])
    full = np.flatnonzero(total[length:] - total[:-length] == length)
    return np.asarray(full + length - 1, dtype=int)


def episode(
    share_ratio: FloatArray, *, limit_ratio: float, resolve_ratio: float, is_open: bool
) -> Episode | None:
    """Tell whether the rule is broken at the newest step, and since which.

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
    """Return the row at which the previous episode was over: the first of five good steps."""
    earlier = fired[fired < start]
    if not earlier.size:
        return 0
    return int(mended[mended > earlier[-1]][0]) - STEPS_TO_RESOLVE + 1


def own_s(steps: StepBatch) -> FloatArray:
    """Return for how long each worker was busy by itself: (n_steps, n_workers) seconds."""
    return steps.worker_step_s - steps.phases["wait_s"] - steps.phases["transfer_s"]
