"""Long values that come again and again: a Bernoulli test of how often an episode begins.

1. A value is long from a size on; long values in a row are one episode.
2. How often episodes begin is learned from calm time: of the cell, and of all cells before it has
   a past; or from the other cells now, if that is more often.
   Before so many values as a reference needs there is no evidence.
3. Evidence is the log-likelihood ratio of "begins in one value of so many" against that, as a
   cumulative sum. Between two shifts of a test it returns to zero; this one does not.
4. It ends when an episode is overdue by chance of one in twenty.
"""

import math
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.evidence.noise import BoolArray, IntArray
from telemetry.evidence.sequential import LEARN_STEPS, alarm_level, raised

# A value is long from these shares on: real runs have steps that are 15 to 110 % longer.
LONG = np.array([0.12, 0.48])
# An episode begins in one value of so many.
EVERY = np.array([6.0, 20.0, 60.0])
# Prior: real runs have one isolated long step in 40 to 400; the most of that, as from so many.
PRIOR_EVERY, PRIOR_VALUES = 40.0, float(LEARN_STEPS)
# What matters is a mean loss of this share, as for a shift.
MATTERS = 0.03
# Nats of an interval that is too long for chance: one in twenty.
OVERDUE = -math.log(0.05)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What is known of each cell: (n_cells,); NaN where nothing recurs."""

    is_open: BoolArray
    onset_s: FloatArray
    every_s: FloatArray
    lost: FloatArray  # mean share since the onset
    nats: FloatArray
    level_nats: FloatArray
    is_long: BoolArray  # whether this value is part of an episode


def log_ratio(begins: BoolArray, usual: FloatArray, every: FloatArray) -> FloatArray:
    """Nats of one value for "begins in one value of `every`" against the `usual` probability.

    Examples
    --------
    >>> log_ratio(np.array([True, False]), np.array(0.001), np.array(20.0)).round(2)
    array([ 3.91, -0.05])
    """
    often = np.maximum(1.0 / every, usual)
    return np.asarray(
        np.where(begins, np.log(often / usual), np.log((1.0 - often) / (1.0 - usual)))
    )


class RecurrenceTest:
    """Of `n_cells` that share a budget of false alarms a year."""

    def __init__(self, n_cells: int, *, looks_per_year: float, false_per_year: float) -> None:
        shape = (n_cells, len(LONG), len(EVERY))
        looks = np.full(n_cells, looks_per_year)
        self._level = alarm_level(looks, false_per_year)
        self.nats, self.since_s = np.zeros(shape), np.full(shape, np.nan)
        # Of the present excursion: episodes, the share lost and values.
        self.episodes, self.lost, self.n = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.was_long = np.zeros(shape[:2], bool)
        # Of calm time: values and episodes; those of the present excursion may be a problem.
        self.n_calm, self.n_begun = np.zeros(n_cells), np.zeros(shape[:2])
        self.pending, self.pending_begun = np.zeros(n_cells), np.zeros(shape[:2])
        self.largest, self.peak = np.zeros(n_cells), np.zeros(n_cells)
        self.leading: IntArray = np.full(n_cells, -1)
        self.quiet_nats = np.zeros(n_cells)

    def usual(self) -> FloatArray:
        """Return the probability that an episode begins in a value: (n_cells, n_sizes)."""
        of_run = PRIOR_VALUES / PRIOR_EVERY + self.n_begun.sum(axis=0)
        of_all = of_run / (PRIOR_VALUES * len(self.n_calm) + self.n_calm.sum())
        own = self.n_begun + of_all * PRIOR_VALUES
        past = own / (self.n_calm[:, None] + PRIOR_VALUES)
        # What most cells do by now is of none of them.
        others = self.pending_begun.sum(axis=0) - self.pending_begun + of_all * PRIOR_VALUES
        n_others = self.pending.sum() - self.pending + PRIOR_VALUES
        now = others / n_others[:, None] if len(own) > 1 else 0.0
        return np.asarray(np.maximum(past, now))

    def update(self, excess: FloatArray, at_s: float, calm: BoolArray) -> Recurrence:
        """Take how much longer than usual each cell was; cells that are not `calm` count not.

        `excess` is a share, NaN where nothing was measured.
        """
        given = np.isfinite(excess) & calm
        excess = np.where(given, excess, 0.0)
        long = excess[:, None] > LONG
        has_evidence = self.was_long.any() or self.nats.any() or (self.leading >= 0).any()
        if not (has_evidence or long.any()):
            return self._without(given)
        begins = long & ~self.was_long
        self.was_long = np.where(given[:, None], long, self.was_long & calm[:, None])
        gain = log_ratio(begins[:, :, None], self.usual()[:, :, None], EVERY)
        # Some runs have a long step every few: not before that is known is it news.
        gain = np.where((self.n_calm >= PRIOR_VALUES)[:, None, None], gain, 0.0)
        before = self.nats
        self.nats = np.maximum(before + np.where(given[:, None, None], gain, 0.0), 0.0)
        starts = (self.nats > 0.0) & (before <= 0.0)
        goes_on = self.nats > 0.0
        self.since_s = np.where(starts, at_s, self.since_s)
        step = np.maximum(excess, 0.0)[:, None, None]
        for total, new in (
            (self.episodes, begins[:, :, None]),
            (self.lost, step * long[:, :, None]),
            (self.n, given[:, None, None]),
        ):
            total[...] = np.where(goes_on, np.where(starts, 0.0, total) + new, 0.0)
        return self._verdict(given, begins, long, at_s)

    def _verdict(
        self, given: BoolArray, begins: BoolArray, long: BoolArray, at_s: float
    ) -> Recurrence:
        cells = np.arange(len(given))
        level = raised(self._level, self.largest, self.n_calm)
        matters = np.divide(self.lost, self.n, out=np.zeros_like(self.n), where=self.n > 0)
        shown = np.where(matters >= MATTERS, self.nats, 0.0).reshape(len(cells), -1)
        best, most = np.argmax(shown, axis=1), shown.max(axis=1)
        self.leading = np.where((self.leading < 0) & (most >= level), best, self.leading)
        is_open = self.leading >= 0
        size, rate = np.divmod(np.maximum(self.leading, 0), len(EVERY))
        begun = begins[cells, size]
        # Waiting for the next episode: exponential with the rate so far.
        n_values = np.maximum(self.n[cells, size, rate], 1.0)
        often = self.episodes[cells, size, rate] / n_values
        quiet = given & ~long[cells, size]
        self.quiet_nats = np.where(begun | ~is_open, 0.0, self.quiet_nats + often * quiet)
        over = is_open & (self.quiet_nats >= OVERDUE)
        top = self.nats.reshape(len(cells), -1).max(axis=1)
        self._remember(given & ~is_open, begins, top)
        if over.any():
            self._forget(over)
            is_open &= ~over
        known = np.where(is_open, 1.0, np.nan)
        onset_s = self.since_s[cells, size, rate]
        n_between = np.maximum(self.episodes[cells, size, rate] - 1.0, 1.0)
        return Recurrence(
            is_open=is_open,
            onset_s=known * onset_s,
            every_s=known * (at_s - onset_s) / n_between,
            lost=known * matters[cells, size, rate],
            nats=top,
            level_nats=level,
            is_long=is_open & long[cells, size],
        )

    def _without(self, given: BoolArray) -> Recurrence:
        """Take values none of which is long, where there is no evidence that could become less."""
        level, none = raised(self._level, self.largest, self.n_calm), np.zeros(len(given))
        self._remember(given, np.zeros((len(given), len(LONG)), bool), none)
        unknown, nothing = np.full(len(given), np.nan), np.zeros(len(given), bool)
        return Recurrence(nothing, unknown, unknown, unknown, none, level, nothing)

    def _remember(self, calm: BoolArray, begins: BoolArray, top: FloatArray) -> None:
        """Count what is past: an excursion that lasts may be a problem."""
        self.peak = np.where(calm, np.maximum(self.peak, top), self.peak)
        past = calm & (top <= 0.0)
        self.largest = np.where(past, np.maximum(self.largest, self.peak), self.largest)
        self.peak = np.where(past, 0.0, self.peak)
        self.pending += calm
        self.pending_begun += begins & calm[:, None]
        self.n_calm += np.where(past, self.pending, 0.0)
        self.n_begun += np.where(past[:, None], self.pending_begun, 0.0)
        self.pending[past] = self.pending_begun[past] = 0.0

    def _forget(self, cells: BoolArray) -> None:
        self.leading[cells] = -1
        for sums in (
            self.nats,
            self.episodes,
            self.lost,
            self.n,
            self.quiet_nats,
            self.peak,
            self.pending,
            self.pending_begun,
        ):
            sums[cells] = 0.0
        self.was_long[cells] = False
