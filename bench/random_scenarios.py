"""Scenarios not used in development: runs, faults and benign events drawn from a seed."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bench.scenario_grid import SHARED, event_of, suits
from drills.scenario import Scenario, scenario_of
from telemetry import catalog
from telemetry.errors import FieldError
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.plan import RunSpec
from telemetry.simulate.script import CHECKPOINT_LATENCY_S
from telemetry.simulate.step_model import step_plan
from telemetry.simulate.validation import parts_per_node

Table = dict[str, Any]

# Seeds below are for tuning; what is reported is played with others.
TUNING_SEEDS = 1000
INSTANCES = (
    "trn1.2xlarge",
    "trn1.32xlarge",
    "trn1.32xlarge",
    "trn1n.32xlarge",
    "trn2.48xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "p4d.24xlarge",
    "p5.48xlarge",
    "p5en.48xlarge",
)
NODES = (1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64)
PARALLEL, STAGES = (1, 2, 4, 8, 16, 32), (1, 1, 1, 2, 4)
# A run above its limit from its first step on has an alert before anything is wrong with it; one
# just below it goes above it by its own ups and downs.
STEP_S, MOST_SHARE_RATIO, TRIES = (0.3, 30.0), 0.23, 400
# A new kind goes into a set of its own: in this one it would change the scenarios of all seeds.
KINDS = (
    "efa_latency",
    "efa_loss",
    "efa_down",
    "slow_core",
    "hbm_slow",
    "throttle",
    "input_stall",
    "checkpoint_slow",
    "recompile",
    "ecc_uncorrected",
    "node_silent",
    "node_crash",
    "hang",
    "seq_imbalance",
    "stage_imbalance",
)
# Drawn evenly on a logarithmic scale; of input_stall in steps.
SIZES: Mapping[str, tuple[float, float]] = {
    "efa_latency": (1.6, 20),
    "efa_loss": (0.0025, 0.1),
    "slow_core": (1.08, 3),
    "hbm_slow": (1.2, 4),
    "throttle": (1.08, 3),
    "input_stall": (0.06, 2),
    "checkpoint_slow": (2.5, 30),
    "recompile": (20, 300),
    "ecc_uncorrected": (0.5, 60),
    "seq_imbalance": (0.2, 1.6),
    "stage_imbalance": (0.1, 1),
}
QUIET_S, LASTS_S, PAUSE_S, APART_S = (240, 420), (80, 320), (180, 320), (0, 60)
LEAST_STEPS = 4
# A run that stands still shows nothing else: such a fault comes alone.
STOPS = ("node_crash", "hang", "recompile", "checkpoint_slow")
AT_ONCE, GROUPS = (1, 1, 1, 2, 2, 3), (2, 3)
# Faults that outlast what detection remembers of steps, 3 minutes: as those of real nodes do.
LASTING_S, LASTING_GROUPS = (1500, 2400), (1, 2)
BENIGN = ("checkpoint", "evaluation", "batch_change", "planned_compile", "scale_change")
# Storage is shared: mostly all nodes write their checkpoints slowly, or else one does.
STORAGE_RATIO = 0.6
BENIGN_RATIO, WHOLE_RUN_RATIO, SAME_NODE_RATIO = 0.4, 0.15, 0.15
TAIL_S = 150.0
# Of the scenarios with one fault at a time: harmless events.
NOISE: Table = {"background": True}
# Where steps hardly vary nodes differ in pace for good by more than measured ones (assumed).
NODE_CV = 0.01


class RandomScenario:
    """One scenario, drawn from a seed.

    ``at_once`` is the number of faults that begin together, ``lasts_s`` how long one lasts, of
    ``groups`` of them.
    """

    def __init__(
        self,
        seed: int,
        *,
        kind: str = "chance",
        at_once: tuple[int, ...] = AT_ONCE,
        lasts_s: tuple[int, int] = LASTS_S,
        groups: tuple[int, ...] = GROUPS,
    ) -> None:
        self.seed, self.kind, self._at_once = seed, kind, at_once
        self._lasts_s, self._groups = lasts_s, groups
        self._rng = np.random.default_rng([1986, seed])

    def table(self) -> Table:
        """Return the scenario as the table that its file would hold."""
        run = self._run()
        at_s, faults, benign = self._between(*QUIET_S), list[Table](), list[Table]()
        for _ in range(int(self._rng.choice(self._groups))):
            group = list(self._group(run, at_s))
            faults += group
            at_s = max(_over_s(run, fault) for fault in group) + self._between(*PAUSE_S)
            if self._rng.random() < BENIGN_RATIO:
                benign.append(self._benign(run, at_s))
                at_s += benign[-1].get("duration_s", 60) + self._between(*PAUSE_S)
        return {
            "name": f"{self.kind}-{self.seed}",
            "duration_s": float(round(at_s - PAUSE_S[0] + TAIL_S)),
            "seed": self.seed,
            "run": [run],
            "fault": faults,
            "benign": benign,
        }

    def _run(self) -> Table:
        """Draw runs until one can be laid out, fits into memory, and steps at a fair pace."""
        for _ in range(TRIES):
            table = self._shape()
            if catalog.model(table["model"]).heads % table["tp"]:
                # No library splits the heads of attention like that.
                continue
            try:
                plan = step_plan(RunSpec(**table))
            except FieldError:
                continue
            is_valid = plan.fits and plan.allreduce_share_ratio <= MOST_SHARE_RATIO
            if is_valid and STEP_S[0] <= plan.step_s <= STEP_S[1]:
                return table
        raise RuntimeError(f"seed {self.seed}: no run was found that steps within {STEP_S} s")

    def _shape(self) -> Table:
        name = self._of(INSTANCES)
        nodes = int(self._rng.choice(NODES))
        tp, pp = (int(self._rng.choice(each)) for each in (PARALLEL, STAGES))
        model = catalog.model(self._of(tuple(catalog.models())))
        ranks = max(1, nodes * catalog.training_instance(name).n_cores // (tp * pp))
        each = int(2 ** self._rng.integers(0, 8))
        return {
            "name": "run",
            "model": model.name,
            "instance": name,
            "nodes": nodes,
            "tp": tp,
            "pp": pp,
            "seq_len": model.seq_len,
            "global_batch": ranks * each,
            "compile_s": 0,
        }

    def _group(self, run: Table, at_s: float) -> Iterator[Table]:
        """Draw the faults that begin about the same time, each on a node of its own."""
        nodes = self._rng.permutation(run["nodes"])
        kinds = [kind for kind in KINDS if suits(kind, run) and _has(kind, run)]
        drawn = [str(kind) for kind in self._rng.permutation(kinds)]
        if drawn[0] in STOPS:
            drawn = drawn[:1]
        drawn = [kind for kind in drawn if kind not in STOPS or kind == drawn[0]]
        for i, kind in enumerate(drawn[: min(int(self._rng.choice(self._at_once)), len(nodes))]):
            begins_s = at_s if i == 0 else at_s + self._between(*APART_S)
            is_elsewhere = self._rng.random() >= SAME_NODE_RATIO
            node = int(nodes[i if is_elsewhere else 0])
            yield self._fault(run, kind, node=node, at_s=begins_s)

    def _fault(self, run: Table, name: str, *, node: int, at_s: float) -> Table:
        kind, spec = FAULTS[name], RunSpec(**run)
        step_s = step_plan(spec).step_s
        lasts_s = max(self._between(*self._lasts_s), round(LEAST_STEPS * step_s))
        fault: Table = {"kind": name, "start_s": at_s, "duration_s": lasts_s}
        is_whole = kind.scope == "run"
        is_whole |= name in SHARED and self._rng.random() < STORAGE_RATIO
        is_whole |= kind.scope == "any" and self._rng.random() < WHOLE_RUN_RATIO * (
            run["nodes"] > 1
        )
        fault |= {"run": spec.name} if is_whole else {"node": spec.node_names[node]}
        if kind.device_part is not None and "node" in fault:
            fault["device"] = int(self._rng.integers(parts_per_node(kind.device_part, spec)))
        if name in SIZES:
            low, high = SIZES[name]
            size = float(np.exp(self._rng.uniform(np.log(low), np.log(high))))
            fault["magnitude"] = round(size * (step_s if name == "input_stall" else 1), 4)
        return fault

    def _benign(self, run: Table, at_s: float) -> Table:
        many = run["nodes"] > 1
        kinds = (*BENIGN, "node_leaves") if many else BENIGN[:-1]
        event: Table = {"kind": self._of(kinds)}
        if event["kind"] not in {"checkpoint", "node_leaves"}:
            event["duration_s"] = self._between(60, 240)
        if event["kind"] == "node_leaves":
            event["duration_s"] = self._between(150, 300)
        if event["kind"] == "batch_change":
            event["magnitude"] = float(self._rng.choice([0.5, 2.0, 3.0]))
        if event["kind"] == "scale_change":
            event["magnitude"] = float(self._rng.choice([0.5, 0.75]))
        return event_of(run, event, at_s=at_s)

    def _of(self, names: tuple[str, ...]) -> str:
        return str(self._rng.choice(names))

    def _between(self, low: float, high: float) -> float:
        return float(np.round(self._rng.uniform(low, high)))


def random_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed: the same each time."""
    return scenario_of(RandomScenario(seed).table())


