"""Ingest of one node's lines from a pipe or file; buffers them while the store is down."""

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from redis.exceptions import RedisError

from fleet.ingest.nodes import IngestBatch, NodeIngest, store_batches
from telemetry.ingest.lines import read_groups, read_together
from telemetry.ingest.neuron_monitor import read_lines
from telemetry.store.hot import HotStore

log = logging.getLogger(__name__)


class PipeIngest:
    """Stores one node's lines; blocks that cannot be stored yet are buffered."""

    def __init__(self, hot: HotStore, *, node: str | None, keep_s: int) -> None:
        self._hot = hot
        self._node = node
        self._keep_s = keep_s
        self._arrivals = NodeIngest(keep_s=keep_s)
        self._buffered = IngestBatch()

    def read_pipe(self, descriptor: int) -> Iterator[IngestBatch]:
        for number, lines in _numbered(read_together(descriptor)):
            yield self._take(lines, number, time.time(), time.time())

    def replay_file(self, path: Path, *, start_s: float | None) -> Iterator[IngestBatch]:
        """Store a file's reports end to end, from ``start_s`` on, or so that they end now."""
        now_s = time.time()
        with path.open("rb") as file:
            covered = [
                sum(reading.period_s for _, reading in read_lines(lines)[0])
                for lines in read_groups(file)
            ]
            end_s = now_s - sum(covered) if start_s is None else start_s
            file.seek(0)
            groups = _numbered(read_groups(file))
            for (number, lines), seconds in zip(groups, covered, strict=True):
                end_s += seconds
                yield self._take(lines, number, end_s, now_s)

    def read_stream(self, file: BinaryIO) -> Iterator[IngestBatch]:
        """Store a stream that is not a pipe."""
        for number, lines in _numbered(read_groups(file)):
            yield self._take(lines, number, time.time(), time.time())

    @property
    def n_buffered(self) -> int:
        """How many seconds are buffered."""
        return len(self._buffered.blocks)

    def _take(self, lines: Sequence[bytes], number: int, at_s: float, now_s: float) -> IngestBatch:
        """Read lines that ended at ``at_s``; store them with the buffered ones."""
        delivery = self._arrivals.deliver(
            lines, node=self._node, arrived_s=at_s, now_s=now_s, first_line=number
        )
        kept = self._buffered
        kept.absorb(delivery)
        kept.blocks = [*kept.blocks, *delivery.blocks][-self._keep_s :]
        kept.reports = [*kept.reports, *delivery.reports][-self._keep_s :]
        try:
            store_batches(self._hot, [kept])
        except RedisError as error:
            log.warning("%s Seconds kept back: %d.", error, len(kept.blocks))
        else:
            self._buffered = IngestBatch()
        return delivery


def _numbered(groups: Iterator[list[bytes]]) -> Iterator[tuple[int, list[bytes]]]:
    number = 1
    for lines in groups:
        yield number, lines
        number += len(lines)
