"""What was observed of a run: pace, checkpoints, starts, failures and recompiles."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

import msgspec
import numpy as np
from django.db.models import Q

from fleet.models import Annotation, ObservedRun, Run
from fleet.runs.annotations import PHASES
from fleet.runs.compile_summaries import covered_s
from fleet.runs.similar_runs import similar_runs
from fleet.runs.step_sums import COLUMNS, ArmSteps, steps_of
from telemetry.blocks import FloatArray
from telemetry.statistics.forecast import pace_error_log, spread_log
from telemetry.steps import PHASES as STEP_PHASES
from telemetry.store.chunks import ENDED, FIRST_PHASE, LOSS, decode_steps
from telemetry.store.models import RunChunk
from telemetry.store.reading import Source
from telemetry.units import DAY_S, HOUR_S

# Texts of the annotations that a run's phases write.
STOPPED, TRAINS, HAS_FAILED = (
    PHASES[phase][1] for phase in (Run.Phase.PENDING, Run.Phase.TRAINING, Run.Phase.FAILED)
)
MOST_STARTS = 50


class Start(msgspec.Struct, frozen=True):
    """One start: seconds of compiling (None: not reported), and of the rest until it trained.

    ``n_compiled`` graphs were compiled, not found in a cache.
    """

    compile_s: float | None
    load_s: float
    n_compiled: int = 0


def starts_of(run: Run, *, first_began: datetime, until: datetime) -> tuple[Start, ...]:
    """List a run's first start, then its restarts."""
    spans = [(run.started_at, first_began), *restarts_of(run, first_began, until)]
    return tuple(_start(run, begun, ready) for begun, ready in spans[:MOST_STARTS])


