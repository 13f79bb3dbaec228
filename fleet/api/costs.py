"""Costs of runs, their training length, and the budgets of runs and teams."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    INTEGRAL_FLOAT,
    LINE,
    OPTIONAL_SLUG,
    Key,
    NullableText,
    RequestSchema,
    ResponseSchema,
    RunName,
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
from fleet.costs.panel import MOST, CostShare, panel, set_training_length
from fleet.costs.spending import Outlook
from fleet.models import Budget, Run
from fleet.models.problem import ProblemError
from telemetry.store.hot import hot_store

budget_router = Router(tags=["budgets"])


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


def _serialize_budgets(budgets: list[Budget]) -> list[BudgetOut]:
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


@budget_router.get("", response=BudgetPage, **needs("lead"), summary="List budgets")
def budget_list(request: HttpRequest, query: Query[BudgetFilter]) -> BudgetPage:
    """List budgets with their status, newest first. Needs the role lead."""
    budgets = Budget.objects.filter_by(now=timezone.now(), **query.fields).select_related("run")
    rows, links = paginate(request, budgets, query, by="-pk")
    return BudgetPage(items=_serialize_budgets(rows), **links)


@budget_router.get("/{budget_id}", response=BudgetOut, **needs("lead"), summary="One budget")
def budget_one(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Get one budget with its status. Needs the role lead."""
    return _serialize_budgets([_get_budget(budget_id)])[0]


@budget_router.post("", response={201: BudgetOut}, **needs("lead"), summary="Set a budget")
@conflict_on("run")
def budget_new(request: HttpRequest, payload: BudgetIn) -> Status[BudgetOut]:
    """Set a budget; 409 if the run does not exist. Needs the role lead."""
    budget = set_budget(
        BudgetRequest(**payload.model_dump()), by=caller(request).name, now=timezone.now()
    )
    return Status(201, _serialize_budgets([budget])[0])


@budget_router.post(
    "/{budget_id}/end", response=BudgetOut, **needs("lead"), summary="Withdraw a budget"
)
def budget_end(request: HttpRequest, budget_id: Path[Key]) -> BudgetOut:
    """Withdraw a budget, which ends its alerts; 409 if it was withdrawn. Needs the role lead."""
    budget = _get_budget(budget_id)
    if not end_budget(budget, by=caller(request).name, now=timezone.now()):
        raise ProblemError(409, "It was already withdrawn.")
    return _serialize_budgets([_get_budget(budget_id)])[0]


def _get_budget(number: int) -> Budget:
    return get_object_or_404(Budget.objects.select_related("run"), pk=number)


class PortionOut(ResponseSchema, source=CostShare):
    """One category of spending."""

    sort = doc(
        "training, communication, input, saving, compiling, warming_up, repeated, idle or untold.",
        "communication",
    )
    words = doc("The category as text.")
    seconds = doc("Seconds of the run.")
    usd = doc("US dollars, to the cent; null without a price.")
    ratio = doc("Share of dollars, or of time without a price, 0 to 1.")


class NextPriceOut(ResponseSchema):
    """The next announced price."""

    valid_from: datetime = doc("Start, UTC.")
    usd_per_node_hour: float = doc("US dollars per node and hour.")
    basis: str = doc("Pricing terms.")


class RunBudgetOut(BurnOut, source=Budget):
    """A budget of the run or its team, and its status."""

    id = doc("Number of the budget.", 4)
    whose: str = doc("Name of its team or run.", "LLM")
    usd = doc("The budget in US dollars.")
    ends_at = doc("End of its period, exclusive, UTC.")


