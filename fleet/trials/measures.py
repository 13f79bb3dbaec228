"""The measures by which arms are compared: their names, units, definitions and vendor claims."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fleet.formatting import NBSP, si
from fleet.models import Run, Trial
from fleet.runs.flops import mfu_ratio, peak_flops
from fleet.runs.step_sums import COLUMNS
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import Measure

TOKENS_PER_MTOK = 1e6


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A measure, its label, and the unit in which it is written.

    ``factor`` converts a ratio of sums to that unit.
    """

    name: str
    label: str
    measure: Measure
    unit: str
    factor: float = 1.0


RATIOS = (
    TrialMeasure(
        "usd_per_mtok",
        "$ per 1M tokens",
        Measure("usd", "tokens", is_better_low=True),
        "usd",
        TOKENS_PER_MTOK,
    ),
    TrialMeasure(
        "tokens_per_usd",
        "tokens per dollar",
        Measure("tokens", "usd", is_better_low=False),
        "count",
    ),
    TrialMeasure(
        "tokens_per_s",
        "tokens per second",
        Measure("tokens", "counted_s", is_better_low=False),
        "count",
    ),
    TrialMeasure(
        "time_to_train_s",
        "time to train",
        Measure("counted_s", "tokens", is_better_low=True, line="time_to_train_s"),
        "duration",
    ),
    TrialMeasure("step_s", "step time", Measure("step_s", "steps", is_better_low=True), "s"),
    TrialMeasure(
        "heavy_step_s",
        "step time, all-reduce-heavy",
        Measure("heavy_s", "heavy", is_better_low=True),
        "s",
    ),
    TrialMeasure(
        "allreduce_share_ratio",
        "all-reduce share",
        Measure("allreduce_s", "reported_s", is_better_low=True),
        "ratio",
    ),
)
MFU = TrialMeasure(
    "mfu_ratio", "MFU", Measure("tokens", "counted_s", is_better_low=False), "ratio"
)
USD_PER_EPOCH = TrialMeasure(
    "usd_per_epoch", "$ per epoch", Measure("usd", "tokens", is_better_low=True), "usd"
)
FIRST_EPOCH = TrialMeasure(
    "first_epoch_step_s",
    "step time, first epoch",
    Measure("step_s", "steps", is_better_low=True),
    "s",
)
LOSS = TrialMeasure(
    "loss", "loss at equal tokens", Measure("loss", "loss_steps", is_better_low=True), "plain"
)
# From cost to pace to what the pace is made of.
ORDER = (
    *("usd_per_mtok", "usd_per_epoch", "tokens_per_usd", "tokens_per_s", "time_to_train_s"),
    *("first_epoch_step_s", "step_s", "heavy_step_s", "allreduce_share_ratio", "mfu_ratio"),
    "loss",
)
BY_NAME = {
    figure.name: figure
    for figure in sorted(
        (*RATIOS, MFU, USD_PER_EPOCH, FIRST_EPOCH, LOSS), key=lambda each: ORDER.index(each.name)
    )
}
# Measures that are another one in other units, and share its verdict.
EQUIVALENT = {
    "tokens_per_usd": "usd_per_mtok",
    "usd_per_epoch": "usd_per_mtok",
    "mfu_ratio": "tokens_per_s",
}
# The verdict rests on the first of these that is known: cost, or the pace without a price.
DECIDING = ("usd_per_mtok", "tokens_per_s", "step_s")
# All other measures together have one chance of a wrong verdict.
N_SECONDARY = len(BY_NAME) - len(EQUIVALENT) - 1