def single_fault_scenario(seed: int) -> Scenario:
    """Return a scenario whose faults come one after the other, never two at a time."""
    drawn = RandomScenario(seed, kind="single", at_once=(1,))
    return scenario_of(drawn.table() | {"noise": NOISE})


def lasting_fault_scenario(seed: int) -> Scenario:
    """Return a scenario whose faults last for half an hour, one after the other."""
    drawn = RandomScenario(
        seed, kind="lasting", at_once=(1,), lasts_s=LASTING_S, groups=LASTING_GROUPS
    )
    return scenario_of(drawn.table() | {"noise": NOISE})


def _has(kind: str, run: Table) -> bool:
    """Whether the run's nodes have the part that a fault hits, and peers to notice it by."""
    part = FAULTS[kind].device_part
    if part == "efa" and run["nodes"] == 1:
        return False
    return part is None or parts_per_node(part, RunSpec(**run)) > 0


def _over_s(run: Table, fault: Table) -> float:
    """Return when a fault is over, with what it leaves to be done."""
    size, lasts_s = fault.get("magnitude", 0.0), fault["duration_s"]
    checkpoint_s = CHECKPOINT_LATENCY_S + step_plan(RunSpec(**run)).checkpoint_s
    longer_s = {"recompile": size, "checkpoint_slow": size * checkpoint_s, "node_crash": 180.0}
    return float(round(fault["start_s"] + lasts_s + longer_s.get(fault["kind"], 0.0)))
