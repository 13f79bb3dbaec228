"""Like runs: the same training on the same nodes with other settings, and what those brought."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import F, Q, QuerySet

from fleet.formatting import count, percent
from fleet.models import Run, SimilarRunsResult
from fleet.runs.step_sums import COLUMNS, ArmSteps, steps_of
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.compiles import flags_of
from telemetry.errors import FieldError
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import estimate
from telemetry.statistics.bootstrap import ArmSamples, Measure, differences
from telemetry.store.reading import Source

# What must agree, or a difference in pace is of something else.
ALIKE = ("model", "instance_type", "n_nodes", "seq_len", "global_batch")
MOST_LIKE = 6


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting that another run has otherwise."""

    what: str
    mine: str
    theirs: str


def like_runs(run: Run) -> QuerySet[Run]:
    """Return the runs that trained the same model and batch on as many of the same nodes."""
    told = {name: getattr(run, name) for name in ALIKE}
    if not all(told.values()):
        return Run.objects.none()
    trained = Run.objects.filter(last_step__gt=0, **told).exclude(pk=run.pk)
    return trained.defer("plan", "clock").order_by("-started_at", "name")


def differing(run: Run) -> Sequence[tuple[Run, Sequence[SettingDifference]]]:
    """Return the newest like runs that have a setting otherwise, with what that is."""
    pairs = ((other, differences_of(run, other)) for other in like_runs(run)[: 4 * MOST_LIKE])
    return [(other, found) for other, found in pairs if found][:MOST_LIKE]


def differences_of(run: Run, other: Run) -> Sequence[SettingDifference]:
    """Return the settings that differ; what either does not tell is no difference."""
    found = []
    if run.precision and other.precision and run.precision != other.precision:
        found.append(SettingDifference("precision", run.precision, other.precision))
    mine, theirs = flags_of(run.compiler_flags), flags_of(other.compiler_flags)
    if mine and theirs and set(mine) != set(theirs):
        only = [" ".join(flag for flag in one if flag not in two) or "none"
                for one, two in ((mine, theirs), (theirs, mine))]  # fmt: skip
        found.append(SettingDifference("flags", *only))
    for what, name in (("neuronx-cc", "compiler_version"), ("Neuron SDK", "sdk_version")):
        told = getattr(run, name), getattr(other, name)
        if all(told) and told[0] != told[1]:
            found.append(SettingDifference(what, *told))
    return found


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
    others: Sequence[tuple[Run, Sequence[SettingDifference]]],
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
    """Return a run's sums after its warm-up: (n_rows, 9), as fleet.runs.step_sums has them."""
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
        found = differences(
            ArmSamples(COLUMNS, mine), ArmSamples(COLUMNS, theirs), {"pace": PACE}, rng=rng
        )
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
    except (FieldError, ValueError, KeyError):
        return None


EVERY = timedelta(minutes=10)
EVERY_WHEN_OVER = timedelta(hours=12)
# Of a long history, so many at a time: each reads all steps of itself and of its like.
AT_A_TIME = 2


def update_due_figures(source: Source, *, now: datetime, at_a_time: int = AT_A_TIME) -> int:
    """Work out the runs whose turn it is, those never looked at first; return how many."""
    late = Q(like_runs=None) | Q(like_runs__worked_out_at__lt=now - EVERY, finished_at=None)
    late |= Q(like_runs__worked_out_at__lt=now - EVERY_WHEN_OVER)
    trained = Run.objects.filter(late, last_step__gt=0).order_by(
        F("like_runs__worked_out_at").asc(nulls_first=True), "pk"
    )
    runs = list(trained[:at_a_time])
    for run in runs:
        update_figures(source, run, now=now)
    return len(runs)


def update_figures(source: Source, run: Run, *, now: datetime) -> SimilarRunsResult:
    """Compare a run with its like, and keep what was found."""
    found, _ = SimilarRunsResult.objects.update_or_create(
        run=run, defaults={"worked_out_at": now, "told": told_of(source, run, now=now)}
    )
    return found


MINUS = "\u2212"
SIMULATED = (
    "Simulated: this follows from assumed constants of the step model. Nothing was measured on "
    "real hardware."
)
FLAGS_UNKNOWN = (
    "Flags that change the pace (-O, --model-type, --auto-cast, --logical-nc-config): what others "
    "would bring is unknown; no comparable run has tried any."
)


