"""Steps trained twice: a job that begins again at its last checkpoint has lost what came after."""

from collections.abc import Sequence

import numpy as np

from telemetry.blocks import FloatArray


def is_lost(step: FloatArray, starts: Sequence[tuple[float, float]]) -> FloatArray:
    """Return which steps a later start of the job trained again.

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
