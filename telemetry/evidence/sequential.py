"""The sequential test: whether a quantity has shifted by what matters, and since when.

1. A value is a block of steps: at least a second, its mean. Its logarithm is taken.
2. Ten values make a chunk. The mean of its middle half, the median distance from that and the
   count of wild values are kept.
3. The reference is the median of the thirty chunks before the last three.
4. The same chunks give scale, tail (Student's degrees of freedom) and wander of the level.
5. Before 15 minutes, 300 steps and three such chunks a run is young: its reference is the median
   of what came before the excursion, and its level may have wandered as far as recorded starts
   do, so only gross shifts are found. A restart begins again.
6. Each value adds the nats by which it favours a shift of 3, 6, 12 … 96 % over a level within the
   band that wander explains, but no more than the share of values that long in this run allows,
   whether single ones are long or any share is. A sum below zero starts again at zero (CUSUM):
   that is the onset.
7. The alarm level is log(looks a year / false alarms a year), times how much higher than chance
   the second largest excursion of this cell rose so far: the largest may have been a shift.
8. A sum above it opens an alert: the largest sum gives size and onset. Reference and noise freeze.
9. The same test with both sides exchanged, at the same level, ends it.
10. Sizes, members, quantities and runs are axes of arrays: one update serves all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.evidence import student
from telemetry.evidence.noise import (
    CHUNK,
    FEWEST_CHUNKS,
    N_RECENT,
    OWN_MEDIAN,
    PRIOR_ANY,
    PRIOR_CHUNKS,
    PRIOR_FAR,
    SMALLEST_SCALE,
    BoolArray,
    Chunks,
    IntArray,
    Noise,
    bounds,
    learn,
    middle,
    middle_half,
    single_share,
    step_scale,
)

YEAR_S = 365.25 * 86400
EVERY = slice(None)
# Budget: what matters. Sizes double, so that every shift is within a factor 1.42 of one.
SIZES = np.log1p(0.03 * 2.0 ** np.arange(6))
# A value beyond the middle of zero and a size is nearer to the size.
NEARER = SIZES / 2
# Recorded starts: healthy runs change by 2 to 5 % while they warm up, 5.4 % at most in 10 of 10
# runs of 16 nodes, MoE by 4 to 7 % in steps 115 to 310.
LEARN_S, LEARN_STEPS, YOUNG_REACH = 900.0, 300, 0.07
# Values of which the young reference is the median: the fewest that withstand one wild one.
FEWEST_VALUES, N_EARLY = 3, (FEWEST_CHUNKS + N_RECENT) * CHUNK
# The tail of a young cell, and its median distance, are the prior ones.
YOUNG_DF = float(student.degrees_of_freedom(np.array(PRIOR_FAR)))
# Before a run has shown of which kind its steps are; and more than any evidence needs.
PRIOR_ANY_ODDS, MOST_ODDS = math.log(PRIOR_ANY / (1 - PRIOR_ANY)), 50.0
YOUNG_DISTANCE = float(np.interp(YOUNG_DF, student.DEGREES, student.MEDIAN_DISTANCE))


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of value, of which more is worse, and the scatter to expect of it.

    `prior_scale` is a relative scale, None: that of a step of the level's length. Values are
    positive and their logarithm is tested; those that `may_be_zero` are shares of something else,
    and are tested as they are. The level of a young run is within `young_reach` of its reference.
    Values that are compared with peers begin at `start` (NaN: are not), and a lasting offset is
    part of the reference as far as `young_reach`. Noise of cells that are `pooled` is that of all
    cells of the quantity.

    A quantity that is `anchored` keeps its first reference, that of the first thirty calm chunks,
    so that a slow drift is found: its level stays within `young_reach` of that, or as far as those
    chunks wandered.
    """

    name: str
    prior_scale: float | None = None
    may_be_zero: bool = False
    young_reach: float = YOUNG_REACH
    start: float = math.nan
    pooled: bool = False
    anchored: bool = False


