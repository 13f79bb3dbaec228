"""The cost panel of a run: spending by category, price per token, planned length."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from fleet.costs.budgets import BudgetStatus, budget_status, runs_under_budgets
from fleet.costs.spending import RECOMPILED, Account, account, outlook, trained_tokens
from fleet.models import Alert, Annotation, Budget, Run
from fleet.models.run import RunQuerySet
from fleet.runs.annotations import AnnotationRequest, annotate
from fleet.runs.prices import chip_price_note
from fleet.runs.summaries import runs_now
from telemetry.errors import FieldError
from telemetry.statistics.time_use import SORTS
from telemetry.store.hot import HotStore

WORDS = {
    "training": "training",
    "communication": "all-reduce: waiting and transferring",
    "input": "waiting for data",
    "saving": "checkpoints, evaluation and other work",
    "compiling": "compiling",
    "warming_up": "startup and warm-up",
    "repeated": "repeated after a restart",
    "idle": "idle: nodes paid, no steps",
    "untold": "before stored history",
}
# A trace does not record why a device does neither work nor gradient exchange.
OF_TRACES = WORDS | {"saving": "other communication and idle time"}


@dataclass(frozen=True, slots=True)
class CostShare:
    """One category of spending, and the start of its segment of the bar, in percent."""

    sort: str
    words: str
    seconds: float
    usd: float | None
    ratio: float
    left: float

    @property
    def width(self) -> float:
        return round(100 * self.ratio, 3)


def round_to_cents(parts: Mapping[str, float]) -> dict[str, float]:
    """Round dollars to cents so that they add up to the rounded sum (largest remainder first).

    >>> round_to_cents({"a": 0.004, "b": 0.004, "c": 0.004})
    {'a': 0.01, 'b': 0.0, 'c': 0.0}
    """
    cents = {sort: value * 100 for sort, value in parts.items()}
    floors = {sort: math.floor(value) for sort, value in cents.items()}
    short = round(sum(cents.values())) - sum(floors.values())
    by_rest = sorted(cents, key=lambda sort: floors[sort] - cents[sort])
    return {sort: (floors[sort] + (sort in by_rest[:short])) / 100 for sort in parts}


def parts_of(spent: Account, words: Mapping[str, str] = WORDS) -> Sequence[CostShare]:
    """Return the categories with spending, in the order of the bar."""
    total_s = sum(spent.seconds.values())
    usd = round_to_cents(spent.usd) if spent.usd is not None else None
    portions, left = [], 0.0
    for sort in SORTS:
        seconds = spent.seconds[sort]
        dollars = None if usd is None else usd[sort]
        if total_s > 0 and (seconds / total_s >= 5e-4 or dollars):
            # Segments show shares of dollars, which differ from shares of time if prices change.
            of_usd = spent.usd is not None and spent.total_usd > 0
            ratio = (
                spent.usd[sort] / spent.total_usd if of_usd and spent.usd else seconds / total_s
            )
            portions.append(
                CostShare(sort, words[sort], seconds, dollars, ratio, round(100 * left, 3))
            )
            left += ratio
    return portions


def with_cost_fields(runs: RunQuerySet) -> RunQuerySet:
    """Annotate runs with whether they have a recompilation alert or a budget."""
    mine = Alert.objects.filter(RECOMPILED, run=OuterRef("pk"))
    whose = Q(run=OuterRef("pk")) | Q(team=OuterRef("team")) & ~Q(team="")
    return runs.annotate(
        has_recompiled=Exists(mine), has_budget=Exists(Budget.objects.kept().filter(whose))
    )


def brief_panel(hot: HotStore, run: Run, *, now: datetime) -> dict[str, Any] | None:
    """Return the panel if that is fast; None while old steps are still to be added up."""
    is_young = now.timestamp() - run.started_at.timestamp() < hot.keep_s
    return panel(hot, run, now=now) if run.spending or is_young else None


def panel(hot: HotStore, run: Run, *, now: datetime) -> dict[str, Any]:
    spent = account(hot, run, now=now)
    summed_up = runs_now(hot, [run], now_s=now.timestamp())[0]
    announced = () if run.finished_at else run.tariff or ()
    return {
        "spent": spent,
        "parts": parts_of(spent, OF_TRACES if hasattr(run, "trace") else WORDS),
        "total_s": sum(spent.seconds.values()),
        "total_usd": None if spent.usd is None else sum(round_to_cents(spent.usd).values()),
        "price": run.price,
        "price_doubt": chip_price_note(run.instance_type, *run.price),
        "next_price": next((t for t in announced if t["from_s"] > now.timestamp()), None),
        "mfu_ratio": summed_up.mfu_ratio or run.mfu_ratio(spent.settled_tokens_per_s),
        "outlook": outlook(summed_up, spent, at=now),
        "trained": trained_tokens(run, spent),
        "peak_flops": run.peak_flops,
        "budgets": budgets_of(run, now=now),
    }


def budgets_of(run: Run, *, now: datetime) -> list[BudgetStatus]:
    if not getattr(run, "has_budget", True):
        return []
    whose = Q(run=run) | Q(team=run.team) & ~Q(team="")
    budgets = list(Budget.objects.current(now).filter(whose))
    is_teams = any(budget.run_id is None for budget in budgets)
    runs = runs_under_budgets(budgets).filter(team=run.team) if is_teams else [run]
    return [budget_status(budget, runs, now=now) for budget in budgets]


PLANNING_WORDS = {"tokens_per_epoch": "tokens per epoch", "planned_tokens": "planned tokens"}
FIELDS = tuple(PLANNING_WORDS)
MOST = 10**18
SCALES = {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def tokens_in(field: str, text: str) -> int | None:
    """Read a number of tokens such as 1.4 T; None if empty.

    >>> tokens_in("tokens_per_epoch", "1.4 T"), tokens_in("tokens_per_epoch", "2,500,000")
    (1400000000000, 2500000)
    """
    written = text.replace(",", "").replace(" ", "").replace("_", "").upper()
    if not written:
        return None
    scale = SCALES.get(written[-1], 1)
    digits = written[:-1] if written[-1] in SCALES else written
    try:
        # Integers beyond 2**53 keep their last digits.
        number = int(digits) * scale if digits.isdecimal() else round(float(digits) * scale)
    except (ValueError, OverflowError):
        number = 0
    if not 0 < number <= MOST:
        raise FieldError(
            field, "give a number of tokens, as 300,000,000 or 300B, or empty for unknown"
        )
    return number


def set_training_length(run: Run, given: dict[str, str], *, by: str, now: datetime) -> bool:
    """Set a run's planned length and annotate the run; return whether it changed."""
    values = {field: tokens_in(field, given.get(field, "")) for field in FIELDS}
    if all(getattr(run, field) == value for field, value in values.items()):
        return False
    text = ", ".join(
        f"{PLANNING_WORDS[field]}: {'unknown' if value is None else f'{value:,}'}"
        for field, value in values.items()
    )
    with transaction.atomic():
        Run.objects.filter(pk=run.pk).update(**values)
        annotate(AnnotationRequest(Annotation.Kind.NOTE, text, now, run=run.name), by=by, now=now)
    return True
