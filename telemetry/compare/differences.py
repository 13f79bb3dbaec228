"""By how much one run's figure differs from another's, with an interval that can be relied on."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.compare.blocks import Memory, block_length, memory, resampled_sums

N_RESAMPLES: Final = 999
SURE_RATIO: Final = 0.95
# An interval from fewer blocks than this is not worth the name.
MIN_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Arm:
    """What the steps of one run took and yielded.

    Parameters
    ----------
    names : what each column is, such as ``step_s``, ``tokens``, ``usd``
    columns : (n_steps, n_columns), in order, settled steps only
    lines : for a measure that is no plain ratio, where it starts and how steeply it rises with it
    """

    names: Sequence[str]
    columns: FloatArray
    lines: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the steps."""
        return len(self.columns)

    def place(self, name: str) -> int:
        """Return where a column stands; ``steps`` are counted, not kept."""
        return list(self.names).index(name)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that is a sum over another, such as dollars per token.

    With ``line`` it is that line of the arm at their ratio: hours to train so many tokens, say,
    are the hours before the first step and, with each second per token, so many seconds more.
    """

    over: str
    under: str
    is_better_low: bool
    line: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two arms.

    ``baseline`` and ``candidate`` are in the figure's own unit; ``ratio`` is candidate over
    baseline less one, from ``low`` to ``high`` in 95 of 100 cases. ``error_log`` is the standard
    error of the ratio's logarithm, ``n_blocks`` the independent pieces that the shorter arm fell
    into. NaN where there are too few steps to say.
    """

    baseline: float
    candidate: float
    ratio: float
    low: float
    high: float
    error_log: float
    n_blocks: int


def differences(
    baseline: Arm, candidate: Arm, measures: Mapping[str, Measure], *, rng: np.random.Generator
) -> dict[str, Difference]:
    """Compare two arms by several measures, each with its 95 % interval.

    Notes
    -----
    Steps are drawn anew in blocks (`telemetry.compare.blocks`), alike for all measures of an arm.
    The interval is the drawn logarithms' own, stretched as Student's distribution is against the
    normal one for as many independent blocks as there are: a block bootstrap of few blocks is
    known to be too sure of itself (Lahiri 2003, chapter 7).
    """
    arms = [_Drawn(arm, measures.values(), rng) for arm in (baseline, candidate)]
    return {name: _compared(arms[0], arms[1], measure) for name, measure in measures.items()}


class _Drawn:
    """An arm, and what it could have been."""

    def __init__(self, arm: Arm, measures: Iterable[Measure], rng: np.random.Generator) -> None:
        self.arm = arm
        self.total = arm.columns.sum(axis=0)
        self.length = max((self._length(measure) for measure in measures), default=1)
        self.sums = resampled_sums(arm.columns, self.length, n_resamples=N_RESAMPLES, rng=rng)

    def figure(self, measure: Measure) -> float:
        """Return a measure's figure as it was."""
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        start, slope = self.arm.lines.get(measure.line, (0.0, 1.0))
        return start + slope * float(self.total[over] / self.total[under])

    def memory(self, measure: Measure) -> Memory:
        """Return what blocks do not show of how long a measure's steps remember."""
        return memory(self._parts(measure), self.length)

    def logs(self, measure: Measure, unseen: float) -> FloatArray:
        """Return the logarithms of the figures that could have been: (n_resamples,).

        ``unseen`` is the variance that blocks miss, over the one they see.
        """
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        start, slope = self.arm.lines.get(measure.line, (0.0, 1.0))
        drawn = np.log(start + slope * self.sums[:, over] / self.sums[:, under])
        middle = math.log(self.figure(measure)) if unseen else 0.0
        return middle + (drawn - middle) * math.sqrt(1 + unseen)

    def _length(self, measure: Measure) -> int:
        """Return the block length that a ratio of sums wants."""
        return block_length(self._parts(measure))

    def _parts(self, measure: Measure) -> FloatArray:
        """Return what each step adds to a ratio of sums, beyond its mean: (n_steps,)."""
        over, under = self.arm.place(measure.over), self.arm.place(measure.under)
        columns, ratio = self.arm.columns, self.total[over] / self.total[under]
        parts: FloatArray = columns[:, over] - ratio * columns[:, under]
        return parts


def _compared(baseline: _Drawn, candidate: _Drawn, measure: Measure) -> Difference:
    """Compare two arms by one measure."""
    before, after = baseline.figure(measure), candidate.figure(measure)
    kept = [drawn.memory(measure) for drawn in (baseline, candidate)]
    n_blocks = min(int(each.n_pieces) for each in kept)
    if n_blocks < MIN_BLOCKS or not (before > 0 and after > 0):
        return Difference(before, after, after / before - 1, *(math.nan,) * 3, n_blocks)
    ratio = math.log(after / before)
    drawn = candidate.logs(measure, kept[1].unseen_ratio)
    drawn -= baseline.logs(measure, kept[0].unseen_ratio)
    off = drawn - ratio
    stretch = student_quantile(n_blocks - 1) / NormalDist().inv_cdf((1 + SURE_RATIO) / 2)
    below, above = np.quantile(off, [(1 - SURE_RATIO) / 2, (1 + SURE_RATIO) / 2]) * stretch
    return Difference(
        before,
        after,
        ratio=math.expm1(ratio),
        low=math.expm1(ratio - above),
        high=math.expm1(ratio - below),
        error_log=float(off.std(ddof=1)) * stretch,
        n_blocks=n_blocks,
    )


def student_quantile(freedom: float, ratio: float = (1 + SURE_RATIO) / 2) -> float:
    """Return a quantile of Student's distribution.

    Notes
    -----
    Hill's expansion (1970) around the normal quantile, right to a thousandth from five degrees
    of freedom on.
    """
    z = NormalDist().inv_cdf(ratio)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
