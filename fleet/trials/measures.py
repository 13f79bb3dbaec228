"""The figures by which arms are compared: sums over sums, what they are called, which way."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fleet.costs.spending import usd_between
from fleet.formatting import NBSP, si
from fleet.models import Run, Trial
from fleet.models.run import SECONDS_PER_HOUR
from fleet.runs.flops import mfu_ratio, peak_flops
from fleet.runs.step_sums import COLUMNS, ArmSteps
from fleet.trials.figures import ArmPrice
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import ArmSamples, Difference, Measure, differences

TOKENS_PER_MTOK = 1e6


@dataclass(frozen=True, slots=True)
class MeasureName:
    """A measure, how people call it, and in which unit they read it."""

    name: str
    words: str
    measure: Measure
    unit: str
    factor: float = 1.0


FIGURES = (
    MeasureName(
        "usd_per_mtok",
        "$ per 1M tokens",
        Measure("usd", "tokens", is_better_low=True),
        "usd",
        TOKENS_PER_MTOK,
    ),
    MeasureName(
        "tokens_per_usd",
        "tokens per dollar",
        Measure("tokens", "usd", is_better_low=False),
        "count",
    ),
    MeasureName(
        "tokens_per_s",
        "tokens per second",
        Measure("tokens", "counted_s", is_better_low=False),
        "count",
    ),
    MeasureName(
        "time_to_train_s",
        "time to train",
        Measure("counted_s", "tokens", is_better_low=True, line="time_to_train_s"),
        "duration",
    ),
    MeasureName("step_s", "step time", Measure("step_s", "steps", is_better_low=True), "s"),
    MeasureName(
        "heavy_step_s",
        "step time, all-reduce-heavy",
        Measure("heavy_s", "heavy", is_better_low=True),
        "s",
    ),
    MeasureName(
        "allreduce_share_ratio",
        "all-reduce share",
        Measure("allreduce_s", "told_s", is_better_low=True),
        "ratio",
    ),
)
MFU = MeasureName("mfu_ratio", "MFU", Measure("tokens", "counted_s", is_better_low=False), "ratio")
USD_PER_EPOCH = MeasureName(
    "usd_per_epoch", "$ per epoch", Measure("usd", "tokens", is_better_low=True), "usd"
)
FIRST_EPOCH = MeasureName(
    "first_epoch_step_s",
    "step time, first epoch",
    Measure("step_s", "steps", is_better_low=True),
    "s",
)
LOSS = MeasureName(
    "loss", "loss at equal tokens", Measure("loss", "loss_steps", is_better_low=True), "plain"
)
# As people read them: the money, the pace, what it is made of, and what it yields.
ORDER = (
    *("usd_per_mtok", "usd_per_epoch", "tokens_per_usd", "tokens_per_s", "time_to_train_s"),
    *("first_epoch_step_s", "step_s", "heavy_step_s", "allreduce_share_ratio", "mfu_ratio"),
    "loss",
)
BY_NAME = {
    figure.name: figure
    for figure in sorted(
        (*FIGURES, MFU, USD_PER_EPOCH, FIRST_EPOCH, LOSS), key=lambda each: ORDER.index(each.name)
    )
}
# What says the same as another in other units falls or stands with it.
TWINS = {
    "tokens_per_usd": "usd_per_mtok",
    "usd_per_epoch": "usd_per_mtok",
    "mfu_ratio": "tokens_per_s",
}
# Those that decide nothing share one chance of a wrong word among them.
N_BESIDE = len(BY_NAME) - len(TWINS) - 1
# What decides: dollars, or where there is no price the pace.
DECIDING = ("usd_per_mtok", "tokens_per_s", "step_s")


def can_be_told(figure: MeasureName, sums: FloatArray) -> bool:
    """Whether settled steps tell a measure at all: both of its sums are there."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    has_heavy = figure.name != "heavy_step_s" or total["allreduce_s"] > 0
    return bool(total[figure.measure.over] > 0 and total[figure.measure.under] > 0 and has_heavy)


