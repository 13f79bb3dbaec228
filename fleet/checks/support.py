"""Support checks: what a model needs against what Trainium's compiler is known to take."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, BinaryIO

import msgspec

from fleet.formatting import render_text
from fleet.models import SupportCheck, Trial
from telemetry.checks.operator_readers import read_operators
from telemetry.checks.operators import OperatorList, SupportError
from telemetry.checks.support import OperatorJudgement, Risk, SupportState, judge, published
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
BY_PYTORCH = frozenset({"aten", "prims"})


def headline(n_operators: int, n_unsupported: int, n_unknown: int) -> str:
    """Summarise a check in a sentence."""
    return render_text(
        "checks/_support.txt#headline",
        n=n_operators,
        n_unsupported=n_unsupported,
        n_unknown=n_unknown,
    )


def check_summary(check: SupportCheck) -> str:
    """Summarise a stored check: 3 of 47 operators are unsupported, 9 unknown."""
    return headline(check.n_operators, check.n_unsupported, check.n_unknown)


def basis_of(judged: OperatorJudgement) -> str:
    return _written("why", judged)


def remedy(judged: OperatorJudgement) -> str:
    """Write what to do about an operator; empty for a supported one."""
    return _written("remedy", judged)


def _written(part: str, judged: OperatorJudgement) -> str:
    kind = judged.name.partition("::")[0]
    return render_text(
        f"checks/_support.txt#{part}",
        of=judged,
        is_hlo=kind == "hlo",
        is_custom=kind not in BY_PYTORCH | {"hlo", "module"},
        is_complex=judged.detail.startswith("c"),
    )


def basis_sentence(n_listed: int, list_date: str, *, has_report: bool) -> str:
    return render_text(
        "checks/_support.txt#basis", n_listed=n_listed, list_date=list_date, has_report=has_report
    )
