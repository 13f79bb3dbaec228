"""What calm time shows of a cell: reference, scale, tail and wander of its values.

A cell is one quantity of one member of one run. All arrays have cells as their first axis.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.evidence import student

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

# Recorded step times (docs/decisions/0031-evidence.md) give the numbers of this module. Each
# prior counts as many values as its scatter between configurations is worth.
# +5 % is found in about this many values: noise is measured as means of as many.
CHUNK = 10
# The median distance of ten values from their own median is smaller than that of their
# distribution: 0.88 of it if normal, 0.93 at two degrees of freedom (simulated, 200,000 chunks).
OWN_MEDIAN = 0.9
# The past that a reference is the median of, and what is too recent to be in it.
N_CHUNKS, N_RECENT = 30, 3
# A median that withstands one bad chunk.
FEWEST_CHUNKS = 3
# Values beyond four median distances: df 1.7, 0.85 to 3, is a share of 9 % within a factor 1.6.
PRIOR_FAR, PRIOR_FAR_VALUES = 0.094, 53.0
# Wander of the level 0.3 %, from 0.1 to 0.8: worth one chunk. So is the prior scale.
PRIOR_WANDER, PRIOR_CHUNKS = 0.003, 1.0
# The most quiet configuration scatters by as much; below it a timer's rounding decides.
SMALLEST_SCALE = 0.0005

# Share of single steps that are longer by x: 0.0004 / x (0.4 % by 10 %, 0.2 % by 20 %). It varies
# by a factor 4.5 between configurations: worth 0.54 of them.
LONG_SHARE, PRIOR_LONG = 0.0004, 0.54
# A long step next to a long one: 0 in the median configuration, 20 % at the 90th percentile.
PRIOR_AGAIN, PRIOR_ALONE = 0.3, 4.5
# Runs with steps of any length, as of texts: no source, one of a hundred is assumed to be one.
PRIOR_ANY = 0.01
# So many values may be usual ones of a shift that is still to be found: other workers are late in
# each step, or none is. One in ten: a choice.
USUAL_SHARE = 0.1


def step_scale(level: FloatArray) -> FloatArray:
    """Expect the relative scatter of a step from the logarithm of its seconds.

    Jitter is nearly absolute: 1.3 % at one second, 0.2 % at ten (20 configurations of 405B).

    Examples
    --------
    >>> step_scale(np.log([1.0, 10.0, 1000.0])).round(4)
    array([0.013 , 0.0022, 0.0005])
    """
    # No more than the value itself: far below the recorded steps the law has no meaning.
    return np.asarray(np.clip(0.013 * np.exp(-0.78 * level), SMALLEST_SCALE, 1.0))


@dataclass(slots=True)
class Chunks:
    """The present chunk of each cell, and a summary of those before; the newest is at 0."""

    values: FloatArray  # (n_cells, CHUNK) logarithms
    n_values: IntArray
    medians: FloatArray  # (n_cells, N_CHUNKS + N_RECENT), NaN where there was none yet
    distances: FloatArray  # median distance from the chunk's median
    far: FloatArray  # values beyond four usual distances, on the bad side

    @classmethod
    def empty(cls, n_cells: int) -> "Chunks":
        ring = (n_cells, N_CHUNKS + N_RECENT)
        return cls(
            np.zeros((n_cells, CHUNK)),
            np.zeros(n_cells, np.int64),
            *(np.full(ring, np.nan) for _ in range(3)),
        )

    def forget(self, cells: BoolArray) -> None:
        self.n_values[cells] = 0
        for ring in (self.medians, self.distances, self.far):
            ring[cells] = np.nan

    def add(self, logarithms: FloatArray, cells: BoolArray) -> IntArray:
        """Add one value per chosen cell; return the cells whose chunk became full."""
        rows = cells.nonzero()[0]
        self.values[rows, self.n_values[rows]] = logarithms[rows]
        self.n_values[rows] += 1
        full: IntArray = rows[self.n_values[rows] == CHUNK]
        if full.size:
            self._close(full)
        return full

    def _close(self, full: IntArray) -> None:
        self.n_values[full] = 0
        values = self.values[full]
        median = middle_half(values)
        off = values - median[:, None]
        distance = np.median(np.abs(off), axis=1) / OWN_MEDIAN
        usual = middle(self.distances[full])
        usual = np.where(np.isnan(usual), distance, usual)
        far = np.sum(off > 4 * usual[:, None], axis=1)
        for ring, newest in (
            (self.medians, median),
            (self.distances, distance),
            (self.far, far),
        ):
            ring[full, 1:] = ring[full, :-1]
            ring[full, 0] = newest


def single_share(
    long_before: BoolArray, counts: FloatArray, n_looks: FloatArray, beyond: FloatArray
) -> FloatArray:
    """Share of values beyond `beyond` to expect next of a run of which single steps are long.

    Parameters
    ----------
    long_before : was the value before beyond it too?
    counts : (n_cells, 3, n_sizes): long values after a usual one, after a long one, all of those
    n_looks : all values, (n_cells,)

    Notes
    -----
    Values that are long now and then are a Markov chain of two states. Each probability is the
    mean of a Beta distribution. Where long values come in groups, the second proves little.

    References
    ----------
    A. Gelman et al., "Bayesian Data Analysis" (2013), 2.4 (Beta prior).

    Examples
    --------
    >>> none = np.zeros((1, 3, 1))
    >>> often = np.array([[[55.0], [3.0], [55.0]]])  # 55 in 1,000, three of them after another
    >>> for counts in (none, often):
    ...     first, next_one = (
    ...         single_share(np.array([[before]]), counts, np.array([1000.0]), np.array([0.1]))
    ...         for before in (False, True)
    ...     )
    ...     print(first.round(4), next_one.round(4))
    [[0.0005]] [[0.0625]]
    [[0.0514]] [[0.0552]]
    """
    begun, again, long = counts[:, 0], counts[:, 1], counts[:, 2]
    usual = np.maximum(n_looks[:, None] - long, begun) + PRIOR_LONG * beyond / LONG_SHARE
    first = (begun + PRIOR_LONG) / (usual + PRIOR_LONG)
    next_one = (again + PRIOR_AGAIN) / (long + PRIOR_AGAIN + PRIOR_ALONE)
    return np.asarray(np.where(long_before, next_one, first))


def bounds(share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nats that a long value proves at most for a shift, and a usual one against it.

    ``share`` are long of what has not shifted.

    Notes
    -----
    Of what has shifted all are long but a `USUAL_SHARE`. These are the log-likelihood ratios of
    that: however values scatter, their sum does not grow by chance.

    References
    ----------
    A. Ramdas et al., "Game-Theoretic Statistics and Safe Anytime-Valid Inference", Stat. Sci. 38
    (2023), 576-601.

    Examples
    --------
    >>> for nats in bounds(np.array([0.001, 0.06, 0.5])):
    ...     print(nats.round(1))
    [6.8 2.7 0.6]
    [2.3 2.2 1.6]
    """
    # Where more are long than of what has shifted, none proves anything.
    share = np.minimum(share, 1 - USUAL_SHARE)
    return np.log((1 - USUAL_SHARE) / share), np.log((1 - share) / USUAL_SHARE)


