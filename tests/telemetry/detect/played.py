"""Simulated runs watched as production watches them: each second, through the last minutes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from telemetry import catalog
from telemetry.blocks import Span
from telemetry.detect import STATE_METRICS, DetectionInput, Finding, find
from telemetry.detect.checkpoints import expected_checkpoint_s
from telemetry.detect.inputs import OpenProblem
from telemetry.simulate.inputs import LIVE
from telemetry.simulate.plan import Benign, Fault, Plan, RunSpec
from telemetry.simulate.shard import clock_at, play, start_clock
from telemetry.steps import StepBatch

EPOCH = 1_750_000_000
WINDOW_S, WINDOW_STEPS = 180.0, 40
ECC_AGES_S = (600, 60, 10, 0)

RUNS: dict[str, dict[str, Any]] = {
    "trn1": {"model": "llama2-7b", "instance": "trn1.32xlarge", "nodes": 8, "tp": 8},
    "trn2": {"model": "llama3.1-8b", "instance": "trn2.48xlarge", "nodes": 8, "tp": 8},
    "p5": {"model": "llama3.1-8b", "instance": "p5.48xlarge", "nodes": 16, "tp": 4},
    "staged": {"model": "llama2-13b", "instance": "trn1.32xlarge", "nodes": 16, "tp": 8, "pp": 4},
}
BATCH = {"trn1": 128, "trn2": 128, "p5": 64, "staged": 64}


@dataclass(frozen=True)
class Recording:
    """A run played to its end: everything it reported."""

    plan: Plan
    span: Span
    steps: StepBatch

    def at(self, now_s: float, *, open_problems: Sequence[Finding] = ()) -> DetectionInput:
        """Return what detection sees at some second from the start, these alerts being open."""
        now = EPOCH + now_s
        ends = self.steps.ended_at_s
        done = int(np.searchsorted(ends, now, side="right"))
        since = int(np.searchsorted(ends, now - WINDOW_S))
        run = self.plan.run
        instance = catalog.training_instance(run.instance)
        return DetectionInput(
            run=run.name,
            nodes=run.node_names,
            steps=self.steps[min(since, max(0, done - WINDOW_STEPS)) : done],
            hardware=lambda metrics, last_s: self.window(metrics, now - np.arange(last_s)),
            now_s=now,
            cores_per_device=instance.n_cores // instance.n_devices,
            n_stages=run.pp,
            phase=self.phases[int(now_s)] if self.phases else "training",
            counts=self.window(STATE_METRICS, now - np.array(ECC_AGES_S)),
            open_problems=tuple(
                OpenProblem(f.rule, f.cause, f.node, f.device, f.evidence) for f in open_problems
            ),
            hardware_at=lambda metrics, ages_s: self.window(metrics, int(now) - np.array(ages_s)),
            earlier=lambda since_s: self.steps[int(np.searchsorted(ends, since_s)) : done],
            checkpoint_s=expected_checkpoint_s(
                n_parameters=catalog.model(run.model).params, n_nodes=run.nodes
            ),
        )

    @cached_property
    def phases(self) -> list[str]:
        """What the run says of itself, second by second; empty where it only trains."""
        if not any(event.kind == "planned_compile" for event in self.plan.benign):
            return []
        clock, phases = start_clock(self.plan), []
        for second in range(EPOCH, int(self.span.ticks[-1]) + 1):
            clock = clock_at(self.plan, clock, second)
            phases.append(clock.phase)
        return phases

    def window(self, metrics: Sequence[str], seconds: NDArray[Any]) -> Span:
        """Return what was reported in some seconds; the recording has every second."""
        first, n_ticks = int(self.span.ticks[0]), len(self.span.ticks)
        offsets = np.unique(seconds).astype(int) - first
        rows = offsets[(offsets >= 0) & (offsets < n_ticks)]
        values = {m: self.span.values[m][rows] for m in metrics if m in self.span.values}
        return Span(self.span.shard, self.span.ticks[rows], self.span.nodes, values)

    @property
    def breaks_at_s(self) -> float:
        """When the second of two steps in a row above 25 % ended, from the start; inf if never."""
        over = self.steps.allreduce_share_ratio > 0.25 + 1e-6
        second = np.flatnonzero(over[1:] & over[:-1]) + 1
        return float(self.steps.ended_at_s[second[0]] - EPOCH) if second.size else np.inf

    def watch(self, seconds: Sequence[int] | range) -> Iterator[tuple[int, list[Finding]]]:
        """Look once each second, remembering only which alerts are open."""
        found: list[Finding] = []
        watches: dict[str, Any] = {}
        for second in seconds:
            is_open = {finding.rule for finding in found}
            now = replace(self.at(second, open_problems=found), watches=watches)
            found = find(now, open_rules=is_open)
            yield second, found


def record(
    run: str,
    *,
    duration_s: int,
    seed: int = 7,
    faults: Sequence[Fault] = (),
    benign: Sequence[Benign] = (),
    is_busy: bool = False,
    **more: Any,
) -> Recording:
    """Play one of RUNS for some seconds, with these faults and events.

    ``is_busy``: cores that wait for others count as busy.
    """
    usual: dict[str, Any] = {
        "name": "run",
        "compile_s": 0,
        "seq_len": 4096,
        "global_batch": BATCH[run],
    }
    spec = RunSpec(**(usual | RUNS[run] | more))
    plan = Plan(
        run=spec,
        seed=seed,
        epoch_s=EPOCH,
        faults=tuple(faults),
        benign=tuple(benign),
        inputs=msgspec.structs.replace(LIVE, power=True, busy_while_waiting=is_busy),
    )
    played = [play(plan, shard, start_clock(plan), EPOCH + duration_s) for shard in plan.shards]
    spans = [each.span for each in played]
    values = {
        name: np.concatenate([span.values[name] for span in spans], axis=1)
        for name in spans[0].values
    }
    span = Span(spec.name, spans[0].ticks, spec.node_names, values)
    return Recording(plan, span, played[0].steps)
