"""The causes that detection knows, and what each one changes in the data.

A symptom is raised (1), lowered (-1) or unchanged (0); one that is not in the data is unmeasured,
which is evidence neither for a cause nor against it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

UNKNOWN = "unknown"
Scope = Literal["node", "run", "any"]
# Where the time is lost: waiting for peers, transfer, compute of all workers, input, checkpoint;
# or the step as a whole, where the exchange is not timed.
Kind = Literal["waiting", "transferring", "computing", "input", "checkpoint", "step"]
# The phase of a step in which a cause loses the time, and how a problem of it shows.
Phase = Literal["compute_s", "transfer_s", "input_s", "checkpoint_s"]
KIND_OF_PHASE: Mapping[str, Kind] = {
    "compute_s": "waiting",
    "transfer_s": "transferring",
    "input_s": "input",
    "checkpoint_s": "checkpoint",
}
Symptoms = Mapping[str, int]
# What the device of a finding numbers.
Part = Literal["core", "device", "efa_device"]
# Symptoms that compare the parts of one node: a cause that hits the whole run does not show them.
OF_PARTS = frozenset({"core_busier", "device_busier"})


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table.

    ``leaves`` are symptoms that the cause does not change: one of them that is raised or lowered
    rules it out, as does one in ``raises`` or ``lowers`` that is measured and is not so.
    ``class_name`` is the answer where the data cannot separate causes of the same class. ``phase``
    is where steps lose time, ``rule`` the one that is broken where allreduce_share is not.
    ``is_hardware``: a part of a node shows it, before steps do and without them. A cause of scope
    ``run`` accuses no node, and does not justify a page.
    """

    name: str
    scope: Scope
    raises: tuple[str, ...]
    lowers: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    class_name: str | None = None
    phase: Phase = "compute_s"
    rule: str = "step_slow"
    is_hardware: bool = False

    @property
    def source(self) -> str:
        """Where the documentation describes the fault and its sources."""
        return f"docs/faults.md#{self.name}"

    def expected(self, scope: Scope) -> dict[str, int]:
        """Symptoms and their directions, at the scope of a problem."""
        both = dict.fromkeys(self.raises, 1) | dict.fromkeys(self.lowers, -1)
        return {
            name: sign for name, sign in both.items() if scope == "node" or name not in OF_PARTS
        }


