"""Noise that any worker can look up: hashed offsets in a fixed table of random numbers.

A generator has to be read in order; ticks do not. So the noise is drawn once, and each
(seed, stream, step or tick, node) hashes to the offset of its values in the table.
The result does not depend on how an interval is split, or on the process.
"""

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]

TABLE_BITS = 17
# Values stored after the last offset that a hash can give.
LONGEST_WINDOW = 2**14
_TABLE_LENGTH = 2**TABLE_BITS + LONGEST_WINDOW
_SHIFT = np.uint64(64 - TABLE_BITS)
_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

TableName = Literal["normal", "uniform", "hiccup", "latency"]


def _record() -> Mapping[TableName, Floats]:
    """Draw all tables, the same in every process.

    Hiccup: a rare delay of a worker by garbage collection, a page fault, or a neighbour on the
    host. Latency: the median of a probe is a narrow lognormal, rarely much later.
    """
    rng, n = np.random.Generator(np.random.Philox(key=1986)), _TABLE_LENGTH
    stumble = 0.02 + 0.03 * rng.standard_exponential(n)
    late = 1.3 + 0.5 * rng.standard_exponential(n)
    tables: dict[TableName, FloatArray] = {
        "normal": rng.standard_normal(n),
        "uniform": rng.random(n),
        "hiccup": np.where(rng.random(n) < 1 / 400, stumble, 0),
        "latency": np.where(
            rng.random(n) < 1 / 1000, late, np.exp(0.035 * rng.standard_normal(n))
        ),
    }
    return {name: table.astype(np.float32) for name, table in tables.items()}


_TABLES = _record()


def stream(seed: int, *names: str) -> np.uint64:
    """Key of a named noise stream."""
    text = "/".join((str(seed), *names)).encode()
    return np.uint64(zlib.crc32(text) | zlib.crc32(text[::-1]) << 32)


def mixed(key: np.uint64, n: IntArray | Hashes) -> Hashes:
    """Hash integers (...) under a key: Steele's splitmix64, one round each."""
    z = (n.astype(np.uint64) + key) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def uniform_of(hashes: Hashes) -> FloatArray:
    """Numbers from 0 up to but not including 1, one of each hash (...)."""
    return np.asarray((hashes >> np.uint64(11)) * 2.0**-53)


def rare(hashes: Hashes, chance: float) -> NDArray[np.bool_]:
    """Whether an event of a chance below 1 happens at each hash (...)."""
    return np.asarray(hashes < np.uint64(int(chance * 2.0**64)))


@lru_cache(maxsize=1024)
def _all_windows(table: TableName, width: int) -> Floats:
    return sliding_window_view(_TABLES[table], width)


def windows(table: TableName, hashes: Hashes, width: int) -> Floats:
    """Return ``width`` values of a table for each hash: (..., width).

    A window longer than LONGEST_WINDOW is joined from several, each at its own offset. The
    first values of a wide window are those of a narrow one.
    """
    if width <= LONGEST_WINDOW:
        return np.asarray(_all_windows(table, width)[hashes >> _SHIFT])
    found = np.empty((*hashes.shape, width), np.float32)
    for first in range(0, width, LONGEST_WINDOW):
        piece = found[..., first : first + LONGEST_WINDOW]
        places = hashes if first == 0 else mixed(_GOLDEN, hashes + np.uint64(first))
        piece[...] = _all_windows(table, piece.shape[-1])[places >> _SHIFT]
    return found


def smooth(key: np.uint64, n: IntArray, *, every: int, width: int) -> Floats:
    """Return noise that changes slowly along n: (len(n), width), mean 0, deviation 1.

    Independent values stand ``every`` apart; between them the noise is interpolated, and
    scaled so that its deviation is 1 everywhere.
    """
    anchor = n // every
    share = ((n - anchor * every) / every)[:, None]
    before = windows("normal", mixed(key, anchor), width)
    after = windows("normal", mixed(key, anchor + 1), width)
    scale = 1 / np.sqrt(share**2 + (1 - share) ** 2)
    return before * ((1 - share) * scale).astype(np.float32) + after * (share * scale).astype(
        np.float32
    )


class TickNoise:
    """Noise of some nodes over some ticks: every stream its own, each value (n_ticks, n_nodes, n).

    One hash of tick and node serves all streams, each multiplied by its own odd number.
    """

    def __init__(self, key: np.uint64, ticks: IntArray, nodes: IntArray) -> None:
        self._hashes = mixed(key, ticks[:, None] * 2**20 + nodes)
        self._key, self._ticks, self._nodes, self._stream = key, ticks, nodes, 0

    def _windows(self, table: TableName, width: int) -> Floats:
        self._stream += 1
        odd = np.uint64(int(_GOLDEN) * (2 * self._stream + 1) % 2**64)
        return windows(table, self._hashes * odd, width)

    def normal(self, width: int) -> Floats:
        return self._windows("normal", width)

    def uniform(self, width: int) -> Floats:
        return self._windows("uniform", width)

    def latency(self, width: int) -> Floats:
        """Factors around 1 that scatter like medians of probes."""
        return self._windows("latency", width)

    def drift(self, *, every: int) -> Floats:
        """Return one slowly changing value per node: (n_ticks, n_nodes), standard normal."""
        anchor = self._ticks // every
        share = ((self._ticks - anchor * every) / every)[:, None]
        before, after = (
            windows("normal", mixed(self._key, (anchor + i)[:, None] * 2**20 + self._nodes), 1)[
                ..., 0
            ]
            for i in (0, 1)
        )
        scale = np.sqrt(share**2 + (1 - share) ** 2)
        return np.asarray((before * (1 - share) + after * share) / scale, np.float32)
