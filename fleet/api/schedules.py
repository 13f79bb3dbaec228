"""A trial's schedule as the API tells it: what `manage.py project --json` prints, and of what."""

from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Schema

from fleet.api.auth import needs
from fleet.api.fields import NAME, ResponseSchema, conflict_on
from fleet.api.trials import TrialName
from fleet.formatting import NBSP
from fleet.models import Trial
from fleet.models.problem import ProblemError
from fleet.trials.schedule import REUSES
from fleet.trials.schedule_forms import (
    DAYS,
    LEAST_DAYS,
    MOST_DAYS,
    MOST_FAILURES,
    MOST_TOKENS,
    MOST_USD,
    ScheduleRequest,
)
from fleet.trials.schedule_text import as_json, schedule_of


class SpanOut(ResponseSchema):
    """A figure as expected, and its 95 % interval; an end that is infinite is null."""

    value: float = Field(description="As expected.")
    low: float | None = Field(description="Lower end.")
    high: float | None = Field(description="Upper end.")


class AssumptionOut(ResponseSchema):
    """One assumed figure."""

    name: str = Field(description="Which; units end it.", examples=["failures_per_node_day"])
    value: float = Field(description="The figure.")
    low: float | None = Field(description="Lower end of its 95 % interval, where it has one.")
    high: float | None = Field(description="Upper end.")
    basis: str = Field(description="Where it comes from, in words.")


class ScheduledArm(ResponseSchema):
    """One arm and its assumptions."""

    label: str = Field(description="What it is called.", examples=["4 \u00d7 trn2.48xlarge"])
    run: str | None = Field(description="Name of its run.", examples=["llama"])
    instance_type: str | None = Field(description="On what.", examples=["trn2.48xlarge"])
    nodes: int = Field(description="Number of nodes.")
    assumptions: list[AssumptionOut] = Field(description="Every figure, with where it is from.")


class ArmCostOut(ResponseSchema):
    """What one arm costs: over the same days, and for the same tokens."""

    label: str = Field(description="What it is called.")
    run: str | None = Field(description="Name of its run.")
    start_days: float = Field(description="Days until its first step.")
    usd_at_first_step: float = Field(description="US dollars by then, porting included.")
    same_days_usd: float = Field(description="US dollars of the schedule's days.")
    same_days_tokens: SpanOut = Field(description="Tokens trained in them.")
    usd_per_mtok: SpanOut | None = Field(description="US dollars per million of those.")
    same_tokens_usd: SpanOut = Field(description="US dollars of the schedule's tokens.")
    same_tokens_days: SpanOut = Field(description="Days that they take.")


class BreakEvenOut(ResponseSchema):
    """When the candidate has earned back its start."""

    reason: str = Field(
        description="earned back, ahead from the start, dearer per token, or dearer per token, "
        "ahead at first."
    )
    days: SpanOut | None = Field(description="After how many days; null: never.")
    tokens: float | None = Field(description="After how many tokens; null: never.")
    chance_ratio: float = Field(description="How likely it comes at all, 0 to 1.")


class CurveOut(ResponseSchema):
    """Dollars of one arm, point by point."""

    usd: list[float] = Field(description="As expected.")
    low: list[float] = Field(description="Lower end of the 95 % interval.")
    high: list[float] = Field(description="Upper end.")


class CurvesOut(ResponseSchema):
    """Dollars by day: of the candidate, and of the baseline for the same tokens."""

    days: list[float] = Field(description="Days since the start.")
    tokens: list[float] = Field(description="Tokens that the candidate has trained by then.")
    candidate: CurveOut = Field(description="Of the candidate.")
    baseline: CurveOut = Field(description="Of the baseline, for as many tokens.")


class ScenarioOut(ResponseSchema):
    """One way to go: with compiled graphs reused, or not."""

    has_reuse: bool = Field(description="Whether compiled graphs are reused.")
    arms: list[ArmCostOut] = Field(description="What each arm costs, the baseline first.")
    break_even: BreakEvenOut | None = Field(description="When the move has paid off.")
    saved_usd: SpanOut | None = Field(
        description="US dollars that the candidate saves for the same tokens; below 0: costs."
    )
    extra_days: SpanOut | None = Field(
        description="Days that the candidate takes longer for the same tokens; below 0: shorter."
    )
    curves: CurvesOut | None = Field(description="What a chart of it draws.")


