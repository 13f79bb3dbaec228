"""Import of a training log as a finished run."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction

from fleet.models import Annotation, Node, ReadLog, Run
from fleet.runs.compiles import FIRST_STEPS, store_compiles
from fleet.runs.imported import AHEAD, BY, COLUMNS, NOT_RECORDED, TOO_OLD, Curves
from fleet.runs.prices import opening_price
from importers.logs import (
    Compile,
    HardwareError,
    Log,
    LoggedError,
    LoggedSteps,
    NotFinite,
    complete_steps,
    ended_by,
)
from importers.store.traces import NAME, NAME_RULE
from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch
from telemetry.store import durable
from telemetry.store.models import RunChunk
from telemetry.units import DAY_S

MAX_COUNT = 2_000_000_000
MAX_TOKENS = 10**18

MAX_POINTS = 20_000
MAX_ERROR_ANNOTATIONS = 200
MAX_TEXT_CHARS = 300
MAX_FAILURES = 50
# Clocks differ a little; a run that ends further in the future has a wrong clock.
AHEAD_S = 300.0
MAX_LOG_S = 100 * 365 * DAY_S
BY_LOG, BY_START, BY_FILE = "log", "start", "file"
MAX_RUN_TOKENS = 2**62
JOB = "job"
MAX_PAUSE_S = 6 * 3_600.0


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Facts of a run given on import; 0, empty or None where not given."""

    run: str
    file: str
    model: str = ""
    instance: str = ""
    n_nodes: int = 0
    tp: int = 1
    pp: int = 1
    global_batch: int = 0
    seq_len: int = 0
    precision: str = ""
    optimizer: str = ""
    tokens_per_epoch: int = 0
    team: str = ""
    started_at: datetime | None = None


def check_options(options: LogOptions) -> LogOptions:
    """Return valid options; raises ValueError that names the option."""
    check_name(options.run)
    whole = (
        ("--nodes", options.n_nodes, 0),
        ("--global-batch", options.global_batch, 0),
        ("--seq-len", options.seq_len, 0),
        ("--tp", options.tp, 1),
        ("--pp", options.pp, 1),
    )
    for option, value, least in whole:
        if not least <= value <= MAX_COUNT:
            raise ValueError(f"{option}: {value} is out of range; give {least} to {MAX_COUNT}")
    if not 0 <= options.tokens_per_epoch <= MAX_TOKENS:
        n = options.tokens_per_epoch
        raise ValueError(f"--tokens-per-epoch: {n} is out of range; give 0 to {MAX_TOKENS}")
    words = (
        ("--model", options.model, 60),
        ("--instance", options.instance, 40),
        ("--precision", options.precision, 10),
        ("--optimizer", options.optimizer, 40),
        ("--team", options.team, 40),
    )
    for option, text, longest in words:
        if len(text) > longest or not text.isprintable():
            raise ValueError(f"{option}: give at most {longest} printable characters")
    return options


def check_name(name: str) -> None:
    """Raise ValueError for an invalid name, or that of a run that was not imported from a log.

    Steps of a log are never mixed with reported steps: a log has no phases of a step.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"--run: {name[:80]!r} is not a valid run name: use {NAME_RULE}")
    run = Run.objects.filter(name=name).select_related("log").first()
    if run is not None and run.heard_at is not None:
        reason = "reports its own steps, which have more detail than its log"
        raise ValueError(f"--run: {name} {reason}; import the log as another run")
    if run is not None and not hasattr(run, "log"):
        raise ValueError(f"--run: {name} is not an imported log; choose another name")


def nan_if_unset(value: int) -> float:
    return float(value) if value else math.nan


def curves_of(steps: LoggedSteps, ended_at_s: FloatArray) -> dict[str, FloatArray]:
    """Return ``step``, ``ended_at_s`` and COLUMNS, (n,) each; NaN if not logged."""
    rate = np.full(len(steps), np.nan)
    np.divide(steps.tokens, steps.step_s, out=rate, where=steps.step_s > 0)
    logged = {name: getattr(steps, name) for name in COLUMNS if name != "tokens_per_s"}
    columns = {"step": steps.step.astype("f8"), "ended_at_s": ended_at_s, "tokens_per_s": rate}
    return _thin(columns | logged)


def _thin(columns: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Average neighbours down to ``MAX_POINTS``; step and end are those of the last one."""
    n = len(columns["step"])
    every = -(-n // MAX_POINTS)
    if every <= 1:
        return columns
    first = np.arange(0, n, every)
    last = np.append(first[1:], n) - 1
    thin = {}
    for name, values in columns.items():
        known = np.isfinite(values)
        total = np.add.reduceat(np.where(known, values, 0.0), first)
        count = np.add.reduceat(known.astype("i8"), first)
        mean = np.where(count > 0, total, np.nan) / np.maximum(count, 1)
        thin[name] = values[last] if name in ("step", "ended_at_s") else mean
    return thin


def pack_curves(curves: Curves) -> bytes:
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **curves)
    return file.getvalue()


