"""Schedules of trials: what `manage.py project --json` prints."""

from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Schema

from fleet.api.auth import needs
from fleet.api.fields import NAME, ResponseSchema, TrialName, conflict_on, doc
from fleet.formatting import NBSP
from fleet.models import Trial
from fleet.models.problem import ProblemError
from fleet.trials.schedule import (
    REUSES,
    ArmCost,
    BreakEvenPoint,
    Projection,
    Range,
    ReuseScenario,
    Saved,
)
from fleet.trials.schedule_arms import Assumption, Planned
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
from fleet.trials.verdict import CommonKind, PriceKinds


class SpanOut(ResponseSchema, source=Range):
    """An expected value and its 95 % interval; an infinite end is null."""

    value = doc("Expected value.")
    low = doc("Lower end.")
    high = doc("Upper end.")


class AssumptionOut(ResponseSchema, source=Assumption):
    """One assumption."""

    name = doc("Name with unit.", "failures_per_node_day")
    value = doc("Its value.")
    low = doc("Lower end of its 95 % interval, if it has one.")
    high = doc("Upper end.")
    basis = doc("Its source, as text.")


class ScheduledArm(ResponseSchema, source=Planned):
    """One arm and its assumptions."""

    label = doc("Label of the arm.", "4 \u00d7 trn2.48xlarge")
    run = doc("Name of its run.", "llama")
    instance_type: str | None = doc("Instance type.", "trn2.48xlarge")
    nodes: int = doc("Number of nodes.")
    assumptions: list[AssumptionOut] = doc("Its assumptions with their sources.")


class ArmCostOut(ResponseSchema, source=ArmCost):
    """Cost of one arm, over the same days and for the same tokens."""

    label = doc("Label of the arm.")
    run = doc("Name of its run.")
    start_days = doc("Days until its first step.")
    usd_at_first_step = doc("US dollars by then, porting included.")
    same_days_usd = doc("US dollars of the schedule's days.")
    same_days_tokens: SpanOut = doc("Tokens trained in these days.")
    usd_per_mtok: SpanOut | None = doc("US dollars per million of these tokens.")
    same_tokens_usd: SpanOut = doc("US dollars of the schedule's tokens.")
    same_tokens_days: SpanOut = doc("Days for these tokens.")


class BreakEvenOut(ResponseSchema, source=BreakEvenPoint):
    """When the candidate has paid back its initial cost."""

    reason = doc(
        "earned back, ahead from the start, dearer per token, or dearer per token, ahead at first."
    )
    days: SpanOut | None = doc("After how many days; null: never.")
    tokens = doc("After how many tokens; null: never.")
    chance_ratio = doc("Probability that it is ever reached, 0 to 1.")


class CurveOut(ResponseSchema):
    """Cost of one arm in US dollars, by point."""

    usd: list[float] = doc("Expected value.")
    low: list[float] = doc("Lower end of the 95 % interval.")
    high: list[float] = doc("Upper end.")


class CurvesOut(ResponseSchema):
    """Cost by day of the candidate, and of the baseline for the same tokens."""

    days: list[float] = doc("Days since the start.")
    tokens: list[float] = doc("Tokens that the candidate has trained by then.")
    candidate: CurveOut = doc("Cost of the candidate.")
    baseline: CurveOut = doc("Cost of the baseline for the same tokens.")


class ScenarioOut(ResponseSchema, source=ReuseScenario):
    """One scenario: with or without reuse of compiled graphs."""

    has_reuse = doc("Whether compiled graphs are reused.")
    arms: list[ArmCostOut] = doc("Cost of each arm, the baseline first.")
    break_even: BreakEvenOut | None = doc("When the move pays off.")
    saved_usd: SpanOut | None = doc(
        "US dollars that the candidate saves for the same tokens; negative: costs."
    )
    extra_days: SpanOut | None = doc(
        "Additional days of the candidate for the same tokens; negative: fewer."
    )
    curves: CurvesOut | None = doc("Data of its chart.")


class SavedOut(ResponseSchema, source=Saved):
    """What reuse of compiled graphs saves one arm, for the same tokens."""

    label = doc("Label of the arm.")
    usd: SpanOut = doc("US dollars.")
    days: SpanOut = doc("Days.")


