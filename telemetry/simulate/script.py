"""The script of a run: what happens to which of its nodes, from when until when."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray, IntArray
from telemetry.catalog import Instance
from telemetry.simulate.estimate import StepPlan, step_plan
from telemetry.simulate.kinds import BENIGN
from telemetry.simulate.noise import stream
from telemetry.simulate.plan import Benign, Fault, Plan, RunSpec

FOREVER_S = math.inf
EVALUATION_S = 60.0
# Events that interrupt training, and those that change who takes part.
COMPILES = "planned_compile"
MEMBERSHIP = ("scale_change", "node_joins", "node_leaves")
# One-off events that a step makes room for.
ONE_OFF = ("checkpoint", "evaluation", "recompile", "checkpoint_slow")


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """One fault or benign event in Unix seconds; ``rows`` are the nodes it hits.

    A node that joins is away until then: that is what its act says. ``parts`` are cores,
    accelerators or EFA devices, as the kind has it.
    """

    kind: str
    rows: IntArray
    parts: int | slice
    start_s: float
    end_s: float
    magnitude: float

    def is_on(self, at_s: float) -> bool:
        """Whether it is under way at that second."""
        return self.start_s <= at_s < self.end_s


class Script:
    """A plan made ready to be played; the same plan is read once per process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run: RunSpec = plan.run
        self.epoch_s = float(plan.epoch_s)
        self.names = plan.run.node_names
        self.acts = (*self._faults(plan.faults), *self._events(plan.benign))
        self.step_plan: StepPlan = step_plan(plan.run)
        self.instance: Instance = catalog.training_instance(plan.run.instance)
        edges = [edge for act in self.acts for edge in (act.start_s, act.end_s)]
        self._edges = np.unique(np.array([e for e in edges if math.isfinite(e)], np.float64))

    def key(self, name: str) -> np.uint64:
        """Return the key of one of the run's streams of noise."""
        return stream(self.plan.seed, self.run.name, name)

    @cached_property
    def compile_s(self) -> float:
        """Seconds of the first compilation."""
        if self.run.compile_s is not None:
            return self.run.compile_s
        return catalog.model(self.run.model).default_compile_s

    @cached_property
    def stage(self) -> IntArray:
        """Pipeline stage of each node's last rank: (n_nodes,); a stage is a block of ranks."""
        n_nodes, pp = self.run.nodes, self.run.pp
        return (np.arange(1, n_nodes + 1) * pp - 1) // n_nodes

    def on(self, at_s: float) -> tuple[Act, ...]:
        """Return what is under way at a second."""
        return tuple(act for act in self.acts if act.is_on(at_s))

    def begun(self, after_s: float, until_s: float) -> tuple[Act, ...]:
        """Return what began after one second, and by another."""
        return tuple(act for act in self.acts if after_s < act.start_s <= until_s)

    def membership_changed(self, after_s: float, until_s: float) -> bool:
        """Whether nodes joined or left after one second, and by another."""
        return any(
            act.kind in MEMBERSHIP
            and (after_s < act.start_s <= until_s or after_s < act.end_s <= until_s)
            for act in self.acts
        )

    def next_edge(self, after_s: float) -> float:
        """Return the next second at which anything begins or ends."""
        i = int(np.searchsorted(self._edges, after_s, side="right"))
        edge = float(self._edges[i]) if i < len(self._edges) else FOREVER_S
        for every_s in (self.run.checkpoint_every_s, self.run.evaluate_every_s):
            if every_s is not None:
                n = math.floor((after_s - self.epoch_s) / every_s) + 1
                edge = min(edge, max(self.epoch_s + n * every_s, np.nextafter(after_s, FOREVER_S)))
        return edge

    def is_due(self, every_s: float | None, after_s: float, until_s: float) -> bool:
        """Whether a periodic event falls after one second, and by another."""
        if every_s is None:
            return False
        n = math.floor((until_s - self.epoch_s) / every_s)
        return n >= 1 and self.epoch_s + n * every_s > after_s

    def _faults(self, faults: Iterable[Fault]) -> Iterable[Act]:
        for fault in faults:
            rows = self._rows(fault.node)
            yield self._act(fault.kind, rows, fault.start_s, fault.duration_s, fault.magnitude,
                            parts=_parts(fault))  # fmt: skip

    def _events(self, events: Iterable[Benign]) -> Iterable[Act]:
        for event in events:
            kind = BENIGN[event.kind]
            duration_s = event.duration_s or kind.default_duration_s or FOREVER_S
            magnitude = event.magnitude or kind.default_magnitude
            rows = self._rows(event.node)
            if event.kind == "scale_change":
                rows = np.arange(max(1, round(magnitude * self.run.nodes)), self.run.nodes)
            yield self._act(event.kind, rows, event.start_s, duration_s, magnitude)

    def _act(
        self,
        kind: str,
        rows: IntArray,
        start_s: float,
        duration_s: float,
        magnitude: float,
        *,
        parts: int | slice = slice(None),
    ) -> Act:
        start_s += self.epoch_s
        end_s = start_s + duration_s
        if kind == "node_joins":
            start_s, end_s = -FOREVER_S, start_s
        return Act(kind, rows, parts, start_s, end_s, magnitude)

    def _rows(self, node: str | None) -> IntArray:
        return np.arange(self.run.nodes) if node is None else np.array([self.names.index(node)])


def _parts(fault: Fault) -> int | slice:
    """Return the parts a fault sits on: one of a node's, all of a whole run's."""
    if fault.device is not None:
        return fault.device
    return slice(None) if fault.node is None else 0


def window_of(act: Act, ticks: IntArray) -> slice:
    """Return the rows of rising ticks at whose end an act is under way."""
    first, last = np.searchsorted(ticks, [act.start_s, act.end_s], side="right")
    return slice(int(first), int(last))


@lru_cache(maxsize=64)
def script_of(plan: Plan) -> Script:
    """Return the script of a plan."""
    return Script(plan)


def spread(key: np.uint64, n: int, *, deviation: float, most: float) -> FloatArray:
    """Return lasting differences between n alike parts: (n,), factors around 1."""
    rng = np.random.Generator(np.random.Philox(key=int(key)))
    return 1 + np.clip(rng.standard_normal(n) * deviation, -most, most)
