"""Simulated runs watched as production watches them: each second, through the last minutes."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import deepcopy
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
from telemetry.simulate.shard import RunClock, clock_at, play, start_clock
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
Findings = list[Finding]
# Of a second, with the open findings and what is remembered of the run: what is found.
Look = Callable[[int, Findings, dict[str, Any]], Findings]
# What was found until the first event of a run, by what it reported, and is remembered then.
BEGINNINGS: dict[Any, tuple[list[tuple[int, Findings]], dict[str, Any]]] = {}
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
        phase, since_s = self.phases[int(now_s)]
        return DetectionInput(
            run=run.name,
            nodes=run.node_names,
            steps=self.steps[min(since, max(0, done - WINDOW_STEPS)) : done],
            hardware=lambda metrics, last_s: self.window(metrics, now - np.arange(last_s)),
            now_s=now,
            cores_per_device=instance.n_cores // instance.n_devices,
            n_stages=run.pp,
            phase=phase,
            phase_since_s=since_s,
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
    def phases(self) -> list[tuple[str, float]]:
        """What the run says of itself at every second, and since when."""
        return phases_after(start_clock(self.plan), int(self.span.ticks[-1]), self.plan)

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

    def watch(
        self, seconds: range, look: Look | None = None, *, about: Hashable = None
    ) -> Iterator[tuple[int, Findings]]:
        """Look at seconds in turn, by ``find`` by default, remembering only what is open.

        Until the step of their first event, runs that report the same are looked at once.
        ``about``: what else ``look`` depends on until then.
        """
        look = look or self.look
        acts: tuple[Fault | Benign, ...] = (*self.plan.faults, *self.plan.benign)
        events = [act.start_s for act in acts]
        done = int(np.searchsorted(self.steps.ended_at_s, EPOCH + min(events, default=0)))
        calm_s = float(self.steps.ended_at_s[done - 1]) - EPOCH if done else 0.0
        n_calm = len([second for second in seconds if second < calm_s])
        calm, later = seconds[:n_calm], seconds[n_calm:]
        key = calm and (look.__qualname__, about, calm, self.reported_until(calm[-1] + 1))
        found, watches = BEGINNINGS.get(key, ([], {}))
        if calm and not found:
            found = list(looks(look, calm, [], watches))
            BEGINNINGS[key] = found, watches
        yield from found
        opened = found[-1][1] if found else []
        yield from looks(look, later, opened, deepcopy(watches))

    def look(self, second: int, opened: Findings, watches: dict[str, Any]) -> Findings:
        now = replace(self.at(second, open_problems=opened), watches=watches)
        return find(now, open_rules={finding.rule for finding in opened})

    def reported_until(self, second: int) -> tuple[Any, ...]:
        """Return everything that ``at`` shows in the seconds before one, to be compared."""
        steps = self.steps[: int(np.searchsorted(self.steps.ended_at_s, EPOCH + second))]
        arrays: list[NDArray[Any]] = [
            self.span.values[name][:second] for name in sorted(self.span.values)
        ]
        arrays += [steps.step, steps.ended_at_s, steps.tokens, *steps.phases.values()]
        as_bytes = b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)
        return self.plan.run, tuple(self.phases[:second]), hash(as_bytes)


def looks(
    look: Look, seconds: range, opened: Findings, watches: dict[str, Any]
) -> Iterator[tuple[int, Findings]]:
    for second in seconds:
        opened = look(second, opened, watches)
        yield second, opened


def phases_after(clock: RunClock, until: int, plan: Plan) -> list[tuple[str, float]]:
    """Return the phase at every second after a clock, and since when it is."""
    later, n_s = clock_at(plan, clock, until), until - clock.tick
    phase = (later.phase, later.phase_since_s)
    if n_s == 1 or phase == (clock.phase, clock.phase_since_s):
        return [phase] * n_s
    middle = clock_at(plan, clock, clock.tick + n_s // 2)
    return phases_after(clock, middle.tick, plan) + phases_after(middle, until, plan)


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
