"""What a scenario may say: every refusal names the field, the value and what to do instead."""

import math
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from telemetry import catalog
from telemetry.simulate.estimate import JobError, step_plan
from telemetry.simulate.kinds import BENIGN, FAULTS, DevicePart, FaultKind
from telemetry.simulate.plan import Benign, Fault, RunSpec

MOST_NODES = 10_000
PART_NAMES = {"core": "core", "device": "accelerator", "efa": "EFA device"}


class ScenarioError(ValueError):
    """A scenario that cannot be played; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

    def inside(self, place: str) -> "ScenarioError":
        """Say the same of a field inside a larger whole."""
        return ScenarioError(f"{place}.{self.field}", self.message)


def suggestion(value: object, known: Collection[str]) -> str:
    """Name the nearest known word and all that there are."""
    near = get_close_matches(str(value), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}choose one of {', '.join(known)}"


def validate_run(run: RunSpec) -> None:
    """Refuse a run that cannot be laid out, or that its instance cannot train."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", run.name):
        raise ScenarioError("name", f"{run.name!r} is no name; use letters, digits and dashes")
    if run.nodes > MOST_NODES:
        raise ScenarioError("nodes", f"{run.nodes} are too many; give at most {MOST_NODES}")
    try:
        catalog.training_instance(run.instance)
        catalog.model(run.model)
        step_plan(run)
    except (catalog.CatalogError, JobError) as error:
        raise ScenarioError(_field_of(error), _message_of(error)) from error


def _field_of(error: ValueError) -> str:
    return str(getattr(error, "field", "run"))


def _message_of(error: ValueError) -> str:
    return str(error).removeprefix(f"{_field_of(error)}: ")


def validate_fault(fault: Fault, run: RunSpec) -> None:
    """Refuse a fault that its run cannot have."""
    if fault.kind not in FAULTS:
        known = suggestion(fault.kind, tuple(FAULTS))
        raise ScenarioError("kind", f"{fault.kind!r} is no kind of fault; {known}")
    kind = FAULTS[fault.kind]
    _check_place(fault, kind, run)
    _check_device(fault.device, kind, run)
    _check_times(fault.start_s, fault.duration_s)
    if kind.magnitude_unit is not None:
        _check_magnitude(fault.magnitude, kind.magnitude_unit, kind.low, kind.high)
    if kind.name == "stage_imbalance" and run.pp < 2:
        raise ScenarioError(
            "kind", f"stage_imbalance needs a pipeline, and {run.name} has pp = 1; set pp ≥ 2"
        )


def validate_benign(event: Benign, run: RunSpec) -> None:
    """Refuse a benign event that its run cannot have."""
    if event.kind not in BENIGN:
        known = suggestion(event.kind, tuple(BENIGN))
        raise ScenarioError("kind", f"{event.kind!r} is no benign event; {known}")
    kind = BENIGN[event.kind]
    if event.run != run.name:
        raise ScenarioError("run", f"{event.run!r} is not {run.name}")
    if kind.scope == "node" and event.node is None:
        raise ScenarioError("node", f"{kind.name} is about one node; name it")
    if event.node is not None:
        _check_node(event.node, run)
        if run.nodes == 1 and kind.scope == "node":
            raise ScenarioError("node", f"{event.node!r} is the run's only node; give it more")
    _check_times(event.start_s, event.duration_s)
    if kind.magnitude_unit is not None and event.magnitude is not None:
        _check_magnitude(event.magnitude, kind.magnitude_unit, kind.low, kind.high)


def _check_place(fault: Fault, kind: FaultKind, run: RunSpec) -> None:
    if (fault.node is None) == (fault.run is None):
        raise ScenarioError("node", "name either the node or the run that is hit")
    if fault.run is not None and kind.scope == "node":
        raise ScenarioError(
            "run", f"{kind.name} hits one node, not the run {fault.run!r}; set node instead"
        )
    if fault.node is not None and kind.scope == "run":
        raise ScenarioError(
            "node", f"{kind.name} hits the whole run, not {fault.node!r}; set run instead"
        )
    if fault.run is not None and fault.run != run.name:
        raise ScenarioError("run", f"{fault.run!r} is not {run.name}")
    if fault.node is not None:
        _check_node(fault.node, run)


def _check_node(node: str, run: RunSpec) -> None:
    names = run.node_names
    if node not in names:
        raise ScenarioError(
            "node", f"{node!r} is no node of {run.name}; choose {_first_to_last(names)}"
        )


def _first_to_last(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"one of {names[0]} … {names[-1]}"


def _check_device(device: int | None, kind: FaultKind, run: RunSpec) -> None:
    if kind.device_part is None:
        if device is not None:
            raise ScenarioError("device", f"{device} means nothing to {kind.name}; leave it out")
        return
    n_parts = parts_per_node(kind.device_part, run)
    part = PART_NAMES[kind.device_part]
    if n_parts == 0:
        raise ScenarioError("kind", f"{kind.name} needs an {part}; {run.instance} has none")
    if device is not None and not 0 <= device < n_parts:
        raise ScenarioError(
            "device", f"{device} is no {part} of {run.instance}; choose 0 to {n_parts - 1}"
        )


def parts_per_node(part: DevicePart, run: RunSpec) -> int:
    """Count the cores, accelerators or EFA devices of each of a run's nodes."""
    instance = catalog.instance(run.instance)
    return {"core": instance.n_cores, "device": instance.n_devices, "efa": instance.n_efa}[part]


def _check_times(start_s: float, duration_s: float | None) -> None:
    if not (math.isfinite(start_s) and start_s >= 0):
        raise ScenarioError("start_s", f"{start_s} is no start; give seconds ≥ 0")
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise ScenarioError("duration_s", f"{duration_s} is no duration; give seconds > 0")


def _check_magnitude(magnitude: float, unit: str, low: float, high: float) -> None:
    if not low <= magnitude <= high:
        raise ScenarioError(
            "magnitude", f"{magnitude} is out of range; give a {unit} from {low:g} to {high:g}"
        )


def refuse_twins(names: Iterable[str]) -> None:
    """Refuse two runs of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ScenarioError("name", f"{name!r} is taken by another run; name them apart")
        seen.add(name)
