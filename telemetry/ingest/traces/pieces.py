"""One step of one rank, cut into work, idle time, and what is to be seen of collectives."""

from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.trace import BoolArray

# Less work than this share of the step between two collectives: a worker waited for both.
RESUMED_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a rank did up to the end of each collective, and in the rest of the step.

    Each (n_collectives + 1,) seconds: work before the collective began and beside it, idle
    time, how long nothing but the collective ran, and how long it ran in all. Together, all
    but the last make up the step.
    """

    before: FloatArray
    beside: FloatArray
    idle: FloatArray
    shown: FloatArray
    whole: FloatArray

    def joined(self, kept: IntArray) -> FloatArray:
        """Return the pieces up to each collective that is kept: (n_kept + 1, 4) seconds.

        Collectives that are not kept are hidden behind work; the little that is to be seen of
        them is idle time.
        """
        ends = np.append(kept[kept < len(self.shown) - 1], len(self.shown) - 1)
        firsts = np.append(0, ends[:-1] + 1)
        work = np.add.reduceat(self.before + self.beside, firsts)
        before, shown = self.before[firsts], self.shown[ends]
        idle = np.add.reduceat(self.idle + self.shown, firsts) - shown
        return np.stack([before, work - before, idle, shown], axis=1)


def pieces_of(
    collectives: tuple[FloatArray, FloatArray],
    work: tuple[FloatArray, FloatArray],
    span: tuple[float, float],
) -> Pieces:
    """Cut a step at the end of every collective.

    Parameters
    ----------
    collectives, work : when each began and ended, (n,) seconds; collectives in order of end
    span : when the step began and ended

    Notes
    -----
    A worker that has done its work waits through several collectives in a row; only at the
    end of the last does it go on. All that it waited belongs to that one.
    """
    begin, until = span
    start_s, end_s = collectives
    knots, done = busy(*work)
    cuts = np.concatenate([[begin], np.minimum(end_s, until), [until]])
    starts = np.append(np.maximum(start_s, cuts[:-2]), until)
    by_start, by_end = (np.interp(moments, knots, done) for moments in (starts, cuts))
    before, beside = by_start - by_end[:-1], by_end[1:] - by_start
    shown = np.maximum(cuts[1:] - starts - beside, 0.0)
    idle = np.maximum(np.diff(cuts) - before - beside - shown, 0.0)
    resumed = (before + beside)[1:] > RESUMED_RATIO * (until - begin)
    whole = np.append(end_s - start_s, 0.0)
    return Pieces(before, beside, idle, _waited_through(shown, resumed), whole)


def _waited_through(shown: FloatArray, resumed: BoolArray) -> FloatArray:
    """Give what is seen of collectives to the last before work goes on."""
    if len(shown) < 2:
        return shown
    # Whatever comes after the last collective, its wait ends with it.
    lasts = np.append(np.flatnonzero(resumed[:-1]), len(shown) - 2)
    firsts = np.append(0, lasts[:-1] + 1)
    moved = np.zeros_like(shown)
    moved[lasts] = np.add.reduceat(shown[:-1], firsts)
    return moved


def busy(start_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return moments, and how long some kernel had run by then; streams overlap."""
    if not len(start_s):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(start_s)
    start_s, reach = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate([[True], start_s[1:] > reach[:-1]])
    opens, closes = start_s[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(reach) - 1)]
    knots = np.stack([opens, closes], axis=1).ravel()
    run = np.stack([np.zeros_like(opens), closes - opens], axis=1).ravel()
    return knots, np.cumsum(run)