def values_of(run: Run, sums: FloatArray) -> dict[str, float]:
    """Return every measure of an arm by its settled steps, in the unit people read."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    plain = [figure for figure in FIGURES if not figure.measure.line]
    values = {
        figure.name: float(
            total[figure.measure.over] / total[figure.measure.under] * figure.factor
        )
        for figure in plain
        if can_be_told(figure, sums)
    }
    if run.tokens_per_epoch and "usd_per_mtok" in values:
        per_token = values["usd_per_mtok"] / TOKENS_PER_MTOK
        values[USD_PER_EPOCH.name] = per_token * run.tokens_per_epoch
    mfu = mfu_ratio(run, values.get("tokens_per_s"))
    return values if mfu is None or not np.isfinite(mfu) else values | {MFU.name: mfu}


STEPS, TOKENS, ONCE, LOSSES, LOSS_STEPS = (
    COLUMNS.index(name) for name in ("steps", "tokens", "once", "loss", "loss_steps")
)
# Losses are compared over this last part of the tokens that both arms have trained on.
WINDOW_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class PartialDifference:
    """A difference, and the steps it is of: so many so far, of so many that there will be."""

    difference: Difference
    n_steps: int
    n_planned: int


def first_epoch(sums: FloatArray, tokens_per_epoch: int | None) -> FloatArray:
    """Return the rows of an arm's first pass over its data, warm-up included; none: unknown.

    What was trained again after a failure passed over the data once.
    """
    if not tokens_per_epoch or not sums[:, TOKENS].all():
        return sums[:0]
    before = np.cumsum(sums[:, ONCE]) - sums[:, ONCE]
    return np.asarray(sums[before < tokens_per_epoch])


def first_epochs(
    before: FloatArray, after: FloatArray, tokens_per_epoch: int, rng: np.random.Generator
) -> PartialDifference | None:
    """Compare the mean step of two arms' first epochs; None where one has no step of it."""
    epochs = [first_epoch(sums, tokens_per_epoch) for sums in (before, after)]
    if not all(map(len, epochs)):
        return None
    found = differences(*_arms(epochs), {FIRST_EPOCH.name: FIRST_EPOCH.measure}, rng=rng)
    done = [max(1.0, float(rows[:, ONCE].sum())) for rows in epochs]
    counts = [int(rows[:, STEPS].sum()) for rows in epochs]
    n_steps, n_tokens = min(zip(counts, done, strict=True))
    n_planned = round(n_steps * max(1.0, tokens_per_epoch / n_tokens))
    return PartialDifference(found[FIRST_EPOCH.name], n_steps, max(1, n_planned))


def equal_tokens(before: FloatArray, after: FloatArray) -> float | None:
    """Return the tokens that both arms have trained on; None where one did not count them.

    A token that was trained again after a failure counts once.
    """
    total = min(float(sums[:, ONCE].sum()) for sums in (before, after))
    return total or None


def losses_at(
    n_tokens: float, before: FloatArray, after: FloatArray, rng: np.random.Generator
) -> Difference | None:
    """Compare two arms' loss just before so many tokens; None where one tells none there.

    Notes
    -----
    The mean loss of the steps of the last twentieth of these tokens. It falls within them, alike
    in both arms; the blocks in which they are drawn take that for scatter, so that the interval
    is rather too wide. Of steps that were trained twice, those that stayed tell.
    """
    windows = [_window(sums, n_tokens) for sums in (before, after)]
    if not all(len(rows) and rows[:, LOSSES].any() for rows in windows):
        return None
    return differences(*_arms(windows), {LOSS.name: LOSS.measure}, rng=rng)[LOSS.name]


def _window(sums: FloatArray, n_tokens: float) -> FloatArray:
    upto = np.cumsum(sums[:, ONCE])
    since = upto - sums[:, ONCE]
    within = (since < n_tokens) & (upto > n_tokens * (1 - WINDOW_RATIO))
    return np.asarray(sums[within & (sums[:, LOSS_STEPS] > 0)])


