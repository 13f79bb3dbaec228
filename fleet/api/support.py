"""A support check as the API tells it: what stands, and every operator with why and what to do."""

import io
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.alerts import LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import Key, RequestSchema, ResponseSchema, Text, conflict_on
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.checks.support import (
    LONGEST_FILE,
    SupportFile,
    basis_of,
    basis_sentence,
    check_operators,
    headline,
    judgements_of,
    remedy,
    store_check,
    trial_named,
)
from fleet.models import SupportCheck
from telemetry.checks.support import OperatorJudgement


class SupportCheckOut(ResponseSchema):
    """One file of operators, judged; what is published later changes nothing here."""

    id: int = Field(description="Number of the check.", examples=[6])
    file: str = Field(description="Name of what was checked.", examples=["rl_module.fx.txt"])
    digest: str = Field(description="SHA-256 of it.")
    form: str = Field(description="fx, hlo, stablehlo, list or report.", examples=["list"])
    n_operators: int = Field(description="Different operators, not uses.")
    n_supported: int = Field(description="Of them, those that Trainium's compiler takes.")
    n_unsupported: int = Field(description="Those that it refuses.")
    n_unknown: int = Field(description="Those that nobody tells of: no promise either way.")
    headline: str = Field(description="What stands, in words.")
    checked_at: datetime = Field(description="When, UTC.")
    by: str = Field(description="Who checked.", examples=["ada"])
    trial: str | None = Field(description="What it was checked for.", examples=["bakeoff"])
    url: str = Field(description="Path of its page.", examples=["/support/6/"])

    @classmethod
    def values_of(cls, check: SupportCheck) -> dict[str, Any]:
        """Return what a check, asked for with its trial, tells."""
        return {
            **{name: getattr(check, name) for name in SAME_FIELDS},
            "headline": headline(check.n_operators, check.n_unsupported, check.n_unknown),
            "trial": check.trial.name if check.trial else None,
            "url": check.get_absolute_url(),
        }

    @classmethod
    def of(cls, check: SupportCheck) -> Self:
        return cls(**cls.values_of(check))


SAME_FIELDS = (
    *("id", "file", "digest", "form", "n_operators"),
    *("n_supported", "n_unsupported", "n_unknown", "checked_at", "by"),
)


class SupportCheckPage(PageLinks):
    """A page of support checks."""

    items: list[SupportCheckOut] = Field(description="The checks of this page.")
    sorted_by: str = Field(default="-id", description="What was checked last comes first.")


class OperatorOut(ResponseSchema):
    """One operator, judged."""

    name: str = Field(description="As the compiler calls it.", examples=["aten.sort"])
    written: str = Field(description="As it stands in the file.")
    n: int = Field(description="How often it is used.")
    line: int = Field(description="Where first, from 1.")
    state: str = Field(description="supported, unsupported or unknown.", examples=["unknown"])
    basis: str = Field(
        description="What that rests on: report, refused_type, refused, list, alias, target, "
        "lowering or none."
    )
    detail: str = Field(description="The listed operator, or the compiler's error code.")
    n_failed: int = Field(description="Uses that the compiler's report saw fail.")
    n_tried: int = Field(description="Uses that it tried.")
    is_listed: bool = Field(description="Whether the published list has it, whatever the state.")
    why: str = Field(description="What the judgement rests on, in words.")
    to_do: str = Field(description="What to do about it; empty: nothing.")

    @classmethod
    def of(cls, judged: OperatorJudgement) -> Self:
        return cls(**asdict(judged), why=basis_of(judged), to_do=remedy(judged))


class SupportReportOut(ResponseSchema):
    """The compiler's own report that a check rests on."""

    file: str = Field(description="Its name.", examples=["result.json"])
    digest: str = Field(description="SHA-256 of it.")
    torch_neuronx: str | None = Field(description="Version of torch-neuronx, as it says.")
    neuronx_cc: str | None = Field(description="Version of the compiler, as it says.")


