"""The figures by which arms are compared: sums over sums, what they are called, which way."""

from dataclasses import dataclass

import numpy as np

from fleet.efforts import mfu_ratio
from fleet.models import Run
from fleet.trials.steps import COLUMNS
from telemetry.blocks import FloatArray
from telemetry.compare.differences import Measure

TOKENS_PER_MTOK = 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure, how people call it, and in which unit they read it."""

    name: str
    words: str
    measure: Measure
    unit: str
    factor: float = 1.0


FIGURES = (
    Figure(
        "usd_per_mtok",
        "$ per 1M tokens",
        Measure("usd", "tokens", is_better_low=True),
        "usd",
        TOKENS_PER_MTOK,
    ),
    Figure(
        "tokens_per_usd",
        "tokens per dollar",
        Measure("tokens", "usd", is_better_low=False),
        "count",
    ),
    Figure(
        "tokens_per_s",
        "tokens per second",
        Measure("tokens", "counted_s", is_better_low=False),
        "count",
    ),
    Figure(
        "time_to_train_s",
        "time to train",
        Measure("counted_s", "tokens", is_better_low=True, line="time_to_train_s"),
        "duration",
    ),
    Figure("step_s", "step time", Measure("step_s", "steps", is_better_low=True), "s"),
    Figure(
        "heavy_step_s",
        "step time, all-reduce-heavy",
        Measure("heavy_s", "heavy", is_better_low=True),
        "s",
    ),
    Figure(
        "allreduce_share_ratio",
        "all-reduce share",
        Measure("allreduce_s", "told_s", is_better_low=True),
        "ratio",
    ),
)
MFU = Figure("mfu_ratio", "MFU", Measure("tokens", "counted_s", is_better_low=False), "ratio")
USD_PER_EPOCH = Figure(
    "usd_per_epoch", "$ per epoch", Measure("usd", "tokens", is_better_low=True), "usd"
)
FIRST_EPOCH = Figure(
    "first_epoch_step_s",
    "step time, first epoch",
    Measure("step_s", "steps", is_better_low=True),
    "s",
)
LOSS = Figure(
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


def can_be_told(figure: Figure, sums: FloatArray) -> bool:
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
