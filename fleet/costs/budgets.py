"""Budgets: set and withdraw them; status and forecast."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from fleet.costs.spending import planned_end
from fleet.models import Budget, ReadLog, Run
from fleet.runs.imported import AHEAD, TOO_OLD
from telemetry.errors import CONTROL, FieldError

MOST_USD = 1e12
MAX_TEAM = 40
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    team: str
    run: str
    usd: float
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Status of a budget: cost in its period so far, per hour now, and by its end.

    ``n_unpriced`` runs have no price and are not included.
    """

    budget: Budget
    spent_usd: float
    usd_per_hour: float
    forecast_usd: float
    used_up_at: datetime | None
    n_unpriced: int

    @property
    def used_ratio(self) -> float:
        return self.spent_usd / self.budget.usd

    @property
    def forecast_ratio(self) -> float:
        """Forecast spending at its end, divided by the budget."""
        return self.forecast_usd / self.budget.usd

    @property
    def is_over(self) -> bool:
        return self.forecast_usd > self.budget.usd


def budget_status(budget: Budget, runs: Iterable[Run], *, now: datetime) -> BudgetStatus:
    """Compute the status of a budget; ``runs`` may include others than its own.

    The forecast counts every active run to its planned end at its pace so far, or else to the
    end of the period, at announced prices.
    """
    mine = [
        run
        for run in runs
        if (budget.run_id == run.pk if budget.run_id else budget.team == run.team)
        and run.started_at < budget.ends_at
        and (run.finished_at is None or run.finished_at > budget.starts_at)
    ]
    until = min(now, budget.ends_at)
    spent = {run.pk: run.usd_between(budget.starts_at, until) for run in mine}
    priced = [run for run in mine if not math.isnan(spent[run.pk])]
    going = [run for run in priced if run.finished_at is None]
    spent_usd = sum(spent[run.pk] for run in priced)
    # A future period counts from its start.
    begins = max(until, budget.starts_at)
    paid = []
    for run in going:
        lasted_s = (until - run.started_at).total_seconds()
        pace = run.n_tokens / lasted_s if lasted_s > 0 else None
        planned = planned_end(run, run.n_tokens, pace, at=until) or budget.ends_at
        paid.append(run.usd_between(begins, min(budget.ends_at, planned)))
    to_come = sum(paid)
    return BudgetStatus(
        budget=budget,
        spent_usd=spent_usd,
        usd_per_hour=sum(run.usd_per_hour for run in going) if now < budget.ends_at else 0.0,
        forecast_usd=spent_usd + to_come,
        used_up_at=_used_up_at(budget, going, spent_usd, now=begins)
        if spent_usd + to_come > budget.usd
        else None,
        n_unpriced=len(mine) - len(priced),
    )


def _used_up_at(
    budget: Budget, going: Sequence[Run], spent_usd: float, *, now: datetime
) -> datetime | None:
    """Return when it is used up at the current pace; None: not before its end."""
    per_hour = sum(run.usd_per_hour for run in going)
    left = budget.usd - spent_usd
    if left <= 0:
        return now
    if per_hour <= 0 or left / per_hour > LONGEST / timedelta(hours=1):
        return None
    at = now + timedelta(hours=left / per_hour)
    return at if at < budget.ends_at else None


def runs_under_budgets(budgets: Iterable[Budget]) -> QuerySet[Run]:
    """Return the runs that were active since the first of these budgets started.

    An imported log that was moved in time was not paid in the period in which it is shown.
    """
    first = min(budget.starts_at for budget in budgets)
    moved = ReadLog.objects.filter(details__why_moved__in=(TOO_OLD, AHEAD)).values("run")
    runs = Run.objects.filter(Q(finished_at=None) | Q(finished_at__gt=first)).exclude(pk__in=moved)
    return runs.defer("plan", "clock", "spending")


def budget_statuses(*, now: datetime) -> list[BudgetStatus]:
    """Compute the status of every active budget, those forecast to be overrun first."""
    budgets = list(Budget.objects.kept().select_related("run"))
    if not budgets:
        return []
    runs = list(runs_under_budgets(budgets))
    statuses = [budget_status(budget, runs, now=now) for budget in budgets]
    return sorted(statuses, key=lambda each: (each.budget.ends_at <= now, -each.forecast_ratio))


def set_budget(asked: BudgetRequest, *, by: str, now: datetime) -> Budget:
    """Create a budget; raises FieldError."""
    _check(asked)
    run = Run.objects.filter(name=asked.run).first() if asked.run else None
    if asked.run and run is None:
        raise FieldError("run", f"no run is named {asked.run[:60]!r}")
    return Budget.objects.create(
        team=asked.team.strip(),
        run=run,
        usd=asked.usd,
        starts_at=asked.starts_at,
        ends_at=asked.ends_at,
        set_by=by,
        set_at=now,
    )


def end_budget(budget: Budget, *, by: str, now: datetime) -> bool:
    """Withdraw a budget; return False if it was already withdrawn."""
    kept = Budget.objects.kept().filter(pk=budget.pk)
    return bool(kept.update(ended_at=now, ended_by=by))


def _check(asked: BudgetRequest) -> None:
    if bool(asked.team.strip()) == bool(asked.run):
        raise FieldError("team", "give either a team or a run")
    if len(asked.team.strip()) > MAX_TEAM or CONTROL.search(asked.team):
        raise FieldError("team", f"use at most {MAX_TEAM} printable characters")
    if not math.isfinite(asked.usd) or not 0 < asked.usd <= MOST_USD:
        raise FieldError("usd", f"give dollars above 0 and up to {MOST_USD:,.0f}")
    if asked.ends_at <= asked.starts_at:
        raise FieldError("ends_at", "must be later than the first day")
    if asked.ends_at - asked.starts_at > LONGEST:
        raise FieldError("ends_at", "must be at most ten years after the first day")
