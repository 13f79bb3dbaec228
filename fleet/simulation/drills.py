"""Drills of a run: the faults that users inject, and their progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from django import forms
from django.conf import settings
from django.db import transaction

from fleet.alerts.causes import part_name
from fleet.formatting import figure
from fleet.models import InjectedFault, Node, Run
from fleet.simulation.ground_truth import FaultTruth, truth_of
from fleet.simulation.runs import publish_plan
from telemetry.errors import FieldError
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.inputs import live_inputs
from telemetry.simulate.plan import Fault, Plan, RunSpec
from telemetry.simulate.validation import validate_fault
from telemetry.store.connection import StoreUnavailable
from telemetry.store.hot import HotStore

# A fault starts with the next tick that no worker can have simulated yet.
HEAD_START_S = 2
LONGEST_S = 3600.0


def inject(
    hot: HotStore,
    run: Run,
    *,
    kind: str,
    node: Node | None,
    device: int | None,
    magnitude: float,
    duration_s: float,
    by: str,
    now: datetime,
) -> InjectedFault:
    """Put a fault into a simulated run, from the next tick on.

    Raises
    ------
    FieldError
        Where the run is real or over, or a field does not fit the fault.
    StoreUnavailable
        Where the workers cannot be reached; then nothing is recorded, and nothing will run.
    """
    _check(run, node=node, duration_s=duration_s)
    fault = Fault(
        kind=kind,
        node=node.name if node else None,
        run=None if node else run.name,
        device=device,
        start_s=0.0,
        duration_s=duration_s,
        magnitude=magnitude,
    )
    validate_fault(fault, RunSpec(**run.plan))
    starts_at = now.replace(microsecond=0) + timedelta(seconds=HEAD_START_S)
    injected = InjectedFault(
        run=run,
        node=node,
        kind=kind,
        device=device,
        magnitude=magnitude,
        starts_at=starts_at,
        ends_at=starts_at + timedelta(seconds=duration_s),
        injected_by=by,
    )
    _save_and_publish(hot, injected, now=now)
    return injected


def end(hot: HotStore, injected: InjectedFault, *, now: datetime) -> None:
    """Take a fault out of its run before its time, from the next tick on.

    Raises
    ------
    FieldError
        Where it has not begun, or is over anyway.
    StoreUnavailable
        Where the workers cannot be reached; then the fault ends when it was going to.
    """
    ends_at = now.replace(microsecond=0) + timedelta(seconds=HEAD_START_S)
    if not injected.starts_at < ends_at < injected.ends_at:
        raise FieldError("fault", "is not under way; there is nothing to end")
    before, injected.ends_at = injected.ends_at, ends_at
    try:
        _save_and_publish(hot, injected, now=now)
    except StoreUnavailable:
        injected.ends_at = before
        raise


def _save_and_publish(hot: HotStore, injected: InjectedFault, *, now: datetime) -> None:
    """Store a fault and publish it to the workers: both or neither."""
    # A store that does not answer must not hold up the database, nor find the plan later among
    # what was sent to it while it hung.
    hot.plan(injected.run.name)
    with transaction.atomic():
        injected.save()
        publish_plan(hot, injected.run, now=now)


def why_not_allowed() -> str:
    """Explain why drills are not allowed here; empty where they are."""
    if settings.ALLOW_DRILLS:
        return ""
    return "drills are switched off here; set TRNWATCH_ALLOW_DRILLS=1"


def _check(run: Run, *, node: Node | None, duration_s: float) -> None:
    """Raise FieldError for a run that is real or over, or a drill that is too long."""
    if reason := why_not_allowed():
        raise FieldError("run", reason)
    if not run.is_simulated or run.finished_at is not None:
        raise FieldError("run", "only a simulated run that is under way can be drilled")
    if not 1 <= duration_s <= LONGEST_S:
        raise FieldError("duration_s", f"must lie between 1 and {LONGEST_S:.0f} seconds")
    if node is not None and node.run_id != run.pk:
        raise FieldError("node", f"{node.name} is not a node of {run.name}")


LOOKED_AT = 10
RECENT = 3


@dataclass(frozen=True, slots=True)
class Drill:
    fault: InjectedFault
    title: str
    part: str
    strength: str
    progress_ratio: float
    left_s: float

    @property
    def is_running(self) -> bool:
        """Whether the fault is active or about to start."""
        return self.left_s > 0

    @property
    def has_begun(self) -> bool:
        return self.progress_ratio > 0


def drills_of(run: Run, *, now: datetime) -> Sequence[Drill]:
    """List a run's drills: the active ones, and the last few before."""
    faults = run.injected_faults.exclude(injected_by="").select_related("node")[:LOOKED_AT]
    drills = [drill_of(fault, now=now) for fault in faults]
    over = [drill for drill in drills if not drill.is_running]
    return [*(drill for drill in drills if drill.is_running), *over[:RECENT]]


