"""A price as the API tells it: of a contract, or published."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal, Self

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.alerts import LINE, NON_BLANK_LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import (
    Key,
    OptionalTime,
    RequestSchema,
    ResponseSchema,
    Text,
    Time,
    among,
    choice,
)
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import TeamPrice
from fleet.runs.prices import (
    MAX_SOURCE,
    MAX_TEAM,
    MOST_USD,
    PriceRequest,
    price_holding_at,
    set_price,
)
from telemetry import catalog


class PriceOut(ResponseSchema):
    """What a contract says that a node costs, from a moment on; never changed once it is set."""

    id: int = Field(description="Number of the price.", examples=[3])
    team: str | None = Field(
        description="Who pays it; null: every team without a price of its own.", examples=["LLM"]
    )
    instance_type: str = Field(description="For what.", examples=["trn2.48xlarge"])
    basis: str = Field(
        description="On which terms: on demand, reserved, capacity block, spot or contract.",
        examples=["reserved"],
    )
    usd_per_node_hour: float = Field(description="US dollars per node and hour.", examples=[27.83])
    valid_from: datetime = Field(description="From when on the contract has it, UTC.")
    source: str = Field(description="Contract, invoice or page it is from.")
    set_by: str = Field(description="Who set it.", examples=["ada"])
    set_at: datetime = Field(description="When it was set, UTC.")
    holds_now: bool = Field(
        description="Whether whoever it is for would pay it now: it has begun, and none that "
        "begins later, or was set later for the same moment, has taken its place."
    )

    @classmethod
    def of(cls, price: TeamPrice, *, held: Iterable[int]) -> Self:
        return cls(
            **{name: getattr(price, name) for name in SAME_FIELDS},
            team=price.team or None,
            holds_now=price.pk in held,
        )


SAME_FIELDS = sorted(
    {field.name for field in TeamPrice._meta.fields} & set(PriceOut.model_fields) - {"team"}
)


class PricePage(PageLinks):
    """A page of prices."""

    items: list[PriceOut] = Field(description="The prices of this page.")
    sorted_by: str = Field(default="-id", description="What was set last comes first.")


class PriceNew(PriceOut):
    """A price that was just set."""

    n_runs_changed: int = Field(
        description="Runs under way that will pay it, from its date on and never before now."
    )


class PublishedPriceOut(ResponseSchema):
    """A price that the catalogue knows: what runs pay where no contract says otherwise."""

    instance_type: str = Field(description="For what.", examples=["trn2.48xlarge"])
    basis: str = Field(description="On which terms.", examples=["on demand"])
    region: str = Field(description="Where.", examples=["us-east-2"])
    usd_per_node_hour: float = Field(description="US dollars per node and hour.")
    usd_per_node_hour_high: float | None = Field(
        description="Upper end, where a range was published."
    )
    is_default: bool = Field(description="Whether a run without a contract pays it.")
    date: str = Field(description="When it was read.", examples=["2026-08-02"])
    source: str = Field(description="Where it was read.")

    @classmethod
    def of(cls, instance: catalog.Instance, price: catalog.Price) -> Self:
        return cls(
            instance_type=instance.name,
            basis=price.basis,
            region=price.region,
            usd_per_node_hour=price.usd_per_hour,
            usd_per_node_hour_high=price.usd_per_hour_high,
            is_default=price is instance.price,
            date=price.date,
            source=price.source.title,
        )


class PublishedPrices(ResponseSchema):
    """All that the catalogue knows of prices, whole."""

    items: list[PublishedPriceOut] = Field(description="By instance type, the default first.")


router = Router(tags=["prices"])
TYPES, BASES = tuple(catalog.instances()), tuple(TeamPrice.Basis.values)


class PriceFilter(Paging):
    """Which prices to list."""

    team: Text = Field("", description="Whose they are, exactly.", examples=["LLM"])
    whose: Literal["", "team", "everybody"] = Field(
        "", description="Of some team, or of every team without its own."
    )
    instance_type: Text = Field("", description="For what.", examples=["trn2.48xlarge"])
    basis: Annotated[str, among(("", *BASES)), choice(("", *BASES))] = Field(
        "", description="On which terms."
    )
    since: OptionalTime = Field(
        None, description="In force then or later: RFC 3339, or Unix seconds."
    )
    until: OptionalTime = Field(None, description="In force before then.")


class PriceIn(RequestSchema):
    """A price to set."""

    team: str = Field(
        "",
        max_length=MAX_TEAM,
        pattern=LINE,
        description="Who pays it; left out: every team without a price of its own.",
        examples=["LLM"],
    )
    instance_type: Annotated[str, among(TYPES), choice(TYPES)] = Field(
        description="For what.", examples=["trn2.48xlarge"]
    )
    basis: Annotated[str, among(BASES), choice(BASES)] = Field(
        description="On which terms.", examples=["reserved"]
    )
    usd_per_node_hour: float = Field(
        gt=0, le=MOST_USD, description="US dollars per node and hour.", examples=[27.83]
    )
    valid_from: Time = Field(
        description="From when on, within ten years of now: RFC 3339, or Unix seconds. Time "
        "that has passed stays as it was paid.",
        examples=["2026-12-01T00:00:00Z"],
    )
    source: str = Field(
        max_length=MAX_SOURCE,
        pattern=NON_BLANK_LINE,
        description="Contract, invoice or page it is from.",
        examples=["contract 2026-117"],
    )


def _serialize(prices: list[TeamPrice]) -> list[PriceOut]:
    now = timezone.now()
    of_type: dict[str, list[TeamPrice]] = {price.instance_type: [] for price in prices}
    for price in TeamPrice.objects.filter(instance_type__in=of_type):
        of_type[price.instance_type].append(price)
    pairs = {(price.instance_type, price.team) for price in prices}
    holds = [price_holding_at(of_type[instance_type], team, now) for instance_type, team in pairs]
    held = {price.pk for price in holds if price}
    return [PriceOut.of(price, held=held) for price in prices]


@router.get("", response=PricePage, **needs("lead"), summary="List prices")
def price_list(request: HttpRequest, query: Query[PriceFilter]) -> PricePage:
    """Prices of contracts, the one set last first. Needs the role lead."""
    rows, links = paginate(request, TeamPrice.objects.filter_by(**query.fields), query, by="-pk")
    return PricePage(items=_serialize(rows), next=links.next, prev=links.prev)


@router.get(
    "/published",
    response=PublishedPrices,
    **needs("read"),
    summary="Published prices",
)
def price_published(request: HttpRequest) -> PublishedPrices:
    """Tell every price that the catalogue knows: what holds where no contract does."""
    return PublishedPrices(
        items=[
            PublishedPriceOut.of(instance, price)
            for instance in catalog.instances().values()
            for price in instance.prices
        ]
    )


@router.get("/{price_id}", response=PriceOut, **needs("lead"), summary="One price")
def price_one(request: HttpRequest, price_id: Path[Key]) -> PriceOut:
    """One price of a contract. Needs the role lead."""
    return _serialize([get_object_or_404(TeamPrice, pk=price_id)])[0]


@router.post("", response={201: PriceNew}, **needs("lead"), summary="Set a price")
def price_new(request: HttpRequest, payload: PriceIn) -> Status[PriceNew]:
    """Set a price from a date on; none is ever changed. Needs the role lead.

    Runs under way pay it from then on, never for time that has passed; what is over stays as it
    was paid. A mistake is mended by another price.
    """
    price, n_runs = set_price(
        PriceRequest(**payload.model_dump()), by=caller(request).name, now=timezone.now()
    )
    told = _serialize([price])[0].model_dump()
    return Status(201, PriceNew(**told, n_runs_changed=n_runs))
