"""What stands beside a trial's measures: what happened once, and what to know before believing."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from fleet.formatting import ABSENT, MINUS, duration, si, usd
from fleet.models import Trial, TrialArm
from fleet.runs.compiles import summed_up
from fleet.runs.prices import NOT_STATED, ListPrice
from fleet.runs.step_sums import COLUMNS, steps_of
from fleet.trials.figures import ArmFigures, Candidate, TrialFigures, matches
from fleet.trials.judgement import Judgement
from fleet.trials.measures import NOT_NAMED, ONCE, TOKENS, first_epoch, paid, values_of
from fleet.trials.verdict import MeasuredArm, compared, training_line
from telemetry.blocks import FloatArray
from telemetry.store.reading import Source

COUNTED_S, LOST = COLUMNS.index("counted_s"), COLUMNS.index("lost")


def compare(hot: Source, trial: Trial, *, now: datetime) -> TrialFigures:
    """Work out what a trial has shown up to now, or to its end.

    Notes
    -----
    Chance is drawn from a seed of the trial and the arm: the same steps give the same figures,
    however often they are asked for.
    """
    until = trial.until(now)
    shown = [shown_of(hot, trial, arm, until=until) for arm in trial.arms.all()]
    baseline = next((each for each in shown if each.arm.is_baseline), None)
    candidates = [each for each in shown if not each.arm.is_baseline] if baseline else []
    return TrialFigures(
        matches=matches(
            [each.arm.run for each in shown], [each.figures.tokens_per_step for each in shown]
        ),
        arms=tuple(each.figures for each in shown),
        candidates=tuple(
            compared(trial, baseline, each) for each in candidates if baseline is not None
        ),
    )


def shown_of(hot: Source, trial: Trial, arm: TrialArm, *, until: datetime) -> MeasuredArm:
    """Return what one arm has shown: what it took to get ready, to warm up, and since."""
    steps = steps_of(hot, arm.run, until=until)
    sums, n_warm = steps.sums, steps.n_warm_rows
    began_s = steps.first_began_s if len(steps) else until.timestamp()
    ready_s = round(max(0.0, began_s - arm.run.started_at.timestamp()), 3)
    epoch = first_epoch(sums, arm.run.tokens_per_epoch)
    figures = ArmFigures(
        label=arm.label,
        run=arm.run.name,
        instance_type=arm.run.instance_type,
        n_nodes=arm.run.n_nodes,
        is_baseline=arm.is_baseline,
        is_simulated=arm.run.is_simulated,
        n_steps=len(steps),
        tokens_per_step=_tokens_per_step(sums),
        compile_s=_compile_s(arm),
        # Of a run that was read from elsewhere nobody knows what came before its first step.
        ready_s=(ready_s or None) if len(steps) else None,
        first_step_s=_known(steps.first_step_s),
        last_step=steps.last_step,
        values=values_of(arm.run, sums[n_warm:]),
        first_epoch_step_s=_ratio(epoch, "step_s", "steps"),
        first_epoch_ratio=_share(epoch, arm.run.tokens_per_epoch),
        time_to_train_s=_time_to_train_s(trial, ready_s, sums, n_warm),
        n_tokens=float(sums[:, TOKENS].sum()) or None,
        n_lost=int(sums[:, LOST].sum()),
        **_apart(sums[:n_warm], sums[n_warm:]),
        **paid(arm.run, steps, ready_s, until=until),
    )
    return MeasuredArm(arm, steps, figures)


def _apart(warm: FloatArray, settled: FloatArray) -> dict[str, Any]:
    """Return how much of an arm was warm-up, and how much counts."""
    return {
        "warm_up_s": float(warm[:, 1].sum()),
        "n_warm_up": int(warm[:, 0].sum()),
        "n_settled": int(settled[:, 0].sum()),
        "settled_s": float(settled[:, COUNTED_S].sum()) or None,
        "settled_tokens": float(settled[:, TOKENS].sum()) or None,
    }


def _tokens_per_step(sums: FloatArray) -> float | None:
    """Return what the usual step trains on: the median, since a last batch may be short."""
    is_counted = (sums[:, 3] > 0) & (sums[:, 0] > 0)
    return (
        float(np.median(sums[is_counted, 3] / sums[is_counted, 0])) if is_counted.any() else None
    )


def _compile_s(arm: TrialArm) -> float | None:
    """Return how long anybody compiled, by the compile events or by the simulation's plan."""
    told = summed_up(arm.run).wall_s
    planned = arm.run.plan.get("compile_s") if arm.run.is_simulated else None
    return planned if told is None else round(told, 3)


