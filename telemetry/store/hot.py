"""The hot tier: the last 15 minutes of every metric and step, per second, in Redis."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from redis import Redis

from telemetry.blocks import Block
from telemetry.steps import StepBatch
from telemetry.store.commits import BlockMerger, block_parts, raw, steps_part
from telemetry.store.connection import StoreUnavailable
from telemetry.store.reading import Totals
from telemetry.store.service import TICKS

__all__ = ["TICKS", "HotStore", "StoreUnavailable", "Totals", "open_store"]


class HotStore(BlockMerger):
    """Blocks, steps and simulation clocks of the last minutes.

    A minute of a shard is a hash with a field per second. A second is written once: repeats
    change nothing, and late seconds are accepted. Minutes expire, so that memory stays bounded.
    Every method raises StoreUnavailable during an outage of Redis.
    """

    def append(self, blocks: Iterable[Block]) -> int:
        """Store blocks and return how many were new."""
        changes = [self._change(parts=[part]) for part in block_parts(blocks)]
        return sum(n_new for _, n_new, _ in self.commit_all(changes))

    def append_steps(self, batch: StepBatch, *, amends: bool = False) -> int:
        """Store a run's steps and return how many were new.

        With ``amends`` stored steps are replaced, because reports of more workers arrived.
        """
        changes = [self._change(steps=steps_part(batch, amends=amends))] if len(batch) else []
        return sum(n_new for _, _, n_new in self.commit_all(changes))

    def clock(self, shard: str) -> bytes | None:
        """Return the state of a shard's simulation."""
        clock: bytes | None = self.execute("HGET", "clocks", shard)
        return clock

    def commit(
        self,
        shard: str,
        *,
        before: bytes | None,
        after: bytes,
        blocks: Sequence[Block],
        steps: StepBatch | None,
    ) -> bool:
        """Advance a shard's clock and store the tick's blocks and steps, atomically.

        Returns False, with nothing written, if the clock is no longer ``before``.
        """
        if others := {block.shard for block in blocks} - {shard}:
            msg = f"blocks: are of {sorted(others)}, but the clock is of {shard!r}"
            raise ValueError(msg)
        made: dict[str, Any] = {"parts": list(block_parts(blocks))}
        if steps is not None and len(steps):
            made["steps"] = steps_part(steps)
        clock = {"shard": shard, "before": raw(before or b""), "after": raw(after)}
        [(written, _, _)] = self.commit_all([self._change(clock=clock, **made)])
        return bool(written)


@lru_cache(maxsize=8)
def open_store(url: str, *, keep_s: int = 900) -> HotStore:
    return HotStore(Redis.from_url(url), keep_s=keep_s)
