"""Prices: of contracts, and published."""

from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    LINE,
    NON_BLANK_LINE,
    Key,
    NullableText,
    OneOf,
    OptionalTime,
    RequestSchema,
    ResponseSchema,
    Text,
    Time,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.models import TeamPrice
from fleet.runs.prices import (
    MAX_SOURCE,
    MAX_TEAM,
    MOST_USD,
    PriceRequest,
    applicable_price,
    set_price,
)
from telemetry import catalog
from telemetry.catalog import Price

router = Router(tags=["prices"])
TYPES, BASES = tuple(catalog.instances()), tuple(TeamPrice.Basis.values)


class PriceOut(ResponseSchema, source=TeamPrice):
    """A contract price of a node from a date on; it never changes."""

    id = doc("Number of the price.", 3)
    team: NullableText = doc("Its team; null: every team without its own price.", "LLM")
    instance_type = doc("Instance type.", "trn2.48xlarge")
    basis = doc(
        "Pricing terms: on demand, reserved, capacity block, spot or contract.", "reserved"
    )
    usd_per_node_hour = doc("US dollars per node and hour.", 27.83)
    valid_from = doc("Start, UTC.")
    source = doc("Contract, invoice or page.")
    set_by = doc("Who set it.", "ada")
    set_at = doc("When it was set, UTC.")
    holds_now: bool = doc(
        "Whether it applies now: it has started, and no price with a later start, or set later "
        "for the same start, replaces it."
    )


class PricePage(NewestFirst[PriceOut]):
    """A page of prices."""


class PriceNew(PriceOut):
    """A price that was just set."""

    n_runs_changed: int = doc("Active runs that will pay it, from its start and not before now.")


class PublishedPriceOut(ResponseSchema, source=Price):
    """A price in the catalog, which runs without a contract price pay."""

    instance_type: str = doc("Instance type.", "trn2.48xlarge")
    basis = doc("Pricing terms.", "on demand")
    region = doc("AWS regions, with commas; any: not stated, or all.", "us-east-2")
    usd_per_node_hour: float = doc("US dollars per node and hour.")
    usd_per_node_hour_high: float | None = doc("Upper end of a published range.")
    is_default: bool = doc("Whether runs without a contract price pay it.")
    date = doc("Date of the source.", "2026-08-02")
    age_note: str = doc("Its age; empty up to 90 days.", "as of 2026-07-20, 126 days old")
    source: str = doc("Title of the source.")


class PublishedPrices(ResponseSchema):
    """All prices of the catalog."""

    items: list[PublishedPriceOut] = doc("By instance type, the default first.")


class PriceFilter(Paging):
    """Filter of prices."""

    team: Text = doc("Team, exact match.", "LLM", default="")
    whose: Literal["", "team", "everybody"] = doc(
        "Of a team, or of every team without its own price.", default=""
    )
    instance_type: Text = doc("Instance type.", "trn2.48xlarge", default="")
    basis: Annotated[str, OneOf(("", *BASES))] = doc("Pricing terms.", default="")
    since: OptionalTime = doc("Starts at or after: RFC 3339 or Unix seconds.", default=None)
    until: OptionalTime = doc("Starts before.", default=None)


class PriceIn(RequestSchema):
    """A price to set."""

    team: str = doc(
        "Its team. Default: every team without its own price.",
        "LLM",
        default="",
        max_length=MAX_TEAM,
        pattern=LINE,
    )
    instance_type: Annotated[str, OneOf(TYPES)] = doc("Instance type.", "trn2.48xlarge")
    basis: Annotated[str, OneOf(BASES)] = doc("Pricing terms.", "reserved")
    usd_per_node_hour: float = doc("US dollars per node and hour.", 27.83, gt=0, le=MOST_USD)
    valid_from: Time = doc(
        "Start, within ten years of now: RFC 3339 or Unix seconds. Costs of the "
        "past do not change.",
        "2026-12-01T00:00:00Z",
    )
    source: str = doc(
        "Contract, invoice or page.",
        "contract 2026-117",
        max_length=MAX_SOURCE,
        pattern=NON_BLANK_LINE,
    )


def _serialize(prices: list[TeamPrice]) -> list[PriceOut]:
    now = timezone.now()
    of_type: dict[str, list[TeamPrice]] = {price.instance_type: [] for price in prices}
    for price in TeamPrice.objects.filter(instance_type__in=of_type):
        of_type[price.instance_type].append(price)
    pairs = {(price.instance_type, price.team) for price in prices}
    holds = [applicable_price(of_type[instance_type], team, now) for instance_type, team in pairs]
    holding = {price.pk for price in holds if price}
    return [PriceOut.from_object(price, holds_now=price.pk in holding) for price in prices]


@router.get("", response=PricePage, **needs("lead"), summary="List prices")
def price_list(request: HttpRequest, query: Query[PriceFilter]) -> PricePage:
    """List contract prices, newest first. Needs the role lead."""
    rows, links = paginate(request, TeamPrice.objects.filter_by(**query.fields), query, by="-pk")
    return PricePage(items=_serialize(rows), **links)


@router.get("/published", response=PublishedPrices, **needs("read"), summary="Published prices")
def price_published(request: HttpRequest) -> PublishedPrices:
    """List all prices of the catalog, which apply without a contract price."""
    today = timezone.now().date()
    return PublishedPrices(
        items=[
            PublishedPriceOut.from_object(
                price,
                instance_type=instance.name,
                usd_per_node_hour=price.usd_per_hour,
                usd_per_node_hour_high=price.usd_per_hour_high,
                is_default=price is instance.price,
                source=price.source.title,
                age_note=catalog.age_note(price.date, today),
            )
            for instance in catalog.instances().values()
            for price in instance.prices
        ]
    )


@router.get("/{price_id}", response=PriceOut, **needs("lead"), summary="One price")
def price_one(request: HttpRequest, price_id: Path[Key]) -> PriceOut:
    """Get one contract price. Needs the role lead."""
    return _serialize([get_object_or_404(TeamPrice, pk=price_id)])[0]


@router.post("", response={201: PriceNew}, **needs("lead"), summary="Set a price")
def price_new(request: HttpRequest, payload: PriceIn) -> Status[PriceNew]:
    """Set a price from a date on; prices never change. Needs the role lead.

    Active runs pay it from its start and not before now. To correct a price, set another one.
    """
    price, n_runs = set_price(
        PriceRequest(**payload.model_dump()), by=caller(request).name, now=timezone.now()
    )
    return Status(201, PriceNew.from_object(_serialize([price])[0], n_runs_changed=n_runs))
