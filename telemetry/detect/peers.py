"""A lean sequential test of many parts of the same kind: which have shifted against their peers.

1. A value is a block's mean: its logarithm, worse upwards, minus the part's own offset.
2. The residual is that minus the median of its peers: parts of its node, or of the run.
3. The offset is a slow Student-weighted mean of residuals; at first it is the role's usual one.
4. How uncertain the offset still is widens what counts as "no shift".
5. Scale, tail (Student's degrees of freedom) and correlation in time are those of all parts.
6. Each block adds the nats by which a part favours "at least 3, 12 or 48 % worse" over "as
   before", at most as many as the rarity of residuals that large in this run allows.
7. A sum below zero starts again (CUSUM); the first block of the present sum is the onset.
8. A sum above the alarm level opens a shift; the level rises with the largest calm excursion.
9. While it is open the offset stays. The same test reversed, against half the size, ends it.
10. Only parts that can gain evidence, or have some, are computed: nearly always very few.
11. Parts of all quantities stand side by side in flat arrays: one update serves all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.evidence import student
from telemetry.evidence.noise import PRIOR_FAR, PRIOR_FAR_VALUES
from telemetry.statistics.peers import GAUSSIAN, median, middle, scatter_of

BoolArray = NDArray[np.bool_]
# Budget: what matters, as logarithms. Evidence is for "at least", so that few sizes suffice.
SIZES = np.log1p([0.03, 0.12, 0.48])
# A reference follows the last 25 minutes of blocks, as that of steps does (300 values).
PAST_BLOCKS = 300
# Lasting differences between healthy parts: 0.4 to 0.7 % (ranks of recorded traces).
PRIOR_SPREAD = 0.006
# Scatter of a block before any was seen; counts as one block.
PRIOR_SCALE = 0.01
# A part without a value for as long as blocks are kept is not what it was.
FORGET_S = 300
MOST_INFLATION = 50.0
# So many values are kept of what is measured each minute.
YOUNG = FORGET_S // 60
NONE_OPEN = -1
EVERY = slice(None)
# Noise is learned from so many parts at most: its median is then known within 2 %.
LEARNED = 4096


@dataclass(slots=True)
class Excursions:
    """Evidence of parts by size: (n_sizes, n_parts), or (n_parts,); times count from an epoch.

    ``kind`` is the number of the quantity of each part.
    """

    kind: IntArray

    nats: FloatArray
    since_s: IntArray
    n_far: NDArray[np.uint8]  # residuals of the present excursion that are far
    peak: FloatArray
    back: FloatArray
    size: NDArray[np.int8]
    seen_s: IntArray
    lasts: FloatArray
    # Of all calm parts of a quantity: blocks that were looked at, (n_kinds,); excursions that
    # began, and of those that ended by themselves number and squared length, (n_sizes, n_kinds);
    # the largest sum of one.
    n_looks: FloatArray
    begun: FloatArray
    ended: FloatArray
    squared: FloatArray
    largest: FloatArray

    @classmethod
    def of(cls, n_parts: Sequence[int], *, lasts: FloatArray) -> "Excursions":
        """Nothing is known yet; ``n_parts`` of each quantity.

        ``lasts``: blocks that harmless excursions last, or 0: (n_sizes, n_kinds).
        """
        n_sizes, n_kinds = lasts.shape
        kind = np.repeat(np.arange(n_kinds), n_parts)
        return cls(
            kind=kind,
            nats=np.zeros((n_sizes, kind.size), np.float32),
            since_s=np.zeros((n_sizes, kind.size), np.int32),
            n_far=np.zeros((n_sizes, kind.size), np.uint8),
            peak=np.zeros(kind.size, np.float32),
            back=np.zeros(kind.size, np.float32),
            size=np.full(kind.size, NONE_OPEN, np.int8),
            seen_s=np.zeros(kind.size, np.int32),
            lasts=lasts,
            n_looks=np.zeros(n_kinds),
            begun=np.zeros(lasts.shape),
            ended=np.zeros(lasts.shape),
            squared=np.zeros(lasts.shape),
            largest=np.zeros(n_kinds),
        )

    @property
    def is_open(self) -> BoolArray:
        return np.asarray(self.size != NONE_OPEN)

    def most_nats(self, parts: IntArray) -> FloatArray:
        """Nats that a far residual proves at most, by size: minus log of how often they come.

        Notes
        -----
        Laplace's rule of succession: a run that has shown little yet proves little. Where harmless
        excursions are known to last, each further block by Rayleigh's law: the chance to last
        longer than t is ``exp(-(t / tau)**2)``, tau by that knowledge and those of the run.
        """
        kind = self.kind[parts]
        first = np.log((self.n_looks + 1.0) / (self.begun + 1.0))[:, kind]
        known = 4 / math.pi * self.lasts**2
        tau_squared = np.where(self.lasts > 0, (known + self.squared) / (1 + self.ended), 1e-9)
        n_far = self.n_far[:, parts].astype(float)
        further = np.where(n_far > 0, (2 * n_far + 1) / tau_squared[:, kind], np.inf)
        return np.asarray(np.minimum(first, further))

    def level(self, base: float) -> FloatArray:
        """Raise an alarm level by the largest calm excursion, over the one that chance makes.

        Of each quantity: (n_kinds,).

        References
        ----------
        E. J. Gumbel, "Statistics of Extremes" (1958), 3.1 (characteristic largest value).
        """
        chance = np.log(np.maximum(self.n_looks * len(self.nats), math.e))
        return np.asarray(base * np.maximum(1.0, self.largest / chance))

    def _sums(self, parts: IntArray, values: FloatArray | BoolArray) -> FloatArray:
        """Add (n_sizes, len(parts)) values up by quantity: (n_sizes, n_kinds)."""
        kind, n_kinds = self.kind[parts], self.n_looks.size
        return np.stack([np.bincount(kind, row, n_kinds) for row in values])

    def add(
        self, parts: IntArray, gain: FloatArray, is_far: BoolArray, *, at_s: int, base: float
    ) -> None:
        """Add evidence of some parts: gain and is_far are (n_sizes, len(parts))."""
        before, was_open = self.nats[:, parts], self.size[parts] != NONE_OPEN
        self.begun += self._sums(parts, is_far & (self.n_far[:, parts] == 0) & ~was_open)
        most = self.most_nats(parts)
        self.n_far[:, parts] = np.minimum(self.n_far[:, parts], 254) + is_far
        gain = np.clip(gain, -most, most)
        nats = np.maximum(before + gain, 0.0)
        self.since_s[:, parts] = np.where(before == 0.0, at_s, self.since_s[:, parts])
        self.nats[:, parts] = nats
        top = nats.max(axis=0)
        opens = (top > self.level(base)[self.kind[parts]]) & ~was_open
        calm = ~was_open & ~opens
        self.peak[parts] = np.where(calm, np.maximum(self.peak[parts], top), 0.0)
        self._end_calm(parts[calm & (top == 0.0)])
        self.size[parts[opens]] = nats[:, opens].argmax(axis=0)
        self._close(parts[was_open], gain[:, was_open], base)

    def _end_calm(self, parts: IntArray) -> None:
        """Learn how large, and how long, excursions are that end by themselves."""
        if not parts.size:
            return
        np.maximum.at(self.largest, self.kind[parts], self.peak[parts])
        n_far = self.n_far[:, parts].astype(float)
        self.ended += self._sums(parts, n_far > 0)
        self.squared += self._sums(parts, np.square(n_far))
        self.peak[parts] = 0.0
        self.n_far[:, parts] = 0

    def _close(self, parts: IntArray, gain: FloatArray, base: float) -> None:
        """End open shifts by the same evidence, reversed."""
        against = gain[self.size[parts], np.arange(len(parts))]
        self.back[parts] = np.maximum(self.back[parts] - against, 0.0)
        self.end(parts[self.back[parts] > base])

    def end(self, parts: IntArray | BoolArray) -> None:
        self.size[parts] = NONE_OPEN
        self.nats[:, parts] = 0.0
        self.n_far[:, parts] = 0
        self.peak[parts] = self.back[parts] = 0.0


def inflation(correlation: float) -> float:
    """How much more the mean of many correlated values varies than that of independent ones.

    Notes
    -----
    ``(1 + r) / (1 - r)`` for a first-order autoregression; r from the mean product of signs of
    neighbours, which wild values do not move: ``r = sin(pi / 2 * mean)``.

    References
    ----------
    G. E. P. Box, G. M. Jenkins, "Time Series Analysis" (1976), 2.1; of the signs, W. F. Sheppard,
    Phil. Trans. A 192 (1899), 101-167.

    Examples
    --------
    >>> [round(inflation(c), 1) for c in (-0.2, 0.0, 1 / 3)]
    [1.0, 1.0, 3.0]
    """
    r = math.sin(math.pi / 2 * max(correlation, 0.0))
    return min((1 + r) / max(1 - r, 1e-9), MOST_INFLATION)


class Ring:
    """The newest blocks of a quantity: times and values (n_blocks, n_parts)."""

    def __init__(self, n_blocks: int, n_parts: int, kind: type = np.float32) -> None:
        self.at_s = np.full(n_blocks, -np.inf)
        self.values: FloatArray = np.full((n_blocks, n_parts), np.nan, kind)
        self._next = 0

    def add(self, at_s: float, values: FloatArray) -> None:
        self.at_s[self._next], self.values[self._next] = at_s, values
        self._next = (self._next + 1) % len(self.at_s)

    def leave_out(self, since_s: float, until_s: float) -> None:
        """Let blocks of a problem that is over be no part of what was before another one."""
        self.values[(self.at_s > since_s) & (self.at_s <= until_s)] = np.nan

    def since(self, moment_s: float) -> FloatArray:
        return np.asarray(self.values[self.at_s > moment_s])

    def until(self, moment_s: float) -> FloatArray:
        return np.asarray(self.values[np.isfinite(self.at_s) & (self.at_s <= moment_s)])


def usual_of(x: FloatArray) -> FloatArray:
    """Median of peers along the last axis, of each: of two, the other one.

    Examples
    --------
    >>> usual_of(np.array([[1.0, 3.0]])), usual_of(np.array([[1.0, 3.0, 9.0]]))
    (array([[3., 1.]]), array([[3., 3., 3.]]))
    """
    if x.shape[-1] == 2:
        return x[..., ::-1]
    if x.shape[-1] == 1:
        return np.full_like(x, np.nan)
    return np.broadcast_to(median(x)[..., None], x.shape)


@dataclass(slots=True)
class Noise:
    """How residuals of all parts scatter, learned from those without an open shift.

    ``distance`` is their median distance from zero, ``spread`` the deviation of offsets. What
    follows from them is kept as numbers: ``scale``, ``df`` and ``inflation``.
    """

    distance: float = PRIOR_SCALE
    spread: float = PRIOR_SPREAD
    correlation: float = 0.0
    n_blocks: float = 1.0
    n_far: float = PRIOR_FAR * PRIOR_FAR_VALUES
    n_known: float = PRIOR_FAR_VALUES
    df: float = np.nan
    scale: float = np.nan
    inflation: float = 1.0
    of_one: float = np.nan  # standard error of a median of n blocks, times the root of n

    def __post_init__(self) -> None:
        self._derive()

    def learn(
        self, residual: FloatArray, before: FloatArray, is_young: BoolArray, apart: FloatArray
    ) -> None:
        """Take residuals of a block and those before; young offsets have followed theirs.

        ``apart`` is how far parts are from their role.
        """
        some = slice(None, None, -(-len(residual) // LEARNED))
        residual, before, is_young = residual[some], before[some], is_young[some]
        self.spread = max(PRIOR_SPREAD, GAUSSIAN * float(middle(apart[some])))
        rate = 1 / min(self.n_blocks + 1, PAST_BLOCKS)
        distance = np.abs(np.where(is_young, (residual - before) / math.sqrt(2), residual))
        distance = distance[np.isfinite(distance)]
        if not distance.size:
            return
        self.n_blocks += 1
        self.n_far += float(np.count_nonzero(distance > 4 * self.distance))
        self.n_known += distance.size
        self.distance += rate * (float(middle(distance)) - self.distance)
        product = np.sign(residual * before)[np.isfinite(before) & ~is_young]
        if product.size:
            self.correlation += rate * (float(product.mean()) - self.correlation)
        self._derive()

    def _derive(self) -> None:
        df = student.degrees_of_freedom(np.array(self.n_far / self.n_known))
        self.df = float(df)
        self.scale = self.distance / float(np.interp(df, student.DEGREES, student.MEDIAN_DISTANCE))
        self.inflation = inflation(self.correlation)
        self.of_one = math.sqrt(self.inflation) * self.scale / (2 * float(student.density_of(df)))


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity of all parts of a run.

    ``groups`` is the shape (n_groups, n_peers). ``is_alike``: whether a part that differs from its
    peers from the start has shifted. ``lasts``: see `Excursions.of`.
    """

    groups: tuple[int, int]
    n_roles: int
    is_alike: bool
    lasts: float


