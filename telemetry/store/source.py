"""What can be asked for recent blocks and steps: the hot tier, or a recording of it."""

import math
from collections.abc import Sequence
from typing import Protocol

from telemetry.blocks import FloatArray, IntArray, Span
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


class LongTermError(Exception):
    """The long-term store does not answer, or not what was asked for; the message says why."""


class LongTerm(Protocol):
    """What history asks of the long-term store; it raises LongTermError."""

    def node_minutes(
        self, node: str, metric: str, *, start: int, end: int, every_s: int
    ) -> tuple[IntArray, FloatArray]:
        """Return lowest, mean and highest of each part, (n, 3 * n_parts), per ``every_s``."""

    def run_minutes(self, run: str, *, start: int, end: int, every_s: int) -> FloatArray:
        """Return a run's average step per ``every_s``: (n, 9)."""
