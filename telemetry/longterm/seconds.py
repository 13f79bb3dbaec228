"""What the hardware said second by second: out of the hot tier, as samples."""

from collections.abc import Iterator

import numpy as np

from telemetry.blocks import IntArray, Span
from telemetry.longterm.batches import Chunk
from telemetry.longterm.names import as_exported, heads
from telemetry.store.reading import Reader

MS = 1000


def second_chunks(hot: Reader, *, start: int, end: int, every_s: int) -> Iterator[Chunk]:
    """Yield every metric of every node from start up to end, shard by shard.

    Of each ``every_s`` seconds the newest that a node reported, under its own time.
    """
    for shard, newest in hot.newest().items():
        if newest >= start:
            span = hot.window(shard, (), start=start, end=end - 1)
            if span.nodes:
                yield from _chunks(span, every_s)


def _chunks(span: Span, every_s: int) -> Iterator[Chunk]:
    """Yield the metrics of one shard."""
    rows = newest_rows(span, every_s)
    columns = np.arange(len(span.nodes))
    times_ms = span.ticks[rows].T * MS
    for name, values in span.values.items():
        n_parts = values.shape[2]
        if n_parts:
            told = as_exported(name, values[rows, columns]).transpose(1, 2, 0)
            yield Chunk(
                heads(name, span.nodes, n_parts),
                told.reshape(len(span.nodes) * n_parts, -1),
                np.repeat(times_ms, n_parts, axis=0),
            )


def newest_rows(span: Span, every_s: int) -> IntArray:
    """Return the row of the newest report of each node in each ``every_s``: (n, n_nodes).

    Where a node was silent it is any row of that time: there is nothing in it.
    """
    reported = np.zeros((len(span.ticks), len(span.nodes)), dtype=bool)
    for values in span.values.values():
        reported |= np.isfinite(values).any(axis=2)
    turned = reported.reshape(-1, every_s, len(span.nodes))[:, ::-1]
    last = every_s - 1 - turned.argmax(axis=1)
    return np.asarray(last + every_s * np.arange(len(last))[:, None])
