"""Support checks: what a model needs against what Trainium's compiler is known to take."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, BinaryIO

import msgspec

from fleet.models import SupportCheck, Trial
from telemetry.checks.operator_readers import read_operators
from telemetry.checks.operators import OperatorList, SupportError
from telemetry.checks.support import (
    Basis,
    OperatorJudgement,
    Risk,
    SupportState,
    judge,
    published,
)
from telemetry.errors import FieldError

LONGEST_FILE = 200


@dataclass(frozen=True, slots=True)
class SupportFile:
    name: str
    content: BinaryIO


@dataclass(frozen=True, slots=True)
class CheckedOperators:
    """A judged file; ``basis`` holds the published list and the compiler's report."""

    file: str
    reading: OperatorList
    judgements: tuple[OperatorJudgement, ...]
    basis: dict[str, Any]

    def count(self, state: SupportState) -> int:
        return sum(judgement.state is state for judgement in self.judgements)


def check_operators(
    graph: SupportFile, report: SupportFile | None = None, *, most_bytes: int
) -> CheckedOperators:
    """Read and judge a file of operators, by the compiler's report too where one is given.

    Raises FieldError where a file cannot be read; says which, the line and the remedy.
    """
    reading = _read("file", graph, most_bytes)
    reported = _read("report", report, most_bytes) if report else reading
    if report and reported.report is None:
        raise FieldError(
            "report", f"it is a {reported.form.value}; give the analyzer's result.json"
        )
    if report and reading.report:
        raise FieldError("report", "the file is a report itself; leave this empty")
    basis: dict[str, Any] = {
        "n_listed": len(published().listed.names),
        "list_date": published().list_date,
    }
    if reported.report:
        basis["report"] = {
            "file": file_name(report.name if report else graph.name),
            "digest": reported.digest,
            "torch_neuronx": reported.report.torch_neuronx,
            "neuronx_cc": reported.report.neuronx_cc,
        }
    judgements = judge(reading, published(), reported.report)
    return CheckedOperators(file_name(graph.name), reading, judgements, basis)


def _read(field: str, given: SupportFile, most_bytes: int) -> OperatorList:
    try:
        return read_operators(given.content, most_bytes=most_bytes)
    except SupportError as error:
        raise FieldError(field, str(error)) from error


def file_name(path: str) -> str:
    """Clean a file's name: printable, without folders."""
    last = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join(char if char.isprintable() else "_" for char in last)
    return kept.encode("utf-8", "replace").decode()[:LONGEST_FILE] or "pasted text"


def store_check(
    checked: CheckedOperators, *, by: str, now: datetime, trial: Trial | None = None
) -> SupportCheck:
    return SupportCheck.objects.create(
        file=checked.file,
        digest=checked.reading.digest,
        form=checked.reading.form.value,
        n_operators=len(checked.judgements),
        n_supported=checked.count(SupportState.SUPPORTED),
        n_unsupported=checked.count(SupportState.UNSUPPORTED),
        n_unknown=checked.count(SupportState.UNKNOWN),
        operators=[asdict(judgement) for judgement in checked.judgements],
        basis=checked.basis,
        checked_at=now,
        by=by,
        trial=trial,
    )


def judgements_of(kept: SupportCheck) -> tuple[OperatorJudgement, ...]:
    return tuple(msgspec.convert(operator, OperatorJudgement) for operator in kept.operators)


def trial_named(name: str) -> Trial | None:
    """Look up a trial; None for no name.

    Raises FieldError where it does not exist.
    """
    if not name:
        return None
    trial = Trial.objects.filter(name=name).first()
    if trial is None:
        raise FieldError("trial", f"there is none called {name[:60]!r}; /trials/ lists them")
    return trial


# How the operators of a check are grouped, the worst first.
GROUPS = (
    (SupportState.UNSUPPORTED, None, "unsupported"),
    (SupportState.UNKNOWN, Risk.LIKELY, "unknown, likely to block"),
    (SupportState.UNKNOWN, Risk.OPEN, "unknown"),
    (SupportState.UNKNOWN, Risk.UNLIKELY, "unknown, unlikely to block"),
    (SupportState.SUPPORTED, None, "supported"),
)