class SavedOut(ResponseSchema):
    """What keeping compiled graphs saves one arm, for the same tokens."""

    label: str = Field(description="What the arm is called.")
    usd: SpanOut = Field(description="US dollars.")
    days: SpanOut = Field(description="Days.")


class EqualScenarioOut(ResponseSchema):
    """One way to go, at list prices of one kind."""

    has_reuse: bool = Field(description="Whether compiled graphs are reused.")
    saved_usd: SpanOut | None = Field(description="US dollars that the candidate saves.")
    break_even: BreakEvenOut | None = Field(description="When the move has paid off.")


class EqualKindOut(ResponseSchema):
    """The schedule at list prices of one kind."""

    kind: str = Field(description="Which kind.", examples=["capacity block"])
    baseline_usd_per_node_hour: float = Field(description="The baseline's list price.")
    candidate_usd_per_node_hour: float = Field(description="The candidate's.")
    scenarios: list[EqualScenarioOut] = Field(description="With graphs reused, then without.")


class ScheduleKindsOut(ResponseSchema):
    """On which terms the arms are paid, and what holds at equal terms."""

    baseline: str = Field(description="Kind of the baseline's price; empty: not stated.")
    candidate: str = Field(description="Kind of the candidate's.", examples=["capacity block"])
    is_alike: bool = Field(description="Whether they are one kind.")
    at_equal: list[EqualKindOut] = Field(
        description="Where they are not: at each kind that the catalogue lists for both."
    )


class ScheduleOut(ResponseSchema):
    """A trial's schedule."""

    trial: str = Field(description="Name of the trial.", examples=["bakeoff"])
    as_of: datetime = Field(description="When its arms were last looked at, UTC.")
    sentence: str = Field(description="Whether it pays, in words.")
    reuse_sentence: str = Field(description="What a compile cache saves, in words.")
    days: float = Field(description="Days of the candidate's schedule.", examples=[14.0])
    porting_usd: float = Field(description="What porting costs, US dollars.")
    tokens: float = Field(description="The work that every cost is told for.")
    arms: list[ScheduledArm] = Field(description="The baseline, then the candidate.")
    scenarios: list[ScenarioOut] = Field(description="With graphs reused, then without.")
    reuse_saves: list[SavedOut] = Field(description="What reuse saves each arm.")
    price_kinds: ScheduleKindsOut | None = Field(
        default=None, description="On which terms the arms are paid; null where nobody said."
    )
    assumed_sentence: str = Field(
        description="Of which arms the pace is assumed; empty where all were measured."
    )


router = Router(tags=["trials"])
NOT_COMPUTED = "Its arms were not looked at yet: that is done every five minutes."


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


@router.get("/{name}/schedule", response=ScheduleOut, **needs("read"), summary="Its schedule")
@conflict_on("trial", "candidate")
def trial_schedule(
    request: HttpRequest, name: Path[TrialName], query: Query[ScheduleAsked]
) -> ScheduleOut:
    """Project a run of any length: what `manage.py project --trial NAME --json` prints.

    409 where an arm cannot be projected, or no candidate is called so.
    """
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    has_reuse = query.reuse != "no"
    given = ScheduleRequest(has_reuse=has_reuse, **query.model_dump(exclude={"reuse"}))
    found = schedule_of(trial, given)
    if found is None:
        raise ProblemError(409, NOT_COMPUTED, field="trial")
    told = as_json(found.found, found.planned, reuses=(has_reuse,) if query.reuse else REUSES)
    return ScheduleOut(
        trial=name,
        as_of=found.as_of,
        sentence=found.sentence.replace(NBSP, " "),
        reuse_sentence=found.reuse_sentence.replace(NBSP, " "),
        assumed_sentence=found.assumed_sentence.replace(NBSP, " "),
        **told,
    )
