"""A recording that goes on, of which reports arrive late: what a drill reads second by second."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.steps import StepBatch
from telemetry.store.playback import Playback
from telemetry.units import MINUTE_S

# Older seconds than this have arrived from every node.
ARRIVES_WITHIN_S = 30


class LatePlayback(Playback):
    """A Playback of what has arrived.

    ``seen`` is the last tick of nodes that do not report in the recording. ``arrived`` returns the
    newest tick of each node, (n_nodes,), that had arrived at a second; default: that second.
    ``steps_known_s`` (n_steps,) is when each step was known; default: when it ended.
    """

    def __init__(
        self,
        hardware: Span,
        steps: StepBatch,
        *,
        keep_s: int,
        seen: Mapping[str, int] | None = None,
        arrived: Callable[[int], IntArray] | None = None,
        steps_known_s: FloatArray | None = None,
    ) -> None:
        super().__init__(hardware, steps, keep_s=keep_s)
        self._arrived = arrived
        self._steps_known_s = steps_known_s
        self._seen = dict(seen or {})

    def newest_steps(self, n_steps: int) -> StepBatch:
        return self._steps.last(n_steps)

    def replace_newest(self, steps: StepBatch) -> None:
        """Replace the newest steps by the same ones with other phases."""
        older = self._steps[: len(self._steps) - len(steps)]
        self._set_steps(StepBatch.joined([older, steps]) if len(older) else steps)

    def last_seen(self) -> dict[str, int]:
        return self._seen | super().last_seen()

    def arrived(self) -> IntArray:
        return super().arrived() if self._arrived is None else self._arrived(self.second)

    def window(
        self,
        shards: Sequence[str] | str,
        metrics: Sequence[str] = (),
        *,
        start: int,
        end: int,
        only: Collection[str] | None = None,
    ) -> Span:
        span = super().window(shards, metrics, start=start, end=end, only=only)
        if span.nodes and self._arrived is not None and end > self.second - ARRIVES_WITHIN_S:
            # NaN after each node's last row, in copies; none of the rows before ``first`` is.
            rows = self._arrived(self.second) + 1 - start
            first = max(int(rows.min()), 0)
            late = np.arange(first, end + 1 - start)[:, None] >= rows
            if len(late):
                values = {name: array.copy() for name, array in span.values.items()}
                for array in values.values():
                    array[first:][late] = np.nan
                return Span(span.shard, span.ticks, span.nodes, values)
        return span

    def moments(
        self, shards: Sequence[str], metrics: Sequence[str], *, ticks: Sequence[int]
    ) -> Span:
        span = super().moments(shards, metrics, ticks=ticks)
        known = span.ticks.tolist()
        if self._arrived is not None and max(known, default=0) > self.second - ARRIVES_WITHIN_S:
            arrived = self._arrived(self.second)
            all_until = int(arrived.min())
            for row, tick in enumerate(known):
                # Only the newest moments have nodes that are late.
                if tick > all_until:
                    late = arrived < tick
                    for array in span.values.values():
                        array[row, late] = np.nan
        return span

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return the steps that ended in [since_s, until_s) and are known at the present."""
        known_s = self._steps_known_s
        if known_s is None:
            return super().steps(run, since_s=since_s, until_s=until_s)
        start, stop = np.searchsorted(self._steps.ended_at_s, [since_s, until_s]).tolist()
        unknown = np.flatnonzero(known_s[start:stop] > self.second).tolist()
        if unknown and unknown[0] + len(unknown) == stop - start:
            return self._cut(start, start + unknown[0])
        return self._cut(start, stop, tuple(unknown))

    def followed_by(
        self,
        hardware: Span,
        steps: StepBatch,
        *,
        keep_s: int,
        steps_known_s: FloatArray | None = None,
    ) -> "LatePlayback":
        """Return a playback with the next seconds added and the oldest dropped."""
        # Seconds that have not arrived by now arrive later: they are no gaps.
        kept = self._hardware.between(self.second - keep_s + 1, self.second)
        oldest_s = self.second - keep_s - MINUTE_S
        kept_steps = slice(*np.searchsorted(self._steps.ended_at_s, [oldest_s, np.inf]))
        if self._steps_known_s is not None and steps_known_s is not None:
            steps_known_s = np.concatenate([self._steps_known_s[kept_steps], steps_known_s])
        joined = Span.join_times([kept, hardware]) or hardware
        return LatePlayback(
            joined,
            StepBatch.joined([self._steps[kept_steps], steps]),
            seen=self.last_seen(),
            keep_s=keep_s,
            arrived=self._arrived,
            steps_known_s=steps_known_s,
        )