@dataclass(frozen=True, slots=True)
class SimilarRun:
    """One like run: in what it differs, how its pace does, and on what that rests.

    ``word`` is faster, slower or alike, as the interval allows; assumed where a run is simulated.
    """

    run: str
    settings: str
    word: str
    figure: str
    evidence: str


@dataclass(frozen=True, slots=True)
class SimilarRuns:
    """All that a run's page says of its settings and of others."""

    settings: Sequence[tuple[str, str]]
    headline: str
    beside: Sequence[SimilarRun]
    predictions: Sequence[str]
    unknown: Sequence[str]
    worked_out_at: datetime | None


def likes_of(run: Run) -> SimilarRuns:
    """Put a run's settings, and what is known of others, in words."""
    kept: SimilarRunsResult | None = getattr(run, "like_runs", None)
    told: Mapping[str, Any] = kept.told if kept else {}
    measured = measured_of(run, told)
    beside = [_beside(each) for each in measured]
    predictions = [_prediction(each) for each in told.get("predicted", ())]
    has_tried_flags = any(part["what"] == "flags" for each in measured for part in each["differ"])
    return SimilarRuns(
        settings=settings_of(run),
        headline=_headline(beside, predictions, is_known=kept is not None),
        beside=beside,
        predictions=predictions,
        unknown=[] if has_tried_flags or not run.compiler_flags else [FLAGS_UNKNOWN],
        worked_out_at=kept.worked_out_at if kept else None,
    )


def settings_of(run: Run) -> Sequence[tuple[str, str]]:
    """Return how a run is set, as names and values."""
    unsaid = "not told"
    return [
        ("Precision", run.precision or unsaid),
        ("Compiler flags", run.compiler_flags or unsaid),
        ("neuronx-cc", run.compiler_version or unsaid),
        ("Neuron SDK", run.sdk_version or unsaid),
    ]


def _beside(told: Mapping[str, Any]) -> SimilarRun:
    ratio, low, high = told["ratio"], told["low"], told["high"]
    n_steps = min(told["n_steps"], told["my_n_steps"])
    steps = f"from {count(n_steps)} settled steps"
    settings = " and ".join(_setting(part) for part in told["differ"])
    if told["is_assumed"]:
        more = "more" if ratio >= 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s assumed"
        return SimilarRun(told["run"], settings, "assumed", figure, SIMULATED)
    if low is None or high is None:
        evidence = f"{steps}: too few to say how surely"
        return SimilarRun(told["run"], settings, "alike", f"{percent(ratio, 0)} apart", evidence)
    span = f"95 % interval {_signed(low)} to {_signed(high)}, {steps}"
    if len(told["differ"]) > 1:
        span += "; which of these settings did it, nobody has tried alone"
    if low > 0 or high < 0:
        word = "faster" if low > 0 else "slower"
        more = "more" if low > 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s"
        return SimilarRun(told["run"], settings, word, figure, span)
    return SimilarRun(told["run"], settings, "alike", "no difference that shows", span)


def _signed(ratio: float) -> str:
    return ("+" if ratio >= 0 else MINUS) + percent(abs(ratio), 1)


def _setting(part: Mapping[str, str]) -> str:
    name = "" if part["what"] in {"precision", "flags"} else f"{part['what']} "
    theirs = "without " + part["mine"] if part["theirs"] == "none" else part["theirs"]
    return f"{name}{theirs} (here {part['mine']})"


def _prediction(told: Mapping[str, Any]) -> str:
    return (
        f"{told['precision']}: {percent(told['ratio'], 0)} more tokens/s assumed. "
        "A prediction of the step model: no comparable run has tried it."
    )


def _headline(beside: Sequence[SimilarRun], predictions: Sequence[str], *, is_known: bool) -> str:
    """Say what is likely left on the table, and how that is known."""
    if not is_known:
        return "Not compared yet: a run is, within minutes of its first steps."
    best = next((each for each in beside if each.word == "faster"), None)
    if best is not None:
        return f"Likely left on the table: {best.figure}, as {best.run} had with {best.settings}."
    if any(each.word != "assumed" for each in beside):
        return "No comparable run with other settings was faster."
    if beside:
        return "Nothing is measured on real hardware. Assumed, from simulated runs:"
    if predictions:
        return "Nothing is measured: no comparable run had other settings. Assumed:"
    return (
        "Nothing is known: no comparable run had other settings, and the step model assumes "
        "none to be faster."
    )
