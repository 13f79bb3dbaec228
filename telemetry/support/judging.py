"""Each operator judged: supported, unsupported or unknown, and what that rests on.

What the compiler reported overrides everything published; what is published overrides nothing:
an operator that no list names is unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from telemetry.support.names import CUSTOM_CALL
from telemetry.support.published import Published
from telemetry.support.records import Operator, Report


class State(StrEnum):
    """What is known of an operator, the worst first."""

    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"
    SUPPORTED = "supported"


class Basis(StrEnum):
    """What a judgement rests on, the strongest first."""

    REPORT = "report"
    REFUSED_TYPE = "refused_type"
    REFUSED = "refused"
    LIST = "list"
    ALIAS = "alias"
    TARGET = "target"
    LOWERING = "lowering"
    NONE = "none"


ORDER = {state: place for place, state in enumerate(State)}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One operator judged.

    ``detail`` names the listed operator, the compiler's error code, or where the report saw it
    fail; ``n_failed`` counts the uses that the report saw fail of ``n_tried``; ``is_listed``
    says whether the published list has it, whatever the state.
    """

    name: str
    written: str
    n: int
    line: int
    state: State
    basis: Basis
    detail: str = ""
    n_failed: int = 0
    n_tried: int = 0
    is_listed: bool = False


def judge(
    operators: Iterable[Operator], published: Published, report: Report | None = None
) -> tuple[Judgement, ...]:
    """Judge operators, the worst first, then the most used.

    Parameters
    ----------
    operators : as read from a graph, a list or a report
    published : what is published of operators
    report : what the compiler said, where it was asked; its word stands
    """
    found = [_judged(operator, published, report) for operator in operators]
    return tuple(sorted(found, key=lambda each: (ORDER[each.state], -each.n, each.name)))


def _judged(operator: Operator, published: Published, report: Report | None) -> Judgement:
    state, basis, detail = _by_what_is_published(operator, published)
    n_passed = n_failed = 0
    if report and (said := report.name_of(operator.name)):
        n_passed, n_failed = report.passed.get(said, 0), report.failed.get(said, 0)
        state = State.UNSUPPORTED if n_failed else State.SUPPORTED
        basis, detail = Basis.REPORT, "; ".join(report.failures.get(said, ()))
    return Judgement(
        name=operator.name,
        written=operator.written,
        n=operator.n,
        line=operator.line,
        state=state,
        basis=basis,
        detail=detail,
        n_failed=n_failed,
        n_tried=n_passed + n_failed,
        is_listed=bool(published.listed_as(operator.name)),
    )


def _by_what_is_published(operator: Operator, published: Published) -> tuple[State, Basis, str]:
    name, refused_types = operator.name, published.refused_types.names
    for each in sorted(operator.types & refused_types.keys()):
        return State.UNSUPPORTED, Basis.REFUSED_TYPE, f"{each}, {refused_types[each]}"
    if code := published.refused.names.get(name):
        return State.UNSUPPORTED, Basis.REFUSED, code
    if listed := published.listed_as(name):
        is_same = listed == name
        return State.SUPPORTED, Basis.LIST if is_same else Basis.ALIAS, "" if is_same else listed
    kind, _, target = name.partition("::")
    if kind == CUSTOM_CALL and target in published.targets.names:
        return State.SUPPORTED, Basis.TARGET, "NCC_EHCA005"
    if lowered := published.lowerings.names.get(name):
        return State.SUPPORTED, Basis.LOWERING, lowered
    return State.UNKNOWN, Basis.NONE, ""
