"""Schedules of trials: what `manage.py project --json` prints."""

from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Schema

from fleet.api.auth import needs
from fleet.api.fields import NAME, ResponseSchema, TrialName, conflict_on
from fleet.formatting import NBSP
from fleet.models import Trial
from fleet.models.problem import ProblemError
from fleet.trials.schedule import REUSES
from fleet.trials.schedule_forms import (
    DAYS,
    ENGINEERS,
    LEAST_DAYS,
    MOST_DAYS,
    MOST_FAILURES,
    MOST_TOKENS,
    MOST_USD,
    ScheduleRequest,
)
from fleet.trials.schedule_text import as_json, schedule_of


class SpanOut(ResponseSchema):
    """An expected value and its 95 % interval; an infinite end is null."""

    value: float = Field(description="Expected value.")
    low: float | None = Field(description="Lower end.")
    high: float | None = Field(description="Upper end.")


class AssumptionOut(ResponseSchema):
    """One assumption."""

    name: str = Field(description="Name with unit.", examples=["failures_per_node_day"])
    value: float = Field(description="Its value.")
    low: float | None = Field(description="Lower end of its 95 % interval, if it has one.")
    high: float | None = Field(description="Upper end.")
    basis: str = Field(description="Its source, as text.")


class ScheduledArm(ResponseSchema):
    """One arm and its assumptions."""

    label: str = Field(description="Label of the arm.", examples=["4 \u00d7 trn2.48xlarge"])
    run: str | None = Field(description="Name of its run.", examples=["llama"])
    instance_type: str | None = Field(description="Instance type.", examples=["trn2.48xlarge"])
    nodes: int = Field(description="Number of nodes.")
    assumptions: list[AssumptionOut] = Field(description="Its assumptions with their sources.")


class ArmCostOut(ResponseSchema):
    """Cost of one arm, over the same days and for the same tokens."""

    label: str = Field(description="Label of the arm.")
    run: str | None = Field(description="Name of its run.")
    start_days: float = Field(description="Days until its first step.")
    usd_at_first_step: float = Field(description="US dollars by then, porting included.")
    same_days_usd: float = Field(description="US dollars of the schedule's days.")
    same_days_tokens: SpanOut = Field(description="Tokens trained in these days.")
    usd_per_mtok: SpanOut | None = Field(description="US dollars per million of these tokens.")
    same_tokens_usd: SpanOut = Field(description="US dollars of the schedule's tokens.")
    same_tokens_days: SpanOut = Field(description="Days for these tokens.")


class BreakEvenOut(ResponseSchema):
    """When the candidate has paid back its initial cost."""

    reason: str = Field(
        description="earned back, ahead from the start, dearer per token, or dearer per token, "
        "ahead at first."
    )
    days: SpanOut | None = Field(description="After how many days; null: never.")
    tokens: float | None = Field(description="After how many tokens; null: never.")
    chance_ratio: float = Field(description="Probability that it is ever reached, 0 to 1.")


class CurveOut(ResponseSchema):
    """Cost of one arm in US dollars, by point."""

    usd: list[float] = Field(description="Expected value.")
    low: list[float] = Field(description="Lower end of the 95 % interval.")
    high: list[float] = Field(description="Upper end.")


class CurvesOut(ResponseSchema):
    """Cost by day of the candidate, and of the baseline for the same tokens."""

    days: list[float] = Field(description="Days since the start.")
    tokens: list[float] = Field(description="Tokens that the candidate has trained by then.")
    candidate: CurveOut = Field(description="Cost of the candidate.")
    baseline: CurveOut = Field(description="Cost of the baseline for the same tokens.")


class ScenarioOut(ResponseSchema):
    """One scenario: with or without reuse of compiled graphs."""

    has_reuse: bool = Field(description="Whether compiled graphs are reused.")
    arms: list[ArmCostOut] = Field(description="Cost of each arm, the baseline first.")
    break_even: BreakEvenOut | None = Field(description="When the move pays off.")
    saved_usd: SpanOut | None = Field(
        description="US dollars that the candidate saves for the same tokens; negative: costs."
    )
    extra_days: SpanOut | None = Field(
        description="Additional days of the candidate for the same tokens; negative: fewer."
    )
    curves: CurvesOut | None = Field(description="Data of its chart.")


class SavedOut(ResponseSchema):
    """What reuse of compiled graphs saves one arm, for the same tokens."""

    label: str = Field(description="Label of the arm.")
    usd: SpanOut = Field(description="US dollars.")
    days: SpanOut = Field(description="Days.")


class EqualScenarioOut(ResponseSchema):
    """One scenario at list prices of one kind."""

    has_reuse: bool = Field(description="Whether compiled graphs are reused.")
    saved_usd: SpanOut | None = Field(description="US dollars that the candidate saves.")
    break_even: BreakEvenOut | None = Field(description="When the move pays off.")


