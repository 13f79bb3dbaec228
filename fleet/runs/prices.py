"""Prices of a run: a team's contract by its date, or else the catalogue's list price."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from fleet.models import Run, TeamPrice
from telemetry import catalog
from telemetry.errors import FieldError, check_line

Entry = dict[str, Any]


def entries(run: Run) -> list[Entry]:
    """List the prices of a run with their start, oldest first; there is at least one."""
    if run.tariff:
        return [dict(each) for each in run.tariff]
    began = {
        "from_s": run.started_at.timestamp(),
        "n_nodes": run.n_nodes,
        "usd_per_node_hour": run.usd_per_node_hour,
        "basis": run.price_basis,
    }
    return [began]


def is_priced(run: Run) -> bool:
    """Whether the run has a price at any time."""
    return any(entry["usd_per_node_hour"] > 0 for entry in entries(run))


def with_nodes(run: Run, n_nodes: int, *, now: datetime) -> list[Entry] | None:
    """Build the tariff of a run whose number of nodes changes now.

    A run without a price has no tariff to change.
    """
    if not is_priced(run):
        return None
    earlier, later = _cut(run, now)
    entry = {**earlier[-1], "from_s": now.timestamp(), "n_nodes": n_nodes}
    return [*earlier, entry, *({**each, "n_nodes": n_nodes} for each in later)]


def with_prices(
    run: Run, prices: Iterable[tuple[datetime, float, str]], *, now: datetime
) -> list[Entry]:
    """Build the tariff of a run with other prices from now on: (start, dollars, basis).

    A price of an earlier moment holds from now on: what was paid was paid.
    """
    entries_kept, _ = _cut(run, now)
    for at, usd, basis in sorted(prices, key=lambda each: each[0]):
        from_s = max(now, at).timestamp()
        if (usd, basis) != (entries_kept[-1]["usd_per_node_hour"], entries_kept[-1]["basis"]):
            entry = {
                "from_s": from_s,
                "n_nodes": run.n_nodes,
                "usd_per_node_hour": usd,
                "basis": basis,
            }
            entries_kept.append(entry)
    return entries_kept


def _cut(run: Run, now: datetime) -> tuple[list[Entry], list[Entry]]:
    """Return a run's entries up to a moment, at least the first, and those to come."""
    first, *rest = entries(run)
    earlier = [each for each in rest if each["from_s"] < now.timestamp()]
    return [first, *earlier], rest[len(earlier) :]


NO_PRICE = "no price is known"
AS_REPORTED = "as reported"
MOST_USD = 100_000.0
MAX_TEAM, MAX_SOURCE, MAX_BASIS = 40, 200, 80
PUBLISHED = re.compile(r"(?:[^,]+, )+(20\d\d-\d\d(?:-\d\d)?)")
# Limits that refuse a date with a mistyped year.
LONGEST_AGO, LONGEST_AHEAD = timedelta(days=3660), timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class PriceRequest:
    """A price as sent; ``team`` empty: every team without its own price."""

    team: str
    instance_type: str
    basis: str
    usd_per_node_hour: float
    valid_from: datetime
    source: str


def basis_of(price: TeamPrice) -> str:
    """Write the basis of a price in one line; leave out a source that is too long."""
    whose = f" of {price.team}" if price.team else ""
    terms = f"{price.basis}{whose}, {price.valid_from:%Y-%m-%d}"
    text = f"{terms}, {price.source}"
    return text if len(text) <= MAX_BASIS else terms


def applicable_price(prices: Iterable[TeamPrice], team: str, at: datetime) -> TeamPrice | None:
    """Find the price at a time: the team's newest, or else the newest for all teams.

    ``prices`` are of one instance type, in the order in which they hold.
    """
    begun = [price for price in prices if price.valid_from <= at and price.team in (team, "")]
    own = [price for price in begun if price.team]
    return next(reversed(own or begun), None)


def opening_price(
    team: str, instance_type: str, *, n_nodes: int, began: datetime
) -> dict[str, Any]:
    """Build the price fields of a run that starts: the price now, and those to come.

    A contract of its team holds, or else the catalogue's default; 0 where unknown.
    """
    known = list(TeamPrice.objects.of(team, instance_type)) if instance_type else []
    first = applicable_price(known, team, began)
    usd, basis = (
        (first.usd_per_node_hour, basis_of(first)) if first else published_price(instance_type)
    )
    fields = {"usd_per_node_hour": usd, "price_basis": basis, "tariff": None}
    to_come = _changes(known, team, after=began)
    if to_come:
        run = Run(n_nodes=n_nodes, started_at=began, usd_per_node_hour=usd, price_basis=basis)
        fields["tariff"] = with_prices(run, to_come, now=began)
    return fields


