"""A price as the API tells it: of a contract, or published."""

from collections.abc import Iterable
from datetime import datetime
from typing import Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import TeamPrice
from telemetry import catalog


class PriceOut(Told):
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
        """Tell a price; ``held`` are the keys of those that hold now."""
        return cls(
            **{name: getattr(price, name) for name in PLAIN},
            team=price.team or None,
            holds_now=price.pk in held,
        )


PLAIN = sorted(
    {field.name for field in TeamPrice._meta.fields} & set(PriceOut.model_fields) - {"team"}
)


class PricePage(Links):
    """A page of prices."""

    items: list[PriceOut] = Field(description="The prices of this page.")
    sorted_by: str = Field(default="-id", description="What was set last comes first.")


class PriceNew(PriceOut):
    """A price that was just set."""

    n_runs_changed: int = Field(
        description="Runs under way that will pay it, from its date on and never before now."
    )


class PublishedPriceOut(Told):
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
        """Tell a price of the catalogue."""
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


class PublishedPrices(Told):
    """All that the catalogue knows of prices, whole."""

    items: list[PublishedPriceOut] = Field(description="By instance type, the default first.")
