"""Which price holds: a team's contract by its date, or else what the catalogue has published."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from fleet.models import Run, TeamPrice
from fleet.pricing.tariffs import entries, is_priced, with_prices
from telemetry import catalog

NO_PRICE = "no price is known"
AS_REPORTED = "as reported"
MOST_USD = 100_000.0
MAX_TEAM, MAX_SOURCE, MAX_BASIS = 40, 200, 80
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A date mistyped by a century is no contract.
LONGEST_AGO, LONGEST_AHEAD = timedelta(days=3660), timedelta(days=3660)


class PriceError(ValueError):
    """A price that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Asked:
    """A price as somebody asks for it; ``team`` empty: every team that has none of its own."""

    team: str
    instance_type: str
    basis: str
    usd_per_node_hour: float
    valid_from: datetime
    source: str


def basis_of(price: TeamPrice) -> str:
    """Return the terms of a price in a line, as runs keep them; no source that is too long."""
    whose = f" of {price.team}" if price.team else ""
    terms = f"{price.basis}{whose}, {price.valid_from:%Y-%m-%d}"
    text = f"{terms}, {price.source}"
    return text if len(text) <= MAX_BASIS else terms


def holding(prices: Iterable[TeamPrice], team: str, at: datetime) -> TeamPrice | None:
    """Return the price that holds at a moment: the team's newest, or else everybody's newest.

    ``prices`` are of one instance type, in the order in which they hold.
    """
    begun = [price for price in prices if price.valid_from <= at and price.team in (team, "")]
    own = [price for price in begun if price.team]
    return next(reversed(own or begun), None)


def opening(team: str, instance_type: str, *, n_nodes: int, began: datetime) -> dict[str, Any]:
    """Return what a run that begins pays, as fields of its row: now, and as announced.

    A dated contract of its team holds, or else the catalogue's default; 0 where nobody knows.
    """
    known = list(TeamPrice.objects.of(team, instance_type)) if instance_type else []
    first = holding(known, team, began)
    usd, basis = (first.usd_per_node_hour, basis_of(first)) if first else published(instance_type)
    fields = {"usd_per_node_hour": usd, "price_basis": basis, "tariff": None}
    to_come = _changes(known, team, after=began)
    if to_come:
        run = Run(n_nodes=n_nodes, started_at=began, usd_per_node_hour=usd, price_basis=basis)
        fields["tariff"] = with_prices(run, to_come, now=began)
    return fields


def published(instance_type: str) -> tuple[float, str]:
    """Return the catalogue's price of a type and by which list; 0 where none is published."""
    found = catalog.instances().get(instance_type)
    if found is None or not found.prices:
        return 0.0, NO_PRICE
    return found.price.usd_per_hour, f"{found.price.basis}, {found.price.date}"[:MAX_BASIS]


def _changes(
    known: Sequence[TeamPrice], team: str, *, after: datetime
) -> list[tuple[datetime, float, str]]:
    """Return the prices that hold from later moments on."""
    dates = sorted({price.valid_from for price in known if price.valid_from > after})
    held = [(at, holding(known, team, at)) for at in dates]
    return [(at, price.usd_per_node_hour, basis_of(price)) for at, price in held if price]


@transaction.atomic
def set_price(asked: Asked, *, by: str, now: datetime) -> tuple[TeamPrice, int]:
    """Set a price from a date on; return it, and how many runs under way it changes.

    Runs under way pay it from its date on, but never for time that has passed; runs that are
    over stay as they are. Raises PriceError where a field cannot be.
    """
    _check(asked, now=now)
    price = TeamPrice.objects.create(
        team=asked.team.strip(),
        instance_type=asked.instance_type,
        basis=asked.basis,
        usd_per_node_hour=asked.usd_per_node_hour,
        valid_from=asked.valid_from,
        source=asked.source.strip(),
        set_by=by,
        set_at=now,
    )
    return price, sum(_reprice(run, now=now) for run in _under_way(price))


def _under_way(price: TeamPrice) -> QuerySet[Run]:
    runs = Run.objects.active().filter(instance_type=price.instance_type)
    runs = runs.filter(team=price.team) if price.team else runs
    return runs.exclude(price_basis=AS_REPORTED).select_for_update()


def _reprice(run: Run, *, now: datetime) -> bool:
    """Make a run pay what holds from now on; say whether that changes anything."""
    known = list(TeamPrice.objects.of(run.team, run.instance_type))
    if not is_priced(run) and holding(known, run.team, run.started_at):
        # Nothing was told of it yet: it has paid this all along.
        fields = opening(run.team, run.instance_type, n_nodes=run.n_nodes, began=run.started_at)
        return bool(Run.objects.filter(pk=run.pk).update(**fields))
    current = holding(known, run.team, now)
    prices = _changes(known, run.team, after=now)
    if current:
        prices = [(now, current.usd_per_node_hour, basis_of(current)), *prices]
    tariff = with_prices(run, prices, now=now)
    if tariff == entries(run):
        return False
    return bool(Run.objects.filter(pk=run.pk).update(tariff=tariff))


def _check(asked: Asked, *, now: datetime) -> None:
    if asked.instance_type not in catalog.instances():
        known = ", ".join(catalog.instances())
        raise PriceError("instance_type", f"choose one of {known}")
    if asked.basis not in TeamPrice.Basis.values:
        raise PriceError("basis", f"choose one of {', '.join(TeamPrice.Basis.values)}")
    usd = asked.usd_per_node_hour
    if not math.isfinite(usd) or not 0 < usd <= MOST_USD:
        raise PriceError(
            "usd_per_node_hour",
            f"give dollars per node and hour, above 0 and up to {MOST_USD:,.0f}",
        )
    if not now - LONGEST_AGO <= asked.valid_from <= now + LONGEST_AHEAD:
        raise PriceError("valid_from", "give a date within ten years of today, as 2026-11-30")
    for field, text, most in (
        ("team", asked.team, MAX_TEAM),
        ("source", asked.source, MAX_SOURCE),
    ):
        if len(text.strip()) > most:
            raise PriceError(field, f"use at most {most} characters")
        if CONTROL.search(text):
            raise PriceError(field, "use no control characters, not even line breaks")
    if not asked.source.strip():
        raise PriceError("source", "say where it is from: a contract, an invoice, a page")
