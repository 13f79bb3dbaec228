"""A trial worked out: every arm's steps, settled from warm-up, compared with the baseline."""

import math
from datetime import datetime
from typing import Any

import numpy as np

from fleet.compiles import summed_up
from fleet.models import Trial, TrialArm
from fleet.trials.figures import ArmFigures, Figures
from fleet.trials.judging import Shown, compared, training_line
from fleet.trials.matching import matches
from fleet.trials.measures import values_of
from fleet.trials.paying import paid
from fleet.trials.portions import ONCE, TOKENS, first_epoch
from fleet.trials.steps import COLUMNS, steps_of
from telemetry.blocks import FloatArray
from telemetry.store.source import Source

COUNTED_S, LOST = COLUMNS.index("counted_s"), COLUMNS.index("lost")


def compare(hot: Source, trial: Trial, *, now: datetime) -> Figures:
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
    return Figures(
        matches=matches(
            [each.arm.run for each in shown], [each.figures.tokens_per_step for each in shown]
        ),
        arms=tuple(each.figures for each in shown),
        candidates=tuple(
            compared(trial, baseline, each) for each in candidates if baseline is not None
        ),
    )


def shown_of(hot: Source, trial: Trial, arm: TrialArm, *, until: datetime) -> Shown:
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
    return Shown(arm, steps, figures)


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