def _arms(rows: list[FloatArray]) -> tuple[ArmSamples, ArmSamples]:
    before, after = (ArmSamples(COLUMNS, each) for each in rows)
    return before, after


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


def prices_of(run: Run, *, until: datetime) -> tuple[ArmPrice, ...]:
    """Return the prices by which a run was paid up to a moment, oldest first, at least one."""
    rates, over_s = run.rates, run.paid_by(until).timestamp()
    bases = [run.price_basis] if not run.tariff else [each["basis"] for each in run.tariff]
    told = [
        ArmPrice(float(from_s), float(usd_per_s) * SECONDS_PER_HOUR, basis)
        for from_s, usd_per_s, basis in zip(rates.from_s, rates.usd_per_s, bases, strict=True)
    ]
    return (told[0], *(price for price in told[1:] if price.from_s < over_s))


@dataclass(frozen=True, slots=True)
class VendorClaim:
    """Tokens per dollar of a candidate over its baseline less one, as somebody claims them."""

    low: float
    high: float
    words: str
    source: str
    date: str


# Read in AWS's announcement, and in the same words on its page of Trn2 instances. It names P5e
# and P5en (H200); it is often quoted of p5 (H100) as well, which it does not name.
TRAINIUM2 = VendorClaim(
    low=0.30,
    high=0.40,
    words=(
        "AWS claims \u201c30-40% better price performance than GPU-based EC2 P5e and P5en "
        "instances\u201d for Trn2"
    ),
    source="AWS News Blog, J. Barr, on the availability of EC2 Trn2 instances",
    date="2024-12-03",
)
NOT_NAMED = "It names P5e and P5en, not p5; no benchmark is published with it."


def claim_for(baseline: str, candidate: str) -> VendorClaim | None:
    """Return the claim that speaks of such a pair of instance types: trn2 against a p5."""
    known = catalog.instances()
    is_told = candidate.startswith("trn2") and baseline.startswith("p5")
    return TRAINIUM2 if is_told and candidate in known else None


EXPLAINED: Mapping[str, str] = {
    "usd_per_mtok": "dollars of the settled steps, each second at the price that held then, over "
    "their tokens",
    "usd_per_epoch": "the same for the tokens of one pass over the data",
    "tokens_per_usd": "its inverse, price-performance: what AWS's claim speaks of",
    "tokens_per_s": "tokens of the settled steps over their seconds",
    "time_to_train_s": "until the first step, warm-up, and the rest of the {planned} planned "
    "tokens at the settled pace; no failures and no pauses",
    "first_epoch_step_s": "the mean step of the first pass over the data, its warm-up included",
    "step_s": "the mean settled step, checkpoints and evaluations included",
    "heavy_step_s": "the same of the quarter of each hour's steps with the largest all-reduce "
    "share",
    "allreduce_share_ratio": "waiting and transferring that no computing hides, over step time",
    "mfu_ratio": "the model's FLOPs over the dense peak of all chips{peaks}",
    "loss": "the mean over the last twentieth of the tokens that both arms have trained on; what "
    "was trained again after a failure counts once",
}
EXPLAINING_ONCE = {
    "compile time": "seconds in which any process compiled, before and amid training",
    "until the first step": "from the run's start, compiling included",
}


def explained(trial: Trial, runs: Iterable[Run], measures: Iterable[str]) -> list[tuple[str, str]]:
    """Return the words for measures, and those for what happens once, each with what it is."""
    filled = {"planned": f"{trial.planned_tokens or 0:,}", "peaks": _peaks(runs)}
    told = [(BY_NAME[name].words, EXPLAINED[name].format(**filled)) for name in measures]
    return [*told, *EXPLAINING_ONCE.items()]


def _peaks(runs: Iterable[Run]) -> str:
    """Return the peaks that MFU is reckoned by, run by run; nothing where none is known."""
    known = {
        f"{run.n_nodes} \u00d7 {run.instance_type}: {si(peak)}FLOP/s".replace(" ", NBSP, 2)
        for run in runs
        if (peak := peak_flops(run))
    }
    return f" ({', '.join(sorted(known))})" if known else ""
