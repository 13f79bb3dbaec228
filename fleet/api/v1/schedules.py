"""A trial's schedule: what a long run costs on its arms, and when the move has paid off."""

from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Schema

from fleet.api.v1.access import needs
from fleet.api.v1.fields import NAME
from fleet.api.v1.shapes.schedules import ScheduleOut
from fleet.api.v1.trials import TrialName
from fleet.models import Trial
from fleet.problem import ProblemError
from fleet.projecting.answers import as_json
from fleet.projecting.asking import (
    DAYS,
    LEAST_DAYS,
    MOST_DAYS,
    MOST_FAILURES,
    MOST_TOKENS,
    MOST_USD,
    Asked,
)
from fleet.projecting.planned import ScheduleError
from fleet.projecting.projecting import REUSES
from fleet.projecting.working import schedule_of
from fleet.templatetags.units import NBSP

router = Router(tags=["trials"])
NOT_YET = "Its arms were not looked at yet: that is done every five minutes."


class ScheduleAsked(Schema):
    """How long the run is to be, and what is known better than it was seen."""

    days: float = Field(
        DAYS, ge=LEAST_DAYS, le=MOST_DAYS, description="Length of the run.", examples=[14]
    )
    tokens: float | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="Instead of days: as long as the candidate trains on so many.",
    )
    porting_usd: float = Field(
        0.0, ge=0, le=MOST_USD, description="What porting costs, US dollars.", examples=[2000]
    )
    failures: float | None = Field(
        None, ge=0, le=MOST_FAILURES, description="Per node and day; left out: as seen."
    )
    candidate: Annotated[str, Field(pattern=rf"(^$|{NAME})")] = Field(
        "", description="Run of the candidate; left out: the first."
    )
    reuse: Literal["", "yes", "no"] = Field(
        "", description="Only with compiled graphs reused, or only without; left out: both."
    )


@router.get(
    "/{name}/schedule", response=ScheduleOut, openapi_extra=needs("read"), summary="Its schedule"
)
def trial_schedule(
    request: HttpRequest, name: Path[TrialName], asked: Query[ScheduleAsked]
) -> ScheduleOut:
    """Project a run of any length: what `manage.py project --trial NAME --json` prints.

    409 where an arm cannot be projected, or no candidate is called so.
    """
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    has_reuse = asked.reuse != "no"
    given = Asked(has_reuse=has_reuse, **asked.model_dump(exclude={"reuse"}))
    try:
        found = schedule_of(trial, given)
    except ScheduleError as error:
        status = 409 if error.field in {"trial", "candidate"} else 400
        raise ProblemError(status, f"{error}.", field=error.field) from error
    if found is None:
        raise ProblemError(409, NOT_YET, field="trial")
    told = as_json(found.found, found.planned, reuses=(has_reuse,) if asked.reuse else REUSES)
    return ScheduleOut(
        trial=name,
        as_of=found.as_of,
        sentence=found.sentence.replace(NBSP, " "),
        reuse_sentence=found.reuse_sentence.replace(NBSP, " "),
        assumed_sentence=found.assumed_sentence.replace(NBSP, " "),
        **told,
    )