def annotate_errors(run: Run, errors: Mapping[HardwareError, int], *, moved_s: float) -> None:
    """Annotate the run with hardware errors, replacing those of an earlier import."""
    run.annotations.filter(by=BY).delete()
    groups: dict[tuple[str, str, int | None, int | None], list[HardwareError]] = {}
    for error in errors:
        groups.setdefault((error.kind, error.node, error.device, error.core), []).append(error)
    names = {error.node for error in errors}
    nodes = {node.name: node for node in Node.objects.filter(name__in=names)}
    end = run.finished_at or run.started_at
    annotations = []
    for group in list(groups.values())[:MAX_ERROR_ANNOTATIONS]:
        moments = sorted(e.at_s + moved_s for e in group if not math.isnan(e.at_s))
        at, last = (datetime.fromtimestamp(moments[i], UTC) if moments else end for i in (0, -1))
        text = error_text(group[0], n=sum(errors[error] for error in group))
        if not moments:
            text = f"{text}; no time logged"
        annotations.append(
            Annotation(
                at=at,
                ends_at=last if last > at else None,
                kind=Annotation.Kind.NOTE,
                run=run,
                node=nodes.get(group[0].node),
                text=text[:MAX_TEXT_CHARS],
                by=BY,
            )
        )
    Annotation.objects.bulk_create(annotations)


