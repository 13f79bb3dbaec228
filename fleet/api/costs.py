"""Cost of a run: spending by category, price per token, forecast; length of its training."""

from datetime import UTC, datetime
from typing import Annotated

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Router

from fleet.api.auth import caller, needs
from fleet.api.budgets import BurnOut, burn_values
from fleet.api.fields import INTEGRAL_FLOAT, RequestSchema, ResponseSchema, RunName, doc
from fleet.costs.panel import MOST, CostShare, panel, set_training_length
from fleet.costs.spending import Outlook
from fleet.models import Budget, Run
from telemetry.store.hot import hot_store


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
    found = panel(hot_store(), run, now=timezone.now())
    total, price, next_price = found["total_usd"], found["price"], found["next_price"]
    return RunMoneyDetail.from_object(
        found["outlook"],
        run=run.name,
        until=found["spent"].until,
        portions=found["parts"],
        total_usd=None if total is None else round(total, 2),
        total_s=round(found["total_s"], 3),
        usd_per_hour=run.usd_per_hour or None,
        usd_per_node_hour=price[0] or None,
        price_basis=price[1],
        next_price=next_price
        and NextPriceOut(
            **next_price, valid_from=datetime.fromtimestamp(next_price["from_s"], UTC)
        ),
        trained_tokens=found["trained"],
        planned_tokens=run.planned_tokens,
        mfu_ratio=found["mfu_ratio"],
        peak_flops=found["peak_flops"],
        budgets=[
            RunBudgetOut.from_object(
                burn,
                **burn_values(burn),
                id=burn.budget.pk,
                whose=burn.budget.name,
                usd=burn.budget.usd,
                ends_at=burn.budget.ends_at,
            )
            for burn in found["budgets"]
        ],
    )
