"""Similar runs: the same training on the same nodes with other settings, compared by pace."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from fleet.formatting import MINUS, count, percent
from fleet.models import Run, SimilarRunsResult
from fleet.runs.step_sums import COLUMNS, ArmSteps, steps_of
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.compiles import flags_of
from telemetry.errors import FieldError
from telemetry.simulate.plan import Job
from telemetry.simulate.step_model import Estimate, estimate
from telemetry.statistics.bootstrap import ArmSamples, Measure, differences
from telemetry.store.reading import Source

# Runs that differ in one of these are not comparable.
SAME_FIELDS = ("model", "instance_type", "n_nodes", "seq_len", "global_batch")
MAX_SIMILAR = 6


@dataclass(frozen=True, slots=True)
class SettingDifference:
    what: str
    mine: str
    theirs: str


def similar_runs(run: Run) -> QuerySet[Run]:
    """Find the runs that trained the same model and batch on as many nodes of the same type."""
    values = {name: getattr(run, name) for name in SAME_FIELDS}
    if not all(values.values()):
        return Run.objects.none()
    trained = Run.objects.filter(last_step__gt=0, **values).exclude(pk=run.pk)
    return trained.defer("plan", "clock").order_by("-started_at", "name")


def differing(run: Run) -> Sequence[tuple[Run, Sequence[SettingDifference]]]:
    """Find the newest similar runs with other settings, each with what differs."""
    pairs = ((other, differences_of(run, other)) for other in similar_runs(run)[: 4 * MAX_SIMILAR])
    return [(other, settings) for other, settings in pairs if settings][:MAX_SIMILAR]


def differences_of(run: Run, other: Run) -> Sequence[SettingDifference]:
    """List the settings that differ; one that either run does not report is left out."""
    settings = []
    if run.precision and other.precision and run.precision != other.precision:
        settings.append(SettingDifference("precision", run.precision, other.precision))
    mine, theirs = flags_of(run.compiler_flags), flags_of(other.compiler_flags)
    if mine and theirs and set(mine) != set(theirs):
        only = [" ".join(flag for flag in one if flag not in two) or "none"
                for one, two in ((mine, theirs), (theirs, mine))]  # fmt: skip
        settings.append(SettingDifference("flags", *only))
    for what, name in (("neuronx-cc", "compiler_version"), ("Neuron SDK", "sdk_version")):
        versions = getattr(run, name), getattr(other, name)
        if all(versions) and versions[0] != versions[1]:
            settings.append(SettingDifference(what, *versions))
    return settings


PACE = Measure("tokens", "counted_s", is_better_low=False)
# With fewer settled steps the comparison is too uncertain to show.
MIN_STEPS = 50


def compare_run(source: Source, run: Run, *, now: datetime) -> dict[str, Any]:
    """Compare a run with similar runs that have other settings, as plain JSON.

    ``measured`` are similar runs, each with the ratio of its tokens per second to this run's less
    one and its 95 % interval. Where either run is simulated, ``is_assumed`` is true and there is
    no interval: the simulator only reproduces the step model's constants. ``predicted`` is what
    the step model gives for precisions that no similar run has used.
    """
    others = differing(run)
    measured = []
    if others:
        mine = settled(steps_of(source, run, until=now))
        for other, differ in others:
            theirs = settled(steps_of(source, other, until=now))
            if pace := _pace(mine, theirs):
                result = {"run": other.name, "differ": [asdict(each) for each in differ]} | pace
                is_assumed = run.is_simulated or other.is_simulated
                measured.append(with_assumed(result, is_assumed=is_assumed))
    measured.sort(key=lambda each: (-(each["low"] or 0.0), -each["ratio"]))
    tried = {run.precision, *(other.precision for other, _ in others)}
    return {"measured": measured, "predicted": predictions_for(run, tried=tried)}


def with_assumed(result: Mapping[str, Any], *, is_assumed: bool) -> dict[str, Any]:
    """Mark whether a result is assumed; an assumed one has no interval."""
    ends = {"low": None, "high": None} if is_assumed else {}
    return {**result, **ends, "is_assumed": is_assumed}


def measured_results(run: Run, comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the measured results of a run; older rows do not say what is assumed."""
    stored = comparison.get("measured", ())
    return [
        with_assumed(each, is_assumed=each.get("is_assumed", run.is_simulated)) for each in stored
    ]