class EqualScenarioOut(ResponseSchema, source=ReuseScenario):
    """One scenario at list prices of one kind."""

    has_reuse = doc("Whether compiled graphs are reused.")
    saved_usd: SpanOut | None = doc("US dollars that the candidate saves.")
    break_even: BreakEvenOut | None = doc("When the move pays off.")


class EqualKindOut(ResponseSchema, source=CommonKind):
    """The schedule at list prices of one kind."""

    kind = doc("The kind.", "capacity block")
    baseline_usd_per_node_hour: float = doc("The baseline's list price.")
    candidate_usd_per_node_hour: float = doc("The candidate's list price.")
    scenarios: list[EqualScenarioOut] = doc("With graphs reused, then without.")


class ScheduleKindsOut(ResponseSchema, source=PriceKinds):
    """Pricing terms of the arms, and the schedule on equal terms."""

    baseline = doc("Kind of the baseline's price; empty: not stated.")
    candidate = doc("The candidate's kind.", "capacity block")
    is_alike = doc("Whether they are the same.")
    at_equal: list[EqualKindOut] = doc(
        "If they differ: the schedule at each kind that the catalog lists for both."
    )


class ScheduleOut(ResponseSchema, source=Projection):
    """A trial's schedule."""

    trial: str = doc("Name of the trial.", "bakeoff")
    as_of: datetime = doc("When its arms were last measured, UTC.")
    sentence: str = doc("Whether the move pays off, as text.")
    reuse_sentence: str = doc("What a compile cache saves, as text.")
    days = doc("Days of the candidate's schedule.", 14.0)
    porting_usd = doc("Cost of porting with the engineers' days, US dollars.")
    waiting_usd_per_day = doc("Cost per day of the engineers who wait.")
    tokens = doc("Tokens that every cost is for.")
    arms: list[ScheduledArm] = doc("The baseline, then the candidate.")
    scenarios: list[ScenarioOut] = doc("With graphs reused, then without.")
    reuse_saves: list[SavedOut] = doc("What reuse saves each arm.")
    price_kinds: ScheduleKindsOut | None = doc(
        "Pricing terms of the arms; null if unknown.", default=None
    )
    assumed_sentence: str = doc("Arms with an assumed pace; empty if all were measured.")


router = Router(tags=["trials"])
NOT_COMPUTED = "Its arms were not measured yet. They are measured every five minutes."


class ScheduleAsked(Schema):
    """Length of the run, and assumptions to replace."""

    days: float = doc("Length of the run.", 14, default=DAYS, ge=LEAST_DAYS, le=MOST_DAYS)
    tokens: float | None = doc(
        "Tokens to train, instead of days.", default=None, ge=1, le=MOST_TOKENS
    )
    porting_usd: float = doc("Cost of porting, US dollars.", 2000, default=0.0, ge=0, le=MOST_USD)
    failures: float | None = doc(
        "Per node and day. Default: as observed.", default=None, ge=0, le=MOST_FAILURES
    )
    porting_days: float = doc(
        "Days that one engineer ports.", default=0.0, ge=0, le=ENGINEERS["porting_days"]
    )
    waiting_engineers: float = doc(
        "Engineers who wait for the run.", default=0.0, ge=0, le=ENGINEERS["waiting_engineers"]
    )
    engineer_usd: float = doc(
        "US dollars per day of one engineer.", default=0.0, ge=0, le=ENGINEERS["engineer_usd"]
    )
    candidate: Annotated[str, Field(pattern=rf"(^$|{NAME})")] = doc(
        "Run of the candidate. Default: the first.", default=""
    )
    reuse: Literal["", "yes", "no"] = doc(
        "Only with, or only without reuse of compiled graphs. Default: both.", default=""
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
    schedule = schedule_of(trial, given)
    if schedule is None:
        raise ProblemError(409, NOT_COMPUTED, field="trial")
    reuses = (has_reuse,) if query.reuse else REUSES
    return ScheduleOut(
        trial=name,
        as_of=schedule.as_of,
        sentence=schedule.sentence.replace(NBSP, " "),
        reuse_sentence=schedule.reuse_sentence.replace(NBSP, " "),
        assumed_sentence=schedule.assumed_sentence.replace(NBSP, " "),
        **as_json(schedule.found, schedule.planned, reuses=reuses),
    )
