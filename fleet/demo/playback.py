"""Some minutes of a run, played back: read as the hot tier would be at a chosen second."""

import math
from collections.abc import Sequence

import numpy as np

from telemetry.blocks import Span
from telemetry.steps import StepBatch


class Playback:
    """A Source over what was just played; ``second`` is its present."""

    def __init__(self, hardware: Span, steps: StepBatch) -> None:
        self.second = int(hardware.ticks[-1])
        self._hardware = hardware
        self._steps = steps
        self._newest = _newest_reports(hardware)

    @property
    def keep_s(self) -> int:
        """All of it is kept."""
        return len(self._hardware.ticks)

    def newest(self) -> dict[str, int]:
        """Return the present: every shard was ticked up to it."""
        return {self._hardware.shard: self.second}

    def newest_step_at(self, run: str) -> float | None:
        """Return when the newest step ended."""
        known = self.steps(run, since_s=0.0)
        return float(known.ended_at_s[-1]) if len(known) else None

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick up to the present in which each node reported."""
        row = int(np.searchsorted(self._hardware.ticks, self.second, side="right")) - 1
        return dict(zip(self._hardware.nodes, self._newest[row].tolist(), strict=True))

    def window(
        self, shards: Sequence[str] | str, metrics: Sequence[str] = (), *, start: int, end: int
    ) -> Span:
        """Return ticks from start to end; what is before the playback, or to come, is NaN."""
        del shards  # a playback is of one run
        held = self._hardware
        first = int(held.ticks[0])
        known = slice(max(start, first), min(end, self.second) + 1)
        values = {}
        for name in metrics or held.values:
            source = held.values.get(name, np.zeros((len(held.ticks), len(held.nodes), 0)))
            values[name] = np.full((end + 1 - start, *source.shape[1:]), np.nan, source.dtype)
            if known.start < known.stop:
                place = slice(known.start - start, known.stop - start)
                values[name][place] = source[known.start - first : known.stop - first]
        return Span(held.shard, np.arange(start, end + 1), held.nodes, values)

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return the steps that ended in [since_s, until_s) and not after the present."""
        del run
        until_s = min(until_s, self.second + 1e-6)
        return self._steps[slice(*np.searchsorted(self._steps.ended_at_s, [since_s, until_s]))]


def _newest_reports(span: Span) -> np.ndarray:
    """Return, for each tick and node, the newest tick so far in which the node reported."""
    seen = np.zeros((len(span.ticks), len(span.nodes)), dtype=bool)
    for values in span.values.values():
        seen |= np.isfinite(values).any(axis=2)
    return np.maximum.accumulate(np.where(seen, span.ticks[:, None], span.ticks[0] - 1), axis=0)
