"""A budget as the API tells it, and how it stands."""

from datetime import datetime
from typing import Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.alerts import LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import Key, RequestSchema, ResponseSchema, Text, Time, conflict_on
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.costs.budgets import (
    MAX_TEAM,
    MOST_USD,
    BudgetRequest,
    BudgetStatus,
    budget_status,
    end_budget,
    runs_under_budgets,
    set_budget,
)
from fleet.models import Budget
from fleet.models.problem import ProblemError


class BurnOut(ResponseSchema):
    """How a budget stands: what is spent of it, and what will have been by its end."""

    spent_usd: float = Field(description="US dollars spent in its period so far.")
    used_ratio: float = Field(description="Of the budget, 0 and up; above 1 it is overrun.")
    usd_per_hour: float = Field(description="US dollars per hour now, of all runs that burn it.")
    forecast_usd: float = Field(
        description="US dollars by its end: every run under way is paid for to its planned end, "
        "or else to the budget's, at the prices announced."
    )
    forecast_ratio: float = Field(description="Of the budget; above 1 it will be overrun.")
    will_be_overrun: bool = Field(description="Whether more will be spent than it holds.")
    used_up_at: datetime | None = Field(
        description="When the last dollar is spent, UTC; null: not before its end."
    )
    n_unpriced: int = Field(description="Runs that nobody knows the price of: in no figure here.")

    @classmethod
    def of(cls, burn: BudgetStatus) -> Self:
        return cls(
            spent_usd=round(burn.spent_usd, 2),
            used_ratio=burn.used_ratio,
            usd_per_hour=burn.usd_per_hour,
            forecast_usd=round(burn.forecast_usd, 2),
            forecast_ratio=burn.forecast_ratio,
            will_be_overrun=burn.is_over,
            used_up_at=burn.used_up_at,
            n_unpriced=burn.n_unpriced,
        )


class BudgetOut(ResponseSchema):
    """What a team, or one run, may spend in a period."""

    id: int = Field(description="Number of the budget.", examples=[4])
    team: str | None = Field(description="Whose it is; null: a run's.", examples=["LLM"])
    run: str | None = Field(description="The run it is for; null: a team's.", examples=["llama"])
    usd: float = Field(description="What may be spent, US dollars.", examples=[250000.0])
    starts_at: datetime = Field(description="From when on spending counts, UTC.")
    ends_at: datetime = Field(description="The first moment that does not count, UTC.")
    state: str = Field(
        description="ahead: not begun; current; over: its period has passed; withdrawn.",
        examples=["current"],
    )
    set_by: str = Field(description="Who set it.", examples=["ada"])
    set_at: datetime = Field(description="When it was set, UTC.")
    ended_at: datetime | None = Field(description="When it was withdrawn, UTC.")
    ended_by: str | None = Field(description="Who withdrew it.")
    burn: BurnOut | None = Field(description="How it stands; null once it is withdrawn.")

    @classmethod
    def of(cls, budget: Budget, burn: BudgetStatus | None, *, now: datetime) -> Self:
        return cls(
            **{name: getattr(budget, name) for name in SAME_FIELDS},
            team=budget.team or None,
            run=budget.run.name if budget.run else None,
            state=budget.state(now),
            ended_by=budget.ended_by or None,
            burn=BurnOut.of(burn) if burn else None,
        )


SAME_FIELDS = ("id", "usd", "starts_at", "ends_at", "set_by", "set_at", "ended_at")


class BudgetPage(PageLinks):
    """A page of budgets."""

    items: list[BudgetOut] = Field(description="The budgets of this page.")
    sorted_by: str = Field(default="-id", description="What was set last comes first.")


router = Router(tags=["budgets"])


class BudgetFilter(Paging):
    """Which budgets to list."""

    team: Text = Field("", description="Whose they are, exactly.", examples=["LLM"])
    run: Text = Field("", description="Name of the run they are for.", examples=["llama"])
    state: Literal["", "ahead", "current", "over", "withdrawn"] = Field(
        "", description="Where in their life they are."
    )


class BudgetIn(RequestSchema):
    """A budget to set: of a team or of a run, one of the two."""

    team: str = Field(
        "", max_length=MAX_TEAM, pattern=LINE, description="Whose it is.", examples=["LLM"]
    )
    run: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="Or the run it is for.")
    usd: float = Field(
        gt=0, le=MOST_USD, description="What may be spent, US dollars.", examples=[250000]
    )
    starts_at: Time = Field(
        description="From when on spending counts: RFC 3339, or Unix seconds.",
        examples=["2026-11-01T00:00:00Z"],
    )
    ends_at: Time = Field(
        description="The first moment that does not count, at most ten years later.",
        examples=["2026-12-01T00:00:00Z"],
    )


def _serialize(budgets: list[Budget]) -> list[BudgetOut]:
    now = timezone.now()
    kept = [budget for budget in budgets if budget.ended_at is None]
    runs = list(runs_under_budgets(kept)) if kept else []
    burns = {budget.pk: budget_status(budget, runs, now=now) for budget in kept}
    return [BudgetOut.of(budget, burns.get(budget.pk), now=now) for budget in budgets]


@router.get("", response=BudgetPage, **needs("lead"), summary="List budgets")
def budget_list(request: HttpRequest, query: Query[BudgetFilter]) -> BudgetPage:
    """Budgets with their burn and forecast, the one set last first. Needs the role lead."""
    budgets = Budget.objects.filter_by(now=timezone.now(), **query.fields).select_related("run")
    rows, links = paginate(request, budgets, query, by="-pk")
    return BudgetPage(items=_serialize(rows), next=links.next, prev=links.prev)


@router.get("/{budget_id}", response=BudgetOut, **needs("lead"), summary="One budget")
def budget_one(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """One budget, with its burn and forecast. Needs the role lead."""
    return _serialize([_get_budget(budget_id)])[0]


@router.post("", response={201: BudgetOut}, **needs("lead"), summary="Set a budget")
@conflict_on("run")
def budget_new(request: HttpRequest, payload: BudgetIn) -> Status[BudgetOut]:
    """Set a budget; 409 where no run is called so. Needs the role lead."""
    budget = set_budget(
        BudgetRequest(**payload.model_dump()), by=caller(request).name, now=timezone.now()
    )
    return Status(201, _serialize([budget])[0])


@router.post(
    "/{budget_id}/end",
    response=BudgetOut,
    **needs("lead"),
    summary="Withdraw a budget",
)
def budget_end(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Withdraw a budget: it is watched no more; 409 where it was. Needs the role lead."""
    budget = _get_budget(budget_id)
    if not end_budget(budget, by=caller(request).name, now=timezone.now()):
        raise ProblemError(409, "It was withdrawn already.")
    return _serialize([_get_budget(budget_id)])[0]


def _get_budget(number: int) -> Budget:
    return get_object_or_404(Budget.objects.select_related("run"), pk=number)
