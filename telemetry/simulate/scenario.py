"""Scenario files: runs, faults and benign events, read from TOML into plans to play."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from telemetry.simulate.kinds import BENIGN, FAULTS, BenignKind, FaultKind
from telemetry.simulate.plan import Benign, Fault, Job, Plan, RunSpec
from telemetry.simulate.validation import (
    ScenarioError,
    refuse_twins,
    suggestion,
    validate_benign,
    validate_fault,
    validate_run,
)

__all__ = [
    "BENIGN",
    "BENIGN_KINDS",
    "FAULTS",
    "FAULT_KINDS",
    "Benign",
    "BenignKind",
    "Fault",
    "FaultKind",
    "Job",
    "Plan",
    "RunSpec",
    "Scenario",
    "ScenarioError",
    "load_scenario",
    "scenario_of",
    "validate_benign",
    "validate_fault",
    "validate_run",
]

FAULT_KINDS = tuple(FAULTS)
BENIGN_KINDS = tuple(BENIGN)
LONGEST_S = 31 * 86_400.0

Table = Mapping[str, Any]
StructType = TypeVar("StructType", bound=msgspec.Struct)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    duration_s: float
    run: list[dict[str, Any]]
    seed: int = 0
    fault: list[dict[str, Any]] = []
    benign: list[dict[str, Any]] = []


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to some runs within some time; seconds count from its start."""

    name: str
    duration_s: float
    seed: int
    runs: tuple[RunSpec, ...]
    faults: tuple[Fault, ...] = ()
    benign: tuple[Benign, ...] = ()

    def plans(self, *, epoch_s: int, seed: int | None = None) -> tuple[Plan, ...]:
        """Return one plan for each run, with the faults and events that are its own."""
        return tuple(
            self._plan(run, epoch_s, self.seed if seed is None else seed) for run in self.runs
        )

    def _plan(self, run: RunSpec, epoch_s: int, seed: int) -> Plan:
        faults = tuple(f for f in self.faults if run_of(f, self.runs) is run)
        benign = tuple(b for b in self.benign if b.run == run.name)
        return Plan(run=run, seed=seed, epoch_s=epoch_s, faults=faults, benign=benign)


def load_scenario(text: str) -> Scenario:
    """Read a scenario file.

    Raises
    ------
    ScenarioError
        Naming the first field that is wrong, its value and what to do about it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError("scenario", f"is no TOML: {error}; mend the file there") from error
    return scenario_of(table)


def scenario_of(table: Table) -> Scenario:
    """Read a scenario from the table that its file holds; ScenarioError as `load_scenario`."""
    head = _read(table, _Head, where="")
    if not 0 < head.duration_s <= LONGEST_S:
        raise ScenarioError(
            "duration_s", f"{head.duration_s} is out of range; give seconds up to {LONGEST_S:.0f}"
        )
    if not head.run:
        raise ScenarioError("run", "there is none; describe at least one under [[run]]")
    runs = tuple(_run(table, f"run[{i}]") for i, table in enumerate(head.run))
    refuse_twins(run.name for run in runs)
    faults = tuple(_fault(t, runs, head, f"fault[{i}]") for i, t in enumerate(head.fault))
    benign = tuple(_benign(t, runs, head, f"benign[{i}]") for i, t in enumerate(head.benign))
    return Scenario(
        name=head.name,
        duration_s=head.duration_s,
        seed=head.seed,
        runs=runs,
        faults=faults,
        benign=benign,
    )


def run_of(fault: Fault, runs: tuple[RunSpec, ...]) -> RunSpec | None:
    """Return the run that a fault hits, None where it is none of these."""
    for run in runs:
        if fault.run == run.name or (fault.node is not None and fault.node in run.node_names):
            return run
    return None


def _run(table: Table, where: str) -> RunSpec:
    run = _read(table, RunSpec, where=where)
    try:
        validate_run(run)
    except ScenarioError as error:
        raise error.inside(where) from error
    return run


def _fault(table: Table, runs: tuple[RunSpec, ...], head: _Head, where: str) -> Fault:
    name = table.get("kind")
    kind = FAULTS.get(name) if isinstance(name, str) else None
    default = {"magnitude": kind.default_magnitude} if kind else {}
    fault = _read(default | dict(table), Fault, where=where)
    run = run_of(fault, runs) or _stranger(fault.run, fault.node, runs, where)
    try:
        validate_fault(fault, run)
        _check_within(fault.start_s, head)
    except ScenarioError as error:
        raise error.inside(where) from error
    return fault


def _benign(table: Table, runs: tuple[RunSpec, ...], head: _Head, where: str) -> Benign:
    event = _read(table, Benign, where=where)
    by_name = {run.name: run for run in runs}
    run = by_name.get(event.run) or _stranger(event.run, None, runs, where)
    try:
        validate_benign(event, run)
        _check_within(event.start_s, head)
    except ScenarioError as error:
        raise error.inside(where) from error
    return event


def _check_within(start_s: float, head: _Head) -> None:
    if start_s >= head.duration_s:
        raise ScenarioError(
            "start_s", f"{start_s} is past the end; start before duration_s = {head.duration_s:g}"
        )


def _stranger(run: str | None, node: str | None, runs: tuple[RunSpec, ...], where: str) -> RunSpec:
    """Refuse what belongs to no run; where nothing is named the first run will say so."""
    if run is not None:
        known = suggestion(run, [each.name for each in runs])
        raise ScenarioError(f"{where}.run", f"{run!r} is no run of this scenario; {known}")
    if node is not None:
        known = suggestion(node, [name for each in runs for name in each.node_names][:40])
        raise ScenarioError(f"{where}.node", f"{node!r} is no node of this scenario; {known}")
    return runs[0]


def _read(table: Table, struct: type[StructType], *, where: str) -> StructType:
    """Make a struct of a table, or say which of its fields is wrong."""
    place = f"{where}." if where else ""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for key in table:
        if key not in fields:
            known = suggestion(key, list(fields))
            raise ScenarioError(f"{place}{key}", f"{table[key]!r} sets an unknown key; {known}")
    for name, field in fields.items():
        if field.required and name not in table:
            raise ScenarioError(f"{place}{name}", "is missing; add it")
    try:
        return msgspec.convert(table, struct)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        found = re.search(r"\$\.(\w+)", path)
        key = found[1] if found else next(iter(fields))
        raise ScenarioError(
            f"{place}{key}", f"{table.get(key)!r} does not fit; give {_wanted(what)}"
        ) from error


def _wanted(what: str) -> str:
    """Say in words what msgspec expected of a value."""
    found = re.match(r"Expected `(\w+)[^`]*`(?: (>=?) ([\d.]+))?", what)
    if found is None:
        return f"what is asked for: {what.lower()}"
    word = {
        "int": "a whole number",
        "float": "a number",
        "str": "text in quotes",
        "bool": "true or false",
        "array": "tables in double brackets",
        "object": "a table",
    }.get(found[1], found[1])
    bound = {">=": "of at least", ">": "above", None: ""}[found[2]]
    return f"{word} {bound} {float(found[3]):g}" if bound else word
