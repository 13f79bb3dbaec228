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
        median = np.median(values, axis=1)
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


def surprise(
    long_before: BoolArray, counts: FloatArray, n_looks: FloatArray, beyond: FloatArray
) -> FloatArray:
    """Nats that a value beyond `beyond` proves at most, as often as this run has had such values.

    Parameters
    ----------
    long_before : was the value before beyond it too?
    counts : (n_cells, 3, n_sizes): long values after a usual one, after a long one, all of those

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
    ...         surprise(np.array([[before]]), counts, np.array([1000.0]), np.array([0.1]))
    ...         for before in (False, True)
    ...     )
    ...     print(first.round(1), next_one.round(1))
    [[7.7]] [[2.8]]
    [[3.]] [[2.9]]
    """
    begun, again, long = counts[:, 0], counts[:, 1], counts[:, 2]
    usual = np.maximum(n_looks[:, None] - long, 0.0) + PRIOR_LONG * beyond / LONG_SHARE
    first = (begun + PRIOR_LONG) / (usual + PRIOR_LONG)
    next_one = (again + PRIOR_AGAIN) / (long + PRIOR_AGAIN + PRIOR_ALONE)
    return np.asarray(-np.log(np.where(long_before, next_one, first)))


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
