"""Simulated runs watched for whether training lives at all: phases, silence and standstills."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from telemetry.detect import Finding, StepHeartbeat, crashed_nodes, find_silent
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.node_errors import exec_errors, node_idle
from telemetry.detect.recompile import recompile
from telemetry.detect.stopped import hang
from telemetry.simulate.plan import Benign, Fault
from telemetry.simulate.shard import RunClock, clock_at, start_clock
from tests.telemetry.detect.played import EPOCH, Recording, record

RULES = (hang, recompile, exec_errors, node_idle)
# Long enough for nodes to boot and steps to be known.
LISTEN_S = 60


@dataclass(frozen=True)
class Life:
    """A run played to its end, and what it said of itself meanwhile."""

    recording: Recording
    duration_s: int

    @cached_property
    def clocks(self) -> list[RunClock]:
        """The run's clock at every second."""
        plan = self.recording.plan
        clocks = [start_clock(plan)]
        for second in range(self.duration_s + 1):
            clocks.append(clock_at(plan, clocks[-1], EPOCH + second))
        return clocks[1:]

    def at(self, second: int, open_problems: Sequence[Finding] = ()) -> DetectionInput:
        """Return what detection sees at a second."""
        clock = self.clocks[second]
        seen = self.recording.at(second, open_problems=open_problems)
        return replace(seen, phase=clock.phase, phase_since_s=clock.phase_since_s)

    def watch(self, *, until_s: int | None = None) -> Iterator[tuple[int, list[Finding]]]:
        """Look once each second; what was found last is what is open."""
        found: list[Finding] = []
        for second in range(LISTEN_S, until_s or self.duration_s):
            inputs = self.at(second, found)
            found = [finding for rule in RULES for finding in rule(inputs)]
            found += self._silent(inputs)
            yield second, found

    def _silent(self, inputs: DetectionInput) -> list[Finding]:
        span, now = self.recording.span, int(inputs.now_s)
        upto = span.ticks <= now
        reported = np.isfinite(span.values["vcpu_usage_ratio"][upto, :, 0])
        newest = {n: span.ticks[upto][reported[:, i]] for i, n in enumerate(span.nodes)}
        steps = inputs.steps
        pulses = {}
        if len(steps):
            usual_s, trains = float(np.median(steps.step_s)), inputs.phase == "training"
            pulses[inputs.run] = StepHeartbeat(float(steps.ended_at_s[-1]), usual_s, trains)
        return find_silent(
            {node: int(ticks[-1]) for node, ticks in newest.items() if ticks.size},
            now_s=now,
            run_of=dict.fromkeys(span.nodes, inputs.run),
            pulses=pulses,
            crashed=crashed_nodes(inputs),
        )


def life(
    run: str,
    *,
    duration_s: int = 420,
    faults: Sequence[Fault] = (),
    benign: Sequence[Benign] = (),
    **more: Any,
) -> Life:
    """Play one of the runs, with these faults and events."""
    played = record(run, duration_s=duration_s, faults=faults, benign=benign, **more)
    return Life(played, duration_s)


@dataclass(frozen=True)
class Spell:
    """One stretch of seconds in which something was found."""

    rule: str
    cause: str
    node: str | None
    first_s: int
    last_s: int


def spells(lived: Life) -> list[Spell]:
    """Return what was found from when to when; a second without it ends a spell."""
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for second, findings in lived.watch():
        for each in findings:
            found.setdefault((each.rule, each.cause, each.node), []).append(second)
    return [
        Spell(*what, int(part[0]), int(part[-1]))
        for what, seconds in found.items()
        for part in np.split(np.array(seconds), np.flatnonzero(np.diff(seconds) > 1) + 1)
    ]
