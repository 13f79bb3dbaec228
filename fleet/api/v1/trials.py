"""Trials: which there are, one with its figures; begun and ended by leads."""

from typing import Annotated, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.v1.access import needs
from fleet.api.v1.acting import SAID, SAYING
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import NAME, POINTLESS, Body, Text, Whole
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.trials import TrialDetail, TrialOut, TrialPage
from fleet.models import Trial
from fleet.problem import ProblemError
from fleet.trials import keeping
from fleet.trials.keeping import MOST_CANDIDATES, MOST_STEPS, MOST_TOKENS, TrialError
from telemetry.compare.verdicts import DEFAULT_STEPS

router = Router(tags=["trials"])
TrialName = Annotated[
    str, Field(pattern=NAME, description="Name of a trial.", examples=["bakeoff"])
]
ArmName = Annotated[str, Field(pattern=NAME)]


class TrialFilter(Paging):
    """Which trials to list."""

    state: Literal["", "open", "over"] = Field("", description="Whether they go on.")
    team: Text = Field("", description="Whose they are, exactly.", examples=["vision"])

    def keep(self, trials: QuerySet[Trial]) -> QuerySet[Trial]:
        """Keep the trials asked for."""
        if self.state:
            trials = trials.filter(ended_at__isnull=self.state == "open")
        return trials.filter(team=self.team) if self.team else trials


class TrialIn(Body):
    """What trial to begin."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,60}$", description="Unique name.", examples=["move"]
    )
    question: str = Field(
        max_length=keeping.MAX_QUESTION,
        pattern=SAYING,
        description="What is to be decided.",
        examples=["Do we move to trn2?"],
    )
    team: str = Field("", max_length=keeping.MAX_TEAM, pattern=SAID, description="Whose it is.")
    baseline: ArmName = Field(
        description="Run that the others are compared with.", examples=["llama"]
    )
    candidates: list[ArmName] = Field(
        min_length=1,
        max_length=MOST_CANDIDATES,
        description="Runs to compare, each once.",
        examples=[["llama-2"]],
    )
    planned_steps: Whole = Field(
        DEFAULT_STEPS,
        ge=1,
        le=MOST_STEPS,
        description="Settled steps of each arm after which it is decided.",
    )
    planned_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS), POINTLESS] | None = Field(
        None,
        description="Tokens of the whole training, for the time that it takes.",
        examples=[260_000_000_000],
    )


@router.get("", response=TrialPage, openapi_extra=needs("read"), summary="List trials")
def trial_list(request: HttpRequest, asked: Query[TrialFilter]) -> TrialPage:
    """Trials, the one that was begun last first."""
    trials = Trial.objects.defer("figures").with_arms()
    rows, links = paged(request, asked.keep(trials), asked, by="-pk")
    return TrialPage(items=[TrialOut.of(row) for row in rows], next=links.next, prev=links.prev)


@router.post("", response={201: TrialDetail}, openapi_extra=needs("lead"), summary="Begin a trial")
def trial_new(request: HttpRequest, said: TrialIn) -> Status[TrialDetail]:
    """Begin a trial; its figures come within a minute. Needs the role lead."""
    try:
        made = keeping.begin(
            said.name,
            said.question,
            baseline=said.baseline,
            candidates=said.candidates,
            team=said.team,
            planned_steps=said.planned_steps,
            planned_tokens=said.planned_tokens,
            by=caller(request).name,
            now=timezone.now(),
        )
    except TrialError as error:
        status = 409 if error.field in {"name", "baseline", "candidates"} else 400
        raise ProblemError(status, str(error), field=error.field) from error
    return Status(201, TrialDetail.of(made))


@router.get("/{name}", response=TrialDetail, openapi_extra=needs("read"), summary="One trial")
def trial_one(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """One trial, with what must match, what its arms took, and each candidate's figures."""
    return TrialDetail.of(_found(name))


@router.post(
    "/{name}/end", response=TrialDetail, openapi_extra=needs("lead"), summary="End a trial"
)
def trial_end(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """End a trial: later steps do not count; 409 where it is over. Needs the role lead."""
    trial = _found(name)
    if not keeping.end(trial, now=timezone.now()):
        raise ProblemError(409, "It is over already.")
    return TrialDetail.of(trial)


def _found(name: str) -> Trial:
    return get_object_or_404(Trial.objects.with_arms(), name=name)
