"""What can be asked for recent blocks and steps: the hot tier, or a recording of it."""

import math
from collections.abc import Sequence
from typing import Protocol

from telemetry.blocks import Span
from telemetry.steps import StepBatch


class Source(Protocol):
    """The questions that watching and charts ask about the last minutes."""

    @property
    def keep_s(self) -> int:
        """How many seconds are kept."""

    def newest(self) -> dict[str, int]:
        """Return the newest tick of each shard."""

    def newest_step_at(self, run: str) -> float | None:
        """Return when a run's newest step ended."""

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick in which each node reported."""

    def window(
        self, shards: Sequence[str] | str, metrics: Sequence[str] = (), *, start: int, end: int
    ) -> Span:
        """Return metrics of all nodes of some shards, tick by tick from start to end."""

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return a run's steps that ended in [since_s, until_s)."""