class RunMoneyDetail(ResponseSchema, source=Outlook):
    """Cost of a run up to now; null where unknown."""

    run: str = doc("Name of the run.", "llama")
    until: datetime = doc("Time up to which costs are counted, UTC.")
    portions: list[PortionOut] = doc(
        "Spending by category, each second counted once; adds up to `total_usd`."
    )
    total_usd: float | None = doc("US dollars spent so far; null without a price.")
    total_s: float = doc("Seconds paid for so far.")
    usd_per_hour: float | None = doc("US dollars per hour of all its nodes, now or when it ended.")
    usd_per_node_hour: float | None = doc("US dollars per node and hour.")
    price_basis: str = doc("Pricing terms.", "on demand")
    next_price: NextPriceOut | None = doc("The next announced price.")
    usd_per_mtok = doc("US dollars per million tokens over the last minute of steps.")
    settled_usd_per_mtok = doc("The same over all steps since the warm-up.")
    whole_usd_per_mtok = doc("All costs over the tokens trained, each counted once.")
    usd_per_epoch = doc("US dollars per epoch at `settled_usd_per_mtok`.")
    n_epochs = doc("Completed epochs.")
    trained_tokens: float = doc("Tokens trained, each counted once.")
    planned_tokens: int | None = doc("Tokens planned.")
    ends_at = doc("Forecast of when they are trained, at the pace of the last minute, UTC.")
    usd_at_end = doc("Forecast of US dollars by then, at announced prices.")
    mfu_ratio: float | None = doc("Model FLOPs over the peak, 0 to 1.")
    peak_flops: float | None = doc(
        "Peak dense FLOPs per second of all nodes at the precision of the run."
    )
    budgets: list[RunBudgetOut] = doc("Current budgets of the run and its team.")


router = Router(tags=["runs"])
Tokens = Annotated[int, Field(ge=1, le=MOST), INTEGRAL_FLOAT] | None


class LengthIn(RequestSchema):
    """Planned length of a run; null where unknown."""

    tokens_per_epoch: Tokens = doc("Tokens of one epoch.", 300_000_000_000)
    planned_tokens: Tokens = doc("Tokens after which the run ends.", 2_000_000_000_000)


@router.get("/{name}/money", response=RunMoneyDetail, **needs("read"), summary="Cost of a run")
def run_money(request: HttpRequest, name: Path[RunName]) -> RunMoneyDetail:
    """Get the cost of a run up to now, as its page shows it.

    `money` of the run is faster to get, and up to a minute old.
    """
    return _serialize(get_object_or_404(Run, name=name))


@router.post(
    "/{name}/length", response=RunMoneyDetail, **needs("lead"), summary="Set a run's length"
)
def run_length(request: HttpRequest, name: Path[RunName], payload: LengthIn) -> RunMoneyDetail:
    """Set the tokens per epoch and the planned tokens of a run, for its forecast.

    The change is recorded as an annotation of the run. Needs the role lead.
    """
    run = get_object_or_404(Run, name=name)
    given = {field: "" if n is None else str(n) for field, n in payload.model_dump().items()}
    set_training_length(run, given, by=caller(request).name, now=timezone.now())
    run.refresh_from_db()
    return _serialize(run)


def _serialize(run: Run) -> RunMoneyDetail:
    money = panel(hot_store(), run, now=timezone.now())
    total, price, next_price = money["total_usd"], money["price"], money["next_price"]
    return RunMoneyDetail.from_object(
        money["outlook"],
        run=run.name,
        until=money["spent"].until,
        portions=money["parts"],
        total_usd=None if total is None else round(total, 2),
        total_s=round(money["total_s"], 3),
        usd_per_hour=run.usd_per_hour or None,
        usd_per_node_hour=price[0] or None,
        price_basis=price[1],
        next_price=next_price
        and NextPriceOut(
            **next_price, valid_from=datetime.fromtimestamp(next_price["from_s"], UTC)
        ),
        trained_tokens=money["trained"],
        planned_tokens=run.planned_tokens,
        mfu_ratio=money["mfu_ratio"],
        peak_flops=money["peak_flops"],
        budgets=[
            RunBudgetOut.from_object(
                burn,
                **burn_values(burn),
                id=burn.budget.pk,
                whose=burn.budget.name,
                usd=burn.budget.usd,
                ends_at=burn.budget.ends_at,
            )
            for burn in money["budgets"]
        ],
    )
