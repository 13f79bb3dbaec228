"""Judge the operators of a model by published lists and compiler reports."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from telemetry.catalog import Source
from telemetry.checks.operators import CUSTOM_CALL, CompilerReport, Operator

FILE = Path(__file__).parent / "operators.toml"


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    names: frozenset[str]


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    names: Mapping[str, str]


class Risk(StrEnum):
    """How likely an unknown operator is to block a port, the likeliest first."""

    LIKELY = "likely"
    OPEN = "open"
    UNLIKELY = "unlikely"


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evidence for or against operators that no list judges; a name may end in ``*``."""

    risk: Risk
    source: str
    why: str
    names: tuple[str, ...]

    def concerns(self, operator: str) -> bool:
        return any(fnmatchcase(operator, name) for name in self.names)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What operators are judged by without a report of the compiler.

    ``listed`` are the operators on the published list; ``aliases`` and ``lowerings`` lead to one
    of them; ``refused`` leads to the code of the compiler's error.
    ``evidence`` ranks the operators that all of these leave unknown.
    """

    sources: Mapping[str, Source]
    listed: Names
    aliases: Pairs
    lowerings: Pairs
    refused: Pairs
    targets: Names
    evidence: tuple[Evidence, ...]

    def listed_as(self, name: str) -> str:
        """Return the listed operator of a name; empty without one."""
        same = (name, f"{name}_", name.removesuffix("_"), self.aliases.names.get(name, ""))
        return next((each for each in same if each in self.listed.names), "")

    def evidence_of(self, name: str) -> Evidence | None:
        """Return the evidence about an operator, in place or not; None without any."""
        same = (name, name.removesuffix("_"))
        concerning = (each for each in self.evidence if any(map(each.concerns, same)))
        return next(concerning, None)

    @property
    def list_date(self) -> str:
        return self.sources[self.listed.source].date


@cache
def published() -> Published:
    return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), Published)


class SupportState(StrEnum):
    """Support of an operator, the worst first."""

    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"
    SUPPORTED = "supported"


class Basis(StrEnum):
    """What a judgement is based on, the strongest first."""

    REPORT = "report"
    # Of graphs, which earlier versions read.
    REFUSED_TYPE = "refused_type"
    REFUSED = "refused"
    LIST = "list"
    ALIAS = "alias"
    TARGET = "target"
    LOWERING = "lowering"
    EVIDENCE = "evidence"
    NONE = "none"


ORDER = {state: place for place, state in enumerate(SupportState)}
RISK_ORDER = {risk: place for place, risk in enumerate(Risk)}


@dataclass(frozen=True, slots=True)
class OperatorJudgement:
    """One operator judged.

    ``detail`` names the listed operator, the compiler's error code, the evidence about an unknown
    one, or where the report saw it fail; ``risk`` ranks unknown ones. ``n_failed`` counts the
    uses that the report saw fail of ``n_tried``; ``is_listed`` says whether the published list
    has it, whatever the state.
    """

    name: str
    written: str
    n: int
    line: int
    state: SupportState
    basis: Basis
    detail: str = ""
    n_failed: int = 0
    n_tried: int = 0
    is_listed: bool = False
    risk: Risk = Risk.OPEN


def judge(
    operators: Iterable[Operator], published: Published, report: CompilerReport | None = None
) -> tuple[OperatorJudgement, ...]:
    """Judge operators, the worst first, then the likeliest to block, then the most used.

    Parameters
    ----------
    operators : as read from a list or a report
    published : what is published of operators
    report : the compiler's report, where there is one; it overrides the list
    """
    judgements = []
    for operator in operators:
        state, basis, detail = _by_what_is_published(operator, published)
        n_passed = n_failed = 0
        if report and (name := report.name_of(operator.name)):
            n_passed, n_failed = report.passed.get(name, 0), report.failed.get(name, 0)
            state = SupportState.UNSUPPORTED if n_failed else SupportState.SUPPORTED
            basis, detail = Basis.REPORT, "; ".join(report.failures.get(name, ()))
        evidence = published.evidence_of(operator.name) if state is SupportState.UNKNOWN else None
        judgements.append(
            OperatorJudgement(
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
                risk=evidence.risk if evidence else Risk.OPEN,
            )
        )
    return tuple(
        sorted(
            judgements,
            key=lambda each: (ORDER[each.state], RISK_ORDER[each.risk], -each.n, each.name),
        )
    )


def _by_what_is_published(
    operator: Operator, published: Published
) -> tuple[SupportState, Basis, str]:
    name = operator.name
    if code := published.refused.names.get(name):
        return SupportState.UNSUPPORTED, Basis.REFUSED, code
    if listed := published.listed_as(name):
        is_same = listed == name
        return (
            SupportState.SUPPORTED,
            Basis.LIST if is_same else Basis.ALIAS,
            "" if is_same else listed,
        )
    kind, _, target = name.partition("::")
    if kind == CUSTOM_CALL and target in published.targets.names:
        return SupportState.SUPPORTED, Basis.TARGET, "NCC_EHCA005"
    if lowered := published.lowerings.names.get(name):
        return SupportState.SUPPORTED, Basis.LOWERING, lowered
    evidence = published.evidence_of(name)
    return (
        SupportState.UNKNOWN,
        Basis.EVIDENCE if evidence else Basis.NONE,
        evidence.why if evidence else "",
    )
