"""Recorded minutes of a run, read as the hot tier was at a chosen second."""

import math
from collections.abc import Collection, Sequence
from functools import lru_cache, partial

import numpy as np

from telemetry.blocks import IntArray, Span
from telemetry.steps import StepBatch
from telemetry.store.reading import StepState, recent_of

# The window of detection, all steps, and a few that rules ask for.
CUTS_REMEMBERED = 8


def cut(steps: StepBatch, start: int, stop: int, without: tuple[int, ...] = ()) -> StepBatch:
    """Return the rows from start to stop, without some of them."""
    some = steps[start:stop]
    return some[np.delete(np.arange(len(some)), without)] if without else some


class Playback:
    """A Source over a recording; ``second`` is its present.

    ``keep_s`` is how far back from the present data can be read; default: all.
    """

    def __init__(self, hardware: Span, steps: StepBatch, *, keep_s: int | None = None) -> None:
        self.second = int(hardware.ticks[-1])
        self.keep_s = keep_s or len(hardware.ticks)
        self._hardware = hardware
        self._set_steps(steps)
        # The newest tick so far in which each node reported: (n_ticks, n_nodes).
        reported = np.where(hardware.reported, hardware.ticks[:, None], hardware.ticks[0] - 1)
        self._newest: IntArray = np.maximum.accumulate(reported, axis=0)

    def _set_steps(self, steps: StepBatch) -> None:
        self._steps = steps
        # Steps last for seconds while they are read every second.
        self._cut = lru_cache(maxsize=CUTS_REMEMBERED)(partial(cut, steps))

    def newest(self) -> dict[str, int]:
        """Return the present as the newest tick of the shard."""
        return {self._hardware.shard: self.second}

    def newest_step_at(self, run: str) -> float | None:
        known = self.steps(run, since_s=0.0)
        return float(known.ended_at_s[-1]) if len(known) else None

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick up to the present in which each node reported."""
        ticks = self._hardware.ticks
        rows = np.searchsorted(ticks, self.arrived(), side="right") - 1
        newest = np.where(rows < 0, -1, self._newest[rows, np.arange(len(rows))])
        return {
            name: tick
            for name, tick in zip(self._hardware.nodes, newest.tolist(), strict=True)
            if tick >= ticks[0]
        }

    def arrived(self) -> IntArray:
        """Return the newest tick of each node that has arrived by the present: (n_nodes,)."""
        return np.full(len(self._hardware.nodes), self.second)

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
        return Span(hardware.shard, rows + first, hardware.nodes if known else (), values)

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return the steps that ended in [since_s, until_s), up to the present."""
        del run
        until_s = min(until_s, self.second + 1e-6)
        return self._cut(*np.searchsorted(self._steps.ended_at_s, [since_s, until_s]).tolist())

    def recent_steps(
        self, run: str, *, since_s: float, at_least: int, state: StepState | None = None
    ) -> StepBatch:
        del state
        return recent_of(self, run, since_s=since_s, at_least=at_least)