class PeerTest:
    """Some quantities of all parts of a run, in flat arrays; ``cells`` are those of each.

    ``n_blocks`` of the newest values are kept.
    """

    def __init__(self, columns: Sequence[Column], *, n_blocks: int) -> None:
        self.columns, n_parts = columns, [math.prod(column.groups) for column in columns]
        ends = np.cumsum(n_parts).tolist()
        self.cells = [slice(end - n, end) for end, n in zip(ends, n_parts, strict=True)]
        lasts = np.array([[column.lasts for column in columns]] * len(SIZES))
        self.excursions = Excursions.of(n_parts, lasts=lasts)
        self.noise = [Noise() for _ in columns]
        self._is_alike = np.array([column.is_alike for column in columns])
        n = sum(n_parts)
        self.offset = np.zeros(n, np.float32)
        self._role = np.zeros(n, np.float32)
        self.n_past = np.zeros(n, np.float32)
        # Distances from the usual peer, the part's own offset included.
        self.ring = Ring(n_blocks, n)
        self._before = np.full(n, np.nan, np.float32)

    def _of_noise(self, name: str, parts: IntArray | slice) -> FloatArray:
        """Return a figure of the noise of each part's quantity."""
        figures = np.array([getattr(noise, name) for noise in self.noise])
        return np.asarray(figures[self.excursions.kind[parts]])

    def uncertainty(self, parts: IntArray | slice, n_past: FloatArray | None = None) -> FloatArray:
        """Return the standard error of offsets after n blocks: conjugate normal prior."""
        of_one, spread = (self._of_noise(name, parts) for name in ("of_one", "spread"))
        is_alike = self._is_alike[self.excursions.kind[parts]]
        n = np.where(is_alike, (of_one / spread) ** 2, 0.0)
        n += self.n_past[parts] if n_past is None else n_past
        with np.errstate(divide="ignore"):
            return np.asarray(of_one / np.sqrt(n))

    def update(self, x: FloatArray, coarse: FloatArray, *, at_s: int, base: float) -> None:
        """Take a logarithm of each part, (n,), NaN for none, and the scatter by rounding."""
        self._begin(x)
        off = x - self.offset
        usual = np.empty_like(off)
        for column, cells in zip(self.columns, self.cells, strict=True):
            usual[cells] = usual_of(off[cells].reshape(column.groups)).ravel()
        residual = off - usual
        known = np.isfinite(residual)
        self._forget(known, at_s)
        self.ring.add(at_s, residual + self.offset)
        if known.any():
            scale = coarse
            calm = known & ~self.excursions.is_open
            for kind, (noise, cells) in enumerate(zip(self.noise, self.cells, strict=True)):
                np.maximum(noise.scale, coarse[cells], out=scale[cells])
                self.excursions.n_looks[kind] += np.count_nonzero(calm[cells])
            self._test(residual, known, scale, at_s, base)
            calm &= ~self.excursions.is_open
            for kind in range(len(self.noise)):
                self._learn(kind, residual, calm, scale, math.sqrt(2 * base))
            np.copyto(self._before, residual, where=known, casting="same_kind")

    def effect(
        self, since_s: float, parts: IntArray | slice, *, until_s: float | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return how far parts have been from their offset since then, and its standard error.

        What was usual is that of blocks ``until_s``, or before.

        A part that is known only since then is held against its role, where parts are alike, and
        otherwise against nothing.

        References
        ----------
        H. Cramér, "Mathematical Methods of Statistics" (1946), 28.5 (variance of a median).
        """
        blocks = self.ring.since(since_s)[:, parts]
        before = self.ring.until(since_s if until_s is None else until_s)[:, parts]
        n, n_before = (np.isfinite(each).sum(axis=0) for each in (blocks, before))
        # A young offset follows what it measures: what came since then is no part of it.
        is_young = self.n_past[parts] <= len(self.ring.values)
        offset = np.where(is_young, median(before.T), self.offset[parts])
        was_known = ~is_young | (n_before > 0)
        offset = np.where(was_known, offset, self._role[parts])
        of_offset = self.uncertainty(parts, np.where(is_young, n_before, self.n_past[parts]))
        is_alike = self._is_alike[self.excursions.kind[parts]]
        from_birth = np.where(is_alike, self._of_noise("spread", parts), np.nan)
        with np.errstate(divide="ignore"):
            of_blocks = self._of_noise("of_one", parts) / np.sqrt(n)
        error = np.hypot(of_blocks, np.where(was_known, of_offset, from_birth))
        error = np.hypot(error, scatter_of(blocks))
        return median(blocks.T) - offset, np.where(n > 0, error, np.nan)

    def _begin(self, x: FloatArray) -> None:
        """Expect of a new part what its role is like on other nodes, or else itself."""
        is_new = (self.n_past == 0) & np.isfinite(x)
        if not is_new.any():
            return
        for column, cells in zip(self.columns, self.cells, strict=True):
            off = x[cells].reshape(column.groups)
            off = off - median(off)[:, None]
            if column.is_alike:
                by_role = off.reshape(-1, column.n_roles)
                usual = median(by_role.T) if len(by_role) > 2 else np.zeros(column.n_roles)
                off = np.broadcast_to(usual, by_role.shape)
            new = is_new[cells]
            self.offset[cells][new] = self._role[cells][new] = np.nan_to_num(off.ravel()[new])

    def _test(
        self, residual: FloatArray, known: BoolArray, scale: FloatArray, at_s: int, base: float
    ) -> None:
        state, sizes = self.excursions, SIZES[:, None]
        can_gain = residual > SIZES[0] / 2
        parts = np.flatnonzero(known & (can_gain | (state.n_far[0] > 0) | state.is_open))
        if not parts.size:
            return
        r = residual[parts]
        reach = math.sqrt(2 * base) * self.uncertainty(parts)
        band = np.maximum(2 * reach - sizes, 0.0)
        # An open shift is held against half of its size.
        least = np.where(np.arange(len(SIZES))[:, None] == state.size[parts], sizes / 2, sizes)
        df = self._of_noise("df", parts)
        with np.errstate(invalid="ignore"):
            gain = student.log_ratio(r, np.maximum(r, least), scale=scale[parts], df=df, band=band)
        gain = np.nan_to_num(gain, nan=0.0, posinf=0.0, neginf=0.0)
        gain = gain / self._of_noise("inflation", parts)
        state.add(parts, gain, r > np.maximum(least / 2, reach), at_s=at_s, base=base)

    def _learn(
        self, kind: int, residual: FloatArray, is_calm: BoolArray, scale: FloatArray, reach: float
    ) -> None:
        """Learn noise, and let offsets follow: a Student-weighted mean, of first values a median.

        References
        ----------
        K. Lange, R. Little, J. Taylor, "Robust Statistical Modeling Using the t Distribution",
        JASA 84 (1989), 881-896 (the weight).
        """
        noise, parts = self.noise[kind], self._calm_parts(kind, is_calm)
        if isinstance(parts, np.ndarray) and not parts.size:
            return
        r, n, offset = residual[parts], self.n_past[parts], self.offset[parts]
        is_young = n < YOUNG
        noise.learn(r, self._before[parts], is_young, np.abs(r + offset - self._role[parts]))
        variance = scale[parts] ** 2 + noise.of_one**2 / (n + 1)
        weight = np.minimum((noise.df + 1) / (noise.df + r**2 / variance), 1.0)
        self.offset[parts] = offset + weight * r / (n + 1)
        self.n_past[parts] = np.minimum(n + 1, PAST_BLOCKS)
        if is_young.any():
            young = np.arange(len(self.n_past))[parts][is_young]
            own = median(self.ring.values[:, young].T) - self._role[young]
            most = reach * noise.spread if self._is_alike[kind] else np.inf
            self.offset[young] = self._role[young] + np.clip(own, -most, most)

    def _calm_parts(self, kind: int, is_calm: BoolArray) -> IntArray | slice:
        """Return the calm parts of a quantity; nearly always all of them: no copy."""
        cells = self.cells[kind]
        calm = is_calm[cells]
        return cells if calm.all() else cells.start + np.flatnonzero(calm)

    def _forget(self, known: BoolArray, at_s: int) -> None:
        """Begin again with parts of which nothing was known for long: they may be others now."""
        seen_s = self.excursions.seen_s
        is_old = at_s - seen_s > FORGET_S
        if is_old.any():
            self.n_past[known & is_old] = 0
            self.excursions.end(is_old & self.excursions.is_open)
        seen_s[known] = at_s
