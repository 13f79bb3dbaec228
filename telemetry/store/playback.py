"""Recorded minutes of a run, read as the hot tier was at a chosen second."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np

from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.steps import StepBatch
from telemetry.store.reading import StepState, recent_of
from telemetry.units import MINUTE_S

# Older seconds than this have arrived from every node.
ARRIVES_WITHIN_S = 30


# The window of detection, all steps, and a few that rules ask for.
CUTS_REMEMBERED = 8


def cut(steps: StepBatch, start: int, stop: int, without: tuple[int, ...] = ()) -> StepBatch:
    """Return the rows from start to stop, without some of them."""
    some = steps[start:stop]
    return some[np.delete(np.arange(len(some)), without)] if without else some


class Playback:
    """A Source over a recording; ``second`` is its present.

    ``seen`` is the last tick of nodes that do not report in the recording. ``keep_s`` is how
    far back from the present data can be read; default: all. ``arrived`` returns the newest tick
    of each node, (n_nodes,), that had arrived at a second; default: that second.
    ``steps_known_s`` (n_steps,) is when each step was known; default: when it ended.
    """

    def __init__(
        self,
        hardware: Span,
        steps: StepBatch,
        *,
        seen: Mapping[str, int] | None = None,
        keep_s: int | None = None,
        arrived: Callable[[int], IntArray] | None = None,
        steps_known_s: FloatArray | None = None,
    ) -> None:
        self._arrived = arrived
        self._steps_known_s = steps_known_s
        self.second = int(hardware.ticks[-1])
        self.keep_s = keep_s or len(hardware.ticks)
        self._hardware = hardware
        self._steps = steps
        self.replace_newest(steps)
        self._seen = dict(seen or {})
        # The newest tick so far in which each node reported: (n_ticks, n_nodes).
        reported = np.where(hardware.reported, hardware.ticks[:, None], hardware.ticks[0] - 1)
        self._newest: IntArray = np.maximum.accumulate(reported, axis=0)

    def newest_steps(self, n_steps: int) -> StepBatch:
        return self._steps.last(n_steps)

    def replace_newest(self, steps: StepBatch) -> None:
        """Replace the newest steps by the same ones with other phases."""
        older = self._steps[: len(self._steps) - len(steps)]
        self._steps = StepBatch.joined([older, steps]) if len(older) else steps
        # Steps last for seconds while they are read every second.
        self._cut = lru_cache(maxsize=CUTS_REMEMBERED)(partial(cut, self._steps))

    def newest(self) -> dict[str, int]:
        """Return the present as the newest tick of the shard."""
        return {self._hardware.shard: self.second}

    def newest_step_at(self, run: str) -> float | None:
        known = self.steps(run, since_s=0.0)
        return float(known.ended_at_s[-1]) if len(known) else None

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick up to the present in which each node reported."""
        ticks = self._hardware.ticks
        if self._arrived is None:
            newest = self._newest[int(np.searchsorted(ticks, self.second, side="right")) - 1]
        else:
            rows = np.searchsorted(ticks, self._arrived(self.second), side="right") - 1
            newest = np.where(rows < 0, -1, self._newest[rows, np.arange(len(rows))])
        names = self._hardware.nodes
        return self._seen | {
            name: tick
            for name, tick in zip(names, newest.tolist(), strict=True)
            if tick >= ticks[0]
        }

    def quiet_s(self) -> dict[str, int]:
        """Return none: a playback alone knows no agents that were asked to end."""
        return {}

    def window(
        self,
        shards: Sequence[str] | str,
        metrics: Sequence[str] = (),
        *,
        start: int,
        end: int,
        only: Collection[str] | None = None,
    ) -> Span:
        """Return ticks from start to end; expired and future ticks are NaN."""
        del shards, only  # a playback is of one run, and nothing of it is decoded
        hardware = self._hardware
        first = int(hardware.ticks[0])
        oldest = max(first, self.second - self.keep_s)
        known = slice(max(start, oldest), min(end, self.second) + 1)
        nodes = hardware.nodes if known.start < known.stop else ()
        values = {}
        for name in metrics or hardware.values:
            source = hardware.values.get(name, np.zeros((len(hardware.ticks), len(nodes), 0)))
            kept = source[known.start - first : known.stop - first]
            if len(kept) != end + 1 - start or not nodes:
                shape = (end + 1 - start, len(nodes), source.shape[2])
                values[name] = np.full(shape, np.nan, source.dtype)
                if nodes:
                    values[name][known.start - start : known.stop - start] = kept
            else:
                values[name] = kept
        if nodes and self._arrived is not None and end > self.second - ARRIVES_WITHIN_S:
            # NaN after each node's last row, in copies; none of the rows before ``first`` is.
            rows = self._arrived(self.second) + 1 - start
            first = max(int(rows.min()), 0)
            late = np.arange(first, end + 1 - start)[:, None] >= rows
            if len(late):
                for name, array in values.items():
                    values[name] = array.copy()
                    values[name][first:][late] = np.nan
        return Span(hardware.shard, np.arange(start, end + 1), nodes, values)

    def moments(
        self, shards: Sequence[str], metrics: Sequence[str], *, ticks: Sequence[int]
    ) -> Span:
        """Return metrics at single ticks; expired and future ones are left out."""
        del shards
        hardware, first = self._hardware, int(self._hardware.ticks[0])
        oldest = max(first, self.second - self.keep_s)
        known = [tick for tick in ticks if oldest <= tick <= self.second]
        rows = np.array(known, int) - first
        none = np.zeros((len(hardware.ticks), len(hardware.nodes), 0))
        values = {name: hardware.values.get(name, none).take(rows, axis=0) for name in metrics}
        if self._arrived is not None and max(known, default=0) > self.second - ARRIVES_WITHIN_S:
            arrived = self._arrived(self.second)
            all_until = int(arrived.min())
            for row, tick in enumerate(known):
                # Only the newest moments have nodes that are late.
                if tick > all_until:
                    late = arrived < tick
                    for array in values.values():
                        array[row, late] = np.nan
        return Span(hardware.shard, rows + first, hardware.nodes if known else (), values)

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return the steps that ended in [since_s, until_s), up to the present."""
        del run
        ended_s, known_s = self._steps.ended_at_s, self._steps_known_s
        if known_s is None:
            until_s = min(until_s, self.second + 1e-6)
            return self._cut(*np.searchsorted(ended_s, [since_s, until_s]).tolist())
        start, stop = np.searchsorted(ended_s, [since_s, until_s]).tolist()
        unknown = np.flatnonzero(known_s[start:stop] > self.second).tolist()
        if unknown and unknown[0] + len(unknown) == stop - start:
            return self._cut(start, start + unknown[0])
        return self._cut(start, stop, tuple(unknown))

    def recent_steps(
        self, run: str, *, since_s: float, at_least: int, state: StepState | None = None
    ) -> StepBatch:
        del state
        return recent_of(self, run, since_s=since_s, at_least=at_least)

    def followed_by(
        self,
        hardware: Span,
        steps: StepBatch,
        *,
        keep_s: int,
        steps_known_s: FloatArray | None = None,
    ) -> "Playback":
        """Return a playback with the next seconds added and the oldest dropped."""
        # Seconds that have not arrived by now arrive later: they are no gaps.
        kept = self._hardware.between(self.second - keep_s + 1, self.second)
        oldest_s = self.second - keep_s - MINUTE_S
        kept_steps = slice(*np.searchsorted(self._steps.ended_at_s, [oldest_s, np.inf]))
        if self._steps_known_s is not None and steps_known_s is not None:
            steps_known_s = np.concatenate([self._steps_known_s[kept_steps], steps_known_s])
        joined = Span.join_times([kept, hardware]) or hardware
        return Playback(
            joined,
            StepBatch.joined([self._steps[kept_steps], steps]),
            seen=self.last_seen(),
            keep_s=keep_s,
            arrived=self._arrived,
            steps_known_s=steps_known_s,
        )
