"""Sequential verdicts of trials: better, worse, or undecided, valid at every look."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import Difference

# A difference smaller than this is not worth a migration, nor worth waiting to see.
LEAST_RATIO: Final = 0.02
# How many settled steps a trial plans for each arm unless told otherwise.
DEFAULT_STEPS: Final = 2_000
# How often a verdict may be wrong where nothing differs, over all looks until the plan is done.
WRONG_RATIO: Final = 0.05


class TrialWord(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell yet"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """``more_steps`` of each arm would roughly decide; None where none would."""

    word: TrialWord
    n_more_steps: int | None


def verdict(
    difference: Difference,
    *,
    is_better_low: bool,
    n_steps: int,
    n_planned: int,
    wrong_ratio: float = WRONG_RATIO,
) -> TrialVerdict:
    """Judge one figure of a trial.

    Parameters
    ----------
    difference : of that figure
    is_better_low : whether less of it is better (seconds, dollars)
    n_steps, n_planned : settled steps of the shorter arm, so far and by the trial's plan
    wrong_ratio : how often the word may be wrong where nothing differs, over all looks together

    Notes
    -----
    Whoever looks at a trial again and again until its interval misses zero is wrong more often
    than one time in twenty. The word is therefore held back by the boundary of O'Brien and
    Fleming (1979), taken for a continuous look: the difference must be as many standard errors
    from none as 2.24 over the root of the share of the plan that is done. Then the chance of a
    wrong word is 5 % until the plan is done, however often it is asked. Whoever goes on asking
    after that is on his own: a word that fell when the plan was done is to be kept.
    """
    error = difference.error_log
    if not math.isfinite(error):
        return TrialVerdict(TrialWord.CANNOT_TELL, max(n_planned - n_steps, 1))
    size = abs(math.log1p(difference.ratio))
    done_ratio = min(1.0, n_steps / n_planned)
    limit = boundary(wrong_ratio)
    if size > error * limit / math.sqrt(done_ratio):
        is_better = (difference.ratio < 0) == is_better_low
        return TrialVerdict(TrialWord.BETTER if is_better else TrialWord.WORSE, 0)
    return TrialVerdict(TrialWord.CANNOT_TELL, _more(size, error * limit, n_steps, n_planned))


def boundary(wrong_ratio: float) -> float:
    """Height that a Brownian motion exceeds by time 1 with a given probability.

    Notes
    -----
    By reflection ``P(sup |B(t)| > b) = 4 (1 - Phi(b))`` less what passes both sides, which is
    below a billionth from b = 2 on. 2.2414 for 5 %.
    """
    return NormalDist().inv_cdf(1 - wrong_ratio / 4)


def _more(size: float, reach: float, n_steps: int, n_planned: int) -> int | None:
    """Return how many more steps would tell, should the difference stay as it is.

    ``reach`` is as much as the plan's end would ask for by now: it falls with the root of the
    steps. Within the plan the boundary is met where size * n = reach * sqrt(n_steps * n_planned),
    beyond it where size * sqrt(n) = reach * sqrt(n_steps).
    """
    if size < math.log1p(LEAST_RATIO):
        return None
    within = reach * math.sqrt(n_steps * n_planned) / size
    needed = within if within <= n_planned else n_steps * (reach / size) ** 2
    return max(1, math.ceil(needed - n_steps))


def is_lost(step: FloatArray, starts: Sequence[tuple[float, float]]) -> FloatArray:
    """Mark steps that a later start of the job trained again.

    Parameters
    ----------
    step : (n_steps,) numbers by the run's count, which only ever rises
    starts : of each start, in order, its first step by that count, and the count less the job's
        own; none: it began once

    Returns
    -------
    (n_steps,) 1 for a step whose work was lost, else 0.

    Notes
    -----
    The job's own number of a step is the count less its start's shift. A start whose own numbers
    begin at ``f`` loses all that was done before it from ``f`` on: of every own number the last
    step stays.

    Examples
    --------
    Five steps, of which the last two were after the checkpoint; then it goes on with its fourth:

    >>> is_lost(np.arange(1.0, 9.0), [(0, 0), (6, 2)])
    array([0., 0., 0., 1., 1., 0., 0., 0.])
    """
    if not starts:
        return np.zeros(len(step))
    first, shift = np.array(starts, float).T
    later = np.append((first - shift)[1:], np.inf)
    again_from = np.minimum.accumulate(later[::-1])[::-1]
    start = np.maximum(np.searchsorted(first, step, side="right") - 1, 0)
    lost: FloatArray = (step - shift[start] >= again_from[start]).astype(float)
    return lost


# Steps are judged in batches of so many, lest one odd step decides.
BATCH = 5
CUT_AT_MADS = 6.0
# Nothing more is left out for a gain smaller than this: so much the error wavers by chance.
WORTH_IT = 1.1


def settled_from(step_s: FloatArray) -> int:
    """First settled step, by position.

    Parameters
    ----------
    step_s : (n_steps,) seconds, in order, since training began

    Returns
    -------
    How many steps to leave out: the fewest whose leaving makes the mean of the rest about as sure
    as it can be, never more than half of them.

    Notes
    -----
    The marginal standard error rule in batches of five, MSER-5 (White, Cobb and Spratt 2000). It
    would gladly leave out all up to the first checkpoint, since a rare long step is what makes
    the mean unsure: steps are therefore cut off where they stand out.
    """
    step_s = _cut_off(step_s)
    n_batches = len(step_s) // BATCH
    if n_batches < 4:
        return 0
    means = step_s[: n_batches * BATCH].reshape(n_batches, BATCH).mean(axis=1)
    left = np.arange(n_batches, 0, -1)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    spread = np.maximum(squares - total**2 / left, 0.0)
    error = spread / left**2
    candidates = error[: n_batches // 2 + 1]
    return int(np.argmax(candidates <= candidates.min() * WORTH_IT)) * BATCH


def _cut_off(step_s: FloatArray) -> FloatArray:
    middle = float(np.median(step_s)) if len(step_s) else 0.0
    usual = CUT_AT_MADS * float(np.median(np.abs(step_s - middle))) if len(step_s) else 0.0
    return np.minimum(step_s, middle + usual) if usual else step_s
