"""Budgets of teams and runs, and their status."""

from typing import Literal

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
    Time,
    conflict_on,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
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

router = Router(tags=["budgets"])


class BurnOut(ResponseSchema, source=BudgetStatus):
    """Status of a budget: what is spent, and the forecast for its end."""

    spent_usd = doc("US dollars spent in its period so far.")
    used_ratio = doc("Spent over budget; above 1 it is overrun.")
    usd_per_hour = doc("US dollars per hour now, of all its runs.")
    forecast_usd = doc(
        "US dollars by its end: every active run is counted to its planned end, or else to the "
        "end of the budget, at announced prices."
    )
    forecast_ratio = doc("Forecast over budget; above 1 it will be overrun.")
    will_be_overrun: bool = doc("Whether the forecast is above the budget.")
    used_up_at = doc("When it is used up, UTC; null: not before its end.")
    n_unpriced = doc("Runs without a known price; they are not included.")


def burn_values(burn: BudgetStatus) -> dict[str, object]:
    """Return the values of `BurnOut` that are not attributes of the status."""
    return {
        "spent_usd": round(burn.spent_usd, 2),
        "forecast_usd": round(burn.forecast_usd, 2),
        "will_be_overrun": burn.is_over,
    }


class BudgetOut(ResponseSchema, source=Budget):
    """What a team, or one run, may spend in a period."""

    id = doc("Number of the budget.", 4)
    team: NullableText = doc("Its team; null: it is of a run.", "LLM")
    run: NullableText = doc("Its run; null: it is of a team.", "llama")
    usd = doc("The budget in US dollars.", 250000.0)
    starts_at = doc("Start of its period, UTC.")
    ends_at = doc("End of its period, exclusive, UTC.")
    state: str = doc(
        "ahead: not started; current; over: its period has ended; withdrawn.", "current"
    )
    set_by = doc("Who set it.", "ada")
    set_at = doc("When it was set, UTC.")
    ended_at = doc("When it was withdrawn, UTC.")
    ended_by: NullableText = doc("Who withdrew it.")
    burn: BurnOut | None = doc("Its status; null once it is withdrawn.")


class BudgetPage(NewestFirst[BudgetOut]):
    """A page of budgets."""


class BudgetFilter(Paging):
    """Filter of budgets."""

    team: Text = doc("Team, exact match.", "LLM", default="")
    run: Text = doc("Name of the run.", "llama", default="")
    state: Literal["", "ahead", "current", "over", "withdrawn"] = doc(
        "State of the budget.", default=""
    )


class BudgetIn(RequestSchema):
    """A budget to set, of either a team or a run."""

    team: str = doc("Its team.", "LLM", default="", max_length=MAX_TEAM, pattern=LINE)
    run: str = doc("Or its run.", default="", pattern=OPTIONAL_SLUG)
    usd: float = doc("The budget in US dollars.", 250000, gt=0, le=MOST_USD)
    starts_at: Time = doc("Start of its period: RFC 3339 or Unix seconds.", "2026-11-01T00:00:00Z")
    ends_at: Time = doc(
        "End of its period, exclusive; at most ten years later.", "2026-12-01T00:00:00Z"
    )


def _serialize(budgets: list[Budget]) -> list[BudgetOut]:
    now = timezone.now()
    kept = [budget for budget in budgets if budget.ended_at is None]
    runs = list(runs_under_budgets(kept)) if kept else []
    burns = {}
    for budget in kept:
        burn = budget_status(budget, runs, now=now)
        burns[budget.pk] = BurnOut.from_object(burn, **burn_values(burn))
    return [
        BudgetOut.from_object(budget, state=budget.state(now), burn=burns.get(budget.pk))
        for budget in budgets
    ]


@router.get("", response=BudgetPage, **needs("lead"), summary="List budgets")
def budget_list(request: HttpRequest, query: Query[BudgetFilter]) -> BudgetPage:
    """List budgets with their status, newest first. Needs the role lead."""
    budgets = Budget.objects.filter_by(now=timezone.now(), **query.fields).select_related("run")
    rows, links = paginate(request, budgets, query, by="-pk")
    return BudgetPage(items=_serialize(rows), **links)


@router.get("/{budget_id}", response=BudgetOut, **needs("lead"), summary="One budget")
def budget_one(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Get one budget with its status. Needs the role lead."""
    return _serialize([_get_budget(budget_id)])[0]


@router.post("", response={201: BudgetOut}, **needs("lead"), summary="Set a budget")
@conflict_on("run")
def budget_new(request: HttpRequest, payload: BudgetIn) -> Status[BudgetOut]:
    """Set a budget; 409 if the run does not exist. Needs the role lead."""
    budget = set_budget(
        BudgetRequest(**payload.model_dump()), by=caller(request).name, now=timezone.now()
    )
    return Status(201, _serialize([budget])[0])


@router.post("/{budget_id}/end", response=BudgetOut, **needs("lead"), summary="Withdraw a budget")
def budget_end(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Withdraw a budget, which ends its alerts; 409 if it was withdrawn. Needs the role lead."""
    budget = _get_budget(budget_id)
    if not end_budget(budget, by=caller(request).name, now=timezone.now()):
        raise ProblemError(409, "It was already withdrawn.")
    return _serialize([_get_budget(budget_id)])[0]


def _get_budget(number: int) -> Budget:
    return get_object_or_404(Budget.objects.select_related("run"), pk=number)
