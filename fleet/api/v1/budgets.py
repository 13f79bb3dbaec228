"""Budgets: which there are and how they stand; set and withdrawn by leads."""

from typing import Literal

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.v1.access import needs
from fleet.api.v1.acting import SAID
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import Body, Instant, Key, Text
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.budgets import BudgetOut, BudgetPage
from fleet.models import Budget
from fleet.money.budgets import (
    MAX_TEAM,
    MOST_USD,
    Asked,
    BudgetError,
    burn,
    burning,
    end_budget,
    set_budget,
)
from fleet.problem import ProblemError

router = Router(tags=["budgets"])


class BudgetFilter(Paging):
    """Which budgets to list."""

    team: Text = Field("", description="Whose they are, exactly.", examples=["LLM"])
    run: Text = Field("", description="Name of the run they are for.", examples=["llama"])
    state: Literal["", "ahead", "current", "over", "withdrawn"] = Field(
        "", description="Where in their life they are."
    )

    def keep(self, budgets: QuerySet[Budget]) -> QuerySet[Budget]:
        """Keep the budgets asked for."""
        now = timezone.now()
        states = {
            "": Q(),
            "ahead": Q(ended_at=None, starts_at__gt=now),
            "current": Q(ended_at=None, starts_at__lte=now, ends_at__gt=now),
            "over": Q(ended_at=None, ends_at__lte=now),
            "withdrawn": Q(ended_at__isnull=False),
        }
        budgets = budgets.filter(states[self.state])
        if self.run:
            budgets = budgets.filter(run__name=self.run)
        return budgets.filter(team=self.team) if self.team else budgets


class BudgetIn(Body):
    """A budget to set: of a team or of a run, one of the two."""

    team: str = Field(
        "", max_length=MAX_TEAM, pattern=SAID, description="Whose it is.", examples=["LLM"]
    )
    run: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,60}$", description="Or the run it is for.")
    usd: float = Field(
        gt=0, le=MOST_USD, description="What may be spent, US dollars.", examples=[250000]
    )
    starts_at: Instant = Field(
        description="From when on spending counts: RFC 3339, or Unix seconds.",
        examples=["2026-11-01T00:00:00Z"],
    )
    ends_at: Instant = Field(
        description="The first moment that does not count, at most ten years later.",
        examples=["2026-12-01T00:00:00Z"],
    )


def _told(budgets: list[Budget]) -> list[BudgetOut]:
    now = timezone.now()
    kept = [budget for budget in budgets if budget.ended_at is None]
    runs = list(burning(kept)) if kept else []
    burns = {budget.pk: burn(budget, runs, now=now) for budget in kept}
    return [BudgetOut.of(budget, burns.get(budget.pk), now=now) for budget in budgets]


@router.get("", response=BudgetPage, openapi_extra=needs("lead"), summary="List budgets")
def budget_list(request: HttpRequest, asked: Query[BudgetFilter]) -> BudgetPage:
    """Budgets with their burn and forecast, the one set last first. Needs the role lead."""
    budgets = asked.keep(Budget.objects.select_related("run"))
    rows, links = paged(request, budgets, asked, by="-pk")
    return BudgetPage(items=_told(rows), next=links.next, prev=links.prev)


@router.get("/{budget_id}", response=BudgetOut, openapi_extra=needs("lead"), summary="One budget")
def budget_one(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """One budget, with its burn and forecast. Needs the role lead."""
    return _told([_found(budget_id)])[0]


@router.post("", response={201: BudgetOut}, openapi_extra=needs("lead"), summary="Set a budget")
def budget_new(request: HttpRequest, said: BudgetIn) -> Status[BudgetOut]:
    """Set a budget; 409 where no run is called so. Needs the role lead."""
    try:
        asked = Asked(**said.model_dump())
        budget = set_budget(asked, by=caller(request).name, now=timezone.now())
    except BudgetError as error:
        status = 409 if error.field == "run" else 400
        raise ProblemError(status, f"{error}.", field=error.field) from error
    return Status(201, _told([budget])[0])


@router.post(
    "/{budget_id}/end",
    response=BudgetOut,
    openapi_extra=needs("lead"),
    summary="Withdraw a budget",
)
def budget_end(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Withdraw a budget: it is watched no more; 409 where it was. Needs the role lead."""
    budget = _found(budget_id)
    if not end_budget(budget, by=caller(request).name, now=timezone.now()):
        raise ProblemError(409, "It was withdrawn already.")
    return _told([_found(budget_id)])[0]


def _found(number: int) -> Budget:
    return get_object_or_404(Budget.objects.select_related("run"), pk=number)
