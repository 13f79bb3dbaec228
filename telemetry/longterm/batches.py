"""Samples on their way out, cut into batches of a bounded size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.longterm.wire import request

# About 180 kB before compression; stores ask for some thousand samples at a time.
MOST_SAMPLES = 10_000
Number = TypeVar("Number", bound=np.number[Any])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Series over the same number of moments.

    ``heads`` (n_series,) are their labels, see ``wire.series``; ``values`` (n_series, n_times),
    NaN where there is nothing to say; ``times_ms`` of the same shape, or (1, n_times).
    """

    heads: Sequence[bytes]
    values: FloatArray
    times_ms: IntArray

    def rows(self, begin: int, end: int) -> "Chunk":
        """Keep some of the series."""
        times_ms = self.times_ms if len(self.times_ms) == 1 else self.times_ms[begin:end]
        return Chunk(self.heads[begin:end], self.values[begin:end], times_ms)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent in one request; a series is in one batch only."""

    chunks: Sequence[Chunk]

    @property
    def n_samples(self) -> int:
        """How many samples it has; what is absent is none."""
        return sum(int(np.count_nonzero(~np.isnan(chunk.values))) for chunk in self.chunks)

    @property
    def n_times(self) -> int:
        """Over how many moments it goes."""
        return max(int(chunk.values.shape[1]) for chunk in self.chunks)

    def body(self) -> bytes:
        """Return the request."""
        n_times = self.n_times
        heads = [head for chunk in self.chunks for head in chunk.heads]
        values = np.concatenate([_wide(chunk.values, n_times, np.nan) for chunk in self.chunks])
        times_ms = np.concatenate(
            [
                _wide(np.broadcast_to(chunk.times_ms, chunk.values.shape), n_times, 0)
                for chunk in self.chunks
            ]
        )
        return request(heads, values, times_ms)

    def by_time(self) -> Iterator["Batch"]:
        """Take it apart, moment by moment."""
        for i in range(self.n_times):
            chunks = [
                Chunk(chunk.heads, chunk.values[:, i : i + 1], chunk.times_ms[:, i : i + 1])
                for chunk in self.chunks
                if i < chunk.values.shape[1]
            ]
            if (batch := Batch(chunks)).n_samples:
                yield batch


def _wide(values: NDArray[Number], n_times: int, absent: float) -> NDArray[Number]:
    """Give rows room for more moments, which are absent."""
    lacking = [(0, 0), (0, n_times - values.shape[1])]
    return np.pad(values, lacking, constant_values=absent) if lacking[1][1] else values


def batches(chunks: Iterable[Chunk], *, most: int = MOST_SAMPLES) -> Iterator[Batch]:
    """Cut chunks into batches of at most so many samples; a series alone may have more."""
    held: list[Chunk] = []
    room = most
    for chunk in chunks:
        begin, n_times = 0, max(1, chunk.values.shape[1])
        while begin < len(chunk.heads):
            if room < n_times and held:
                yield Batch(held)
                held, room = [], most
            end = min(len(chunk.heads), begin + max(1, room // n_times))
            held.append(chunk.rows(begin, end))
            room -= (end - begin) * n_times
            begin = end
    if held:
        yield Batch(held)
