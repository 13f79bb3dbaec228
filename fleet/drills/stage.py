"""The stage of a drill: runs played some minutes at a time, read as production reads its store."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import RunClock, clock_at, play, start_clock
from telemetry.steps import StepBatch
from telemetry.store.packing import decode, encode
from telemetry.store.playback import Playback

# As long as the hot tier keeps seconds; and how much is played at a time.
KEEP_S = 900
STRETCH_S = 300


class Act:
    """One run on the stage: its clocks, and the last minutes of what it reported."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clocks = dict.fromkeys(plan.shards, start_clock(plan))
        self.playback: Playback | None = None

    def play(self, until: int) -> Iterator[RunClock]:
        """Play on until a second; yields the clock at every change of phase, in order."""
        before = self.clocks[self.plan.shards[0]]
        played = [play(self.plan, shard, clock, until) for shard, clock in self.clocks.items()]
        self.clocks = {p.span.shard: p.clock for p in played}
        hardware, steps = as_stored(Span.beside([p.span for p in played])), exact(played[0].steps)
        if self.playback is None:
            self.playback = Playback(hardware, steps, keep_s=KEEP_S)
        else:
            self.playback = self.playback.followed_by(hardware, steps, keep_s=KEEP_S)
        yield from phases(self.plan, before, self.clocks[self.plan.shards[0]])


class Stage:
    """What watching reads of all runs of a scenario at one second; a Source."""

    keep_s = KEEP_S

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.acts = {plan.run.name: Act(plan) for plan in plans}
        self._run_of = {shard: plan.run.name for plan in plans for shard in plan.shards}

    def play(self, until: int) -> dict[int, list[tuple[str, RunClock]]]:
        """Play every run on; returns which run enters a phase at which second."""
        entered: dict[int, list[tuple[str, RunClock]]] = {}
        for name, act in self.acts.items():
            for clock in act.play(until):
                entered.setdefault(clock.tick, []).append((name, clock))
        return entered

    def turn_to(self, second: int) -> None:
        """Make a second the present."""
        for playback in self._playbacks():
            playback.second = second

    def _playbacks(self) -> list[Playback]:
        return [act.playback for act in self.acts.values() if act.playback is not None]

    def _of(self, run: str) -> Playback | None:
        return self.acts[run].playback if run in self.acts else None

    def newest(self) -> dict[str, int]:
        """Return the newest tick of each shard."""
        return {
            shard: playback.second
            for shard, run in self._run_of.items()
            if (playback := self._of(run)) is not None
        }

    def newest_step_at(self, run: str) -> float | None:
        """Return when a run's newest step ended."""
        playback = self._of(run)
        return None if playback is None else playback.newest_step_at(run)

    def last_seen(self) -> dict[str, int]:
        """Return the newest tick in which each node reported."""
        seen: dict[str, int] = {}
        for playback in self._playbacks():
            seen |= playback.last_seen()
        return seen

    def window(
        self, shards: Sequence[str] | str, metrics: Sequence[str] = (), *, start: int, end: int
    ) -> Span:
        """Return metrics of all nodes of the runs that these shards belong to."""
        names = (shards,) if isinstance(shards, str) else tuple(shards)
        runs = dict.fromkeys(self._run_of[name] for name in names if name in self._run_of)
        known = [playback for run in runs if (playback := self._of(run)) is not None]
        if not known:
            ticks = np.arange(start, end + 1)
            return Span("", ticks, (), {name: np.zeros((len(ticks), 0, 0)) for name in metrics})
        return Span.beside([p.window(names, metrics, start=start, end=end) for p in known])

    def steps(self, run: str, *, since_s: float, until_s: float = math.inf) -> StepBatch:
        """Return a run's steps that ended in [since_s, until_s)."""
        playback = self._of(run)
        if playback is None:
            return StepBatch.empty(run)
        return playback.steps(run, since_s=since_s, until_s=until_s)


def phases(plan: Plan, before: RunClock, after: RunClock) -> Iterator[RunClock]:
    """Yield the clock at the first second of every phase entered between two clocks."""
    if _stands(before) == _stands(after):
        return
    if after.tick - before.tick == 1:
        yield after
        return
    middle = clock_at(plan, before, (before.tick + after.tick) // 2)
    yield from phases(plan, before, middle)
    yield from phases(plan, middle, after)


def _stands(clock: RunClock) -> tuple[str, float]:
    return clock.phase, clock.phase_since_s


def as_stored(span: Span) -> Span:
    """Round a span's values as the hot tier does."""
    values: dict[str, FloatArray] = {
        name: decode(encode(value, METRICS[name].packing), METRICS[name].packing)
        for name, value in span.values.items()
    }
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def exact(steps: StepBatch) -> StepBatch:
    """Return steps in the precision that the hot tier hands out."""
    phases_s = {name: value.astype(np.float64) for name, value in steps.phases.items()}
    return replace(steps, phases=phases_s)
