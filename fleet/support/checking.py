"""A support check: files read and judged, and kept with owner and date."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, BinaryIO

import msgspec

from fleet.models import SupportCheck, Trial
from telemetry.support import (
    Judgement,
    Reading,
    State,
    SupportError,
    judge,
    published,
    read_operators,
)

LONGEST_FILE = 200


class CheckError(ValueError):
    """A check that cannot be made; ``field`` is the one to mend: file, report or trial."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Given:
    """A file as somebody gave it."""

    name: str
    content: BinaryIO


@dataclass(frozen=True, slots=True)
class Checked:
    """A file judged. ``basis`` says by what: the published list, and the compiler's report."""

    file: str
    reading: Reading
    judgements: tuple[Judgement, ...]
    basis: dict[str, Any]

    def count(self, state: State) -> int:
        """Count the operators in a state."""
        return sum(each.state is state for each in self.judgements)


def check(graph: Given, report: Given | None = None, *, most_bytes: int) -> Checked:
    """Read and judge a file of operators, by the compiler's report too where one is given.

    Raises
    ------
    CheckError
        Where a file cannot be read; says which, the line and the remedy.
    """
    reading = _read("file", graph, most_bytes)
    told = _read("report", report, most_bytes) if report else reading
    if report and told.report is None:
        raise CheckError("report", f"it is a {told.form.value}; give the analyzer's result.json")
    if report and reading.report:
        raise CheckError("report", "the file is a report itself; leave this empty")
    basis: dict[str, Any] = {
        "n_listed": len(published().listed.names),
        "list_date": published().list_date,
    }
    if told.report:
        basis["report"] = {
            "file": file_name(report.name if report else graph.name),
            "digest": told.digest,
            "torch_neuronx": told.report.torch_neuronx,
            "neuronx_cc": told.report.neuronx_cc,
        }
    found = judge(reading, published(), told.report)
    return Checked(file_name(graph.name), reading, found, basis)


def _read(field: str, given: Given, most_bytes: int) -> Reading:
    try:
        return read_operators(given.content, most_bytes=most_bytes)
    except SupportError as error:
        raise CheckError(field, str(error)) from error


def file_name(path: str) -> str:
    """Return a file's name as it can be kept: printable, without folders."""
    last = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join(char if char.isprintable() else "_" for char in last)
    return kept.encode("utf-8", "replace").decode()[:LONGEST_FILE] or "pasted text"


def keep(checked: Checked, *, by: str, now: datetime, trial: Trial | None = None) -> SupportCheck:
    """Keep a check, whole, as it was judged."""
    return SupportCheck.objects.create(
        file=checked.file,
        digest=checked.reading.digest,
        form=checked.reading.form.value,
        n_operators=len(checked.judgements),
        n_supported=checked.count(State.SUPPORTED),
        n_unsupported=checked.count(State.UNSUPPORTED),
        n_unknown=checked.count(State.UNKNOWN),
        operators=[asdict(each) for each in checked.judgements],
        basis=checked.basis,
        checked_at=now,
        by=by,
        trial=trial,
    )


def judgements_of(kept: SupportCheck) -> tuple[Judgement, ...]:
    """Return what a kept check said of each operator."""
    return tuple(msgspec.convert(each, Judgement) for each in kept.operators)


def trial_named(name: str) -> Trial | None:
    """Return the trial of that name, None for no name.

    Raises
    ------
    CheckError
        Where there is none of that name.
    """
    if not name:
        return None
    trial = Trial.objects.filter(name=name).first()
    if trial is None:
        raise CheckError("trial", f"there is none called {name[:60]!r}; /trials/ lists them")
    return trial
