"""A run's money as its page shows it: where every dollar went, and what it buys."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.efforts import peak_flops
from fleet.models import Run
from fleet.money.budgets import Burn, burns
from fleet.money.outlook import outlook, trained_tokens
from fleet.money.spending import Account, account
from fleet.summaries import runs_now
from telemetry.spending import SORTS
from telemetry.store.hot import HotStore

WORDS = {
    "training": "training",
    "communication": "all-reduce: waiting and transferring",
    "input": "waiting for data",
    "saving": "checkpoints and evaluation",
    "compiling": "compiling",
    "warming_up": "getting ready and warm-up",
    "repeated": "trained again after a restart",
    "idle": "idle: nodes held, no step made",
    "untold": "before what is remembered",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One sort of spending: how much, and where its piece of the bar begins, in percent."""

    sort: str
    words: str
    seconds: float
    usd: float | None
    ratio: float
    left: float

    @property
    def width(self) -> float:
        """How wide its piece is, in percent."""
        return round(100 * self.ratio, 3)


def in_cents(parts: Mapping[str, float]) -> dict[str, float]:
    """Round dollars to cents so that they add up to their rounded sum: the largest rest first.

    Examples
    --------
    >>> in_cents({"a": 0.004, "b": 0.004, "c": 0.004})
    {'a': 0.01, 'b': 0.0, 'c': 0.0}
    """
    cents = {sort: value * 100 for sort, value in parts.items()}
    floors = {sort: math.floor(value) for sort, value in cents.items()}
    short = round(sum(cents.values())) - sum(floors.values())
    by_rest = sorted(cents, key=lambda sort: floors[sort] - cents[sort])
    return {sort: (floors[sort] + (sort in by_rest[:short])) / 100 for sort in parts}


def parts_of(spent: Account) -> Sequence[Part]:
    """Return the sorts that a run spent anything on, in the order of the bar."""
    total_s = sum(spent.seconds.values())
    usd = in_cents(spent.usd) if spent.usd is not None else None
    found, left = [], 0.0
    for sort in SORTS:
        seconds = spent.seconds[sort]
        dollars = None if usd is None else usd[sort]
        if total_s > 0 and (seconds / total_s >= 5e-4 or dollars):
            # Of the bar each has the share of its dollars, which a price may have changed.
            of_usd = spent.usd is not None and spent.total_usd > 0
            ratio = (
                spent.usd[sort] / spent.total_usd if of_usd and spent.usd else seconds / total_s
            )
            found.append(Part(sort, WORDS[sort], seconds, dollars, ratio, round(100 * left, 3)))
            left += ratio
    return found


def panel(hot: HotStore, run: Run, *, now: datetime) -> dict[str, Any]:
    """Return what the panel shows of a run."""
    spent = account(hot, run, now=now)
    summed_up = runs_now(hot, [run], now_s=now.timestamp())[0]
    return {
        "run": run,
        "spent": spent,
        "parts": parts_of(spent),
        "total_s": sum(spent.seconds.values()),
        "total_usd": None if spent.usd is None else sum(in_cents(spent.usd).values()),
        "price": run.price,
        "next_price": _next_price(run, now=now),
        "now": summed_up,
        "outlook": outlook(summed_up, spent, at=now),
        "trained": trained_tokens(run, spent),
        "peak_flops": peak_flops(run),
        "budgets": budgets_of(run, now=now),
    }


def budgets_of(run: Run, *, now: datetime) -> list[Burn]:
    """Return how the budgets that a run burns stand."""
    return [
        each
        for each in burns(now=now)
        if each.budget.starts_at <= now < each.budget.ends_at
        and (each.budget.run_id == run.pk or (run.team and each.budget.team == run.team))
    ]


def _next_price(run: Run, *, now: datetime) -> Mapping[str, Any] | None:
    """Return the price that is announced to hold next; None where none is."""
    if run.finished_at is not None:
        return None
    to_come = [each for each in run.tariff or () if each["from_s"] > now.timestamp()]
    return to_come[0] if to_come else None