_COMPUTE, _NETWORK = "slow_compute", "network"
_EFA = ("efa_latency", "efa_retransmits", "efa_device_bytes")
_OWN = ("input_s", "checkpoint_s")
CAUSES = (
    Cause("slow_core", "node", ("step_s", "core_busier"),
          leaves=("device_busier", "transfer_s", "hbm_bandwidth", "step_jitter", *_OWN, *_EFA),
          class_name=_COMPUTE, rule="core_slow", is_hardware=True),
    Cause("throttle", "any", ("step_s", "device_busier"),
          leaves=("core_busier", "transfer_s", "hbm_bandwidth", "step_jitter", *_OWN, *_EFA),
          class_name=_COMPUTE, rule="core_slow", is_hardware=True),
    Cause("hbm_slow", "any", ("step_s", "device_busier"), ("hbm_bandwidth",),
          leaves=("core_busier", "transfer_s", "step_jitter", *_OWN, *_EFA),
          class_name=_COMPUTE, rule="hbm_slow", is_hardware=True),
    Cause("efa_latency", "any", ("step_s", "transfer_s", "efa_latency"),
          leaves=("compute_s", "wait_s", "efa_retransmits", "efa_device_bytes", "step_jitter",
                  *_OWN, *OF_PARTS),
          class_name=_NETWORK, phase="transfer_s", rule="efa_degraded", is_hardware=True),
    Cause("efa_loss", "any", ("step_s", "transfer_s", "efa_retransmits"),
          leaves=("compute_s", "wait_s", "efa_device_bytes", "step_jitter", *_OWN, *OF_PARTS),
          class_name=_NETWORK, phase="transfer_s", rule="efa_degraded", is_hardware=True),
    Cause("efa_down", "node", ("step_s", "transfer_s"), ("efa_device_bytes",),
          leaves=("compute_s", "wait_s", "efa_retransmits", "step_jitter", *_OWN, *OF_PARTS),
          class_name=_NETWORK, phase="transfer_s", rule="efa_degraded", is_hardware=True),
    Cause("input_stall", "any", ("step_s", "input_s", "host_busier"),
          leaves=("compute_s", "transfer_s", "checkpoint_s", *_EFA, *OF_PARTS),
          phase="input_s", rule="input_stall"),
    Cause("checkpoint_slow", "any", ("checkpoint_s",),
          leaves=("compute_s", "transfer_s", "input_s", *_EFA, *OF_PARTS),
          phase="checkpoint_s", rule="checkpoint_slow"),
    Cause("seq_imbalance", "run", ("step_s", "wait_s", "step_jitter"),
          leaves=("transfer_s", "hbm_bandwidth", *_OWN, *_EFA, *OF_PARTS)),
    Cause("stage_imbalance", "run", ("step_s", "wait_s", "stage_longer"),
          leaves=("transfer_s", "hbm_bandwidth", "step_jitter", *_OWN, *_EFA, *OF_PARTS)),
)  # fmt: skip
BY_NAME: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
SYMPTOMS = tuple(dict.fromkeys(name for c in CAUSES for name in (*c.raises, *c.lowers, *c.leaves)))
CLASS_OF: Mapping[str, str] = {c.name: c.class_name for c in CAUSES if c.class_name}
CLASSES = tuple(dict.fromkeys(CLASS_OF.values()))
LINK_CAUSES = tuple(name for name, class_name in CLASS_OF.items() if class_name == _NETWORK)
# Causes in the hardware of a node. The class of the network names no node.
HARDWARE_CAUSES = (*(c.name for c in CAUSES if c.is_hardware), _COMPUTE)
# Without a node, these do not justify a page.
NOT_URGENT = (UNKNOWN, *CLASSES, *(c.name for c in CAUSES if c.scope == "run"))
# Of a class that has several kinds of parts the one that is replaced.
PART_OF: Mapping[str, Part] = {
    **dict.fromkeys((*LINK_CAUSES, _NETWORK), "efa_device"),
    "slow_core": "core",
    **dict.fromkeys(("throttle", "hbm_slow", _COMPUTE), "device"),
    **dict.fromkeys(("ecc_uncorrected", "device_unhealthy", "device_missing"), "device"),
}
# What a phase alone says: the class or the name of its first row. Other phases say nothing.
CAUSE_OF_PHASE: Mapping[str, str] = {c.phase: c.class_name or c.name for c in reversed(CAUSES)}


def phase_of(name: str) -> str | None:
    """Where a cause or a class loses the time; None for what the table does not hold."""
    cause = BY_NAME.get(name)
    by_class = (phase for phase, first in CAUSE_OF_PHASE.items() if first == name)
    return cause.phase if cause else next(by_class, None)


def kind_of(name: str) -> Kind:
    """How a problem of a cause or a class shows; others wait for what the table does not hold."""
    phase = phase_of(name)
    return KIND_OF_PHASE[phase] if phase else "waiting"


def rule_of(name: str) -> str | None:
    """Return the rule that a cause breaks on a device or a node; None for what names neither."""
    cause = BY_NAME.get(name)
    return cause.rule if cause else {_COMPUTE: "core_slow"}.get(name)


@dataclass(frozen=True, slots=True)
class Explanation:
    """How well one cause explains the symptoms; each tuple holds names of symptoms."""

    cause: Cause
    seen: tuple[str, ...]
    missing: tuple[str, ...]
    contradicting: tuple[str, ...]
    unmeasured: tuple[str, ...]

    @property
    def is_possible(self) -> bool:
        return bool(self.seen) and not self.missing and not self.contradicting

    @property
    def is_certain(self) -> bool:
        return self.is_possible and not self.unmeasured


def default_of(name: str) -> str:
    """Return what a finder says that knows only the phase; any other cause stays."""
    default = CAUSE_OF_PHASE.get(phase_of(name) or "", name)
    return default if name in alternatives(default) else name


def alternatives(name: str) -> list[str]:
    """Return the causes that the finder of a cause cannot tell from it, in the order of the table.

    Empty where the finder names a class, or has evidence of its own.
    """
    cause = BY_NAME.get(name)
    if cause is None or CAUSE_OF_PHASE[cause.phase] not in BY_NAME:
        return []
    of_phase = (c for c in BY_NAME.values() if c.phase == cause.phase)
    return [c.name for c in of_phase if c.rule == cause.rule and c.class_name is None]