def _ratio(rows: FloatArray, over: str, under: str) -> float | None:
    """Return one sum over another; None where there is nothing."""
    total = dict(zip(COLUMNS, rows.sum(axis=0), strict=True))
    return float(total[over] / total[under]) if total[under] > 0 else None


def _share(epoch: FloatArray, tokens_per_epoch: int | None) -> float | None:
    """Return how much of its first epoch an arm has done, 0 to 1."""
    if not tokens_per_epoch or not len(epoch):
        return None
    return min(1.0, float(epoch[:, ONCE].sum()) / tokens_per_epoch)


def _time_to_train_s(trial: Trial, ready_s: float, sums: FloatArray, n_warm: int) -> float | None:
    """Return how long the planned tokens take from the start, at the settled steps' pace."""
    pace = _ratio(sums[n_warm:], "counted_s", "tokens")
    line = training_line(trial, ready_s, sums[:n_warm])
    return None if pace is None or line is None else line[0] + line[1] * pace


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


DONE = 1.0
NOT_REPORTED = "not reported"
AGAIN = "; what a failure made them train again counts once"


@dataclass(frozen=True, slots=True)
class OneTimeCosts:
    """What each arm did once, so that no interval can be had of it."""

    words: str
    before: str
    after: str
    change: str


def once(baseline: ArmFigures, candidate: ArmFigures) -> list[OneTimeCosts]:
    """Return how long the arms compiled, and what passed before their first step."""
    return [
        _once("compile time", baseline.compile_s, candidate.compile_s),
        _once("until the first step", baseline.ready_s, candidate.ready_s),
    ]


def _once(words: str, before_s: float | None, after_s: float | None) -> OneTimeCosts:
    before, after = _lasting(before_s), _lasting(after_s)
    if before_s is None or after_s is None:
        return OneTimeCosts(words, before, after, ABSENT)
    more_s = after_s - before_s
    return OneTimeCosts(
        words, before, after, f"{MINUS if more_s < 0 else '+'}{duration(abs(more_s))}"
    )


def _lasting(value_s: float | None) -> str:
    if value_s is None:
        return NOT_REPORTED
    return duration(value_s) if value_s else "none"


def listed_price(instance_type: str, price: ListPrice) -> str:
    """Write a list price with its region and date; a range where several were seen."""
    ends = usd(price.low_usd)
    if price.high_usd > price.low_usd:
        ends = f"{ends} to {usd(price.high_usd)}"
    region = "" if price.region == "any" else f", {price.region}"
    return f"{instance_type} {ends} ({price.date}{region})"


def notes(
    candidate: Candidate,
    baseline: ArmFigures,
    other: ArmFigures,
    *,
    judgement: Judgement,
    has_claim: bool,
) -> list[str]:
    """Return what a reader must know to read the figures aright."""
    told: list[str] = []
    simulated = [arm.label for arm in (baseline, other) if arm.is_simulated]
    if simulated:
        told.append(
            f"{' and '.join(simulated)}: simulated. Pace and loss follow from assumed constants "
            "of the step model; they are no measurement of real hardware, and the intervals are "
            "of the simulated steps alone."
        )
    if judgement.are_kinds_unlike:
        bases = [arm.price_basis or NOT_STATED for arm in (baseline, other)]
        told.append(
            f"The prices are of different kinds: {baseline.label} {bases[0]}; "
            f"{other.label} {bases[1]}. So no verdict follows from dollars as paid."
        )
    if judgement.at_kinds:
        listed = "; ".join(
            f"{each.kind}: {listed_price(baseline.instance_type, each.prices.baseline)}, "
            f"{listed_price(other.instance_type, each.prices.candidate)}"
            for each in judgement.at_kinds
        )
        told.append(f"List prices per node-hour: {listed}.")
    told += [
        f"{arm.label} changed its price on the way: each second is paid at that of its time."
        for arm in (baseline, other)
        if len(arm.prices) > 1
    ]
    if has_claim and baseline.instance_type.startswith("p5."):
        told.append(f"Of AWS's claim: {NOT_NAMED}")
    ratios = [arm.first_epoch_ratio for arm in (baseline, other)]
    done = min((ratio for ratio in ratios if ratio is not None), default=DONE)
    if done < DONE:
        told.append(f"The first epoch is not over: {done:.0%} of it is done.")
    if candidate.of("loss") is not None and candidate.equal_tokens:
        told.append(
            f"Losses are compared after {si(candidate.equal_tokens)} tokens, the most that both "
            f"arms have trained on{AGAIN if baseline.n_lost or other.n_lost else ''}."
        )
    return told
