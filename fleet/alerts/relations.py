"""Whether one alert is another view of another: a table, and the function that reads it.

A row works like an inhibition rule of Alertmanager: what its source is, what its target is, what
is equal on both, and how many seconds may lie between their onsets.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, Self, TypeVar

from fleet.alerts.causes import PAUSES
from fleet.models import Alert
from telemetry.detect import RULES, Finding, Rule
from telemetry.detect.causes import CLASS_OF as CLASS_OF_CAUSE
from telemetry.detect.causes import CLASSES, HARDWARE_CAUSES, UNKNOWN
from telemetry.detect.shares import SHARE

Subject = tuple[str, str]  # a rule, and what it evaluates: run:<name>, node:<name>, fleet, …

# Causes that one fault of a rack, a switch or a zone may show as.
CLASS_OF: Mapping[str, str] = {
    **CLASS_OF_CAUSE,
    **{name: name for name in CLASSES},
    **dict.fromkeys(("node_silent", "node_crash"), "node_silent"),
}
NETWORK = CLASS_OF_CAUSE["efa_latency"]
# A fault of a whole zone shows in these. Cores do not become slow together.
OF_ZONES = frozenset({NETWORK, "node_silent"})
# So many steps may end after an alert about their run until they show that it is still slow, and
# so many seconds of hardware still show what is over.
AFTER_STEPS, AFTER_S = 2.0, 30.0


def subject_of(finding: Finding) -> str:
    """Name what an alert is about: a run, a node, a budget or the whole fleet, by its rule.

    A fault that all nodes of a run have is about the run.
    """
    names = {"run": f"run:{finding.run}", "node": f"node:{finding.node}", "fleet": "fleet"}
    names["budget"] = f"budget:{finding.evidence.get('budget')}"
    subject = RULES[finding.rule].subject
    return names["run" if subject == "node" and finding.node is None else subject]


def key_of_finding(finding: Finding) -> Subject:
    return (finding.rule, subject_of(finding))


def key_of(alert: Alert) -> Subject:
    return (alert.rule, alert.subject)


@dataclass(frozen=True, slots=True)
class View:
    """What relations compare of a finding or an alert.

    ``accused`` are all accused nodes, ``node`` is the only one. ``ended_s`` is None of what lasts.
    A finding is seen at ``at_s``, in steps of ``step_s``.
    """

    key: Subject
    cause: str
    run: str | None
    node: str | None
    accused: Collection[str]
    device: int | None
    onset_s: float
    ended_s: float | None = None
    at_s: float = 0.0
    step_s: float = 0.0

    @classmethod
    def of(cls, finding: Finding, key: Subject | None = None, *, at_s: float = 0.0) -> Self:
        return cls(
            key=key or key_of_finding(finding),
            cause=finding.cause,
            run=finding.run,
            node=finding.node,
            accused=finding.accused,
            device=finding.device,
            onset_s=finding.onset_s,
            at_s=at_s,
            step_s=finding.evidence.get("step_s") or finding.evidence.get("usual_step_s") or 0.0,
        )

    @classmethod
    def of_alert(cls, alert: Alert) -> Self:
        """Read an alert; a row that fired again keeps its first onset, so the newest counts."""
        began_s = alert.evidence.get("onset_s") or alert.evidence.get("since_s") or 0.0
        return cls(
            key=key_of(alert),
            cause=alert.cause,
            run=alert.run.name if alert.run else None,
            node=alert.node.name if alert.node else None,
            accused=alert.nodes,
            device=alert.device,
            onset_s=max(alert.onset_at.timestamp(), began_s),
            ended_s=alert.resolved_at.timestamp() if alert.resolved_at else None,
        )

    @property
    def onsets_s(self) -> Collection[float]:
        return (self.onset_s,)

    @property
    def rule(self) -> Rule:
        return RULES[self.key[0]]

    @property
    def is_known(self) -> bool:
        return self.cause != UNKNOWN

    @property
    def is_long_step(self) -> bool:
        """Whether it says only that steps of a run take longer."""
        return self.key[0] == "step_slow" and self.run is not None and not self.accused

    @property
    def cause_class(self) -> str | None:
        """The class of faults that may be one with others; None for a fault of its own.

        Steps that take longer for an unknown reason may be slowed by what their run shares.
        """
        is_any = self.is_long_step and not self.is_known
        return UNKNOWN if is_any else CLASS_OF.get(self.cause)

    def is_same(self, other: Self, name: str) -> bool:
        """Whether an attribute is the same, or one of the two does not know it."""
        mine, theirs = getattr(self, name), getattr(other, name)
        return mine == theirs or not {mine, theirs}.isdisjoint({None, UNKNOWN})

    def refines(self, other: Self) -> bool:
        """Whether its cause is one of the class that the other one names."""
        return CLASS_OF_CAUSE.get(self.cause) == other.cause


class Dated(Protocol):
    """What began; one of several parts did more than once."""

    @property
    def onsets_s(self) -> Collection[float]: ...


class Fault(Dated, Protocol):
    """Findings that are one fault; ``racks`` are those of nodes, ``run_racks`` those of runs.

    ``struck`` are its class and its zones of which most nodes have such findings.
    """

    cause_class: str

    @property
    def causes(self) -> Set[str]: ...
    @property
    def runs(self) -> Set[str]: ...
    @property
    def racks(self) -> Set[tuple[str, str]]: ...
    @property
    def run_racks(self) -> Set[tuple[str, str]]: ...
    @property
    def struck(self) -> Set[tuple[str, str]]: ...


V = TypeVar("V", bound=Dated)


def anything(*_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Relation(Generic[V]):
    source: Callable[[V], bool] = anything
    target: Callable[[V], bool] = anything
    equal: Callable[[V, V], bool] = anything
    within_s: float = inf


def related(rows: Iterable[Relation[V]], source: V, target: V) -> bool:
    apart_s = min(abs(a - b) for a in source.onsets_s for b in target.onsets_s)
    return any(
        apart_s <= row.within_s
        and row.source(source)
        and row.target(target)
        and row.equal(source, target)
        for row in rows
    )


Rows = tuple[Relation[View], ...]


def same_run(s: View, t: View) -> bool:
    return s.run == t.run and (s.run or s.node) is not None


def is_unknown_symptom(t: View) -> bool:
    return t.rule.is_symptom and not t.is_known


def is_symptom_without_node(t: View) -> bool:
    return t.rule.is_symptom and t.node is None


def is_slow_part(s: View) -> bool:
    return s.cause in HARDWARE_CAUSES and s.node is not None


def is_within(s: View, t: View) -> bool:
    return same_run(s, t) and set(t.accused) <= set(s.accused)


def is_just_over(s: View, t: View, within_s: float) -> bool:
    """Whether one ended some seconds ago, after the other one began."""
    return s.ended_s is not None and max(t.onset_s, t.at_s - within_s) < s.ended_s <= t.at_s


def is_open_hang(s: View) -> bool:
    return s.key[0] == "hang" and s.ended_s is None


# The alert (target) of a finding (source): under its rule and subject, where what both know of the
# culprit is the same. The cause at a node may change.
AT_ITS_KEY: Rows = (
    Relation(
        equal=lambda s, t: (
            s.key == t.key
            and (s.rule.subject == "node" or s.is_same(t, "cause"))
            and s.is_same(t, "node")
            and s.is_same(t, "device")
        )
    ),
)
# Under any rule, with the same culprit. A class and a cause of it are one cause, two causes of it
# are not. The first node that was found may turn out to be one of several.
SAME_CULPRIT: Rows = (
    Relation(
        source=lambda s: s.is_known,
        equal=lambda s, t: (
            same_run(s, t)
            and (s.cause == t.cause or s.refines(t) or t.refines(s))
            and (s.node == t.node or (s.node is None and t.node in s.accused))
        ),
    ),
    # A run that seemed to hang may prove slow when its step ends.
    Relation(
        source=lambda s: s.rule.is_slow_run and not s.is_known,
        target=is_unknown_symptom,
        equal=same_run,
    ),
)
SAME_KEY: Rows = (Relation(equal=lambda s, t: s.key == t.key),)
# A symptom of the same run. One without a node is explained by a slow node since its onset, and
# one that names a class by a cause of that class.
EXPLAINED: Rows = (
    Relation(lambda s: s.is_known, is_unknown_symptom, same_run),
    Relation(is_slow_part, is_symptom_without_node, same_run, within_s=10.0),
    Relation(is_slow_part, is_symptom_without_node, lambda s, t: same_run(s, t) and s.refines(t)),
)

# What a finding (target) only repeats: a pause is a long step, too, and a slow exchange is also a
# slow step. Onsets of one problem differ by less, whatever shows it.
ECHO: Rows = (
    Relation(lambda s: s.cause in PAUSES, lambda t: t.is_long_step, same_run, 10.0),
    Relation(
        source=lambda s: s.key[0] == SHARE,
        target=lambda t: t.is_long_step,
        equal=lambda s, t: same_run(s, t) and s.cause == t.cause,
        within_s=10.0,
    ),
)

# What a finding (target) only shows of an alert (source): a step that a fault made long ends after
# the fault, whose alert may be over by then. The newest seconds of the hardware still show the
# fault, too, and a hang ends with the step that it made long: at this second. Links, devices and
# errors say something of their own.
AFTERMATH: Rows = (
    Relation(
        target=lambda t: t.rule.slows_steps,
        equal=lambda s, t: is_within(s, t) and is_just_over(s, t, AFTER_STEPS * t.step_s),
    ),
    Relation(
        target=lambda t: t.rule.waits and bool(t.accused),
        equal=lambda s, t: (
            is_within(s, t)
            and s.key[0] != t.key[0]
            and (is_just_over(s, t, AFTER_S) or (is_open_hang(s) and s.onset_s <= t.onset_s))
        ),
    ),
)

# A finding (source) is the present form of a part of an alert (target),
CONTINUES: Rows = (
    Relation(
        equal=lambda s, t: (
            s.key == t.key
            and (CLASS_OF.get(s.cause) == CLASS_OF.get(t.cause) or not (s.is_known and t.is_known))
        )
    ),
    Relation(
        source=lambda s: s.cause in CLASS_OF,
        equal=lambda s, t: (
            same_run(s, t)
            and CLASS_OF[s.cause] == CLASS_OF.get(t.cause)
            and not set(s.accused).isdisjoint(t.accused)
        ),
    ),
)
# or names what slows the run of a part.
TAKES_OVER: Rows = (
    Relation(
        source=lambda s: s.cause in CLASS_OF,
        target=lambda t: t.cause_class == UNKNOWN,
        equal=same_run,
    ),
)


def is_of_zone(fault: Fault) -> bool:
    return fault.cause_class in OF_ZONES


def is_of_run(s: Fault, t: Fault) -> bool:
    return s.cause_class == t.cause_class and s.causes == t.causes and bool(s.runs & t.runs)


# Findings of several nodes or runs are one physical fault: parts of it began within a minute, and
# they share a rack, or are most of a zone. Nodes that share only a run, and runs that share only
# racks (of one switch), become slow together: two reports of hardware may lie between them.
ONE_FAULT: tuple[Relation[Fault], ...] = (
    Relation(equal=is_of_run, within_s=20.0),
    Relation(is_of_zone, is_of_zone, is_of_run, within_s=60.0),
    Relation(
        source=lambda s: s.cause_class != UNKNOWN,
        equal=lambda s, t: s.cause_class == t.cause_class and bool(s.racks & t.racks),
        within_s=60.0,
    ),
    Relation(
        source=lambda s: s.cause_class in {UNKNOWN, NETWORK},
        target=lambda t: t.cause_class in {UNKNOWN, NETWORK},
        equal=lambda s, t: not s.runs & t.runs and bool(s.run_racks & t.run_racks),
        within_s=20.0,
    ),
    Relation(
        equal=lambda s, t: bool(s.struck & t.struck),
        within_s=60.0,
    ),
)