def error_text(error: HardwareError, *, n: int) -> str:
    """Describe an error: kind, place, count and the driver's action."""
    where = [error.node or error.instance or "an unnamed node"]
    where += [f"device {error.device}"] if error.device is not None else []
    where += [f"core {error.core}"] if error.core is not None else []
    times = f", {n} times" if n > 1 else ""
    action = (
        f"; the driver asks to {error.action.lower().replace('_', ' ')}" if error.action else ""
    )
    serial = f" (serial {error.serial})" if error.serial else ""
    return f"{error.kind} on {' '.join(where)}{serial}{times}{action}"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Ends of steps (n,) in Unix seconds, their source, and the shift applied."""

    ended_at_s: FloatArray
    by: str
    moved_s: float = 0.0
    why_moved: str = ""


def step_times(
    steps: LoggedSteps,
    *,
    started_at: datetime | None,
    file_s: float,
    now_s: float,
    keep_days: float,
) -> StepTimes:
    """Return when each step ended.

    Missing times are filled from the nearest known ones. Without any, steps are counted from
    ``started_at``, else back from ``file_s``, the file's last change. A run that is older than
    the retention, or in the future, is shifted so that it ends now.
    """
    lasted_s = np.cumsum(np.nan_to_num(steps.step_s) * steps.weight)
    if lasted_s[-1:].sum() > MAX_LOG_S:
        raise ValueError("FILE: its steps take more than 100 years; give one log only")
    if steps.is_dated:
        known = np.isfinite(steps.at_s)
        drift_s = steps.at_s[known] - lasted_s[known]
        ends = lasted_s + np.interp(lasted_s, lasted_s[known], drift_s)
        ends = np.maximum.accumulate(np.where(known, steps.at_s, ends))
        times = StepTimes(ends, BY_LOG)
    elif started_at is not None:
        times = StepTimes(started_at.timestamp() + lasted_s, BY_START)
    else:
        times = StepTimes(file_s - lasted_s[-1:].sum() + lasted_s, BY_FILE)
    if not len(times.ended_at_s):
        return times
    newest_s = float(times.ended_at_s[-1])
    is_ahead = newest_s > now_s + AHEAD_S
    if not is_ahead and now_s - newest_s < keep_days * DAY_S:
        return times
    moved_s = now_s - newest_s
    return StepTimes(times.ended_at_s + moved_s, times.by, moved_s, AHEAD if is_ahead else TOO_OLD)


@transaction.atomic
def save_log(log: Log, options: LogOptions, *, file_s: float, now: datetime) -> ReadLog:
    """Store a log as a finished run with its steps, compiles and errors.

    A log has no phases: the whole step is ``other_s``, and the all-reduce share is unknown.
    """
    check_name(options.run)
    seq_len = nan_if_unset(options.seq_len)
    batch = nan_if_unset(options.global_batch)
    steps = complete_steps(
        log.steps, global_batch=batch, seq_len=seq_len, total_batch=log.totals.global_batch
    )
    times = step_times(
        steps,
        started_at=options.started_at,
        file_s=file_s,
        now_s=now.timestamp(),
        keep_days=settings.DURABLE_KEEP_DAYS,
    )
    run, _ = Run.objects.update_or_create(
        name=options.run, defaults=_run_fields(log, steps, times, options, file_s=file_s)
    )
    RunChunk.objects.filter(run=run.name).delete()
    durable.write_steps(_batch(run.name, steps, times.ended_at_s))
    run.compiles.all().delete()
    store_compiles(
        run, log.compiles, moved_s=times.moved_s, trained_from=_trained_from(steps, times)
    )
    annotate_errors(run, log.errors, moved_s=times.moved_s)
    kept, _ = ReadLog.objects.update_or_create(
        run=run,
        defaults={
            "file": options.file[:200],
            "imported_at": now,
            "family": log.family,
            "is_dated": times.by == BY_LOG and not times.moved_s,
            "n_steps": len(steps),
            "n_lines": log.n_lines,
            "n_other": log.n_other,
            "n_damaged": log.n_damaged,
            "curves": pack_curves(curves_of(steps, times.ended_at_s)),
            "details": {
                "understood": dict(log.understood),
                "others": [asdict(example) for example in log.others],
                "damaged": [asdict(example) for example in log.damaged],
                "likely": [asdict(example) for example in log.likely],
                "n_again": log.steps.n_retrained,
                "n_left_out": log.n_left_out,
                "n_guessed": log.n_guessed,
                "n_untimed": int(np.isnan(steps.step_s).sum()),
                "n_errors": len(log.errors),
                "how": steps.how,
                "clocks": [list(clock) for clock in steps.clocks],
                "end": end_text(log),
                "failures": [_failure(e) for e in list(log.failures.values())[:MAX_FAILURES]],
                "other_batch": None if math.isnan(steps.other_batch) else steps.other_batch,
                "token_counts": [list(count) for count in steps.token_counts],
                "fell": list(steps.fell),
                "rate_doubt": steps.rate_doubt,
                "not_finite": [asdict(each) | _finite(each) for each in steps.not_finite],
                "is_rate_only": bool(np.isfinite(steps.seq_per_s[np.isnan(steps.step_s)]).any()),
                "placed_by": times.by,
                "why_moved": times.why_moved,
                "notes": log.notes,
            },
        },
    )
    return kept


def end_reason(log: Log) -> str:
    """Return why the job failed, by the errors after its last step; empty if it did not."""
    error = ended_by(log.final)
    if error is None:
        return ""
    return error.name + (f" on {error.where}" if error.where else "")


def end_text(log: Log) -> str:
    reason = end_reason(log)
    return f"failed: {reason}" if reason else "ended"


def _failure(error: LoggedError) -> dict[str, Any]:
    at = None if math.isnan(error.at_s) else datetime.fromtimestamp(error.at_s, UTC).isoformat()
    return {name: value for name, value in asdict(error).items() if name != "at_s"} | {
        "class": error.kind,
        "at": at,
        "where": error.where,
        "line": error.number,
    }


def _finite(figure: NotFinite) -> dict[str, float | None]:
    """Return what JSON can hold of the last finite figure."""
    return {"last_finite": None if math.isnan(figure.last_finite) else figure.last_finite}


def last_of(log: ReadLog, name: str, values: FloatArray) -> float | str | None:
    """Return a figure's last value: a word if it is not finite, None if it was not logged."""
    for figure in log.details.get("not_finite", ()):
        if figure["name"] == name and figure["is_last"]:
            return str(figure["value"])
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _trained_from(steps: LoggedSteps, times: StepTimes) -> datetime | None:
    """Return from when on a new graph is unexpected; None without times in the log.

    The graphs of a step are traced and compiled in the first steps.
    """
    if times.by != BY_LOG or len(steps) < FIRST_STEPS:
        return None
    return datetime.fromtimestamp(float(times.ended_at_s[FIRST_STEPS - 1]), UTC)


