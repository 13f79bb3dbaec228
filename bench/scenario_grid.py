"""The scenario set: combinations of fleets, faults, magnitudes and benign events."""

import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from drills.scenario import Scenario, scenario_of
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.inputs import FULL
from telemetry.simulate.plan import RunSpec
from telemetry.simulate.step_model import step_plan
from telemetry.simulate.validation import parts_per_node

MATRIX = Path(__file__).resolve().parents[1] / "scenarios" / "matrix.toml"
SIZES = ("small", "medium", "large")
# Storage is shared: if one node writes a checkpoint slowly, all do.
SHARED = ("checkpoint_slow",)
# After the last fault, for its alert to resolve.
TAIL_S = 200
CHECKPOINT_EVERY_S, EVALUATE_EVERY_S = 1700.0, 2900.0

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FaultSize:
    """One kind of fault at one size, and how that size is put."""

    kind: str
    size: int
    unit: str
    value: float


class ScenarioGrid:
    """The scenarios of a table, in a fixed order."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self._rng = np.random.default_rng(int(table["seed"]))

    def tables(self) -> Iterator[Table]:
        """Yield every scenario as the table a scenario file would hold."""
        queue = deque(self._all_sizes())
        for fleet in self._table["fleet"]:
            for i in range(self._table["scenarios_per_fleet"]):
                chosen = [
                    self._next(queue, fleet) for _ in range(self._table["faults_per_scenario"])
                ]
                yield self._alone(fleet, f"{fleet['name']}-alone-{i + 1}", chosen)
        pairs = deque(self._table["pairs"]["kinds"])
        for fleet in self._table["fleet"]:
            yield self._paired(fleet, pairs)
            yield self._benign(fleet)
            if fleet["name"] in self._table["healthy"]:
                yield self._healthy(fleet, self._table["healthy"][fleet["name"]])

    def _all_sizes(self) -> list[FaultSize]:
        """Return every kind at every size, the small ones of every kind first."""
        return [
            FaultSize(kind, size, unit, values[size])
            for size in range(len(SIZES))
            for unit, kinds in self._table["sizes"].items()
            for kind, values in kinds.items()
        ]

    def _next(self, queue: deque[FaultSize], fleet: Table) -> FaultSize:
        """Return the next fault that fits the fleet, and move it to the end of the queue."""
        i = next(i for i, sized in enumerate(queue) if suits(sized.kind, fleet))
        sized = queue[i]
        del queue[i]
        queue.append(sized)
        return sized

    def _alone(self, fleet: Table, name: str, chosen: list[FaultSize]) -> Table:
        at_s, faults, benign = float(self._table["quiet_s"]), [], []
        for i, sized in enumerate(chosen):
            fault = self._fault(fleet, sized, at_s=at_s)
            faults.append(fault)
            at_s += fault["duration_s"] + self._settling_s(sized)
            if i % 2:
                kind = "checkpoint" if i % 4 == 1 else "evaluation"
                benign.append(event_of(fleet, {"kind": kind}, at_s=at_s - 90))
        return _scenario(
            fleet, name, at_s + TAIL_S, seed=self._seed(), faults=faults, benign=benign
        )

    def _paired(self, fleet: Table, pairs: deque[list[str]]) -> Table:
        at_s, faults = float(self._table["quiet_s"]), []
        for _ in range(self._table["pairs_per_scenario"]):
            while not all(suits(kind, fleet) for kind in pairs[0]):
                pairs.rotate(-1)
            nodes = self._rng.permutation(fleet["nodes"])
            for i, kind in enumerate(pairs[0]):
                size = int(self._rng.integers(1, len(SIZES)))
                sized = next(c for c in self._all_sizes() if (c.kind, c.size) == (kind, size))
                begins_s = at_s + i * self._table["pair_offset_s"]
                node = int(nodes[min(i, len(nodes) - 1)])
                faults.append(self._fault(fleet, sized, at_s=begins_s, node=node))
            pairs.rotate(-1)
            at_s = max(f["start_s"] + f["duration_s"] for f in faults) + self._settling_s(sized)
        return _scenario(
            fleet, f"{fleet['name']}-pairs", at_s + TAIL_S, seed=self._seed(), faults=faults
        )

    def _benign(self, fleet: Table) -> Table:
        at_s, benign = float(self._table["quiet_s"]), []
        for event in self._table["look_alike"]:
            if fleet["nodes"] > 1 or event["kind"] not in {"node_leaves", "scale_change"}:
                benign.append(event_of(fleet, event, at_s=at_s))
                at_s += event.get("duration_s", 60) + self._table["pause_s"] / 2
        name = f"{fleet['name']}-look-alikes"
        return _scenario(fleet, name, at_s + TAIL_S, seed=self._seed(), benign=benign)

    def _healthy(self, fleet: Table, duration_s: float) -> Table:
        run = {"checkpoint_every_s": CHECKPOINT_EVERY_S, "evaluate_every_s": EVALUATE_EVERY_S}
        name = f"{fleet['name']}-healthy"
        return _scenario(fleet | run, name, duration_s, seed=self._seed())

    def _fault(
        self, fleet: Table, sized: FaultSize, *, at_s: float, node: int | None = None
    ) -> Table:
        run, kind = spec_of(fleet), FAULTS[sized.kind]
        hit = int(self._rng.integers(run.nodes)) if node is None else node
        fault: Table = {"kind": kind.name, "start_s": at_s, "duration_s": self._table["lasts_s"]}
        is_whole = kind.scope == "run" or kind.name in SHARED
        fault |= {"run": run.name} if is_whole else {"node": run.node_names[hit]}
        if kind.device_part is not None:
            n_parts = parts_per_node(kind.device_part, run)
            fault["device"] = int(self._rng.integers(n_parts))
        if sized.unit == "steps":
            fault["magnitude"] = round(sized.value * step_plan(run).step_s, 3)
        else:
            fault[sized.unit] = sized.value
        return fault

    def _settling_s(self, sized: FaultSize) -> float:
        """Return the pause after a fault, with the rest of a standstill that outlasts it."""
        longer_s = (
            max(0.0, sized.value - self._table["lasts_s"]) if sized.kind == "recompile" else 0
        )
        restart_s = 180.0 if sized.kind == "node_crash" else 0.0
        # Memory errors are reported for ten minutes; other faults must be found during them.
        return float(self._table["pause_s"]) + longer_s + restart_s

    def _seed(self) -> int:
        return int(self._rng.integers(1, 10_000))


def matrix_tables(path: Path = MATRIX) -> dict[str, Table]:
    """Return every scenario of the set as a table, by name."""
    tables = ScenarioGrid(tomllib.loads(path.read_text(encoding="utf-8"))).tables()
    return {table["name"]: table for table in tables}


def grid_scenarios(path: Path = MATRIX) -> dict[str, Scenario]:
    """Return every scenario of the set, by name.

    A core that waits is idle in them: their figures are compared with those of earlier versions.
    """
    inputs = msgspec.structs.replace(FULL, busy_while_waiting=False)
    return {
        name: msgspec.structs.replace(scenario_of(table), inputs=inputs)
        for name, table in matrix_tables(path).items()
    }


def suits(kind: str, fleet: Table) -> bool:
    """Whether a fleet can have a kind of fault."""
    is_staged = fleet.get("pp", 1) > 1
    return kind not in fleet.get("without", ()) and (kind != "stage_imbalance" or is_staged)


def spec_of(fleet: Table) -> RunSpec:
    """Return the run that a fleet trains."""
    return RunSpec(**{name: value for name, value in fleet.items() if name != "without"})


def _scenario(
    fleet: Table,
    name: str,
    duration_s: float,
    *,
    seed: int,
    faults: Sequence[Table] = (),
    benign: Sequence[Table] = (),
) -> Table:
    run = {key: value for key, value in fleet.items() if key != "without"} | {"compile_s": 0}
    return {
        "name": name,
        "duration_s": float(duration_s),
        "seed": seed,
        "run": [run],
        "fault": list(faults),
        "benign": list(benign),
    }


def event_of(fleet: Table, event: Table, *, at_s: float) -> Table:
    """Place a look-alike in a fleet's run; who leaves is its last node."""
    about = {"run": fleet["name"], "start_s": at_s}
    if event["kind"] == "node_leaves":
        about["node"] = f"{fleet['name']}-{fleet['nodes'] - 1:02d}"
    return event | about


def as_toml(table: Table) -> str:
    """Write a scenario's table as the file it could have been."""
    head = [_assigned(k, v) for k, v in table.items() if not isinstance(v, list)]
    for name, rows in table.items():
        for row in rows if isinstance(rows, list) else ():
            head += [f"[[{name}]]", *(_assigned(k, v) for k, v in row.items())]
    return "\n".join(head) + "\n"


def _assigned(key: str, value: object) -> str:
    return f"{key} = {value!r}".replace("'", '"')
