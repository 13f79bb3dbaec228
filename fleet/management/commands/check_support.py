"""`manage.py check_support`: which operators of a model Trainium's compiler supports."""

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.checks.support import (
    CheckedOperators,
    SupportFile,
    basis_of,
    basis_sentence,
    check_operators,
    grouped,
    headline,
    remedy,
    store_check,
    trial_named,
)
from fleet.management.cli import PlainCommand
from fleet.models import SupportCheck
from telemetry.checks.operator_readers import MOST_BYTES
from telemetry.checks.support import SupportState

NOT_ALL_SUPPORTED = 1
STDIN = "-"
EXIT_CODES = "exit codes: 0 all supported, 1 some unsupported or unknown, 2 bad input"


class Command(PlainCommand):
    help = f"Check the operators of a model: supported, unsupported or unknown ({EXIT_CODES})."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE", help="operators or result.json; - for stdin")
        parser.add_argument(
            "--report", default="", metavar="RESULT", help="the analyzer's result.json, overrides"
        )
        parser.add_argument("--keep", action="store_true", help="store the check")
        parser.add_argument("--trial", default="", help="store the check with this trial")
        parser.add_argument("--by", default="", help="name to store as who ran the check")

    def handle(self, *, json: bool, **options: Any) -> None:
        checked = _checked(options["file"], options["report"])
        kept = None
        if options["keep"] or options["trial"]:
            trial = trial_named(options["trial"])
            by = options["by"][:150] or "the command line"
            kept = store_check(checked, by=by, now=timezone.now(), trial=trial)
        if json:
            self.write_json(answer(checked, kept))
        else:
            self._write(checked, kept)
        if checked.count(SupportState.SUPPORTED) < len(checked.judgements):
            sys.exit(NOT_ALL_SUPPORTED)

    def _write(self, checked: CheckedOperators, kept: SupportCheck | None) -> None:
        self.stdout.write(f"{_headline(checked)}\n")
        for _, words, judgements in grouped(checked.judgements):
            self.stdout.write(f"\n{words}:\n")
            for each in judgements:
                where = f"{each.n:,}\u00d7, first on line {each.line:,}"
                self.stdout.write(f"  {each.name}  {where}: {basis_of(each)}")
                if what := remedy(each):
                    self.stdout.write(f"      {what}")
        basis = checked.basis
        has_report = "report" in basis
        rests_on = basis_sentence(basis["n_listed"], basis["list_date"], has_report=has_report)
        self.stdout.write(f"\n{rests_on}\n")
        if checked.reading.n_cut:
            self.stdout.write(f"{checked.reading.n_cut:,} lines were too long and cut.")
        if kept:
            self.stdout.write(f"Kept: {kept.get_absolute_url()}")


def _checked(file: str, report: str) -> CheckedOperators:
    with ExitStack() as opened:
        graph = _given("FILE", file, opened)
        compiler_report = _given("--report", report, opened)
        if graph is None:
            raise ValueError("FILE: name the list or the report; - reads stdin")
        return check_operators(graph, compiler_report, most_bytes=MOST_BYTES)


def _given(field: str, name: str, opened: ExitStack) -> SupportFile | None:
    if not name:
        return None
    if name == STDIN:
        return SupportFile("stdin", sys.stdin.buffer)
    try:
        return SupportFile(name, opened.enter_context(Path(name).open("rb")))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{field}: cannot read {name} ({reason})") from error


def answer(checked: CheckedOperators, kept: SupportCheck | None) -> dict[str, object]:
    return {
        "file": checked.file,
        "digest": checked.reading.digest,
        "form": checked.reading.form.value,
        "lines": checked.reading.n_lines,
        "cut_lines": checked.reading.n_cut,
        "headline": _headline(checked),
        "n_operators": len(checked.judgements),
        **{f"n_{state.value}": checked.count(state) for state in SupportState},
        "basis": checked.basis,
        "operators": [
            asdict(judgement) | {"why": basis_of(judgement), "to_do": remedy(judgement)}
            for judgement in checked.judgements
        ],
        "kept": kept.pk if kept else None,
    }


def _headline(checked: CheckedOperators) -> str:
    unsupported, unknown = (
        checked.count(SupportState.UNSUPPORTED),
        checked.count(SupportState.UNKNOWN),
    )
    return headline(len(checked.judgements), unsupported, unknown)
