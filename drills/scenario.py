"""Scenario files: runs, faults and benign events, from TOML to plans."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from telemetry import catalog
from telemetry.errors import FieldError, inside
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.inputs import APART, FULL, Inputs, tier_named
from telemetry.simulate.plan import Benign, Fault, Noise, Plan, RunSpec
from telemetry.simulate.step_model import step_plan
from telemetry.simulate.step_noise import recorded_ratios
from telemetry.simulate.validation import suggestion, validate_benign, validate_fault

MOST_NODES = 10_000
LONGEST_S = 31 * 86_400.0
CUSTOM = "custom"
# What a scenario file may set one by one.
KEYS = (
    "hbm_bandwidth",
    "power",
    "runtime_trace",
    "trace_on_request",
    "step_reports",
    "agent",
    "probe_every_s",
    "probe_on_request",
    "collective",
    "report_every_s",
    "clock_skew_s",
    "lost_ratio",
    "busy_while_waiting",
)

Table = Mapping[str, Any]
StructType = TypeVar("StructType", bound=msgspec.Struct)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    duration_s: float
    run: list[dict[str, Any]]
    seed: int = 0
    fault: list[dict[str, Any]] = []
    benign: list[dict[str, Any]] = []
    inputs: dict[str, Any] = {}
    noise: dict[str, Any] = {}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and events; seconds count from the start."""

    name: str
    duration_s: float
    seed: int
    runs: tuple[RunSpec, ...]
    faults: tuple[Fault, ...] = ()
    benign: tuple[Benign, ...] = ()
    inputs: Inputs = FULL
    noise: Noise = Noise()

    def at_tier(self, tier: str) -> "Scenario":
        """Return the scenario observed at another input tier; what happens stays the same."""
        apart = {name: getattr(self.inputs, name) for name in APART}
        return msgspec.structs.replace(self, inputs=tier_named(tier, **apart))

    def plans(self, *, epoch_s: int, seed: int | None = None) -> tuple[Plan, ...]:
        """Return one plan per run, with its own faults and events."""
        return tuple(
            Plan(
                run=run,
                seed=self.seed if seed is None else seed,
                epoch_s=epoch_s,
                faults=tuple(fault for fault in self.faults if fault.ranks_in(run)),
                benign=tuple(event for event in self.benign if event.run == run.name),
                inputs=self.inputs,
                noise=self.noise,
            )
            for run in self.runs
        )


def load_scenario(text: str, *, folder: Path = Path()) -> Scenario:
    """Read a scenario file; the files it names lie relative to ``folder``.

    Raises
    ------
    FieldError
        Naming the first field that is wrong, its value and what to do about it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FieldError("scenario", f"is no TOML: {error}; mend the file there") from error
    return scenario_of(table, folder=folder)


def scenario_of(table: Table, *, folder: Path = Path()) -> Scenario:
    """Read a scenario from the table that its file holds; FieldError as `load_scenario`."""
    head = _read(table, _Head, where="")
    if not 0 < head.duration_s <= LONGEST_S:
        raise FieldError(
            "duration_s", f"{head.duration_s} is out of range; give seconds up to {LONGEST_S:.0f}"
        )
    if not head.run:
        raise FieldError("run", "there is none; describe at least one under [[run]]")
    runs = tuple(_run(table, f"run[{i}]") for i, table in enumerate(head.run))
    refuse_duplicates(run.name for run in runs)
    faults = tuple(_fault(t, runs, head, f"fault[{i}]") for i, t in enumerate(head.fault))
    benign = tuple(_benign(t, runs, head, f"benign[{i}]") for i, t in enumerate(head.benign))
    return Scenario(
        name=head.name,
        duration_s=head.duration_s,
        seed=head.seed,
        runs=runs,
        faults=faults,
        benign=benign,
        inputs=_inputs(head.inputs),
        noise=_noise(head.noise, folder),
    )


def _noise(table: Table, folder: Path) -> Noise:
    """Read the noise; a file of recorded step times must be there, and be usable."""
    noise = _read(table, Noise, where="noise")
    if not noise.recorded:
        return noise
    path = str((folder / noise.recorded).absolute())
    with inside("noise"):
        recorded_ratios(path)
    return msgspec.structs.replace(noise, recorded=path)


def _inputs(table: Table) -> Inputs:
    """Read the inputs: a tier, single keys, or a tier with single keys changed."""
    known = ("tier", *KEYS)
    for key, value in table.items():
        if key not in known:
            raise FieldError(
                f"inputs.{key}", f"{value!r} sets an unknown key; {suggestion(key, known)}"
            )
    with inside("inputs"):
        base = tier_named(str(table.get("tier", FULL.tier)))
    single = {key: value for key, value in table.items() if key != "tier"}
    is_other = bool(single.keys() - APART)
    changed = msgspec.structs.asdict(base) | single | ({"tier": CUSTOM} if is_other else {})
    inputs = _read(changed, Inputs, where="inputs")
    if inputs.probe_on_request and (inputs.is_scraped or not inputs.agent):
        raise FieldError(
            "inputs.probe_on_request",
            f"true needs an agent, and {base.tier} has none; choose agent_collectives, "
            "agent_trace, agent_hooks, agent_only or full",
        )
    if inputs.trace_on_request and not inputs.step_reports:
        raise FieldError(
            "inputs.trace_on_request",
            f"true needs step reports, and {base.tier} has none; choose agent_hooks or hooks_only",
        )
    return inputs


def runs_of(fault: Fault, runs: Iterable[RunSpec]) -> tuple[RunSpec, ...]:
    """Return the runs that a fault affects: several only for nodes or a rack of several."""
    return tuple(run for run in runs if fault.ranks_in(run))


def validate_run(run: RunSpec) -> None:
    """Raise FieldError for a run without a layout, or that its instance cannot train."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", run.name):
        raise FieldError("name", f"{run.name!r} is no name; use letters, digits and dashes")
    if run.nodes > MOST_NODES:
        raise FieldError("nodes", f"{run.nodes} are too many; give at most {MOST_NODES}")
    catalog.training_instance(run.instance)
    catalog.model(run.model)
    step_plan(run)


