"""What faults and benign events a run can have; a FieldError says what it cannot, and the fix."""

import math
from collections.abc import Collection
from difflib import get_close_matches

from telemetry import catalog
from telemetry.errors import FieldError
from telemetry.simulate.faults import BENIGN, FAULTS, DevicePart, FaultKind
from telemetry.simulate.plan import Benign, Fault, RunSpec

PART_NAMES = {"core": "core", "device": "accelerator", "efa": "EFA device"}


def suggestion(value: object, known: Collection[str]) -> str:
    """Suggest the most similar known word, and list all of them."""
    near = get_close_matches(str(value), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}choose one of {', '.join(known)}"


def validate_fault(fault: Fault, run: RunSpec) -> None:
    if fault.kind not in FAULTS:
        known = suggestion(fault.kind, tuple(FAULTS))
        raise FieldError("kind", f"{fault.kind!r} is no kind of fault; {known}")
    kind = FAULTS[fault.kind]
    _check_place(fault, kind, run)
    if kind.device_part is None:
        if fault.device is not None:
            raise FieldError(
                "device", f"{fault.device} means nothing to {kind.name}; leave it out"
            )
    else:
        n_parts, part = parts_per_node(kind.device_part, run), PART_NAMES[kind.device_part]
        if n_parts == 0:
            raise FieldError("kind", f"{kind.name} needs an {part}; {run.instance} has none")
        if fault.device is not None and not 0 <= fault.device < n_parts:
            known = f"choose 0 to {n_parts - 1}"
            raise FieldError("device", f"{fault.device} is no {part} of {run.instance}; {known}")
    _check_times(fault.start_s, fault.duration_s)
    if kind.magnitude_unit is not None:
        _check_magnitude(fault.magnitude, kind.magnitude_unit, kind.low, kind.high)
    _check_course(fault, kind)
    if kind.name == "stage_imbalance" and run.pp < 2:
        raise FieldError(
            "kind", f"stage_imbalance needs a pipeline, and {run.name} has pp = 1; set pp ≥ 2"
        )


def _check_place(fault: Fault, kind: FaultKind, run: RunSpec) -> None:
    """Refuse a fault that hits nothing, too much, or what its kind cannot hit."""
    is_rack = fault.rack is not None
    given = [name for name in ("node", "nodes", "rack") if getattr(fault, name) not in {None, ()}]
    if len(given) > 1:
        raise FieldError(given[1], f"is given together with {given[0]}; name one place")
    if not given and fault.run is None:
        raise FieldError(
            "node", "name either the node or the run that is hit, or several nodes, or a rack"
        )
    if given and fault.run is not None and not is_rack:
        raise FieldError("node", "name either the node or the run that is hit")
    if not given and kind.scope == "node":
        raise FieldError(
            "run", f"{kind.name} hits one node, not the run {fault.run!r}; set node instead"
        )
    if given and kind.scope == "run":
        raise FieldError(
            given[0],
            f"{kind.name} hits the whole run, not {getattr(fault, given[0])!r}; set run instead",
        )
    if fault.run not in {None, run.name}:
        raise FieldError("run", f"{fault.run!r} is not {run.name}")
    if fault.node is not None:
        _check_node(fault.node, run)
    if is_rack and not fault.ranks_in(run):
        n_racks = 0 if run.nodes_per_rack is None else -(-run.nodes // run.nodes_per_rack)
        known = f"choose 0 to {n_racks - 1}" if n_racks else "set nodes_per_rack in [[run]]"
        raise FieldError("rack", f"{fault.rack} is no rack of {run.name}; {known}")


MOST_WINDOWS = 10_000


def _check_course(fault: Fault, kind: FaultKind) -> None:
    """Refuse a fault that grows or comes and goes in a way that its kind cannot."""
    if fault.ramp_s and (kind.magnitude_unit is None or not kind.may_grow):
        raise FieldError(
            "ramp_s", f"{fault.ramp_s:g} lets {kind.name} grow, which it cannot; leave it out"
        )
    if fault.on_s is None and fault.period_s is None:
        return
    if fault.on_s is None or fault.period_s is None:
        missing, there = ("on_s", "period_s") if fault.on_s is None else ("period_s", "on_s")
        raise FieldError(missing, f"is missing, but {there} is given; give both or neither")
    if fault.on_s >= fault.period_s:
        raise FieldError(
            "on_s",
            f"{fault.on_s:g} fills the period; give less than period_s = {fault.period_s:g}",
        )
    if not kind.may_repeat:
        raise FieldError("on_s", f"{kind.name} happens once; leave out on_s and period_s")
    if fault.duration_s / fault.period_s > MOST_WINDOWS:
        raise FieldError(
            "period_s",
            f"{fault.period_s:g} repeats more than {MOST_WINDOWS:,} times; give a longer period",
        )


def validate_benign(event: Benign, run: RunSpec) -> None:
    if event.kind not in BENIGN:
        known = suggestion(event.kind, tuple(BENIGN))
        raise FieldError("kind", f"{event.kind!r} is no benign event; {known}")
    kind = BENIGN[event.kind]
    if event.run != run.name:
        raise FieldError("run", f"{event.run!r} is not {run.name}")
    if kind.scope == "node" and event.node is None:
        raise FieldError("node", f"{kind.name} is about one node; name it")
    if event.node is not None:
        _check_node(event.node, run)
        if run.nodes == 1 and kind.scope == "node":
            raise FieldError("node", f"{event.node!r} is the run's only node; give it more")
    _check_times(event.start_s, event.duration_s)
    if kind.magnitude_unit is not None and event.magnitude is not None:
        _check_magnitude(event.magnitude, kind.magnitude_unit, kind.low, kind.high)


def _check_node(node: str, run: RunSpec) -> None:
    names = run.node_names
    if node not in names:
        known = names[0] if len(names) == 1 else f"one of {names[0]} … {names[-1]}"
        raise FieldError("node", f"{node!r} is no node of {run.name}; choose {known}")


def parts_per_node(part: DevicePart, run: RunSpec) -> int:
    instance = catalog.instance(run.instance)
    return {"core": instance.n_cores, "device": instance.n_devices, "efa": instance.n_efa}[part]


def _check_times(start_s: float, duration_s: float | None) -> None:
    if not (math.isfinite(start_s) and start_s >= 0):
        raise FieldError("start_s", f"{start_s} is no start; give seconds ≥ 0")
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise FieldError("duration_s", f"{duration_s} is no duration; give seconds > 0")


def _check_magnitude(magnitude: float, unit: str, low: float, high: float) -> None:
    if not low <= magnitude <= high:
        raise FieldError(
            "magnitude", f"{magnitude} is out of range; give a {unit} from {low:g} to {high:g}"
        )