@dataclass(slots=True)
class Noise:
    """What is known of each cell; (n_cells,) each."""

    n_chunks: IntArray  # calm ones behind it
    reference: FloatArray  # logarithm of the usual value
    scale: FloatArray  # of Student's distribution, relative
    df: FloatArray  # its degrees of freedom
    wander: FloatArray  # deviation of the level of chunks
    wander_df: FloatArray = field(repr=False)  # values behind it, prior included

    @classmethod
    def unknown(cls, n_cells: int) -> "Noise":
        nothing = (np.full(n_cells, np.nan) for _ in range(5))
        return cls(np.zeros(n_cells, np.int64), *nothing)

    def forget(self, cells: BoolArray) -> None:
        self.n_chunks[cells] = 0
        self.reference[cells] = np.nan


def learn(
    noise: Noise,
    chunks: Chunks,
    cells: IntArray,
    prior_scale: Callable[[IntArray, FloatArray], FloatArray],
) -> None:
    """Measure the noise of `cells` again from their chunks, without the most recent ones.

    Notes
    -----
    The median of n values of density ``f(0)`` at their middle has the variance ``1 / 4 n f(0)**2``
    if they are independent. What medians of chunks vary beyond that is wander of the level. Their
    mean square is not robust, on purpose: an excursion of the level is what it is to show.
    Variances are means of the measured and the prior one, weighted by their counts (conjugate
    prior: scaled inverse chi-square).

    References
    ----------
    H. Cramér, "Mathematical Methods of Statistics" (1946), 28.5 (variance of a median). A. Gelman
    et al., "Bayesian Data Analysis" (2013), 2.6 (prior).
    """
    medians = chunks.medians[cells, N_RECENT:]
    n_chunks = np.sum(~np.isnan(medians), axis=1)
    known = n_chunks > 0
    cells, medians, n = cells[known], medians[known], n_chunks[known]
    if not cells.size:
        return
    reference = middle(medians)
    far = np.nansum(chunks.far[cells, N_RECENT:], axis=1)
    # Two-sided, as the table is; the good side is lighter and proves nothing for the bad one.
    share = (2 * far + PRIOR_FAR * PRIOR_FAR_VALUES) / (n * CHUNK + PRIOR_FAR_VALUES)
    df = student.degrees_of_freedom(share)
    distance = middle(chunks.distances[cells, N_RECENT:])
    measured = distance / np.interp(df, student.DEGREES, student.MEDIAN_DISTANCE)
    weight = n + PRIOR_CHUNKS
    scale = np.sqrt((n * measured**2 + PRIOR_CHUNKS * prior_scale(cells, reference) ** 2) / weight)
    scale = np.maximum(scale, SMALLEST_SCALE)
    independent = (scale / student.density_of(df)) ** 2 / (4 * CHUNK)
    square = np.nansum((medians - reference[:, None]) ** 2, axis=1)
    excess = np.maximum(square - n * independent, 0.0)
    noise.n_chunks[cells] = n
    noise.reference[cells] = reference
    noise.scale[cells] = scale
    noise.df[cells] = df
    noise.wander[cells] = np.sqrt((excess + PRIOR_CHUNKS * PRIOR_WANDER**2) / weight)
    noise.wander_df[cells] = weight


