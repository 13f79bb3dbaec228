"""What other settings brought: measured on real runs, or assumed by the step model."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np

from fleet.like.finding import Difference, differing
from fleet.models import Run
from fleet.trials.steps import COLUMNS, ArmSteps, steps_of
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.compare.differences import Arm, Measure, differences
from telemetry.simulate.estimate import JobError, estimate
from telemetry.simulate.plan import Job
from telemetry.store.source import Source

PACE = Measure("tokens", "counted_s", is_better_low=False)
# Fewer settled steps than this say nothing that is worth a sentence.
LEAST_STEPS = 50


def told_of(source: Source, run: Run, *, now: datetime) -> dict[str, Any]:
    """Return what is known of other settings for a run, as plain JSON.

    ``measured`` are like runs, each with the ratio of its tokens per second to this run's less
    one and its 95 % interval. Where either run is simulated, ``is_assumed`` is true and there is
    no interval: the simulator plays the step model's constants back. ``predicted`` is what the
    step model gives for precisions that no like run has tried.
    """
    others = differing(run)
    measured = _measured(source, run, others, now=now) if others else []
    tried = {run.precision, *(other.precision for other, _ in others)}
    return {"measured": measured, "predicted": predicted(run, tried=tried)}


def _measured(
    source: Source,
    run: Run,
    others: Sequence[tuple[Run, Sequence[Difference]]],
    *,
    now: datetime,
) -> list[dict[str, Any]]:
    mine = settled(steps_of(source, run, until=now))
    found = []
    for other, differ in others:
        theirs = settled(steps_of(source, other, until=now))
        pace = _pace(mine, theirs, seed=(run.pk, other.pk))
        if pace is None:
            continue
        told = {"run": other.name, "differ": [asdict(each) for each in differ]} | pace
        found.append(as_assumed(told, is_assumed=run.is_simulated or other.is_simulated))
    return sorted(found, key=lambda each: (-(each["low"] or 0.0), -each["ratio"]))


def as_assumed(told: Mapping[str, Any], *, is_assumed: bool) -> dict[str, Any]:
    """Return what is told of a like run, without an interval where its pace is assumed."""
    ends = {"low": None, "high": None} if is_assumed else {}
    return {**told, **ends, "is_assumed": is_assumed}


def measured_of(run: Run, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the like runs that are kept for a run; rows of earlier versions say less."""
    kept = told.get("measured", ())
    return [as_assumed(each, is_assumed=each.get("is_assumed", run.is_simulated)) for each in kept]


def settled(steps: ArmSteps) -> FloatArray:
    """Return a run's sums after its warm-up: (n_rows, 9), as fleet.trials.steps has them."""
    return steps.sums[steps.n_warm_rows :]


def _pace(
    mine: FloatArray,
    theirs: FloatArray,
    *,
    seed: tuple[int, int],
) -> dict[str, Any] | None:
    """Return how their tokens per second differ from mine; None where too little was counted."""
    n_mine, n_theirs = (int(sums[:, 0].sum()) for sums in (mine, theirs))
    counted = COLUMNS.index("tokens")
    is_told = mine[:, counted].sum() > 0 and theirs[:, counted].sum() > 0
    if min(n_mine, n_theirs) < LEAST_STEPS or not is_told:
        return None
    rng = np.random.default_rng(seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = differences(Arm(COLUMNS, mine), Arm(COLUMNS, theirs), {"pace": PACE}, rng=rng)
    pace = found["pace"]
    return {
        "ratio": pace.ratio,
        "low": pace.low if math.isfinite(pace.low) else None,
        "high": pace.high if math.isfinite(pace.high) else None,
        "tokens_per_s": pace.candidate,
        "my_tokens_per_s": pace.baseline,
        "n_steps": n_theirs,
        "my_n_steps": n_mine,
    }


def predicted(run: Run, *, tried: Collection[str]) -> list[dict[str, Any]]:
    """Return what the step model predicts for precisions that nobody has tried.

    Nothing where the catalogue lacks the model or the instance, or the layout does not fit.
    """
    instance = catalog.instances().get(run.instance_type)
    if instance is None or run.model not in catalog.models():
        return []
    now = _estimated(run, run.precision)
    if now is None:
        return []
    untried = [each for each in sorted(instance.chip.peak_flops) if each not in tried]
    pairs = ((precision, _estimated(run, precision)) for precision in untried)
    return [
        {"precision": precision, "ratio": then / now - 1, "tokens_per_s": then}
        for precision, then in pairs
        if then is not None and then > now
    ]


def _estimated(run: Run, precision: str) -> float | None:
    """Return the tokens per second that the step model predicts; None where it cannot."""
    try:
        job = Job(
            model=run.model,
            instance=run.instance_type,
            nodes=run.n_nodes,
            tp=run.tp,
            pp=run.pp,
            seq_len=run.seq_len,
            global_batch=run.global_batch,
            precision=precision,
        )
        return estimate(job).tokens_per_s
    except (JobError, ValueError, KeyError):
        return None
