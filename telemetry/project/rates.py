"""How often something happens: from a count over an exposure to a rate, and how sure that is."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray

SURE_RATIO: Final = 0.95
HALF: Final = 0.5
N_HALVINGS: Final = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """So many events over so much exposure, such as failures over node-days.

    ``extra`` events in ``extra_exposure`` are added to what was counted, as a Gamma prior does:
    half an event where none seen must not read as none to come, nothing where it may; some
    exposure, so that half an event over minutes does not read as dozens a day.
    """

    n: int
    exposure: float
    extra: float = HALF
    extra_exposure: float = 0.0

    @property
    def mean(self) -> float:
        """The expected rate, per unit of exposure; NaN where there was no exposure.

        >>> Rate(0, 4.0).mean
        0.125
        """
        exposure = self.exposure + self.extra_exposure
        return (self.n + self.extra) / exposure if exposure > 0 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the rate by the count alone, per unit of exposure."""
        if not self.exposure > 0:
            return math.nan, math.nan
        low, high = poisson_interval(self.n)
        return low / self.exposure, high / self.exposure

    def drawn(self, n_draws: int, *, rng: np.random.Generator) -> FloatArray:
        """Return rates that the count allows: (n_draws,) per unit of exposure."""
        exposure = self.exposure + self.extra_exposure
        return np.asarray(rng.standard_gamma(self.n + self.extra, n_draws) / exposure)


def poisson_interval(n: int) -> tuple[float, float]:
    """Return the means between which a Poisson count of ``n`` is no surprise, at 95 %.

    Notes
    -----
    The exact interval: at its lower end a count of ``n`` or more has a chance of 2.5 %, at its
    upper end a count of ``n`` or fewer. For none counted that is 0 to ``-ln 0.025 = 3.69``.

    References
    ----------
    F. Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28 (1936), 437-442.

    Examples
    --------
    >>> [round(end, 2) for end in poisson_interval(0)]
    [0.0, 3.69]
    """
    tail = (1 - SURE_RATIO) / 2
    top = n + 10 * math.sqrt(n + 1) + 10
    low = _root(lambda mean: at_most(n - 1, mean) - (1 - tail), top) if n else 0.0
    return low, _root(lambda mean: at_most(n, mean) - tail, top)


def at_most(n: int, mean: float) -> float:
    """Return the chance that a Poisson count of this mean is ``n`` or fewer."""
    if mean <= 0:
        return 1.0
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(n + 1)]
    return math.fsum(map(math.exp, logs))


def _root(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function crosses zero between 0 and ``high``."""
    low = 0.0
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high
