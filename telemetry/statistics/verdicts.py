"""Sequential verdicts of trials: better, worse, equivalent, or open, valid at every look."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import Difference, student_quantile

# A smaller difference is not worth a migration, nor a longer trial. The default of a trial.
MARGIN_RATIO: Final = 0.02
# Planned settled steps of each arm by default.
DEFAULT_STEPS: Final = 2_000
# Accepted probability of a wrong verdict without a difference, over all looks until the plan ends.
WRONG_RATIO: Final = 0.05


class TrialWord(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    CANNOT_TELL = "cannot tell yet"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """A verdict, and how many more steps of each arm would decide; None if none would."""

    word: TrialWord
    n_more_steps: int | None


def verdict(
    difference: Difference,
    *,
    is_better_low: bool,
    n_steps: int,
    n_planned: int,
    wrong_ratio: float = WRONG_RATIO,
    margin_ratio: float = MARGIN_RATIO,
) -> TrialVerdict:
    """Judge one figure of a trial.

    Parameters
    ----------
    difference : of that figure
    is_better_low : whether less is better (seconds, dollars)
    n_steps, n_planned : settled steps of the shortest run, so far and planned
    wrong_ratio : accepted probability of a wrong word, over all looks
    margin_ratio : arms that differ by less are equivalent

    Notes
    -----
    Looking repeatedly until an interval excludes zero is wrong more than one time in twenty. The
    verdict therefore uses the boundary of O'Brien and Fleming (1979) for continuous monitoring:
    the difference must exceed 2.24 standard errors over the square root of the completed share of
    the plan. The probability of a wrong word is then 5 % until the plan is complete, however
    often the trial is read. The verdict of the complete plan is to be kept. An error of few
    degrees of freedom takes Student's quantile instead of the normal one.

    Arms are equivalent if the whole interval of that width is within the margin on both sides
    (two one-sided tests, Schuirmann 1987), also where it excludes zero.
    """
    error = difference.error_log
    if not math.isfinite(error):
        return TrialVerdict(TrialWord.CANNOT_TELL, max(n_planned - n_steps, 1))
    size, margin = abs(math.log1p(difference.ratio)), math.log1p(margin_ratio)
    limit = boundary(wrong_ratio, difference.freedom)
    reach = error * limit / math.sqrt(min(1.0, n_steps / n_planned))
    if size + reach < margin:
        return TrialVerdict(TrialWord.EQUIVALENT, 0)
    if size > reach:
        is_better = (difference.ratio < 0) == is_better_low
        return TrialVerdict(TrialWord.BETTER if is_better else TrialWord.WORSE, 0)
    if size < margin:
        return TrialVerdict(TrialWord.CANNOT_TELL, None)
    return TrialVerdict(TrialWord.CANNOT_TELL, _more(difference, limit, n_steps, n_planned))


def boundary(wrong_ratio: float, freedom: float = math.inf) -> float:
    """Height that a Brownian motion exceeds by time 1 with a given probability.

    By reflection ``P(sup |B(t)| > b) = 4 (1 - Phi(b))``, minus a term below 1e-9 from b = 2 on;
    2.2414 for 5 %. With few degrees of ``freedom``, Student's distribution instead of Phi.
    """
    return student_quantile(freedom, 1 - wrong_ratio / 4)


def _more(difference: Difference, limit: float, n_steps: int, n_planned: int) -> int | None:
    """Return how many more steps would decide if the difference stays the same.

    The variance of n steps is that between runs plus that of steps times n_steps / n. Within the
    plan the boundary is met where size**2 * n / n_planned = limit**2 * variance, beyond it where
    size**2 = limit**2 * variance. None where more steps alone would not decide.
    """
    size = math.log1p(difference.ratio)
    fixed = (limit * difference.run_error_log) ** 2
    falling = (limit * difference.error_log) ** 2 - fixed
    square = size**2 / n_planned
    needed = (fixed + math.sqrt(fixed**2 + 4 * square * falling * n_steps)) / (2 * square)
    if needed > n_planned:
        if size**2 <= fixed:
            return None
        needed = falling * n_steps / (size**2 - fixed)
    return max(1, math.ceil(needed - n_steps))


def is_lost(step: FloatArray, starts: Sequence[tuple[float, float]]) -> FloatArray:
    """Mark steps that were trained again after a restart: (n_steps,), 1 for lost, else 0.

    Parameters
    ----------
    step : (n_steps,) increasing step numbers of the run
    starts : per start, its first step, and the run's number minus the job's own number

    Notes
    -----
    The job's own number of a step is ``step`` minus its start's shift. A start whose own numbers
    begin at ``f`` discards all earlier work from ``f`` on.

    Five steps, two of them after the last checkpoint; the job resumes at its step 4:

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


# Steps are judged in batches, so that no single step decides.
BATCH = 5
CUT_AT_MADS = 6.0
# A smaller gain is within chance.
WORTH_IT = 1.1


def settled_from(step_s: FloatArray) -> int:
    """Return how many steps of warm-up to leave out, at most half of (n_steps,) ``step_s``.

    Marginal standard error rule in batches of five, MSER-5 (White, Cobb and Spratt 2000): leave
    out the fewest steps that make the mean of the rest about as certain as possible. Rare long
    steps such as checkpoints are clipped first, because they would dominate the error.
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