def refine(name: str, symptoms: Symptoms, *, scope: Scope) -> str:
    """Return the alternative that explains most; a cause stays until another one explains more.

    If none fits, or several do equally well, the phase has its default. Symptoms that are over
    do not rename a cause.
    """
    among = alternatives(name)
    rows = [each for each in explain(symptoms, scope=scope) if each.cause.name in among]
    possible = {each.cause.name: len(each.seen) for each in rows if each.is_possible}
    is_over = [e for e in rows if not set(e.contradicting) & set(e.cause.leaves)]
    if not possible and name in {each.cause.name for each in is_over}:
        return name
    most = max(possible.values(), default=0)
    best = [each for each, n_seen in possible.items() if n_seen == most]
    if name in best:
        return name
    return best[0] if len(best) == 1 else default_of(name)


def explain(symptoms: Symptoms, *, scope: Scope) -> list[Explanation]:
    """Compare the symptoms of a problem with every row of the table."""
    found = []
    for cause in BY_NAME.values():
        if scope != "any" and cause.scope not in {"any", scope}:
            continue
        expected = cause.expected(scope)
        found.append(
            Explanation(
                cause,
                seen=tuple(n for n, sign in expected.items() if symptoms.get(n) == sign),
                missing=tuple(n for n in expected if symptoms.get(n) == 0),
                contradicting=tuple(
                    name
                    for name, sign in symptoms.items()
                    if sign and (expected.get(name) == -sign or name in cause.leaves)
                ),
                unmeasured=tuple(n for n in expected if n not in symptoms),
            )
        )
    return found


def best_explanation(symptoms: Symptoms, *, scope: Scope) -> str:
    """Return the only cause that explains the symptoms, the class of all that do, or unknown."""
    possible = [each for each in explain(symptoms, scope=scope) if each.is_possible]
    certain = [each for each in possible if each.is_certain]
    if len(possible) == 1 and certain:
        return certain[0].cause.name
    first = possible[0].cause.name if possible else UNKNOWN
    if len(possible) > 1 and {each.cause.name for each in possible} <= set(alternatives(first)):
        return refine(default_of(first), symptoms, scope=scope)
    classes = {each.cause.class_name for each in possible}
    if len(possible) == 1 and None in classes:
        return possible[0].cause.name
    class_name = classes.pop() if len(classes) == 1 else None
    return class_name or UNKNOWN


def separable(name: str, symptoms: Symptoms, *, scope: Scope) -> str:
    """Return a cause, or its class where another cause of the class explains as much."""
    if name not in CLASS_OF:
        return name
    others = (each for each in explain(symptoms, scope=scope) if each.cause.name != name)
    is_open = any(
        each.is_possible and CLASS_OF.get(each.cause.name) == CLASS_OF[name] for each in others
    )
    return CLASS_OF[name] if is_open else name


def explanations_json(symptoms: Symptoms, *, scope: Scope, named: str) -> list[dict[str, Any]]:
    """Return the table for the alert page, the named cause first."""

    def order(each: Explanation) -> tuple[bool, bool, int]:
        is_named = named in {each.cause.name, each.cause.class_name}
        return (not is_named, not each.is_possible, len(each.missing) + len(each.contradicting))

    return [
        {
            "cause": each.cause.name,
            "class": each.cause.class_name,
            "verdict": _verdict(each, named),
            "seen": list(each.seen),
            "missing": list(each.missing),
            "contradicting": list(each.contradicting),
            "unmeasured": list(each.unmeasured),
            "source": each.cause.source,
        }
        for each in sorted(explain(symptoms, scope=scope), key=order)
    ]


def _verdict(each: Explanation, named: str) -> str:
    if each.cause.name == named:
        return "named"
    if each.contradicting:
        return "contradicted"
    if each.missing:
        return "missing symptoms"
    return "possible" if each.seen else "no symptoms"


def symptoms_json(symptoms: Symptoms) -> dict[str, str]:
    words = {1: "raised", 0: "unchanged", -1: "lowered"}
    return {name: words[sign] for name, sign in symptoms.items()}


def any_of(names: Iterable[str], present: Iterable[str]) -> int:
    """1 if one of the names is present, else 0."""
    return int(not set(names).isdisjoint(present))