def published_price(instance_type: str) -> tuple[float, str]:
    """Look up the catalogue's price of a type and its basis; 0 where none is published."""
    instance = catalog.instances().get(instance_type)
    if instance is None or not instance.prices:
        return 0.0, NO_PRICE
    price = instance.price
    return price.usd_per_hour, f"{price.basis}, {price.date}"[:MAX_BASIS]


def chip_price_note(instance_type: str, usd: float, basis: str) -> str:
    """Say that a price of a node looks like that of one of its chips; empty if it does not.

    As a ratio it is nearer to one chip's part of the lowest published price of its kind than to
    that price.
    """
    instance = catalog.instances().get(instance_type)
    if instance is None or not instance.prices or usd <= 0:
        return ""
    kinds = [price.basis.partition(",")[0] for price in instance.prices]
    alike = [basis.startswith(kind) for kind in kinds]
    least = min(
        price.usd_per_hour
        for price, is_alike in zip(instance.prices, alike, strict=True)
        if is_alike or not any(alike)
    )
    n_chips = instance.n_devices
    if usd * math.sqrt(n_chips) >= least:
        return ""
    return (
        f"${usd:,.2f} per node-hour of {instance_type} is far below ${least:,.2f}, the lowest "
        f"published price: if it is the price of one of its {n_chips} chips, set that of the node"
    )


def published_date(basis: str) -> str:
    """Find the source's date in the basis of a published price; empty for a contract or a report.

    >>> published_date("on demand, 2026-07-20"), published_date("1-year of LLM, 2026-07-20, mail")
    ('2026-07-20', '')
    """
    match = PUBLISHED.fullmatch(basis)
    return match.group(1) if match and " of " not in basis else ""


def _changes(
    known: Sequence[TeamPrice], team: str, *, after: datetime
) -> list[tuple[datetime, float, str]]:
    dates = sorted({price.valid_from for price in known if price.valid_from > after})
    prices = [(at, applicable_price(known, team, at)) for at in dates]
    return [(at, price.usd_per_node_hour, basis_of(price)) for at, price in prices if price]


@transaction.atomic
def set_price(asked: PriceRequest, *, by: str, now: datetime) -> tuple[TeamPrice, int]:
    """Set a price from a date on; return it, and the number of active runs that change.

    Runs under way pay it from its date on, but never for time that has passed; runs that are
    over stay as they are. Raises FieldError where a field cannot be.
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
    runs = Run.objects.active().filter(instance_type=price.instance_type)
    runs = runs.filter(team=price.team) if price.team else runs
    runs = runs.exclude(price_basis=AS_REPORTED).select_for_update()
    return price, sum(_reprice(run, now=now) for run in runs)


def _reprice(run: Run, *, now: datetime) -> bool:
    """Apply the current prices to a run; return whether anything changes."""
    known = list(TeamPrice.objects.of(run.team, run.instance_type))
    if not is_priced(run) and applicable_price(known, run.team, run.started_at):
        # It had no price before: this one holds from its start.
        fields = opening_price(
            run.team, run.instance_type, n_nodes=run.n_nodes, began=run.started_at
        )
        return bool(Run.objects.filter(pk=run.pk).update(**fields))
    current = applicable_price(known, run.team, now)
    prices = _changes(known, run.team, after=now)
    if current:
        prices = [(now, current.usd_per_node_hour, basis_of(current)), *prices]
    tariff = with_prices(run, prices, now=now)
    if tariff == entries(run):
        return False
    return bool(Run.objects.filter(pk=run.pk).update(tariff=tariff))


def _check(asked: PriceRequest, *, now: datetime) -> None:
    if asked.instance_type not in catalog.instances():
        known = ", ".join(catalog.instances())
        raise FieldError("instance_type", f"choose one of {known}")
    if asked.basis not in TeamPrice.Basis.values:
        raise FieldError("basis", f"choose one of {', '.join(TeamPrice.Basis.values)}")
    usd = asked.usd_per_node_hour
    if not math.isfinite(usd) or not 0 < usd <= MOST_USD:
        raise FieldError(
            "usd_per_node_hour",
            f"give dollars per node and hour, above 0 and up to {MOST_USD:,.0f}",
        )
    if not now - LONGEST_AGO <= asked.valid_from <= now + LONGEST_AHEAD:
        raise FieldError("valid_from", "give a date within ten years of today, as 2026-11-30")
    check_line("team", asked.team, most=MAX_TEAM)
    check_line("source", asked.source, most=MAX_SOURCE)
    if not asked.source.strip():
        raise FieldError("source", "say where it is from: a contract, an invoice, a page")
