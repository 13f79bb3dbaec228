"""Simulated runs watched for whether training lives at all: phases, silence and standstills."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telemetry.detect import Finding, StepHeartbeat, crashed_nodes, find_silent
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.node_errors import exec_errors, node_idle
from telemetry.detect.recompile import recompile
from telemetry.detect.stopped import hang
from telemetry.simulate.plan import Benign, Fault
from tests.telemetry.detect.played import EPOCH, Recording, record

RULES = (hang, recompile, exec_errors, node_idle)
# Long enough for nodes to boot and steps to be known.
LISTEN_S = 60


@dataclass(frozen=True)
class Life:
    """A run played to its end, and what it said of itself meanwhile."""

    recording: Recording
    duration_s: int

    def watch(self) -> Iterator[tuple[int, list[Finding]]]:
        """Look once each second; what was found last is what is open."""
        return self.recording.watch(range(LISTEN_S, self.duration_s), self._look)

    def _look(self, second: int, opened: list[Finding], _: dict[str, Any]) -> list[Finding]:
        inputs = self.recording.at(second, open_problems=opened)
        return [f for rule in RULES for f in rule(inputs)] + self._silent(inputs)

    @cached_property
    def heard(self) -> NDArray[np.int64]:
        """When each node was last heard, by second: (n_seconds, n_nodes), 0 before."""
        span = self.recording.span
        reported = np.isfinite(span.values["vcpu_usage_ratio"][..., 0])
        return np.maximum.accumulate(np.where(reported, span.ticks[:, None], 0))

    def _silent(self, inputs: DetectionInput) -> list[Finding]:
        now, names = int(inputs.now_s), self.recording.span.nodes
        newest = zip(names, self.heard[now - EPOCH].tolist(), strict=True)
        steps = inputs.steps
        pulses = {}
        if len(steps):
            usual_s, trains = float(np.median(steps.step_s)), inputs.phase == "training"
            pulses[inputs.run] = StepHeartbeat(float(steps.ended_at_s[-1]), usual_s, trains)
        return find_silent(
            {node: tick for node, tick in newest if tick},
            now_s=now,
            run_of=dict.fromkeys(names, inputs.run),
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