def settled(steps: ArmSteps) -> FloatArray:
    """Take the sums after a run's warm-up, (n_rows, n_columns) as in fleet.runs.step_sums."""
    return steps.sums[steps.n_warm_rows :]


def _pace(mine: FloatArray, theirs: FloatArray) -> dict[str, Any] | None:
    """Compare tokens per second; None where there are too few steps."""
    n_mine, n_theirs = (int(sums[:, 0].sum()) for sums in (mine, theirs))
    counted = COLUMNS.index("tokens")
    has_tokens = mine[:, counted].sum() > 0 and theirs[:, counted].sum() > 0
    if min(n_mine, n_theirs) < MIN_STEPS or not has_tokens:
        return None
    measured = differences(
        [ArmSamples(COLUMNS, mine)], [ArmSamples(COLUMNS, theirs)], {"pace": PACE}, run_cv=0.0
    )
    pace = measured["pace"]
    return {
        "ratio": pace.ratio,
        "low": pace.low if math.isfinite(pace.low) else None,
        "high": pace.high if math.isfinite(pace.high) else None,
        "tokens_per_s": pace.candidate,
        "my_tokens_per_s": pace.baseline,
        "n_steps": n_theirs,
        "my_n_steps": n_mine,
    }


def predictions_for(run: Run, *, tried: Collection[str]) -> list[dict[str, Any]]:
    """Predict the pace with precisions that no similar run has used, by the step model.

    Empty where the catalogue lacks the model or the instance, or the layout does not fit.
    """
    instance = catalog.instances().get(run.instance_type)
    if instance is None or run.model not in catalog.models():
        return []
    now = _estimated(run, run.precision)
    if now is None:
        return []
    untried = [flop for flop in sorted(instance.chip.peak_flops) if flop not in tried]
    pairs = ((precision, _estimated(run, precision)) for precision in untried)
    return [
        {
            "precision": precision,
            "ratio": predicted.tokens_per_s / now.tokens_per_s - 1,
            "tokens_per_s": predicted.tokens_per_s,
            "spread_ratio": predicted.spread_ratio,
            "basis": predicted.basis,
        }
        for precision, predicted in pairs
        if predicted is not None and predicted.tokens_per_s > now.tokens_per_s
    ]


def job_of(run: Run, *, precision: str) -> Job:
    """Describe a run to the step model. ValueError if it reports an impossible layout."""
    return Job(
        **(run.recipe or {}),
        model=run.model,
        instance=run.instance_type,
        nodes=run.n_nodes,
        tp=run.tp,
        pp=run.pp,
        seq_len=run.seq_len,
        global_batch=run.global_batch,
        precision=precision,
    )


def _estimated(run: Run, precision: str) -> Estimate | None:
    """Predict the pace by the step model; None where it cannot."""
    try:
        return estimate(job_of(run, precision=precision))
    except (FieldError, ValueError, KeyError):
        return None


INTERVAL = timedelta(minutes=10)
INTERVAL_WHEN_OVER = timedelta(hours=12)
# Each comparison reads all steps of the run and of its similar runs.
BATCH_SIZE = 2


def update_due_comparisons(source: Source, *, now: datetime, batch_size: int = BATCH_SIZE) -> int:
    """Compare the runs that are due, new ones first; return their number."""
    late = Q(similar_runs=None) | Q(similar_runs__updated_at__lt=now - INTERVAL, finished_at=None)
    late |= Q(similar_runs__updated_at__lt=now - INTERVAL_WHEN_OVER)
    trained = Run.objects.filter(late, last_step__gt=0).order_by(
        F("similar_runs__updated_at").asc(nulls_first=True), "pk"
    )
    runs = list(trained[:batch_size])
    for run in runs:
        update_comparison(source, run, now=now)
    return len(runs)


def update_comparison(source: Source, run: Run, *, now: datetime) -> SimilarRunsResult:
    result, _ = SimilarRunsResult.objects.update_or_create(
        run=run, defaults={"updated_at": now, "comparison": compare_run(source, run, now=now)}
    )
    return result


NOT_REPORTED = "not reported"
SIMULATED = "Simulated by the step model, not measured on real hardware."
FLAGS_UNKNOWN = (
    "Other compiler flags (-O, --model-type, --auto-cast, --logical-nc-config): no comparable run."
)