def middle(rows: FloatArray) -> FloatArray:
    """Median of each row without its NaN; NaN where there is nothing else.

    Examples
    --------
    >>> middle(np.array([[3.0, np.nan, 1.0], [np.nan] * 3]))
    array([ 2., nan])
    """
    ordered = rows.copy()
    ordered.sort(axis=1)
    n = (~np.isnan(rows)).sum(axis=1)
    index = np.arange(len(rows))
    return np.asarray((ordered[index, np.maximum(n - 1, 0) // 2] + ordered[index, n // 2]) / 2)


def middle_half(rows: FloatArray) -> FloatArray:
    """Mean of the middle half of each row without its NaN; NaN where there is nothing else.

    A quarter is left out on each side, rounded up where something is left: it withstands as many
    wild values, and does not jump where values are of two kinds, as a median does.

    References
    ----------
    F. Mosteller, J. W. Tukey, "Data Analysis and Regression" (1977), 10 (midmean).

    Examples
    --------
    >>> middle_half(np.array([[3.0, np.nan, 1.0, 9.0], [1.0, 1.0, 2.0, 2.0], [np.nan] * 4]))
    array([3. , 1.5, nan])
    """
    ordered = rows.copy()
    ordered.sort(axis=1)
    n = (~np.isnan(rows)).sum(axis=1)[:, None]
    out = np.minimum((n + 3) // 4, np.maximum(n - 1, 0) // 2)
    index = np.arange(rows.shape[1])
    inside = (index >= out) & (index < n - out)
    total = np.where(inside, ordered, 0.0).sum(axis=1)
    n_inside = inside.sum(axis=1)
    return np.where(n_inside > 0, total / np.maximum(n_inside, 1), np.nan)