def drill_of(fault: InjectedFault, *, now: datetime) -> Drill:
    kind = FAULTS.get(fault.kind)
    lasts_s = (fault.ends_at - fault.starts_at).total_seconds()
    gone_s = (now - fault.starts_at).total_seconds()
    unit = kind.magnitude_unit if kind else None
    return Drill(
        fault,
        title=kind.title if kind else fault.kind.replace("_", " "),
        part=part_name(fault.kind) or "device",
        strength=figure(fault.magnitude, unit) if unit else "",
        progress_ratio=min(1.0, max(0.0, gone_s / lasts_s)),
        left_s=max(0.0, lasts_s - max(0.0, gone_s)),
    )


DEFAULT_KIND = "efa_latency"
DEFAULT_DURATION_S = 180
UNITS: Mapping[str, str] = {"factor": "times", "ratio": "a ratio: 0.05 is 5 %", "s": "seconds"}
PARTS: Mapping[str, str] = {"core": "Core", "device": "Device", "efa": "EFA device"}
WHOLE_RUN = "the whole run"


class DrillForm(forms.Form):
    """What an operator chooses; fields that the kind of fault does not have are left out."""

    def __init__(
        self, run: Run, kind: str, data: Mapping[str, Any] | None = None, *, node: str = ""
    ) -> None:
        super().__init__(data, label_suffix="")
        self.fault = FAULTS.get(kind, FAULTS[DEFAULT_KIND])
        fault, is_of_node = self.fault, self.fault.scope == "node"
        nodes = list(run.nodes.order_by("rank", "name"))
        self.fields["kind"] = forms.ChoiceField(
            label="Fault",
            choices=[(each.name, each.title) for each in FAULTS.values()],
            initial=fault.name,
        )
        if fault.scope != "run":
            # A chosen node is kept when the kind of fault changes.
            first = next(
                (each for each in nodes if each.name == node), nodes[0] if nodes else None
            )
            self.fields["node"] = forms.ModelChoiceField(
                run.nodes.order_by("rank", "name"),
                label="Node",
                required=is_of_node,
                empty_label=None if is_of_node else WHOLE_RUN,
                initial=first,
                to_field_name="name",
            )
        if fault.device_part is not None and nodes:
            first = nodes[0]
            counts = {"core": first.n_cores, "device": first.n_devices, "efa": first.n_efa}
            n_parts = counts[fault.device_part]
            self.fields["device"] = forms.IntegerField(
                label=PARTS[fault.device_part],
                required=False,
                min_value=0,
                max_value=max(0, n_parts - 1),
                initial=0 if n_parts else None,
                help_text=f"0 to {n_parts - 1}" if n_parts else f"{first.instance_type} has none",
            )
        any_number = forms.NumberInput(attrs={"step": "any"})
        if unit := fault.magnitude_unit:
            self.fields["magnitude"] = forms.FloatField(
                label=f"Strength, {UNITS.get(unit, unit)}",
                required=False,
                initial=fault.default_magnitude,
                help_text=f"{fault.low:g} to {fault.high:g}. {fault.help}",
                widget=any_number,
            )
        self.fields["duration_s"] = forms.FloatField(
            label="Duration, seconds",
            initial=DEFAULT_DURATION_S,
            min_value=1,
            max_value=LONGEST_S,
            help_text=f"1 to {LONGEST_S:,.0f}",
            widget=any_number,
        )

    def chosen(self) -> dict[str, Any]:
        """Return the chosen values, with the usual strength where none was chosen."""
        given = self.cleaned_data
        magnitude = given.get("magnitude")
        return {
            "kind": given["kind"],
            "node": given.get("node"),
            "device": given.get("device"),
            "magnitude": self.fault.default_magnitude if magnitude is None else magnitude,
            "duration_s": given["duration_s"],
        }

    def usual(self) -> dict[str, Any]:
        node = self.fields["node"].initial if "node" in self.fields else None
        device = self.fields["device"].initial if "device" in self.fields else None
        return {
            "kind": self.fault.name,
            "node": node,
            "device": device,
            "magnitude": self.fault.default_magnitude,
            "duration_s": float(DEFAULT_DURATION_S),
        }


# The run has warmed up by then; its own checkpoints are not due yet.
BEGINS_S = 60.0


@lru_cache(maxsize=2048)
def previewed(spec: RunSpec, fault: Fault) -> FaultTruth:
    """Simulate a fault in a run that has just begun to train; return its ground truth."""
    calm = msgspec.structs.replace(
        spec, compile_s=0.0, checkpoint_every_s=None, evaluate_every_s=None, max_steps=None
    )
    placed = msgspec.structs.replace(fault, start_s=BEGINS_S)
    inputs = live_inputs(spec.tier)
    return truth_of(Plan(run=calm, inputs=inputs, seed=0, epoch_s=0, faults=(placed,)))
