"""Measures of which only a part of an arm's steps tells: its first epoch, and equal tokens."""

from dataclasses import dataclass

import numpy as np

from fleet.trials.measures import FIRST_EPOCH, LOSS
from fleet.trials.steps import COLUMNS
from telemetry.blocks import FloatArray
from telemetry.compare.differences import Arm, Difference, differences

STEPS, TOKENS, ONCE, LOSSES, LOSS_STEPS = (
    COLUMNS.index(name) for name in ("steps", "tokens", "once", "loss", "loss_steps")
)
# Losses are compared over this last part of the tokens that both arms have trained on.
WINDOW_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Portion:
    """A difference, and the steps it is of: so many so far, of so many that there will be."""

    difference: Difference
    n_steps: int
    n_planned: int


def first_epoch(sums: FloatArray, tokens_per_epoch: int | None) -> FloatArray:
    """Return the rows of an arm's first pass over its data, warm-up included; none: unknown.

    What was trained again after a failure passed over the data once.
    """
    if not tokens_per_epoch or not sums[:, TOKENS].all():
        return sums[:0]
    before = np.cumsum(sums[:, ONCE]) - sums[:, ONCE]
    return np.asarray(sums[before < tokens_per_epoch])


def first_epochs(
    before: FloatArray, after: FloatArray, tokens_per_epoch: int, rng: np.random.Generator
) -> Portion | None:
    """Compare the mean step of two arms' first epochs; None where one has no step of it."""
    epochs = [first_epoch(sums, tokens_per_epoch) for sums in (before, after)]
    if not all(map(len, epochs)):
        return None
    found = differences(*_arms(epochs), {FIRST_EPOCH.name: FIRST_EPOCH.measure}, rng=rng)
    done = [max(1.0, float(rows[:, ONCE].sum())) for rows in epochs]
    counts = [int(rows[:, STEPS].sum()) for rows in epochs]
    n_steps, n_tokens = min(zip(counts, done, strict=True))
    n_planned = round(n_steps * max(1.0, tokens_per_epoch / n_tokens))
    return Portion(found[FIRST_EPOCH.name], n_steps, max(1, n_planned))


def equal_tokens(before: FloatArray, after: FloatArray) -> float | None:
    """Return the tokens that both arms have trained on; None where one did not count them.

    A token that was trained again after a failure counts once.
    """
    total = min(float(sums[:, ONCE].sum()) for sums in (before, after))
    return total or None


def losses_at(
    n_tokens: float, before: FloatArray, after: FloatArray, rng: np.random.Generator
) -> Difference | None:
    """Compare two arms' loss just before so many tokens; None where one tells none there.

    Notes
    -----
    The mean loss of the steps of the last twentieth of these tokens. It falls within them, alike
    in both arms; the blocks in which they are drawn take that for scatter, so that the interval
    is rather too wide. Of steps that were trained twice, those that stayed tell.
    """
    windows = [_window(sums, n_tokens) for sums in (before, after)]
    if not all(len(rows) and rows[:, LOSSES].any() for rows in windows):
        return None
    return differences(*_arms(windows), {LOSS.name: LOSS.measure}, rng=rng)[LOSS.name]


def _window(sums: FloatArray, n_tokens: float) -> FloatArray:
    upto = np.cumsum(sums[:, ONCE])
    since = upto - sums[:, ONCE]
    within = (since < n_tokens) & (upto > n_tokens * (1 - WINDOW_RATIO))
    return np.asarray(sums[within & (sums[:, LOSS_STEPS] > 0)])


def _arms(rows: list[FloatArray]) -> tuple[Arm, Arm]:
    before, after = (Arm(COLUMNS, each) for each in rows)
    return before, after