class EqualKindOut(ResponseSchema):
    """The schedule at list prices of one kind."""

    kind: str = Field(description="The kind.", examples=["capacity block"])
    baseline_usd_per_node_hour: float = Field(description="The baseline's list price.")
    candidate_usd_per_node_hour: float = Field(description="The candidate's list price.")
    scenarios: list[EqualScenarioOut] = Field(description="With graphs reused, then without.")


class ScheduleKindsOut(ResponseSchema):
    """Pricing terms of the arms, and the schedule on equal terms."""

    baseline: str = Field(description="Kind of the baseline's price; empty: not stated.")
    candidate: str = Field(description="The candidate's kind.", examples=["capacity block"])
    is_alike: bool = Field(description="Whether they are the same.")
    at_equal: list[EqualKindOut] = Field(
        description="If they differ: the schedule at each kind that the catalog lists for both."
    )


class ScheduleOut(ResponseSchema):
    """A trial's schedule."""

    trial: str = Field(description="Name of the trial.", examples=["bakeoff"])
    as_of: datetime = Field(description="When its arms were last measured, UTC.")
    sentence: str = Field(description="Whether the move pays off, as text.")
    reuse_sentence: str = Field(description="What a compile cache saves, as text.")
    days: float = Field(description="Days of the candidate's schedule.", examples=[14.0])
    porting_usd: float = Field(description="Cost of porting with the engineers' days, US dollars.")
    waiting_usd_per_day: float = Field(description="Cost per day of the engineers who wait.")
    tokens: float = Field(description="Tokens that every cost is for.")
    arms: list[ScheduledArm] = Field(description="The baseline, then the candidate.")
    scenarios: list[ScenarioOut] = Field(description="With graphs reused, then without.")
    reuse_saves: list[SavedOut] = Field(description="What reuse saves each arm.")
    price_kinds: ScheduleKindsOut | None = Field(
        default=None, description="Pricing terms of the arms; null if unknown."
    )
    assumed_sentence: str = Field(
        description="Arms with an assumed pace; empty if all were measured."
    )


router = Router(tags=["trials"])
NOT_COMPUTED = "Its arms were not measured yet. They are measured every five minutes."


class ScheduleAsked(Schema):
    """Length of the run, and assumptions to replace."""

    days: float = Field(
        DAYS, ge=LEAST_DAYS, le=MOST_DAYS, description="Length of the run.", examples=[14]
    )
    tokens: float | None = Field(
        None, ge=1, le=MOST_TOKENS, description="Tokens to train, instead of days."
    )
    porting_usd: float = Field(
        0.0, ge=0, le=MOST_USD, description="Cost of porting, US dollars.", examples=[2000]
    )
    failures: float | None = Field(
        None, ge=0, le=MOST_FAILURES, description="Per node and day. Default: as observed."
    )
    porting_days: float = Field(
        0.0, ge=0, le=ENGINEERS["porting_days"], description="Days that one engineer ports."
    )
    waiting_engineers: float = Field(
        0.0, ge=0, le=ENGINEERS["waiting_engineers"], description="Engineers who wait for the run."
    )
    engineer_usd: float = Field(
        0.0, ge=0, le=ENGINEERS["engineer_usd"], description="US dollars per day of one engineer."
    )
    candidate: Annotated[str, Field(pattern=rf"(^$|{NAME})")] = Field(
        "", description="Run of the candidate. Default: the first."
    )
    reuse: Literal["", "yes", "no"] = Field(
        "", description="Only with, or only without reuse of compiled graphs. Default: both."
    )


@router.get("/{name}/schedule", response=ScheduleOut, **needs("read"), summary="One schedule")
@conflict_on("trial", "candidate")
def trial_schedule(
    request: HttpRequest, name: Path[TrialName], query: Query[ScheduleAsked]
) -> ScheduleOut:
    """Project a run of any length, as `manage.py project --trial NAME --json` does.

    409 if an arm cannot be projected, or the candidate does not exist.
    """
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    has_reuse = query.reuse != "no"
    given = ScheduleRequest(has_reuse=has_reuse, **query.model_dump(exclude={"reuse"}))
    found = schedule_of(trial, given)
    if found is None:
        raise ProblemError(409, NOT_COMPUTED, field="trial")
    reuses = (has_reuse,) if query.reuse else REUSES
    return ScheduleOut(
        trial=name,
        as_of=found.as_of,
        sentence=found.sentence.replace(NBSP, " "),
        reuse_sentence=found.reuse_sentence.replace(NBSP, " "),
        assumed_sentence=found.assumed_sentence.replace(NBSP, " "),
        **as_json(found.found, found.planned, reuses=reuses),
    )