STEP = Quantity("step_s")


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What decides how soon a cell's shift is found: see `EvidenceTest.sensitivity`.

    ``first`` and ``further`` are the nats that the first value and any further one prove at most,
    by size.
    """

    level_nats: float
    scale: float
    df: float
    band: FloatArray
    first: FloatArray
    further: FloatArray
    is_young: bool


@dataclass(slots=True)
class State:
    """State of the test, of (n_cells,) or (n_cells, n_sizes) values; see `Noise`, `Chunks`."""

    chunks: Chunks
    noise: Noise
    at_s: FloatArray  # of the last value
    watched_s: FloatArray  # since the (re)start
    n_steps: FloatArray
    n_looks: FloatArray  # tested values, none of an alert
    peak: FloatArray  # of the present excursion of any size from zero, nats
    largest: FloatArray  # (n_cells, 2) highest peaks of those that ended without an alert
    nats: FloatArray  # by size
    since_s: FloatArray  # by size: the first value of the present excursion
    weight: FloatArray  # by size, of the residuals in `weighted`
    weighted: FloatArray
    was_long: BoolArray  # by size: the last value was nearer to it than to zero
    counts: FloatArray  # (n_cells, 3, n_sizes) of long values, see `single_share`
    pending: FloatArray  # the same of the present excursion
    longest: FloatArray  # the same of the longest one, which `counts` leave out
    any_odds: FloatArray  # by size: nats for steps of any length, see `bounds`
    size: IntArray  # index of the size of the open alert, -1 without one
    back: FloatArray  # nats of the reversed test
    early: FloatArray  # (n_cells, N_EARLY) first calm values
    early_s: FloatArray  # and their times
    n_early: IntArray


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What an update knows, of the shape of the cells."""

    tested: BoolArray
    opened: BoolArray
    ended: BoolArray
    is_open: BoolArray
    nats: FloatArray
    level_nats: FloatArray
    onset_s: FloatArray  # NaN without an open alert
    # Relative, 0.05 is 5 % more; of what may be zero absolute. NaN without an open alert.
    shift: FloatArray


def alarm_level(looks_per_year: FloatArray, false_per_year: float) -> FloatArray:
    """Nats at which chance alone raises `false_per_year` alarms.

    Notes
    -----
    The sum of log-likelihood ratios of a CUSUM passes ``h`` once in at least ``exp h`` values if
    nothing has shifted. Each size is a look of its own.

    References
    ----------
    G. Lorden, "Procedures for Reacting to a Change in Distribution", Ann. Math. Stat. 42 (1971),
    1897-1908, theorem 2.

    Examples
    --------
    >>> alarm_level(np.array([3.15e7, 3.15e9]), 6.0).round(1)  # a run with 1 s steps; 100 of them
    array([17.3, 21.9])
    """
    return np.asarray(np.log(np.maximum(looks_per_year * len(SIZES) / false_per_year, math.e)))


def raised(level: FloatArray, second: FloatArray, n_looks: FloatArray) -> FloatArray:
    """Raise an alarm level by what a cell's own second largest excursion shows of its nats.

    Notes
    -----
    Of n looks with tails ``exp -x`` the second largest is near ``log n/2`` (Gumbel). One that rose
    higher shows that nats of this cell prove less, in that ratio. The largest shows nothing: it
    may have been a problem that ended before it was found.

    References
    ----------
    E. J. Gumbel, "Statistics of Extremes" (1958), 3.1 (characteristic m-th largest value).

    Examples
    --------
    >>> raised(np.array([15.0, 15.0]), np.array([4.0, 12.0]), np.array([403.4, 403.4])).round(1)
    array([15. , 25.4])
    """
    chance = np.log(np.maximum(n_looks * len(SIZES) / 2, math.e))
    return np.asarray(level * np.maximum(second / chance, 1.0))


