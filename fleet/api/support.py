"""Support checks: which operators of a model Trainium's compiler supports."""

import io
from typing import Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    LINE,
    OPTIONAL_SLUG,
    Key,
    NullableText,
    RequestSchema,
    ResponseSchema,
    Text,
    conflict_on,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.checks.support import (
    LONGEST_FILE,
    SupportFile,
    basis_of,
    basis_sentence,
    check_operators,
    check_summary,
    judgements_of,
    remedy,
    store_check,
    trial_named,
)
from fleet.models import SupportCheck
from telemetry.checks.support import OperatorJudgement

router = Router(tags=["support checks"])
# Operators of a model; upload larger files on the page, or use `manage.py check_support`.
MAX_FILE_BYTES = 1_000_000


class SupportCheckOut(ResponseSchema, source=SupportCheck):
    """A checked file of operators; later publications do not change it."""

    id = doc("Number of the check.", 6)
    file = doc("Name of the file.", "rl_module.txt")
    digest = doc("SHA-256 of the file.")
    form = doc("Format: list or report; fx, hlo or stablehlo: an earlier version.", "list")
    n_operators = doc("Number of different operators.")
    n_supported = doc("Operators that Trainium's compiler supports.")
    n_unsupported = doc("Operators that it does not support.")
    n_unknown = doc("Operators without information.")
    headline: str = doc("The result as text.")
    checked_at = doc("Time of the check, UTC.")
    by = doc("Who ran the check.", "ada")
    trial: NullableText = doc("Name of its trial.", "bakeoff")
    url: str = doc("Path of its page.", "/support/6/")


class SupportCheckPage(NewestFirst[SupportCheckOut]):
    """A page of support checks."""


class OperatorOut(ResponseSchema, source=OperatorJudgement):
    """The result for one operator."""

    name = doc("Name as the compiler writes it.", "aten.sort")
    written = doc("Name as the file writes it.")
    n = doc("Number of uses.")
    line = doc("Line of its first use, from 1.")
    state: str = doc("supported, unsupported or unknown.", "unknown")
    basis: str = doc(
        "Source of the state: report, refused_type, refused, list, alias, target, lowering, "
        "evidence or none."
    )
    risk: str = doc("How likely an unknown operator is to block: likely, open or unlikely.")
    detail = doc("The listed operator, the compiler's error code, or the evidence.")
    n_failed = doc("Uses that failed in the compiler's report.")
    n_tried = doc("Uses in the compiler's report.")
    is_listed = doc("Whether the published list contains it.")
    why: str = doc("The source as text.")
    to_do: str = doc("What to do; empty: nothing.")


class SupportReportOut(ResponseSchema):
    """The compiler's report that a check uses."""

    file: str = doc("Name of the file.", "result.json")
    digest: str = doc("SHA-256 of the file.")
    torch_neuronx: str | None = doc("Version of torch-neuronx.")
    neuronx_cc: str | None = doc("Version of the compiler.")


class SupportCheckDetail(SupportCheckOut):
    """A check with its operators."""

    n_listed: int = doc("Number of operators on the published list.")
    list_date: str = doc("Date of that list.", "2026-08-02")
    report: SupportReportOut | None = doc("The compiler's report, if given.")
    rests_on: str = doc("Sources of the results, as text.")
    operators: list[OperatorOut] = doc("Unsupported first, then by use.")


class SupportFilter(Paging):
    """Filter of support checks."""

    trial: Text = doc("Name of the trial.", "bakeoff", default="")
    by: Text = doc("Who ran the check.", "ada", default="")
    verdict: Literal["", "supported", "unsupported", "unknown"] = doc(
        "supported: all operators are; unsupported: some are not; unknown: none is "
        "unsupported, but some are unknown.",
        default="",
    )


class SupportCheckIn(RequestSchema):
    """The operators to check."""

    text: str = doc(
        "A list with one operator per line, or the text of the analyzer's "
        "result.json; the format is detected.",
        "aten.mm\naten.softmax\naten.sort\n",
        min_length=1,
        max_length=MAX_FILE_BYTES,
    )
    file: str = doc(
        "Name of the file.", "rl_module.txt", default="", max_length=LONGEST_FILE, pattern=LINE
    )
    report: str = doc(
        "Text of the analyzer's result.json; takes precedence over lists.",
        default="",
        max_length=MAX_FILE_BYTES,
    )
    trial: str = doc("Name of the trial.", default="", pattern=OPTIONAL_SLUG)


@router.get("", response=SupportCheckPage, **needs("read"), summary="List support checks")
def support_list(request: HttpRequest, query: Query[SupportFilter]) -> SupportCheckPage:
    """List support checks, newest first."""
    checks = SupportCheck.objects.filter_by(**query.fields)
    checks = checks.select_related("trial").defer("operators", "trial__figures")
    rows, links = paginate(request, checks, query, by="-pk")
    items = [SupportCheckOut.from_object(row, **_computed(row)) for row in rows]
    return SupportCheckPage(items=items, **links)


@router.get(
    "/{check_id}", response=SupportCheckDetail, **needs("read"), summary="One support check"
)
def support_one(request: HttpRequest, check_id: Path[Key]) -> SupportCheckDetail:
    """Get one support check with the state of every operator, why, and what to do."""
    checks = SupportCheck.objects.select_related("trial").defer("trial__figures")
    return _detail(get_object_or_404(checks, pk=check_id))


@router.post(
    "",
    response={201: SupportCheckDetail},
    **needs("act", most_bytes=MAX_FILE_BYTES),
    summary="Check operators",
)
@conflict_on("trial", file="text")
def support_new(request: HttpRequest, payload: SupportCheckIn) -> Status[SupportCheckDetail]:
    """Check operators and store the result; 409 if the trial does not exist.

    The body may have up to one megabyte.
    """
    report = SupportFile("result.json", _file(payload.report)) if payload.report else None
    trial = trial_named(payload.trial)
    checked = check_operators(
        SupportFile(payload.file, _file(payload.text)), report, most_bytes=MAX_FILE_BYTES
    )
    made = store_check(checked, by=caller(request).name, now=timezone.now(), trial=trial)
    return Status(201, _detail(made))


def _file(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode("utf-8", "replace"))


def _detail(check: SupportCheck) -> SupportCheckDetail:
    basis = check.basis
    report, n_listed, date = basis.get("report"), basis["n_listed"], basis["list_date"]
    return SupportCheckDetail.from_object(
        check,
        **_computed(check),
        n_listed=n_listed,
        list_date=date,
        report=SupportReportOut(**report) if report else None,
        rests_on=basis_sentence(n_listed, date, has_report=bool(report)),
        operators=[
            OperatorOut.from_object(each, why=basis_of(each), to_do=remedy(each))
            for each in judgements_of(check)
        ],
    )


def _computed(check: SupportCheck) -> dict[str, Any]:
    """Return the fields of a check that are not attributes of its row."""
    return {
        "headline": check_summary(check),
        "url": check.get_absolute_url(),
    }
