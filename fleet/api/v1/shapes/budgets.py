"""A budget as the API tells it, and how it stands."""

from datetime import datetime
from typing import Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import Budget
from fleet.money.budgets import Burn


class BurnOut(Told):
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
    def of(cls, burn: Burn) -> Self:
        """Tell how a budget stands."""
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


class BudgetOut(Told):
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
    def of(cls, budget: Budget, burn: Burn | None, *, now: datetime) -> Self:
        """Tell a budget, asked for with its run."""
        return cls(
            **{name: getattr(budget, name) for name in PLAIN},
            team=budget.team or None,
            run=budget.run.name if budget.run else None,
            state=state_of(budget, now=now),
            ended_by=budget.ended_by or None,
            burn=BurnOut.of(burn) if burn else None,
        )


PLAIN = ("id", "usd", "starts_at", "ends_at", "set_by", "set_at", "ended_at")


def state_of(budget: Budget, *, now: datetime) -> str:
    """Return the word for where a budget is in its life."""
    if budget.ended_at is not None:
        return "withdrawn"
    if now < budget.starts_at:
        return "ahead"
    return "current" if now < budget.ends_at else "over"


class BudgetPage(Links):
    """A page of budgets."""

    items: list[BudgetOut] = Field(description="The budgets of this page.")
    sorted_by: str = Field(default="-id", description="What was set last comes first.")
