"""Support checks: which there are, one with its operators; made from text by operators."""

import io
from typing import Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.v1.access import needs
from fleet.api.v1.acting import SAID
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import Body, Key, Text
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.support import SupportCheckDetail, SupportCheckOut, SupportCheckPage
from fleet.models import SupportCheck
from fleet.problem import ProblemError
from fleet.support.checking import LONGEST_FILE, CheckError, Given, check, keep, trial_named

router = Router(tags=["support checks"])
# A graph of one layer; larger files are for the page, or for `manage.py check_support`.
MOST_BYTES = 1_000_000
FIELDS = {"file": "text"}


class SupportFilter(Paging):
    """Which checks to list."""

    trial: Text = Field("", description="Name of the trial.", examples=["bakeoff"])
    by: Text = Field("", description="Who checked.", examples=["ada"])
    verdict: Literal["", "supported", "unsupported", "unknown"] = Field(
        "",
        description="supported: all operators are; unsupported: some are not; unknown: none is "
        "known not to be, but some are unknown.",
    )

    def keep(self, checks: QuerySet[SupportCheck]) -> QuerySet[SupportCheck]:
        """Keep the checks asked for."""
        plain = {"trial__name": self.trial, "by": self.by}
        checks = checks.filter(**{name: value for name, value in plain.items() if value})
        verdicts: dict[str, dict[str, int]] = {
            "": {},
            "supported": {"n_unsupported": 0, "n_unknown": 0},
            "unsupported": {"n_unsupported__gt": 0},
            "unknown": {"n_unsupported": 0, "n_unknown__gt": 0},
        }
        return checks.filter(**verdicts[self.verdict])


class SupportCheckIn(Body):
    """The operators to check."""

    text: str = Field(
        min_length=1,
        max_length=MOST_BYTES,
        description="The graph (torch.export or FX, HLO, StableHLO), a list of operators, or the "
        "analyzer's result.json, as text; what it is shows by itself.",
        examples=["aten.mm\naten.softmax\naten.sort\n"],
    )
    file: str = Field(
        "",
        max_length=LONGEST_FILE,
        pattern=SAID,
        description="Its name, for people.",
        examples=["rl_module.txt"],
    )
    report: str = Field(
        "",
        max_length=MOST_BYTES,
        description="The analyzer's result.json besides, as text: its word stands above lists.",
    )
    trial: str = Field(
        "", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="The trial it is checked for."
    )


@router.get(
    "", response=SupportCheckPage, openapi_extra=needs("read"), summary="List support checks"
)
def support_list(request: HttpRequest, asked: Query[SupportFilter]) -> SupportCheckPage:
    """Support checks, the one made last first."""
    checks = SupportCheck.objects.select_related("trial").defer("operators", "trial__figures")
    rows, links = paged(request, asked.keep(checks), asked, by="-pk")
    items = [SupportCheckOut.of(row) for row in rows]
    return SupportCheckPage(items=items, next=links.next, prev=links.prev)


@router.get(
    "/{check_id}",
    response=SupportCheckDetail,
    openapi_extra=needs("read"),
    summary="One support check",
)
def support_one(request: HttpRequest, check_id: Path[Key]) -> SupportCheckDetail:
    """One support check, with every operator: its state, why, and what to do about it."""
    checks = SupportCheck.objects.select_related("trial").defer("trial__figures")
    return SupportCheckDetail.of(get_object_or_404(checks, pk=check_id))


@router.post(
    "",
    response={201: SupportCheckDetail},
    openapi_extra=needs("act", most_bytes=MOST_BYTES),
    summary="Check operators",
)
def support_new(request: HttpRequest, said: SupportCheckIn) -> Status[SupportCheckDetail]:
    """Check operators and keep what is found; 409 where no trial is called so.

    The body may have up to a megabyte. The check is the page's own, and stands beside its others.
    """
    report = Given("result.json", _file(said.report)) if said.report else None
    try:
        trial = trial_named(said.trial)
        checked = check(Given(said.file, _file(said.text)), report, most_bytes=MOST_BYTES)
    except CheckError as error:
        status = 409 if error.field == "trial" else 400
        field = FIELDS.get(error.field, error.field)
        raise ProblemError(status, f"{field}: {error.message}.", field=field) from error
    made = keep(checked, by=caller(request).name, now=timezone.now(), trial=trial)
    return Status(201, SupportCheckDetail.of(made))


def _file(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode("utf-8", "replace"))
