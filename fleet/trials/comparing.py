"""A trial worked out: every arm's steps, settled from warm-up, compared with the baseline."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from fleet.compiles import summed_up
from fleet.models import Trial, TrialArm
from fleet.models.run import SECONDS_PER_HOUR
from fleet.trials.figures import ArmFigures, Candidate, Comparison, Figures
from fleet.trials.matching import matches
from fleet.trials.measures import FIGURES, MFU, Figure, can_be_told, values_of
from fleet.trials.steps import COLUMNS, ArmSteps, steps_of
from telemetry.blocks import FloatArray
from telemetry.compare.differences import Arm, Difference, differences
from telemetry.compare.verdicts import verdict
from telemetry.store.source import Source


@dataclass(frozen=True, slots=True)
class Shown:
    """An arm with its steps."""

    arm: TrialArm
    steps: ArmSteps
    figures: ArmFigures

    @property
    def settled(self) -> FloatArray:
        """The sums that count."""
        return self.steps.sums[self.steps.n_warm_rows :]


def compare(hot: Source, trial: Trial, *, now: datetime) -> Figures:
    """Work out what a trial has shown up to now, or to its end.

    Notes
    -----
    Chance is drawn from a seed of the trial and the arm: the same steps give the same figures,
    however often they are asked for.
    """
    until = trial.until(now)
    shown = [shown_of(hot, arm, until=until) for arm in trial.arms.all()]
    baseline = next((each for each in shown if each.arm.is_baseline), None)
    candidates = [each for each in shown if not each.arm.is_baseline] if baseline else []
    return Figures(
        matches=matches(
            [each.arm.run for each in shown], [each.figures.tokens_per_step for each in shown]
        ),
        arms=tuple(each.figures for each in shown),
        candidates=tuple(
            Candidate(each.arm.label, each.arm.run.name, _compared(trial, baseline, each))
            for each in candidates
            if baseline
        ),
    )


def shown_of(hot: Source, arm: TrialArm, *, until: datetime) -> Shown:
    """Return what one arm has shown: what it took to get ready, to warm up, and since."""
    steps = steps_of(hot, arm.run, until=until)
    sums, n_warm = steps.sums, steps.n_warm_rows
    warm_up_s, settled_s = (float(part.sum()) for part in np.split(sums[:, 1], [n_warm]))
    began_s = steps.first_began_s if len(steps) else until.timestamp()
    ready_s = max(0.0, began_s - arm.run.started_at.timestamp())
    figures = ArmFigures(
        label=arm.label,
        run=arm.run.name,
        instance_type=arm.run.instance_type,
        n_nodes=arm.run.n_nodes,
        is_baseline=arm.is_baseline,
        n_steps=len(steps),
        n_settled=int(sums[n_warm:, 0].sum()),
        tokens_per_step=_tokens_per_step(sums),
        compile_s=_compile_s(arm),
        ready_s=ready_s if len(steps) else None,
        first_step_s=_known(steps.first_step_s),
        warm_up_s=warm_up_s,
        n_warm_up=int(sums[:n_warm, 0].sum()),
        last_step=steps.last_step,
        values=values_of(arm.run, sums[n_warm:]),
        **_dollars(arm, (ready_s, warm_up_s, settled_s), until=until),
    )
    return Shown(arm, steps, figures)


def _dollars(
    arm: TrialArm, parts_s: tuple[float, float, float], *, until: datetime
) -> Mapping[str, float | None]:
    """Return what each part of an arm's time was paid; nothing without a price."""
    names = ("usd_ready", "usd_warm_up", "usd_settled")
    run, per_s = arm.run, arm.run.usd_per_hour / SECONDS_PER_HOUR
    if not per_s:
        return dict.fromkeys((*names, "usd_between", "usd", "usd_per_hour"))
    over = min(until, run.finished_at or until)
    lasted_s = max(0.0, (over - run.started_at).total_seconds())
    told = dict(zip(names, (part_s * per_s for part_s in parts_s), strict=True))
    between = max(0.0, lasted_s * per_s - sum(told.values()))
    return told | {
        "usd_between": between,
        "usd": sum(told.values()) + between,
        "usd_per_hour": run.usd_per_hour,
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
    return told if told is not None else planned


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _compared(trial: Trial, baseline: Shown, candidate: Shown) -> tuple[Comparison, ...]:
    told = [
        figure
        for figure in FIGURES
        if can_be_told(figure, baseline.settled) and can_be_told(figure, candidate.settled)
    ]
    if not told:
        return ()
    rng = np.random.default_rng([trial.pk, candidate.arm.pk])
    before, after = (Arm(COLUMNS, each.settled) for each in (baseline, candidate))
    # A draw of very few steps may have none that a measure tells: its interval is then unknown.
    with np.errstate(divide="ignore", invalid="ignore"):
        found = differences(
            before, after, {figure.name: figure.measure for figure in told}, rng=rng
        )
    n_steps = min(baseline.figures.n_settled, candidate.figures.n_settled)
    rows = [_comparison(figure, found[figure.name], n_steps, trial) for figure in told]
    mfu = _of_peak(found, baseline.figures, candidate.figures)
    return tuple(rows if mfu is None else [*rows, _comparison(MFU, mfu, n_steps, trial)])


def _of_peak(
    found: dict[str, Difference], baseline: ArmFigures, candidate: ArmFigures
) -> Difference | None:
    """Return MFU's difference: the pace's, each arm by its own peak."""
    before, after = (each.values.get(MFU.name) for each in (baseline, candidate))
    if before is None or after is None:
        return None
    pace = found["tokens_per_s"]
    factor = (1 + after / before - 1) / (1 + pace.ratio)
    return replace(
        pace,
        baseline=before,
        candidate=after,
        ratio=after / before - 1,
        low=(1 + pace.low) * factor - 1,
        high=(1 + pace.high) * factor - 1,
    )


def _comparison(figure: Figure, found: Difference, n_steps: int, trial: Trial) -> Comparison:
    is_better_low = figure.measure.is_better_low
    said = verdict(
        found, is_better_low=is_better_low, n_steps=n_steps, n_planned=trial.planned_steps
    )
    return Comparison(
        measure=figure.name,
        baseline=found.baseline * figure.factor,
        candidate=found.candidate * figure.factor,
        ratio=found.ratio,
        low=_known(found.low),
        high=_known(found.high),
        word=said.word,
        n_more_steps=said.n_more_steps,
    )