def _empty(n: int) -> State:
    """State of n cells of which nothing is known."""
    by_size = (n, len(SIZES))
    return State(
        chunks=Chunks.empty(n),
        noise=Noise.unknown(n),
        at_s=np.full(n, np.nan),
        watched_s=np.zeros(n),
        n_steps=np.zeros(n),
        n_looks=np.zeros(n),
        peak=np.zeros(n),
        largest=np.zeros((n, 2)),
        nats=np.zeros(by_size),
        since_s=np.full(by_size, np.nan),
        weight=np.zeros(by_size),
        weighted=np.zeros(by_size),
        was_long=np.zeros(by_size, bool),
        counts=np.zeros((n, 3, len(SIZES))),
        pending=np.zeros((n, 3, len(SIZES))),
        longest=np.zeros((n, 3, len(SIZES))),
        any_odds=np.zeros(by_size),
        size=np.full(n, -1, np.int64),
        back=np.zeros(n),
        early=np.full((n, N_EARLY), np.nan),
        early_s=np.full((n, N_EARLY), np.nan),
        n_early=np.zeros(n, np.int64),
    )


class EvidenceTest:
    """Quantities of all members of all runs; `shape` is that of a block of values.

    Parameters
    ----------
    quantity : of all cells, or of each one of the flattened block
    looks_per_year : of all cells that share the budget, (…) broadcast to `shape`
    false_per_year : alarms without a shift that are accepted of them together
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        looks_per_year: FloatArray | float,
        false_per_year: float,
        quantity: Quantity | Sequence[Quantity] = STEP,
    ) -> None:
        self.shape, n = shape, math.prod(shape)
        each = [quantity] * n if isinstance(quantity, Quantity) else quantity
        self._is_share = np.array([q.may_be_zero for q in each], bool)
        self._is_anchored = np.array([q.anchored for q in each], bool)
        self._young_reach = np.array([q.young_reach for q in each], float)
        self._start = np.array([q.start for q in each], float)
        self._scale = np.array([q.prior_scale for q in each], float)  # NaN where there is none
        pooled = {q: np.array([q == other for other in each]) for q in {*each} if q.pooled}
        self._pools = [np.flatnonzero(cells) for cells in pooled.values()]
        looks = np.broadcast_to(np.asarray(looks_per_year, dtype=float), shape)
        self._looks_per_year, self._accepted = looks.reshape(n), math.nan
        self.accept(false_per_year)
        self.state = _empty(n)
        self._forget(np.ones(n, bool))

    def accept(self, false_per_year: float) -> None:
        """Set how many false alarms a year are accepted; what was learned stays."""
        if false_per_year == self._accepted:
            return
        self._accepted = false_per_year
        self._level = alarm_level(self._looks_per_year, false_per_year)
        # Each chunk is one independent look at the level: wander has the same budget.
        per_chunk = np.exp(-np.mean(self._level)) * CHUNK if self._level.size else 0.5
        self._normal = -NormalDist().inv_cdf(min(max(float(per_chunk), 1e-15), 0.5))

    @property
    def level_nats(self) -> FloatArray:
        """Nats that each cell needs now, raised by what it has shown: (n_cells,)."""
        return raised(self._level, self.state.largest[:, 1], self.state.n_looks)

    def sensitivity(self, of: slice = EVERY) -> Sensitivity | None:
        """Describe the usual of some cells, that of the median level; None while none is known."""
        state, level = self.state, self.level_nats
        known = np.arange(len(level))[of]
        known = known[np.isfinite(state.noise.reference[known])]
        if not known.size:
            return None
        cell = known[np.argsort(level[known])[known.size // 2]][None]
        first, further = (
            bounds(self._share(cell, self._single_share(cell, after), after, np.array([False])))[
                0
            ][0]
            for after in (np.array([[False]]), np.array([[True]]))
        )
        return Sensitivity(
            float(level[cell][0]),
            float(state.noise.scale[cell][0]),
            float(state.noise.df[cell][0]),
            self._band(cell)[0],
            first,
            further,
            bool(state.noise.wander_df[cell][0] == 0.0),
        )

    def update(
        self,
        values: FloatArray,
        at_s: FloatArray | float,
        *,
        n_steps: FloatArray | float = 1.0,
        restarted: BoolArray | None = None,
        is_calm: bool = True,
    ) -> Verdicts:
        """Take one value of each cell; NaN, infinite, zero or negative ones are none.

        While something is known to be wrong, it ``is_calm`` not: nothing is learned.
        """
        state = self.state
        n = len(self._level)
        value = np.asarray(values, dtype=float).reshape(n)
        time = self._of_cells(at_s)
        if restarted is not None and restarted.any():
            self._forget(restarted.reshape(n))
        given = np.isfinite(value) & (self._is_share | (value > 0.0))
        # Shares are taken as they are.
        logarithm = np.where(given, value, 0.0)
        np.log(logarithm, out=logarithm, where=given & ~self._is_share)
        self._watch(given, time, self._of_cells(n_steps))
        open_before = state.size >= 0
        young = given & ~self._is_ready() & ~open_before & ~self._is_anchored
        self._learn_young(young.nonzero()[0], time)
        tested = given & np.isfinite(state.noise.reference)
        level = self.level_nats
        self._test(tested.nonzero()[0], logarithm, time, is_calm=is_calm)
        certainty = state.nats.max(axis=1)
        untroubled = tested & ~open_before
        opened = untroubled & (certainty >= level)
        if opened.any():
            state.size[opened] = np.argmax(state.nats[opened], axis=1)
        ended = open_before & (state.back >= level)
        calm = untroubled & ~opened & is_calm
        state.n_looks[calm] += 1
        self._remember(calm, certainty)
        verdicts = self._verdicts(tested, opened, ended, certainty, level)
        if ended.any():
            self._close(ended)
        if is_calm:
            self._learn(given & (state.size < 0), logarithm, time)
        return verdicts

    def _of_cells(self, value: FloatArray | float) -> FloatArray:
        """Return one value for each cell."""
        if isinstance(value, float | int):
            return np.full(len(self._level), float(value))
        return np.broadcast_to(np.asarray(value, dtype=float), self.shape).reshape(-1)

    def _learn(self, cells: BoolArray, logarithm: FloatArray, time: FloatArray) -> None:
        """Keep a calm value of each chosen cell, and measure the noise where a chunk is full."""
        state = self.state
        full = state.chunks.add(logarithm, cells)
        early = cells & (state.n_early < N_EARLY)
        if early.any():
            self._keep_early(early.nonzero()[0], logarithm, time)
        if full.size:
            full = full[self._may_learn(full)]
            learn(state.noise, state.chunks, full, self._prior_scale)
        if full.size:
            self._settle(full)

    def _may_learn(self, rows: IntArray) -> BoolArray:
        """Whether the noise of cells is measured now: of anchored ones once, after the start."""
        state = self.state
        has_all = ~np.isnan(state.chunks.medians[rows, -1])
        is_first = has_all & self._has_begun()[rows] & (state.noise.n_chunks[rows] == 0)
        return np.asarray(is_first | ~self._is_anchored[rows])

    def _keep_early(self, rows: IntArray, values: FloatArray, time: FloatArray) -> None:
        state = self.state
        state.early[rows, state.n_early[rows]] = values[rows]
        state.early_s[rows, state.n_early[rows]] = time[rows]
        state.n_early[rows] += 1

    def _learn_young(self, rows: IntArray, time: FloatArray) -> None:
        """Let the reference of young cells be the median of what came before their excursion."""
        if not rows.size:
            return
        state, noise, start = self.state, self.state.noise, self._start[rows]
        leading = state.nats[rows].argmax(axis=1)
        since_s = np.where(
            state.nats[rows, leading] > 0.0, state.since_s[rows, leading], time[rows]
        )
        before = np.where(state.early_s[rows] < since_s[:, None], state.early[rows], np.nan)
        n_before = (~np.isnan(before)).sum(axis=1)
        reference = middle_half(before)
        has_start = ~np.isnan(start)
        reference = np.where((n_before < FEWEST_VALUES) & has_start, start, reference)
        known = (n_before >= FEWEST_VALUES) | has_start
        distance = middle(np.abs(before - reference[:, None])) / OWN_MEDIAN
        measured = np.where(n_before < FEWEST_VALUES, 0.0, distance / YOUNG_DISTANCE)
        n = np.where(n_before < FEWEST_VALUES, 0, n_before)
        prior = PRIOR_CHUNKS * CHUNK
        square = n * measured**2 + prior * self._prior_scale(rows, reference) ** 2
        noise.reference[rows] = np.where(known, self._within_reach(rows, reference), np.nan)
        noise.scale[rows] = np.maximum(np.sqrt(square / (n + prior)), SMALLEST_SCALE)
        noise.df[rows] = YOUNG_DF
        # A median of few values of much scatter is itself that far off.
        off = self._normal * noise.scale[rows] * np.sqrt(np.pi / 2 / np.maximum(n, 1))
        noise.wander[rows] = np.maximum(self._young_reach[rows], np.where(has_start, 0.0, off))
        noise.wander_df[rows] = 0.0

    def _within_reach(self, rows: IntArray, reference: FloatArray) -> FloatArray:
        """Leave what exceeds a usual lasting offset from peers out of the reference."""
        start, reach = self._start[rows], self._young_reach[rows]
        # Without a start there is no bound: NaN is none here.
        return np.asarray(np.fmin(np.fmax(reference, start - reach), start + reach))

    def _settle(self, rows: IntArray) -> None:
        noise = self.state.noise
        noise.reference[rows] = self._within_reach(rows, noise.reference[rows])
        anchored = rows[self._is_anchored[rows]]
        if anchored.size:
            far = student.quantile(self._normal, noise.wander_df[anchored])
            wander = np.maximum(far * noise.wander[anchored], self._young_reach[anchored])
            noise.wander[anchored] = wander
        # Chunks alone make no cell old.
        young = rows[~self._is_ready()[rows]]
        noise.wander[young] = self._young_reach[young]
        noise.wander_df[young] = noise.wander_df[anchored] = 0.0
        for pool in self._pools:
            known = pool[noise.wander_df[pool] > 0.0]
            if known.size:
                # Cells of one kind: the usual scale of all, and as much wander as they have.
                weight = noise.wander_df[known]
                noise.scale[known] = np.median(noise.scale[known])
                noise.df[known] = np.median(noise.df[known])
                noise.wander[known] = np.sqrt(np.average(noise.wander[known] ** 2, weights=weight))

    def _remember(self, calm: BoolArray, certainty: FloatArray) -> None:
        """Count an excursion as past and calm when every sum is back at zero."""
        state = self.state
        np.maximum(state.peak, certainty, out=state.peak, where=calm)
        past = certainty == 0.0
        ended = (calm & past & (state.peak > state.largest[:, 1])).nonzero()[0]
        if ended.size:
            first, peak = state.largest[ended, 0], state.peak[ended]
            state.largest[ended, 0] = np.maximum(first, peak)
            state.largest[ended, 1] = np.minimum(first, peak)
        state.peak[past] = 0.0

    def _prior_scale(self, rows: IntArray, reference: FloatArray) -> FloatArray:
        scale = self._scale[rows]
        return np.where(np.isnan(scale), step_scale(reference), scale)

    def _watch(self, given: BoolArray, time: FloatArray, n_steps: FloatArray) -> None:
        """Count the time and the steps that were seen; a clock that jumps back adds nothing."""
        state = self.state
        timed = given & np.isfinite(time)
        passed = np.where(timed & np.isfinite(state.at_s), time - state.at_s, 0.0)
        state.watched_s += np.maximum(passed, 0.0)
        state.at_s[timed] = time[timed]
        state.n_steps[given] += np.where(np.isfinite(n_steps), n_steps, 0.0)[given]

    def _has_begun(self) -> BoolArray:
        """Whether the start of each cell is over, in which healthy runs change their pace."""
        state = self.state
        return np.asarray((state.watched_s >= LEARN_S) & (state.n_steps >= LEARN_STEPS))

    def _is_ready(self) -> BoolArray:
        return np.asarray(self._has_begun() & (self.state.noise.n_chunks >= FEWEST_CHUNKS))

    def _test(
        self, rows: IntArray, logarithm: FloatArray, time: FloatArray, *, is_calm: bool
    ) -> None:
        """Add the evidence of one value to each size, and to the reversed test."""
        if not rows.size:
            return
        state, noise = self.state, self.state.noise
        scale, df = noise.scale[rows, None], noise.df[rows, None]
        residual = (logarithm[rows] - noise.reference[rows])[:, None]
        band, before = self._band(rows), state.nats[rows]
        size = state.size[rows]
        is_open, is_long = size >= 0, residual > NEARER
        single = self._single_share(rows, state.was_long[rows])
        most, least = bounds(self._share(rows, single, is_long, ~is_open & is_calm))
        ratio = student.log_ratio(residual, SIZES, scale=scale, df=df, band=band)
        nats = np.maximum(before + np.minimum(np.maximum(ratio, -least), most), 0.0)
        lasts, began = nats > 0.0, before > 0.0
        goes_on = lasts & began
        weight = (df + 1) / (df + ((residual - SIZES) / scale) ** 2)
        state.since_s[rows] = np.where(lasts & ~began, time[rows, None], state.since_s[rows])
        state.weight[rows] = weight + goes_on * state.weight[rows]
        state.weighted[rows] = weight * residual + goes_on * state.weighted[rows]
        state.nats[rows] = nats
        self._count(rows, is_long, is_calm=is_calm)
        if not is_open.any():
            state.back[rows] = 0.0
            return
        # A usual value is as rare of what has shifted as a single long one is of what has not.
        of_size = np.arange(len(rows)), size
        most = bounds(single[of_size])[0]
        gain = np.minimum(np.maximum(-ratio[of_size], -most), most)
        state.back[rows] = np.where(is_open, np.maximum(state.back[rows] + gain, 0.0), 0.0)

    def _band(self, rows: IntArray) -> FloatArray:
        """Levels that count as no shift, by size: (n_rows, n_sizes).

        Evidence changes sign in the middle of band and size: as far as wander goes at most.
        """
        beyond = 2 * self._reach(rows)[:, None] - SIZES
        return np.asarray(np.minimum(np.maximum(beyond, 0.0), SIZES))

    def _reach(self, rows: IntArray) -> FloatArray:
        """How far the level of a cell may have wandered within the budget."""
        noise = self.state.noise
        wander_df = noise.wander_df[rows]
        if not (wander_df > 0.0).any():
            return noise.wander[rows]
        if self._pools:
            behind = noise.wander_df.copy()
            for pool in self._pools:
                behind[pool] = noise.wander_df[pool].sum()
            wander_df = np.where(wander_df > 0.0, behind[rows], 0.0)
        far = student.quantile(self._normal, np.maximum(wander_df, 1.0))
        reach = np.minimum(far * noise.wander[rows], self._young_reach[rows])
        # A young level has no deviation: recorded starts have a bound.
        return np.where(wander_df > 0.0, reach, noise.wander[rows])

    def _single_share(self, rows: IntArray, was_long: BoolArray) -> FloatArray:
        state = self.state
        return single_share(was_long, state.counts[rows], state.n_looks[rows], NEARER)

    def _share(
        self, rows: IntArray, single: FloatArray, is_long: BoolArray, is_calm: BoolArray
    ) -> FloatArray:
        """Return the share of long values to expect, by size, before this one; calm ones tell.

        Single steps are long, and what lasts may be a shift; or steps are of any length, each by
        itself, and any share of them is long. Which of the two the run's values tell.
        """
        state = self.state
        # Peers have the same lengths.
        free = np.isnan(self._start[rows]).nonzero()[0]
        if not free.size:
            return single
        cells, of_single, long = rows[free], single[free], is_long[free]
        n_long = (state.counts[cells, :2] + state.pending[cells, :2]).sum(axis=1)
        # Of an alert values are no looks.
        any_share = (n_long + 1.0) / (np.maximum(state.n_looks[cells, None], n_long) + 2.0)
        odds, share = state.any_odds[cells], single.copy()
        share[free] += (any_share - of_single) / (1 + np.exp(-odds))
        told = np.where(long, any_share / of_single, (1 - any_share) / (1 - of_single))
        odds_now = np.clip(odds + np.log(told), -MOST_ODDS, MOST_ODDS)
        state.any_odds[cells] = np.where(is_calm[free, None], odds_now, odds)
        return share

    def _count(self, rows: IntArray, is_long: BoolArray, *, is_calm: bool) -> None:
        """Count long values; those of an excursion when it has ended, for they may be a shift.

        Those of the longest one are left out: it may have been a shift that was not found.
        """
        state = self.state
        before = state.was_long[rows]
        if not (is_long.any() or before.any() or state.pending.any()):
            return
        pending = state.pending[rows]
        pending[:, 0] += is_long & ~before
        pending[:, 1] += is_long & before
        pending[:, 2] += before
        state.was_long[rows] = is_long
        past = ((state.nats[rows] <= 0.0) & (state.size[rows] < 0)[:, None])[:, None]
        if is_calm:
            longest = state.longest[rows]
            is_longer = past & (pending[:, 1] > longest[:, 1])[:, None]
            state.counts[rows] += np.where(past, np.where(is_longer, longest, pending), 0.0)
            state.longest[rows] = np.where(is_longer, pending, longest)
        state.pending[rows] = np.where(past, 0.0, pending)

    def _verdicts(
        self,
        tested: BoolArray,
        opened: BoolArray,
        ended: BoolArray,
        nats: FloatArray,
        level: FloatArray,
    ) -> Verdicts:
        state = self.state
        cells = np.arange(len(level))
        is_open = state.size >= 0
        shift = onset_s = np.full(len(level), np.nan)
        if is_open.any():
            weight = np.where(is_open, state.weight[cells, state.size], np.nan)
            shift = state.weighted[cells, state.size] / weight
            shift = np.where(self._is_share, shift, np.expm1(shift))
            onset_s = np.where(is_open, state.since_s[cells, state.size], np.nan)
        shape = self.shape
        return Verdicts(
            tested=tested.reshape(shape),
            opened=opened.reshape(shape),
            ended=ended.reshape(shape),
            is_open=(is_open & ~ended).reshape(shape),
            nats=nats.reshape(shape),
            level_nats=level.reshape(shape),
            onset_s=onset_s.reshape(shape),
            shift=shift.reshape(shape),
        )

    def _close(self, cells: BoolArray) -> None:
        """End alerts: what they were about is no evidence for the next one."""
        state = self.state
        state.size[cells] = -1
        state.was_long[cells] = False
        for sums in (
            state.back,
            state.peak,
            state.nats,
            state.weight,
            state.weighted,
            state.pending,
        ):
            sums[cells] = 0.0
        state.since_s[cells] = np.nan
        state.chunks.n_values[cells] = 0

    def _forget(self, cells: BoolArray) -> None:
        """Begin again: another process, machine or plan has another reference."""
        state = self.state
        self._close(cells)
        state.chunks.forget(cells)
        state.noise.forget(cells)
        state.n_early[cells] = 0
        state.any_odds[cells] = PRIOR_ANY_ODDS
        for past in (state.at_s, state.early, state.early_s):
            past[cells] = np.nan
        for count in (
            state.watched_s,
            state.n_steps,
            state.n_looks,
            state.largest,
            state.counts,
            state.longest,
        ):
            count[cells] = 0.0
