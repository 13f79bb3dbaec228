"""Better, worse, or cannot tell yet: a verdict that may be looked at every day."""

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final

from telemetry.compare.differences import Difference

# A difference smaller than this is not worth a migration, nor worth waiting to see.
LEAST_RATIO: Final = 0.02
# How many settled steps a trial plans for each arm unless told otherwise.
DEFAULT_STEPS: Final = 2_000
# How often a verdict may be wrong where nothing differs, over all looks until the plan is done.
WRONG_RATIO: Final = 0.05


class Word(StrEnum):
    """What a trial says of its candidate."""

    BETTER = "better"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell yet"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, and how many more steps of each arm would roughly tell; None where none would."""

    word: Word
    n_more_steps: int | None


def verdict(
    difference: Difference,
    *,
    is_better_low: bool,
    n_steps: int,
    n_planned: int,
    wrong_ratio: float = WRONG_RATIO,
) -> Verdict:
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
        return Verdict(Word.CANNOT_TELL, max(n_planned - n_steps, 1))
    size = abs(math.log1p(difference.ratio))
    done_ratio = min(1.0, n_steps / n_planned)
    limit = boundary(wrong_ratio)
    if size > error * limit / math.sqrt(done_ratio):
        is_better = (difference.ratio < 0) == is_better_low
        return Verdict(Word.BETTER if is_better else Word.WORSE, 0)
    return Verdict(Word.CANNOT_TELL, _more(size, error * limit, n_steps, n_planned))


def boundary(wrong_ratio: float) -> float:
    """Return the height that a Brownian motion B passes by time 1 so often.

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
