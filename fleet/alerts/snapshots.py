"""A run as watching sees it: who belongs to it, its recent steps, ways to its hardware."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.models import Node, Run
from telemetry import catalog
from telemetry.blocks import Span
from telemetry.detect import ECC_METRICS, RULES, DetectionInput
from telemetry.detect.checkpoints import expected_checkpoint_s
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.silence import StepHeartbeat
from telemetry.steps import StepBatch
from telemetry.store.reading import Source

Hardware = Callable[[Sequence[str], int], Span]
Moments = Callable[[Sequence[str], Sequence[int]], Span]

# Enough steps to judge a change by, and to see that an alert's last five were calm.
WINDOW_S = 180
WINDOW_STEPS = 40
MOVES_S = 15
# ECC counts are compared over ten minutes, at a few moments: they only ever rise.
ECC_AGES_S = (int(RULES["ecc_uncorrected"].limits["window_s"]), 120, 15, 0)
# To look at what all parts of all nodes report is dear: a run that is well is looked at every few
# seconds, one run after the other.
LOOK_EVERY_S = 3


@dataclass(frozen=True, slots=True)
class RunMembers:
    """Who belongs to a run, in order of rank, and where the store keeps them."""

    nodes: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    cores_per_device: int = 1


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One run as watching sees it: its recent steps, and ways to look at its hardware.

    ``looks`` is False in the seconds in which nobody looks at hardware for its own sake.
    """

    run: Run
    roster: RunMembers
    steps: StepBatch
    hardware: Hardware
    counts: Span | None = None
    moments: Moments | None = None
    earlier: Callable[[float], StepBatch] | None = None
    looks: bool = True

    @property
    def pulse(self) -> StepHeartbeat | None:
        """When the run's newest step ended, and how long its steps take."""
        if not len(self.steps):
            return None
        trains = self.run.phase == Run.Phase.TRAINING
        return StepHeartbeat(
            float(self.steps.ended_at_s[-1]), float(np.median(self.steps.step_s)), trains
        )


def rosters(runs: Iterable[Run]) -> dict[int, RunMembers]:
    """Return each run's nodes, by the run's key."""
    found: dict[int, list[tuple[str, str, int, int]]] = {run.pk: [] for run in runs}
    columns = ("run_id", "name", "shard", "n_cores", "n_devices")
    for key, *node in Node.objects.filter(run__in=found).order_by("rank").values_list(*columns):
        found[key].append(node)
    return {key: _roster(nodes) for key, nodes in found.items()}


def _roster(nodes: Sequence[tuple[str, str, int, int]]) -> RunMembers:
    if not nodes:
        return RunMembers()
    names, shards, n_cores, n_devices = zip(*nodes, strict=True)
    return RunMembers(
        names, tuple(dict.fromkeys(shards)), max(1, n_cores[0] // max(1, n_devices[0]))
    )


def sight_of(
    source: Source,
    run: Run,
    roster: RunMembers,
    *,
    now_s: float,
) -> RunSnapshot:
    """Look at one run: its steps now, its hardware when a rule asks for it."""
    end, shards = int(now_s), roster.shards

    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        return source.window(shards, metrics, start=end - last_s + 1, end=end).of(roster.nodes)

    def moments(metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        seconds = [
            source.window(shards, metrics, start=end - age, end=end - age).of(roster.nodes)
            for age in ages_s
        ]
        return Span.after_another(seconds) or hardware(metrics, 1)

    def earlier(since_s: float) -> StepBatch:
        return source.steps(run.name, since_s=since_s)

    return RunSnapshot(
        run=run,
        roster=roster,
        steps=window_of_steps(source, run.name, now_s=now_s),
        hardware=hardware,
        counts=ecc_counts(source, shards, roster.nodes, end=end),
        moments=moments,
        earlier=earlier,
        looks=(end + run.pk) % LOOK_EVERY_S == 0,
    )


def window_of_steps(source: Source, run: str, *, now_s: float) -> StepBatch:
    """Return the last minutes of steps, or the last few dozen where steps are slow.

    The window moves on now and then, not every second: between two steps it stays the same.
    """
    steps = source.steps(run, since_s=now_s // MOVES_S * MOVES_S - WINDOW_S)
    if len(steps) >= WINDOW_STEPS:
        return steps
    return source.steps(run, since_s=0.0).last(WINDOW_STEPS)


def ecc_counts(
    source: Source, shards: Sequence[str], nodes: Sequence[str], *, end: int
) -> Span | None:
    """Return the nodes' ECC counts at a few moments up to ``end``; None where there are none."""
    moments = [
        source.window(shards, ECC_METRICS, start=end - age, end=end - age) for age in ECC_AGES_S
    ]
    return Span.after_another([moment.of(nodes) for moment in moments if moment.nodes])


def vitals_of(
    sight: RunSnapshot, *, now_s: float, standing: tuple[OpenProblem, ...] = ()
) -> DetectionInput:
    """Return what detection needs of a run; where an alert is open it looks every second."""
    return DetectionInput(
        run=sight.run.name,
        nodes=sight.roster.nodes,
        steps=sight.steps,
        hardware=sight.hardware,
        now_s=now_s,
        limit_ratio=sight.run.allreduce_limit_ratio,
        resolve_ratio=sight.run.allreduce_resolve_ratio,
        cores_per_device=sight.roster.cores_per_device,
        n_stages=sight.run.pp,
        counts=sight.counts,
        phase=sight.run.phase,
        phase_since_s=sight.run.phase_since.timestamp(),
        open_problems=standing,
        reads_hardware=sight.looks or bool(standing),
        hardware_at=sight.moments,
        earlier=sight.earlier,
        checkpoint_s=checkpoint_due_s(sight.run),
    )


def checkpoint_due_s(run: Run) -> float | None:
    """Return how long a checkpoint of the run should take; None for a model nobody knows."""
    shape = catalog.models().get(run.model)
    if shape is None:
        return None
    return expected_checkpoint_s(n_parameters=shape.params, n_nodes=run.n_nodes)