def grouped(
    judgements: tuple[OperatorJudgement, ...],
) -> list[tuple[SupportState, str, list[OperatorJudgement]]]:
    """Group operators by state, unknown ones by risk: state, words, operators; none empty."""
    groups = (
        (state, words, [e for e in judgements if e.state is state and risk in (None, e.risk)])
        for state, risk, words in GROUPS
    )
    return [group for group in groups if group[2]]


ANALYZE = "neuron_parallel_compile --command analyze python one_layer.py"
LIST_OPERATORS = "neuronx-cc list-operators --framework XLA"
BY_PYTORCH = frozenset({"aten", "prims"})
WHY = {
    Basis.LIST: "on the published list",
    Basis.ALIAS: "on the published list as {detail}",
    Basis.TARGET: "a custom call that the compiler recognises ({detail})",
    Basis.LOWERING: "part of the listed {detail}; other uses of it may still fail",
    Basis.REFUSED_TYPE: "used with a type that the compiler refuses: {detail}",
    Basis.REFUSED: "the compiler refuses it: {detail}",
    Basis.EVIDENCE: "not on the published list; {detail}",
    Basis.NONE: "not on any published list",
}


def headline(n_operators: int, n_unsupported: int, n_unknown: int) -> str:
    """Summarise a check in a sentence.

    Examples
    --------
    >>> headline(47, 3, 9)
    '3 of 47 operators are unsupported, 9 unknown.'
    >>> headline(12, 0, 0)
    'All 12 operators are supported.'
    """
    of = f"of {n_operators:,} operator{'s' if n_operators != 1 else ''}"
    if n_unsupported:
        verb = "is" if n_unsupported == 1 else "are"
        return f"{n_unsupported:,} {of} {verb} unsupported, {n_unknown or 'none'} unknown."
    if n_unknown:
        verb = "is" if n_unknown == 1 else "are"
        return f"None is known to be unsupported, but {n_unknown:,} {of} {verb} unknown."
    return (
        "The only operator is supported." if n_operators == 1 else f"All {of[3:]} are supported."
    )


def basis_of(judged: OperatorJudgement) -> str:
    if judged.basis is Basis.REPORT:
        if judged.state is SupportState.SUPPORTED:
            return "the compiler took it" + (
                "" if judged.is_listed else "; the published list lacks it"
            )
        times = f"{judged.n_failed:,} of {judged.n_tried:,} uses"
        refused = "it" if judged.n_failed == judged.n_tried else times
        detail = f" ({judged.detail})" if judged.detail else ""
        return f"the compiler refused {refused}{detail}" + (
            "; the published list has it, but the report overrides it" if judged.is_listed else ""
        )
    if judged.basis is Basis.NONE and is_custom(judged.name):
        return "a custom operator: no published list can contain it"
    return WHY[judged.basis].format(detail=judged.detail)


def remedy(judged: OperatorJudgement) -> str:
    """Write what to do about an operator; empty for a supported one."""
    if judged.state is SupportState.SUPPORTED:
        return ""
    if judged.state is SupportState.UNKNOWN:
        return _next_step(judged.name)
    if judged.basis is Basis.REFUSED_TYPE and judged.detail.startswith("c"):
        return "keep real and imaginary parts as two tensors, or leave it to the CPU"
    if judged.basis is Basis.REFUSED_TYPE:
        return "use bf16, fp16 or an 8-bit type that the chip has"
    return "write it with other operators, or as a kernel of your own (NKI)"


def _next_step(name: str) -> str:
    kind = name.partition("::")[0]
    if kind == "hlo":
        return f"look for it in the output of {LIST_OPERATORS}, or compile one layer with it"
    if is_custom(name):
        return "write it in operators of PyTorch or as a kernel (NKI), then compile one layer"
    return "compile a model of one layer that uses it, or run the analyzer on it"


def is_custom(name: str) -> bool:
    kind = name.partition("::")[0]
    return kind not in BY_PYTORCH | {"hlo", "module"}


def basis_sentence(n_listed: int, list_date: str, *, has_report: bool) -> str:
    listed = (
        f"The published list has {n_listed} operators and has hardly changed since 2022 "
        f"(last in {list_date}): it is incomplete. An operator that it lacks is unknown, not "
        "unsupported: XLA supports many more."
    )
    if has_report:
        return f"The compiler's report overrides the published list where both differ. {listed}"
    return f"{listed} Only the compiler knows: its report overrides the list."