@dataclass(frozen=True, slots=True)
class SimilarRun:
    """One similar run: its other settings, its pace against this run's, and the evidence.

    ``state`` is faster, slower or same, as the interval allows; assumed where a run is simulated.
    """

    run: str
    settings: str
    state: str
    figure: str
    evidence: str


@dataclass(frozen=True, slots=True)
class SimilarRunsPanel:
    settings: Sequence[tuple[str, str]]
    headline: str
    runs: Sequence[SimilarRun]
    predictions: Sequence[str]
    unknown: Sequence[str]
    updated_at: datetime | None


def similar_runs_panel(run: Run) -> SimilarRunsPanel:
    stored: SimilarRunsResult | None = getattr(run, "similar_runs", None)
    comparison: Mapping[str, Any] = stored.comparison if stored else {}
    measured = measured_results(run, comparison)
    runs = [_similar_run(each) for each in measured]
    predictions = [
        f"{each['precision']}: {percent(each['ratio'], 0)} more tokens/s assumed. "
        f"Predicted by the step model{_spread(each.get('spread_ratio'))}."
        for each in comparison.get("predicted", ())
    ]
    has_tried_flags = any(part["what"] == "flags" for each in measured for part in each["differ"])
    return SimilarRunsPanel(
        settings=settings_of(run),
        headline=_headline(runs, predictions, is_known=stored is not None),
        runs=runs,
        predictions=predictions,
        unknown=[] if has_tried_flags or not run.compiler_flags else [FLAGS_UNKNOWN],
        updated_at=stored.updated_at if stored else None,
    )


def _spread(ratio: float | None) -> str:
    return "" if ratio is None else f", 9 of 10 times within {percent(ratio, 0)}"


def settings_of(run: Run) -> Sequence[tuple[str, str]]:
    return [
        ("Precision", run.precision or NOT_REPORTED),
        ("Compiler flags", run.compiler_flags or NOT_REPORTED),
        ("neuronx-cc", run.compiler_version or NOT_REPORTED),
        ("Neuron SDK", run.sdk_version or NOT_REPORTED),
    ]


def _similar_run(result: Mapping[str, Any]) -> SimilarRun:
    ratio, low, high = result["ratio"], result["low"], result["high"]
    n_steps = min(result["n_steps"], result["my_n_steps"])
    steps = f"from {count(n_steps)} settled steps"
    settings = " and ".join(_setting(part) for part in result["differ"])
    if result["is_assumed"]:
        more = "more" if ratio >= 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s assumed"
        return SimilarRun(result["run"], settings, "assumed", figure, SIMULATED)
    if low is None or high is None:
        evidence = f"{steps}: too few for an interval"
        return SimilarRun(result["run"], settings, "same", f"{percent(ratio, 0)} apart", evidence)
    span = f"95 %: {_signed(low)} to {_signed(high)}, {steps}"
    if len(result["differ"]) > 1:
        span += "; no run has changed one of these settings alone"
    if low > 0 or high < 0:
        word = "faster" if low > 0 else "slower"
        more = "more" if low > 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s"
        return SimilarRun(result["run"], settings, word, figure, span)
    return SimilarRun(result["run"], settings, "same", "no measurable difference", span)


def _signed(ratio: float) -> str:
    return ("+" if ratio >= 0 else MINUS) + percent(abs(ratio), 1)


def _setting(part: Mapping[str, str]) -> str:
    name = "" if part["what"] in {"precision", "flags"} else f"{part['what']} "
    theirs = "without " + part["mine"] if part["theirs"] == "none" else part["theirs"]
    return f"{name}{theirs} (here {part['mine']})"


def _headline(runs: Sequence[SimilarRun], predictions: Sequence[str], *, is_known: bool) -> str:
    if not is_known:
        return "Not compared yet. A run is compared within minutes of its first steps."
    best = next((run for run in runs if run.state == "faster"), None)
    if best is not None:
        return f"Likely gain: {best.figure}, as measured on {best.run} with {best.settings}."
    if any(run.state != "assumed" for run in runs):
        return "No comparable run with other settings was faster."
    if runs:
        return "Not measured on real hardware. Assumed, from simulated runs:"
    if predictions:
        return "No comparable run had other settings. Assumed:"
    return "No comparable run had other settings, and the step model predicts no faster precision."