def is_known(figure: TrialMeasure, sums: FloatArray) -> bool:
    """Whether settled steps have both sums of a measure."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    has_heavy = figure.name != "heavy_step_s" or total["allreduce_s"] > 0
    return bool(total[figure.measure.over] > 0 and total[figure.measure.under] > 0 and has_heavy)


def values_of(run: Run, sums: FloatArray) -> dict[str, float]:
    """Compute every known measure of an arm from its settled steps, each in its unit."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    values = {
        figure.name: float(
            total[figure.measure.over] / total[figure.measure.under] * figure.factor
        )
        for figure in RATIOS
        if not figure.measure.line and is_known(figure, sums)
    }
    if run.tokens_per_epoch and "usd_per_mtok" in values:
        per_token = values["usd_per_mtok"] / TOKENS_PER_MTOK
        values[USD_PER_EPOCH.name] = per_token * run.tokens_per_epoch
    mfu = mfu_ratio(run, values.get("tokens_per_s"))
    return values if mfu is None or not np.isfinite(mfu) else values | {MFU.name: mfu}


@dataclass(frozen=True, slots=True)
class VendorClaim:
    """Claimed tokens per dollar of a candidate over its baseline, less one."""

    low: float
    high: float
    text: str
    source: str
    date: str


# From AWS's announcement; its page on Trn2 instances says the same. The claim names P5e and P5en
# (H200). It is often quoted for p5 (H100) too, which it does not name.
TRAINIUM2 = VendorClaim(
    low=0.30,
    high=0.40,
    text=(
        "AWS claims \u201c30-40% better price performance than GPU-based EC2 P5e and P5en "
        "instances\u201d for Trn2"
    ),
    source="AWS News Blog, J. Barr, on the availability of EC2 Trn2 instances",
    date="2024-12-03",
)
NOT_NAMED = "It names P5e and P5en, not p5; no benchmark is published with it."


def claim_for(baseline: str, candidate: str) -> VendorClaim | None:
    """Find the claim for a pair of instance types: there is one for trn2 against any p5."""
    is_covered = candidate.startswith("trn2") and baseline.startswith("p5")
    return TRAINIUM2 if is_covered and candidate in catalog.instances() else None


DEFINITIONS: Mapping[str, str] = {
    "usd_per_mtok": "cost of the settled steps, each second at the price of its time, over their "
    "tokens",
    "usd_per_epoch": "the same for the tokens of one pass over the data",
    "tokens_per_usd": "its inverse, price-performance, which AWS's claim is about",
    "tokens_per_s": "tokens of the settled steps over their seconds",
    "time_to_train_s": "time until the first step, warm-up, and the rest of the {planned} planned "
    "tokens at the settled pace, without failures and pauses",
    "first_epoch_step_s": "the mean step of the first pass over the data, its warm-up included",
    "step_s": "the mean settled step, checkpoints and evaluations included",
    "heavy_step_s": "the same for the quarter of each hour's steps with the largest all-reduce "
    "share",
    "allreduce_share_ratio": "exposed all-reduce wait and transfer, over step time",
    "mfu_ratio": "the model's FLOPs over the dense peak of all chips{peaks}",
    "loss": "the mean over the last twentieth of the tokens that both arms have trained on; "
    "steps trained again after a failure count once",
}
ONE_TIME_DEFINITIONS = {
    "compile time": "seconds in which any process compiled, before and during training",
    "until the first step": "from the run's start, compiling included",
}


def definitions(
    trial: Trial, runs: Iterable[Run], measures: Iterable[str]
) -> list[tuple[str, str]]:
    """List the labels of measures and of one-time costs, each with its definition."""
    peaks = {
        f"{run.n_nodes} \u00d7 {run.instance_type}: {si(peak)}FLOP/s".replace(" ", NBSP, 2)
        for run in runs
        if (peak := peak_flops(run))
    }
    values = {
        "planned": f"{trial.planned_tokens or 0:,}",
        "peaks": f" ({', '.join(sorted(peaks))})" if peaks else "",
    }
    defined = [(BY_NAME[name].label, DEFINITIONS[name].format(**values)) for name in measures]
    return [*defined, *ONE_TIME_DEFINITIONS.items()]
