"""Change point of a short series, and its noise."""

from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.statistics.peers import middle


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A rise of the mean: from ``before`` to ``after`` at row ``at``, in ``sigma`` deviations."""

    at: int
    before: float
    after: float
    sigma: float


def noise(x: FloatArray) -> float:
    """Estimate the deviation of the samples around a mean that may jump.

    Differences of neighbours cancel the mean wherever it does not jump, and their median does not
    see the few places where it does: 1.4826 x median |x[n + 1] - x[n]| / sqrt 2.

    References
    ----------
    J. von Neumann, R. H. Kent, H. R. Bellinson, B. I. Hart, "The Mean Square Successive
    Difference", Ann. Math. Stat. 12 (1941), 153-162; with the median instead of the mean.
    """
    if x.size < 2:
        return 0.0
    return float(1.4826 * middle(np.abs(np.diff(x))) / np.sqrt(2))


def rise(x: FloatArray, *, floor: float) -> ChangePoint | None:
    """Find the row at which the mean most likely rose; None where it did not.

    Parameters
    ----------
    x : (n_samples,)
        The series, none NaN.
    floor : same unit as x
        Minimum deviation to assume, so that a series without noise has no infinite evidence.

    Notes
    -----
    The likeliest single change of a Gaussian mean maximises
    ``|after - before| x sqrt(k (n - k) / n)`` over the split ``k``; prefix sums give every split
    at once. A rise below 3 deviations in that measure is taken for chance.

    References
    ----------
    D. V. Hinkley, "Inference about the Change-Point in a Sequence of Random Variables",
    Biometrika 57 (1970), 1-17.

    >>> rise(np.array([1.0, 1, 1, 1, 3, 3]), floor=0.1).at
    4
    """
    n = x.size
    if n < 2:
        return None
    k = np.arange(1, n)
    total = np.cumsum(x)
    before = total[:-1] / k
    after = (total[-1] - total[:-1]) / (n - k)
    contrast = (after - before) * np.sqrt(k * (n - k) / n)
    best = int(np.argmax(contrast))
    sigma = float(contrast[best] / max(noise(x), floor))
    if sigma < 3.0:
        return None
    return ChangePoint(best + 1, float(before[best]), float(after[best]), sigma)
