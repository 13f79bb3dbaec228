"""What an arm of a trial was paid, part by part, each second at the price that held then."""

import math
from datetime import datetime, timedelta
from typing import Any

from fleet.models import Run
from fleet.models.run import SECONDS_PER_HOUR
from fleet.money.paying import usd_between
from fleet.trials.figures import Price
from fleet.trials.steps import COLUMNS, ArmSteps

PAID = COLUMNS.index("paid")
# Times are kept to a tenth of a millisecond: what is less than half a cent is no pause.
DUST_USD = 0.005
NAMES = ("usd_ready", "usd_warm_up", "usd_settled", "usd_between", "usd", "usd_per_hour")


def paid(run: Run, steps: ArmSteps, ready_s: float, *, until: datetime) -> dict[str, Any]:
    """Return the fields of an arm's figures that are dollars; None without a price.

    The parts add up to what the run has cost up to a moment, by its own account.
    """
    total = run.usd_by(until)
    if math.isnan(total):
        return dict.fromkeys(NAMES)
    began = run.started_at
    ready = min(total, usd_between(run, began, began + timedelta(seconds=ready_s)))
    column, n_warm = steps.sums[:, PAID], steps.n_warm_rows
    warm_up, settled = float(column[:n_warm].sum()), float(column[n_warm:].sum())
    between = total - ready - warm_up - settled
    between = between if between >= DUST_USD else 0.0
    prices = prices_of(run, until=until)
    return {
        "usd_ready": ready,
        "usd_warm_up": warm_up,
        "usd_settled": settled,
        "usd_between": between,
        "usd": ready + warm_up + settled + between,
        "usd_per_hour": prices[-1].usd_per_hour,
        "price_basis": prices[-1].basis,
        "prices": prices,
    }


def prices_of(run: Run, *, until: datetime) -> tuple[Price, ...]:
    """Return the prices by which a run was paid up to a moment, oldest first, at least one."""
    rates, over_s = run.rates, run.paid_by(until).timestamp()
    bases = [run.price_basis] if not run.tariff else [each["basis"] for each in run.tariff]
    told = [
        Price(float(from_s), float(usd_per_s) * SECONDS_PER_HOUR, basis)
        for from_s, usd_per_s, basis in zip(rates.from_s, rates.usd_per_s, bases, strict=True)
    ]
    return (told[0], *(price for price in told[1:] if price.from_s < over_s))
