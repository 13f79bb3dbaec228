"""Where a run has settled: what came before belongs to its warm-up, and to no comparison."""

import numpy as np

from telemetry.blocks import FloatArray

# Steps are judged in batches of so many, lest one odd step decides.
BATCH = 5
CUT_AT_MADS = 6.0
# Nothing more is left out for a gain smaller than this: so much the error wavers by chance.
WORTH_IT = 1.1


def settled_from(step_s: FloatArray) -> int:
    """Return the first step, by place, that counts as settled.

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
    """Return steps of which none is longer than what usual ones scatter."""
    middle = float(np.median(step_s)) if len(step_s) else 0.0
    usual = CUT_AT_MADS * float(np.median(np.abs(step_s - middle))) if len(step_s) else 0.0
    return np.minimum(step_s, middle + usual) if usual else step_s