def _batch(run: str, steps: LoggedSteps, ended_at_s: FloatArray) -> StepBatch:
    timed = np.isfinite(steps.step_s)
    whole = steps.step_s[timed][:, None]
    phases = {phase: np.full(whole.shape, np.nan) for phase in PHASES} | {"other_s": whole}
    loss = steps.loss[timed] if np.isfinite(steps.loss[timed]).any() else None
    return StepBatch(
        run, (JOB,), steps.step[timed], ended_at_s[timed], phases, steps.tokens[timed], loss
    )


def _run_fields(
    log: Log, steps: LoggedSteps, times: StepTimes, options: LogOptions, *, file_s: float
) -> dict[str, Any]:
    began_s, ended_s = _span(log, steps, times, file_s=file_s)
    ended_at = datetime.fromtimestamp(ended_s, UTC)
    reason = end_reason(log)
    has_batch = math.isfinite(steps.global_batch) and steps.global_batch <= MAX_COUNT
    return {
        "team": options.team,
        "purpose": f"training log {options.file}"[:200],
        "model": options.model or NOT_RECORDED,
        "instance_type": options.instance or NOT_RECORDED,
        "n_nodes": options.n_nodes,
        "tp": options.tp,
        "pp": options.pp,
        "seq_len": options.seq_len,
        "global_batch": round(steps.global_batch) if has_batch else 0,
        "precision": options.precision,
        "optimizer": options.optimizer or log.optimizer,
        "tokens_per_epoch": options.tokens_per_epoch or None,
        "phase": Run.Phase.FAILED if reason else Run.Phase.FINISHED,
        "phase_since": ended_at,
        "end_reason": reason[: Run.MAX_REASON_CHARS],
        "started_at": datetime.fromtimestamp(began_s, UTC),
        "finished_at": ended_at,
        "last_step": int(steps.step[-1]) if len(steps) else 0,
        "n_tokens": n_tokens(steps) or 0,
        "spending": None,
        **_price(options, datetime.fromtimestamp(began_s, UTC), moved_s=times.moved_s),
    }


def _span(log: Log, steps: LoggedSteps, times: StepTimes, *, file_s: float) -> tuple[float, float]:
    """Return when a run began and ended: from its first compile or step to its last step."""
    dated = [event for event in log.compiles if not math.isnan(event.at_s)]
    if len(steps):
        first_s = float(np.nan_to_num(steps.step_s[0])) * int(steps.weight[0])
        began_s = float(times.ended_at_s[0]) - first_s
        if times.by == BY_LOG:
            # Earlier compiles belong to the run, but not those before a long pause.
            for event in sorted(dated, key=_end_s, reverse=True):
                if began_s - (_end_s(event) + times.moved_s) > MAX_PAUSE_S:
                    break
                began_s = min(began_s, event.at_s + times.moved_s)
        return max(0.0, began_s), float(times.ended_at_s[-1])
    moments = [moment for each in dated for moment in (each.at_s, _end_s(each))]
    moments += [error.at_s for error in log.errors if not math.isnan(error.at_s)]
    return (min(moments), max(moments)) if moments else (file_s, file_s)


def _end_s(event: Compile) -> float:
    return event.at_s + (0.0 if math.isnan(event.seconds) else event.seconds)


def _price(options: LogOptions, began: datetime, *, moved_s: float) -> dict[str, Any]:
    """Return the price by contract or catalog when the run trained; 0 if unknown."""
    began -= timedelta(seconds=moved_s)
    price = opening_price(options.team, options.instance, n_nodes=options.n_nodes, began=began)
    if options.n_nodes and (price["usd_per_node_hour"] or price["tariff"]):
        for entry in price["tariff"] or ():
            entry["from_s"] += moved_s
        return price
    return {"usd_per_node_hour": 0.0, "price_basis": NOT_RECORDED, "tariff": None}


def n_tokens(steps: LoggedSteps) -> int | None:
    total = float((steps.tokens * steps.weight).sum()) if len(steps) else math.nan
    return round(total) if math.isfinite(total) and total <= MAX_RUN_TOKENS else None