def refuse_duplicates(names: Iterable[str]) -> None:
    """Raise FieldError if two runs have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FieldError(
                "name", f"{name!r} is used by another run; give each run its own name"
            )
        seen.add(name)


def _run(table: Table, where: str) -> RunSpec:
    run = _read(table, RunSpec, where=where)
    with inside(where):
        validate_run(run)
        if run.tier:
            raise FieldError("tier", f"{run.tier!r} is one run's; set it for all in [inputs]")
    return run


def _fault(table: Table, runs: tuple[RunSpec, ...], head: _Head, where: str) -> Fault:
    name = table.get("kind")
    kind = FAULTS.get(name) if isinstance(name, str) else None
    default = {"magnitude": kind.default_magnitude} if kind else {}
    fault = _read(default | dict(table), Fault, where=where)
    # A fault without a place is checked with the first run.
    if fault.run is not None and all(fault.run != run.name for run in runs):
        _unknown_run(fault.run, runs, where)
    names = [name for run in runs for name in run.node_names]
    for node in (fault.node, *(fault.nodes or ())):
        if node is not None and node not in names:
            field = "node" if fault.node is not None else "nodes"
            known = suggestion(node, names[:40])
            raise FieldError(f"{where}.{field}", f"{node!r} is no node of this scenario; {known}")
    named = tuple(run for run in runs if run.name == fault.run)
    hit = runs_of(fault, runs) or named or runs[:1]
    with inside(where):
        for run in hit:
            validate_fault(fault, run)
        _check_within(fault.start_s, head)
    return fault


def _benign(table: Table, runs: tuple[RunSpec, ...], head: _Head, where: str) -> Benign:
    event = _read(table, Benign, where=where)
    by_name = {run.name: run for run in runs}
    run = by_name.get(event.run) or _unknown_run(event.run, runs, where)
    with inside(where):
        validate_benign(event, run)
        _check_within(event.start_s, head)
    return event


def _check_within(start_s: float, head: _Head) -> None:
    if start_s >= head.duration_s:
        raise FieldError(
            "start_s", f"{start_s} is past the end; start before duration_s = {head.duration_s:g}"
        )


def _unknown_run(name: str, runs: tuple[RunSpec, ...], where: str) -> RunSpec:
    known = suggestion(name, [run.name for run in runs])
    raise FieldError(f"{where}.run", f"{name!r} is no run of this scenario; {known}")


def _read(table: Table, struct: type[StructType], *, where: str) -> StructType:
    """Convert a table to a struct. FieldError names the wrong field."""
    place = f"{where}." if where else ""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for key in table:
        if key not in fields:
            known = suggestion(key, list(fields))
            raise FieldError(f"{place}{key}", f"{table[key]!r} sets an unknown key; {known}")
    for name, field in fields.items():
        if field.required and name not in table:
            raise FieldError(f"{place}{name}", "is missing; add it")
    try:
        return msgspec.convert(table, struct)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        found = re.search(r"\$\.(\w+)", path)
        key = found[1] if found else next(iter(fields))
        raise FieldError(
            f"{place}{key}", f"{table.get(key)!r} does not fit; give {_wanted(what)}"
        ) from error


def _wanted(what: str) -> str:
    found = re.match(r"Expected `(\w+)[^`]*`(?: ([<>]=?) ([\d.]+))?", what)
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
    bounds = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below", None: ""}
    bound = bounds[found[2]]
    return f"{word} {bound} {float(found[3]):g}" if bound else word