def restarts_of(
    run: Run, first_began: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """List when each restart began, and when the run trained again.

    A simulated run may compile during training by plan. That is no restart unless it stopped.
    """
    spans = []
    kinds = (Annotation.Kind.RESTART, Annotation.Kind.COMPILE)
    notes = run.annotations.filter(by="", kind__in=kinds, at__gt=first_began, at__lte=until)
    begun: datetime | None = None
    for at, text in notes.order_by("at", "pk").values_list("at", "text"):
        if text == TRAINS:
            if begun is not None:
                spans.append((begun, at))
            begun = None
        elif begun is None and (text == STOPPED or (text != HAS_FAILED and not run.is_simulated)):
            # From its failure to the start of the next process is an outage, not loading.
            begun = at
    return spans


def _start(run: Run, begun: datetime, ready: datetime) -> Start:
    compiles = run.compiles.filter(at__gte=begun - timedelta(seconds=1), at__lt=ready)
    spans = [
        (at.timestamp(), seconds)
        for at, seconds in compiles.exclude(seconds=None).values_list("at", "seconds")
        if at is not None and seconds is not None
    ]
    compile_s = covered_s(spans) if spans else (0.0 if compiles.exists() else None)
    taken_s = (ready - begun).total_seconds()
    return Start(compile_s, max(0.0, taken_s - (compile_s or 0.0)), len(spans))


def starts_of_similar_runs(run: Run) -> tuple[Start, ...]:
    """List the stored starts of similar runs with the same precision."""
    alike = similar_runs(run).filter(precision=run.precision).values("pk")
    kept = ObservedRun.objects.filter(run__in=alike).order_by("run")
    by_run = (figures.get("starts", ()) for figures in kept.values_list("figures", flat=True))
    return tuple(msgspec.convert(start, Start) for starts in by_run for start in starts)[
        :MOST_STARTS
    ]


def compiles_of(first: Start, others: Iterable[Start]) -> tuple[float, ...]:
    """List the seconds of each compile of at least as many graphs as in the first start."""
    return tuple(
        each.compile_s
        for each in (first, *others)
        if each.compile_s and each.n_compiled >= max(1, first.n_compiled)
    )


def loads_of(first: Start, others: Iterable[Start]) -> tuple[float, ...]:
    """List the seconds of each loading, of starts that report compiling in the same way."""
    has_compile = first.compile_s is not None
    alike = (other for other in others if (other.compile_s is not None) == has_compile)
    return tuple(each.load_s for each in (first, *alike) if each.load_s > 0)


CHECKPOINT = FIRST_PHASE + STEP_PHASES.index("checkpoint_s")
# A failure fires more than one alert. Alerts that begin this close together are one failure.
ONE_FAILURE = timedelta(minutes=10)
# A restart may be reported just before the steps are missed.
RESTART_BEFORE = timedelta(minutes=1)
FAILED = Q(rule="hang") | Q(cause__in=("hang", "node_crash"))


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of one run; None where unknown.

    ``tokens_per_s`` is the pace of settled steps without their checkpoints, ``compile_s`` the
    part of the start spent compiling, ``load_s`` the rest of it, ``warm_up_s`` the extra time of
    the warm-up steps. ``node_days`` and ``run_days`` are time spent in steps, over which failures
    and recompiles were counted. ``starts`` are this run's, ``alike`` those of similar runs.
    ``outages_s`` are the times from a failure until its restart began.
    """

    n_steps: int
    hours: float
    tokens_per_s: float | None
    pace_error_log: float | None
    n_checkpoints: int
    checkpoint_s_per_hour: float
    checkpoint_every_s: float | None
    compile_s: float | None
    is_compile_planned: bool
    load_s: float | None
    warm_up_s: float
    n_failures: int
    node_days: float
    n_recompiles: int
    run_days: float
    checkpoint_error_log: float | None = None
    starts: tuple[Start, ...] = ()
    alike: tuple[Start, ...] = ()
    outages_s: tuple[float, ...] = ()


def observe(hot: Source, run: Run, *, until: datetime) -> Observed:
    steps = steps_of(hot, run, until=until)
    warm, settled = (
        dict(zip(COLUMNS, sums.sum(axis=0).tolist(), strict=True))
        for sums in np.split(steps.sums, [steps.n_warm_rows])
    )
    # Extra time of the warm-up steps, compared with as many settled ones.
    warm_up_s = 0.0
    if settled["steps"]:
        usual_s = settled["step_s"] / settled["steps"]
        warm_up_s = max(0.0, warm["step_s"] - warm["steps"] * usual_s)
    checkpoint_s, total_s = _checkpoints(run, steps, until_s=until.timestamp())
    n_saved = len(checkpoint_s)
    ratio = float(checkpoint_s.sum()) / total_s if total_s else 0.0
    # Without their checkpoints.
    training_s = settled["counted_s"] * (1 - ratio)
    pace = settled["tokens"] / training_s if settled["tokens"] > 0 and training_s > 0 else None
    tokens, taken_s = (
        steps.sums[steps.n_warm_rows :, COLUMNS.index(name)] for name in ("tokens", "counted_s")
    )
    error_log = pace_error_log(tokens, taken_s)
    run_days = float(steps.sums[:, 1].sum()) / DAY_S
    began = datetime.fromtimestamp(steps.first_began_s, until.tzinfo) if len(steps) else until
    has_start = len(steps) > 0 and steps.has_beginning
    starts = starts_of(run, first_began=began, until=until) if has_start else ()
    compile_s, is_planned, load_s = _first_start(run, starts)
    failures = _failures(run, began, until)
    return Observed(
        n_steps=int(settled["steps"]),
        hours=settled["step_s"] / HOUR_S,
        tokens_per_s=pace,
        pace_error_log=error_log if math.isfinite(error_log) else None,
        n_checkpoints=n_saved,
        checkpoint_s_per_hour=ratio * HOUR_S,
        checkpoint_every_s=total_s / n_saved if n_saved else None,
        compile_s=compile_s,
        is_compile_planned=is_planned,
        load_s=load_s,
        warm_up_s=warm_up_s,
        # A run that failed without an alert has failed once.
        n_failures=max(len(failures), int(run.phase == Run.Phase.FAILED)),
        node_days=run_days * run.n_nodes,
        n_recompiles=run.alerts.filter(
            rule="recompile", is_drill=False, onset_at__gte=began, onset_at__lt=until
        ).count(),
        run_days=run_days,
        checkpoint_error_log=spread_log(checkpoint_s, of_next=False),
        starts=starts,
        alike=starts_of_similar_runs(run),
        outages_s=outages_of(failures, [begun for begun, _ in restarts_of(run, began, until)]),
    )


def _checkpoints(run: Run, steps: ArmSteps, *, until_s: float) -> tuple[FloatArray, float]:
    """Seconds of each stored checkpoint, (n,), and of all steps."""
    checkpoint_s, total_s = [np.empty(0)], 0.0
    if not len(steps):
        return checkpoint_s[0], total_s
    kept = RunChunk.objects.filter(run=run.name, start__lt=until_s).order_by("start")
    for data in kept.values_list("steps", flat=True).iterator(chunk_size=24):
        rows = decode_steps(bytes(data))
        rows = rows[rows[:, ENDED] < until_s]
        phases = rows[:, FIRST_PHASE:LOSS]
        known = np.where(np.isfinite(phases), phases, 0.0)
        spent_s = known[:, CHECKPOINT - FIRST_PHASE]
        checkpoint_s.append(spent_s[spent_s > 0])
        total_s += float(known.sum())
    return np.concatenate(checkpoint_s), total_s


def _first_start(run: Run, starts: tuple[Start, ...]) -> tuple[float | None, bool, float | None]:
    """Seconds of compiling before the first step, whether they are planned, and of the rest."""
    if run.is_simulated and "compile_s" in run.plan:
        compile_s: float | None = float(run.plan["compile_s"])
        is_planned = True
    else:
        compile_s, is_planned = starts[0].compile_s if starts else None, False
    # Where all graphs were found in the cache, nothing was compiled.
    if compile_s is None and starts and run.compiles.filter(outcome="hit").exists():
        compile_s = 0.0
    if not starts:
        return compile_s, is_planned, None
    taken_s = starts[0].load_s + (starts[0].compile_s or 0.0)
    return compile_s, is_planned, max(0.0, taken_s - (compile_s or 0.0))


# When a failure began, and when the run trained again; None: not known.
Failure = tuple[datetime, datetime | None]


def _failures(run: Run, began: datetime, until: datetime) -> list[Failure]:
    """List the failures that stopped a run, without drills: by alerts, and as the job reports."""
    alerts = run.alerts.filter(FAILED, is_drill=False, onset_at__gte=began, onset_at__lt=until)
    notes = run.annotations.filter(by="", text=HAS_FAILED, at__gte=began, at__lt=until)
    times: list[Failure] = list(alerts.values_list("onset_at", "resolved_at"))
    times += [(at, None) for at in notes.values_list("at", flat=True)]
    failures: list[Failure] = []
    last = None
    for onset, end in sorted(times, key=itemgetter(0)):
        if last is None or onset - last > ONE_FAILURE:
            failures.append((onset, end))
        else:
            first, known = failures[-1]
            failures[-1] = (first, max(known, end) if known and end else None)
        last = onset
    return failures


def outages_of(failures: Sequence[Failure], restarts: Sequence[datetime]) -> tuple[float, ...]:
    """Seconds from each failure to the restart that ended it.

    A run that went on by itself had none: a restart after its alert has resolved, or after the
    next failure, belongs to something else.
    """
    outages_s = []
    following = [*(onset for onset, _ in failures[1:]), None]
    for (onset, end), later in zip(failures, following, strict=False):
        last = min((each for each in (end, later) if each is not None), default=None)
        begins = (at for at in restarts if at >= onset - RESTART_BEFORE)
        at = next(begins, None)
        if at is not None and (last is None or at <= last):
            outages_s.append(max(0.0, (at - onset).total_seconds()))
    return tuple(outages_s)