class SupportCheckDetail(SupportCheckOut):
    """A check with its operators."""

    n_listed: int = Field(description="Operators on the published list: it is no oracle.")
    list_date: str = Field(description="When that list was read.", examples=["2026-08-02"])
    report: SupportReportOut | None = Field(description="The compiler's report, if given.")
    rests_on: str = Field(description="What the judgements rest on, in words.")
    operators: list[OperatorOut] = Field(description="The worst first, then the most used.")

    @classmethod
    def of(cls, check: SupportCheck) -> Self:
        basis = check.basis
        report, n_listed, date = basis.get("report"), basis["n_listed"], basis["list_date"]
        return cls(
            **cls.values_of(check),
            n_listed=n_listed,
            list_date=date,
            report=SupportReportOut(**report) if report else None,
            rests_on=basis_sentence(n_listed, date, has_report=bool(report)),
            operators=[OperatorOut.of(each) for each in judgements_of(check)],
        )


router = Router(tags=["support checks"])
# A graph of one layer; larger files are for the page, or for `manage.py check_support`.
MAX_FILE_BYTES = 1_000_000


class SupportFilter(Paging):
    """Which checks to list."""

    trial: Text = Field("", description="Name of the trial.", examples=["bakeoff"])
    by: Text = Field("", description="Who checked.", examples=["ada"])
    verdict: Literal["", "supported", "unsupported", "unknown"] = Field(
        "",
        description="supported: all operators are; unsupported: some are not; unknown: none is "
        "known not to be, but some are unknown.",
    )


class SupportCheckIn(RequestSchema):
    """The operators to check."""

    text: str = Field(
        min_length=1,
        max_length=MAX_FILE_BYTES,
        description="The graph (torch.export or FX, HLO, StableHLO), a list of operators, or the "
        "analyzer's result.json, as text; what it is shows by itself.",
        examples=["aten.mm\naten.softmax\naten.sort\n"],
    )
    file: str = Field(
        "",
        max_length=LONGEST_FILE,
        pattern=LINE,
        description="Its name, for people.",
        examples=["rl_module.txt"],
    )
    report: str = Field(
        "",
        max_length=MAX_FILE_BYTES,
        description="The analyzer's result.json besides, as text: its word stands above lists.",
    )
    trial: str = Field(
        "", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="The trial it is checked for."
    )


@router.get("", response=SupportCheckPage, **needs("read"), summary="List support checks")
def support_list(request: HttpRequest, query: Query[SupportFilter]) -> SupportCheckPage:
    """Support checks, the one made last first."""
    checks = SupportCheck.objects.filter_by(**query.fields)
    checks = checks.select_related("trial").defer("operators", "trial__figures")
    rows, links = paginate(request, checks, query, by="-pk")
    items = [SupportCheckOut.of(row) for row in rows]
    return SupportCheckPage(items=items, next=links.next, prev=links.prev)


@router.get(
    "/{check_id}",
    response=SupportCheckDetail,
    **needs("read"),
    summary="One support check",
)
def support_one(request: HttpRequest, check_id: Path[Key]) -> SupportCheckDetail:
    """One support check, with every operator: its state, why, and what to do about it."""
    checks = SupportCheck.objects.select_related("trial").defer("trial__figures")
    return SupportCheckDetail.of(get_object_or_404(checks, pk=check_id))


@router.post(
    "",
    response={201: SupportCheckDetail},
    **needs("act", most_bytes=MAX_FILE_BYTES),
    summary="Check operators",
)
@conflict_on("trial", file="text")
def support_new(request: HttpRequest, payload: SupportCheckIn) -> Status[SupportCheckDetail]:
    """Check operators and keep what is found; 409 where no trial is called so.

    The body may have up to a megabyte. The check is the page's own, and stands beside its others.
    """
    report = SupportFile("result.json", _file(payload.report)) if payload.report else None
    trial = trial_named(payload.trial)
    checked = check_operators(
        SupportFile(payload.file, _file(payload.text)), report, most_bytes=MAX_FILE_BYTES
    )
    made = store_check(checked, by=caller(request).name, now=timezone.now(), trial=trial)
    return Status(201, SupportCheckDetail.of(made))


def _file(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode("utf-8", "replace"))
