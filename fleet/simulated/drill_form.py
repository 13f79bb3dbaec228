"""The form of a drill: which fault, where, how bad and for how long."""

from collections.abc import Mapping
from typing import Any

from django import forms

from fleet.models import Node, Run
from fleet.simulated.drilling import LONGEST_S
from telemetry.simulate.kinds import FAULTS, FaultKind

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
        nodes = list(run.nodes.order_by("rank", "name"))
        self.fields["kind"] = _kind(self.fault)
        if self.fault.scope != "run":
            self.fields["node"] = _node(run, nodes, self.fault, chosen=node)
        if self.fault.device_part is not None and nodes:
            self.fields["device"] = _part(nodes[0], self.fault.device_part)
        if self.fault.magnitude_unit is not None:
            self.fields["magnitude"] = _strength(self.fault, self.fault.magnitude_unit)
        self.fields["duration_s"] = _duration()

    def chosen(self) -> dict[str, Any]:
        """Return what was chosen, with the usual strength where none was."""
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
        """Return what the form would choose as it is offered."""
        node = self.fields["node"].initial if "node" in self.fields else None
        device = self.fields["device"].initial if "device" in self.fields else None
        return {
            "kind": self.fault.name,
            "node": node,
            "device": device,
            "magnitude": self.fault.default_magnitude,
            "duration_s": float(DEFAULT_DURATION_S),
        }


def _kind(fault: FaultKind) -> forms.ChoiceField:
    kinds = [(each.name, each.title) for each in FAULTS.values()]
    return forms.ChoiceField(label="Fault", choices=kinds, initial=fault.name)


def _node(run: Run, nodes: list[Node], fault: FaultKind, *, chosen: str) -> forms.Field:
    """Offer the run's nodes; one that was chosen stays so when the fault is changed."""
    first = next((node for node in nodes if node.name == chosen), nodes[0] if nodes else None)
    return forms.ModelChoiceField(
        run.nodes.order_by("rank", "name"),
        label="Node",
        required=fault.scope == "node",
        empty_label=None if fault.scope == "node" else WHOLE_RUN,
        initial=first,
        to_field_name="name",
    )


def _part(node: Node, part: str) -> forms.Field:
    n_parts = {"core": node.n_cores, "device": node.n_devices, "efa": node.n_efa}[part]
    return forms.IntegerField(
        label=PARTS[part],
        required=False,
        min_value=0,
        max_value=max(0, n_parts - 1),
        initial=0 if n_parts else None,
        help_text=f"0 to {n_parts - 1}" if n_parts else f"{node.instance_type} has none",
    )


def _strength(fault: FaultKind, unit: str) -> forms.Field:
    return forms.FloatField(
        label=f"Strength, {UNITS.get(unit, unit)}",
        required=False,
        initial=fault.default_magnitude,
        help_text=f"{fault.low:g} to {fault.high:g}. {fault.help}",
        widget=forms.NumberInput(attrs={"step": "any"}),
    )


def _duration() -> forms.Field:
    return forms.FloatField(
        label="Duration, seconds",
        initial=DEFAULT_DURATION_S,
        min_value=1,
        max_value=LONGEST_S,
        help_text=f"1 to {LONGEST_S:,.0f}",
        widget=forms.NumberInput(attrs={"step": "any"}),
    )
