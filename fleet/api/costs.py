"""A run's money: what every dollar went into and buys, what it will come to; its length."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Router

from fleet.api.auth import caller, needs
from fleet.api.budgets import BurnOut
from fleet.api.fields import INTEGRAL_FLOAT, RequestSchema, ResponseSchema, RunName
from fleet.costs.budgets import BudgetStatus
from fleet.costs.panel import MOST, CostShare, panel, set_training_length
from fleet.models import Run
from telemetry.store.hot import open_store


class PortionOut(ResponseSchema):
    """One sort of spending."""

    sort: str = Field(
        description="training, communication, input, saving, compiling, warming_up, repeated, "
        "idle or untold.",
        examples=["communication"],
    )
    words: str = Field(description="The same for people.")
    seconds: float = Field(description="Seconds of the run that went into it.")
    usd: float | None = Field(description="US dollars, to the cent; null without a price.")
    ratio: float = Field(description="Of all dollars, or of all time without a price, 0 to 1.")

    @classmethod
    def of(cls, part: CostShare) -> Self:
        return cls(**{name: getattr(part, name) for name in cls.model_fields})


class NextPriceOut(ResponseSchema):
    """A price that is announced to hold next."""

    valid_from: datetime = Field(description="From when on, UTC.")
    usd_per_node_hour: float = Field(description="US dollars per node and hour.")
    basis: str = Field(description="By which terms.")

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        return cls(
            valid_from=datetime.fromtimestamp(told["from_s"], UTC),
            usd_per_node_hour=told["usd_per_node_hour"],
            basis=told["basis"],
        )


class RunBudgetOut(BurnOut):
    """A budget that the run burns, whether its own or its team's, and how that stands."""

    id: int = Field(description="Number of the budget.", examples=[4])
    whose: str = Field(description="Name of its team or run.", examples=["LLM"])
    usd: float = Field(description="What may be spent, US dollars.")
    ends_at: datetime = Field(description="The first moment that does not count, UTC.")

    @classmethod
    def of(cls, burn: BudgetStatus) -> Self:
        budget = burn.budget
        return cls(
            **BurnOut.of(burn).model_dump(),
            id=budget.pk,
            whose=budget.name,
            usd=budget.usd,
            ends_at=budget.ends_at,
        )


class RunMoneyDetail(ResponseSchema):
    """What a run's dollars went into and buy, up to now; null where nobody can tell."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    until: datetime = Field(description="Up to when this is, UTC.")
    portions: list[PortionOut] = Field(
        description="What it was spent on, each second once; they add up to `total_usd`."
    )
    total_usd: float | None = Field(description="US dollars spent so far; null without a price.")
    total_s: float = Field(description="Seconds paid for so far.")
    usd_per_hour: float | None = Field(
        description="US dollars per hour of all its nodes now, or when it ended."
    )
    usd_per_node_hour: float | None = Field(description="The price of a node by the hour.")
    price_basis: str = Field(description="By which terms.", examples=["on demand"])
    next_price: NextPriceOut | None = Field(description="The price announced to hold next.")
    usd_per_mtok: float | None = Field(
        description="US dollars per million tokens, rolling: the last minute of steps."
    )
    settled_usd_per_mtok: float | None = Field(
        description="The same in the steady state: all steps since the warm-up, and only those."
    )
    whole_usd_per_mtok: float | None = Field(
        description="The same, cumulative: all that was paid over the tokens trained once."
    )
    usd_per_epoch: float | None = Field(
        description="US dollars per epoch at the settled price of a token."
    )
    n_epochs: float | None = Field(description="Epochs done.")
    trained_tokens: float = Field(description="Tokens trained, each once.")
    planned_tokens: int | None = Field(description="Tokens it is to train.")
    ends_at: datetime | None = Field(
        description="Forecast: when it will have trained them, at the last minute's pace, UTC."
    )
    usd_at_end: float | None = Field(
        description="Forecast: US dollars it will have cost then, at the prices announced."
    )
    mfu_ratio: float | None = Field(description="Model FLOPs over the peak, 0 to 1.")
    peak_flops: float | None = Field(
        description="That peak: dense FLOPs per second of all nodes at the run's precision."
    )
    budgets: list[RunBudgetOut] = Field(description="The budgets that it burns now.")

    @classmethod
    def of(cls, run: Run, panel: Mapping[str, Any]) -> Self:
        spent, ahead = panel["spent"], panel["outlook"]
        total, price = panel["total_usd"], panel["price"]
        return cls(
            run=run.name,
            until=spent.until,
            portions=[PortionOut.of(part) for part in panel["parts"]],
            total_usd=None if total is None else round(total, 2),
            total_s=round(panel["total_s"], 3),
            usd_per_hour=run.usd_per_hour or None,
            usd_per_node_hour=price[0] or None,
            price_basis=price[1],
            next_price=NextPriceOut.of(panel["next_price"]) if panel["next_price"] else None,
            **{name: getattr(ahead, name) for name in AHEAD},
            trained_tokens=panel["trained"],
            planned_tokens=run.planned_tokens,
            mfu_ratio=panel["mfu_ratio"],
            peak_flops=panel["peak_flops"],
            budgets=[RunBudgetOut.of(each) for each in panel["budgets"]],
        )


AHEAD = (
    *("usd_per_mtok", "settled_usd_per_mtok", "whole_usd_per_mtok"),
    *("usd_per_epoch", "n_epochs", "ends_at", "usd_at_end"),
)


router = Router(tags=["runs"])
Tokens = Annotated[int, Field(ge=1, le=MOST), INTEGRAL_FLOAT] | None


class LengthIn(RequestSchema):
    """How long a run is to be: both figures, null where that is not known."""

    tokens_per_epoch: Tokens = Field(
        description="Tokens of one pass over the data.", examples=[300_000_000_000]
    )
    planned_tokens: Tokens = Field(
        description="Tokens after which it is to be over.", examples=[2_000_000_000_000]
    )


@router.get("/{name}/money", response=RunMoneyDetail, **needs("read"), summary="A run's money")
def run_money(request: HttpRequest, name: Path[RunName]) -> RunMoneyDetail:
    """Tell what a run's dollars went into and buy, brought up to now, as its page shows it.

    `money` of the run itself is the same as last added up, within the minute, and is cheaper.
    """
    return _serialize(get_object_or_404(Run, name=name))


@router.post(
    "/{name}/length",
    response=RunMoneyDetail,
    **needs("lead"),
    summary="Say how long a run is",
)
def run_length(request: HttpRequest, name: Path[RunName], payload: LengthIn) -> RunMoneyDetail:
    """Say how many tokens an epoch has and the run is to train; its forecast follows.

    What is said stands as a note on the run. Needs the role lead.
    """
    run = get_object_or_404(Run, name=name)
    given = {field: "" if n is None else str(n) for field, n in payload.model_dump().items()}
    set_training_length(run, given, by=caller(request).name, now=timezone.now())
    run.refresh_from_db()
    return _serialize(run)


def _serialize(run: Run) -> RunMoneyDetail:
    return RunMoneyDetail.of(run, panel(open_store(settings.REDIS_URL), run, now=timezone.now()))
