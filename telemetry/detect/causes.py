"""The causes that detection knows, and what each one changes in the data: causes.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from telemetry.detect.quantities import SYMPTOMS, Kind

UNKNOWN = "unknown"
Scope = Literal["node", "run"]
# The phase of a step in which a cause loses the time, and how a problem of it shows.
Phase = Literal["compute_s", "transfer_s", "input_s", "checkpoint_s"]
KIND_OF_PHASE: Mapping[str, Kind] = {
    "compute_s": "waiting",
    "transfer_s": "transferring",
    "input_s": "input",
    "checkpoint_s": "checkpoint",
}
# What the device of a finding numbers.
Part = Literal["core", "device", "efa_device"]
Symptoms = Mapping[str, int]
# What is said of a cause that is not named, by what it has first.
VERDICTS = {"contradicting": "contradicted", "missing": "missing symptoms", "seen": "possible"}


@dataclass(frozen=True, slots=True)
class Signature:
    """What a cause does to quantities at a place."""

    name: str
    scope: Scope
    prior: float
    raises: frozenset[str]
    lowers: frozenset[str]
    leaves: frozenset[str]
    scatters: frozenset[str]
    may: frozenset[str]

    def sign(self, quantity: str) -> int | None:
        """1 raised, -1 lowered, 0 left unchanged; None where it is not said."""
        if quantity in self.raises:
            return 1
        if quantity in self.lowers:
            return -1
        return 0 if quantity in self.leaves else None

    @property
    def symptoms(self) -> dict[str, int]:
        """What pages call that, of the quantities that they name; each one makes steps longer."""
        known = {name: self.sign(quantity) for quantity, name in SYMPTOMS.items()}
        return {"step_s": 1} | {name: sign for name, sign in known.items() if sign is not None}


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, with a signature per place; without one, only its own rule finds it."""

    name: str
    class_name: str | None
    rule: str
    phase: Phase
    part: Part | None
    signatures: tuple[Signature, ...]

    @property
    def accuses_nodes(self) -> bool:
        return not self.signatures or any(each.scope == "node" for each in self.signatures)


def _read(path: Path) -> tuple[Cause, ...]:
    with path.open("rb") as file:
        rows = tomllib.load(file)["cause"]
    return tuple(
        Cause(
            row["name"],
            row.get("class"),
            row["rule"],
            row["phase"],
            row.get("part"),
            tuple(_signature(row["name"], place) for place in row.get("place", ())),
        )
        for row in rows
    )


def _signature(name: str, place: Mapping[str, Any]) -> Signature:
    said = (
        frozenset(place.get(key, ())) for key in ("raises", "lowers", "leaves", "scatters", "may")
    )
    return Signature(name, place["scope"], place["prior"], *said)


CAUSES = _read(Path(__file__).with_name("causes.toml"))
BY_NAME: Mapping[str, Cause] = {cause.name: cause for cause in CAUSES}
SIGNATURES = tuple(each for cause in CAUSES for each in cause.signatures)
CLASS_OF: Mapping[str, str] = {c.name: c.class_name for c in CAUSES if c.class_name}
CLASSES = tuple(dict.fromkeys(CLASS_OF.values()))
_COMPUTE, _NETWORK = "slow_compute", "network"
# Causes in the hardware of a node. The class of the network names no node.
HARDWARE_CAUSES = (*(c.name for c in CAUSES if c.part), _COMPUTE)
# Without a node, these do not justify a page.
NOT_URGENT = (UNKNOWN, *CLASSES, *(c.name for c in CAUSES if not c.accuses_nodes))
# Of a class that has several kinds of parts the one that is replaced.
PART_OF: Mapping[str, Part] = {
    **{c.name: c.part for c in CAUSES if c.part},
    _COMPUTE: "device",
    _NETWORK: "efa_device",
    **dict.fromkeys(("ecc_uncorrected", "device_unhealthy", "device_missing"), "device"),
}


def phase_of(name: str) -> str | None:
    """Where a cause or a class loses the time; None for what the table does not hold."""
    return next((c.phase for c in CAUSES if name in (c.name, c.class_name)), None)


def kind_of(name: str) -> Kind:
    """How a problem of a cause or a class shows; others wait for what the table does not hold."""
    phase = phase_of(name)
    return KIND_OF_PHASE[phase] if phase else "waiting"


def rule_of(name: str) -> str | None:
    """Return the rule that a cause breaks on a device or a node; None for what names neither."""
    cause = BY_NAME.get(name)
    return cause.rule if cause else {_COMPUTE: "core_slow"}.get(name)


def explanations_json(symptoms: Symptoms, *, scope: Scope, named: str) -> list[dict[str, Any]]:
    """Return the table of causes for the alert page, the named one first."""
    rows = [_compared(each, symptoms, named) for each in SIGNATURES if each.scope == scope]

    def order(row: Mapping[str, Any]) -> tuple[bool, bool, int]:
        n_against = len(row["missing"]) + len(row["contradicting"])
        is_named = named in (row["cause"], row["class"])
        return (not is_named, not row["seen"] or n_against > 0, n_against)

    return sorted(rows, key=order)


def _compared(signature: Signature, symptoms: Symptoms, named: str) -> dict[str, Any]:
    said = signature.symptoms
    expected = {name: sign for name, sign in said.items() if sign}
    found: dict[str, Any] = {
        "seen": [name for name, sign in expected.items() if symptoms.get(name) == sign],
        "missing": [name for name in expected if symptoms.get(name) == 0],
        "contradicting": [
            name for name, sign in symptoms.items() if sign and said.get(name) in (-sign, 0)
        ],
        "unmeasured": [name for name in expected if name not in symptoms],
    }
    verdict = next((words for key, words in VERDICTS.items() if found[key]), "no symptoms")
    return {
        "cause": signature.name,
        "class": CLASS_OF.get(signature.name),
        "verdict": "named" if signature.name == named else verdict,
        **found,
        "source": f"docs/faults.md#{signature.name}",
    }


def symptoms_json(symptoms: Symptoms) -> dict[str, str]:
    words = {1: "raised", 0: "unchanged", -1: "lowered"}
    return {name: words[sign] for name, sign in symptoms.items()}
