"""A log that was read is kept as a run that is over; reading it again replaces what it made."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction

from fleet.compiles import keep_compiles
from fleet.compiles.judging import FIRST_STEPS
from fleet.logs.about import MOST, Told, check_name, known
from fleet.logs.curves import curves_of, packed
from fleet.logs.errors import annotate_errors
from fleet.logs.placing import BY_LOG, Placed, placed
from fleet.models import ReadLog, Run
from fleet.pricing.prices import opening
from fleet.traces import NOT_RECORDED
from telemetry.blocks import FloatArray
from telemetry.ingest.logs import Compile, Log, LoggedSteps, completed
from telemetry.steps import PHASES, StepBatch
from telemetry.store import durable
from telemetry.store.models import RunChunk

MOST_TOKENS = 2**62
JOB = "job"
LONGEST_PAUSE_S = 6 * 3_600.0


@transaction.atomic
def keep(log: Log, told: Told, *, file_s: float, now: datetime) -> ReadLog:
    """Store a log as a finished run with its steps, compiles and errors.

    The steps' split is not in a log: all of a step is ``other_s``, and its share is absent.
    """
    check_name(told.run)
    steps = _completed(log, told)
    times = placed(
        steps,
        started_at=told.started_at,
        file_s=file_s,
        now_s=now.timestamp(),
        keep_days=settings.DURABLE_KEEP_DAYS,
    )
    run, _ = Run.objects.update_or_create(
        name=told.run, defaults=_run_fields(log, steps, times, told, file_s=file_s)
    )
    RunChunk.objects.filter(run=run.name).delete()
    durable.write_steps(_batch(run.name, steps, times.ended_at_s))
    run.compiles.all().delete()
    keep_compiles(
        run, log.compiles, moved_s=times.moved_s, trained_from=_trained_from(steps, times)
    )
    annotate_errors(run, log.errors, moved_s=times.moved_s)
    kept, _ = ReadLog.objects.update_or_create(
        run=run, defaults=_found(log, steps, times, told, now=now)
    )
    return kept


def _trained_from(steps: LoggedSteps, times: Placed) -> datetime | None:
    """Return since when a graph that is new surprises; None where the log's lines have no times.

    The first steps are those in which the graphs of a step are traced and compiled.
    """
    if times.by != BY_LOG or len(steps) < FIRST_STEPS:
        return None
    return datetime.fromtimestamp(float(times.ended_at_s[FIRST_STEPS - 1]), UTC)


def _completed(log: Log, told: Told) -> LoggedSteps:
    """Return the steps; a batch that only the log's last words tell counts where no other does."""
    seq_len = known(told.seq_len)
    steps = completed(log.steps, global_batch=known(told.global_batch), seq_len=seq_len)
    if not math.isnan(steps.global_batch) or math.isnan(log.totals.global_batch):
        return steps
    return completed(log.steps, global_batch=log.totals.global_batch, seq_len=seq_len)


def _batch(run: str, steps: LoggedSteps, ended_at_s: FloatArray) -> StepBatch:
    """Return the steps whose duration is known, in one piece: nothing tells them apart."""
    timed = np.isfinite(steps.step_s)
    whole = steps.step_s[timed][:, None]
    phases = {phase: np.full(whole.shape, np.nan) for phase in PHASES} | {"other_s": whole}
    loss = steps.loss[timed] if np.isfinite(steps.loss[timed]).any() else None
    return StepBatch(
        run, (JOB,), steps.step[timed], ended_at_s[timed], phases, steps.tokens[timed], loss
    )


def _run_fields(
    log: Log, steps: LoggedSteps, times: Placed, told: Told, *, file_s: float
) -> dict[str, Any]:
    """Return the run's row; what neither log nor people say stays unsaid."""
    began_s, ended_s = _span(log, steps, times, file_s=file_s)
    ended_at = datetime.fromtimestamp(ended_s, UTC)
    return {
        "team": told.team,
        "purpose": f"training log {told.file}"[:200],
        "model": told.model or NOT_RECORDED,
        "instance_type": told.instance or NOT_RECORDED,
        "n_nodes": told.n_nodes,
        "tp": told.tp,
        "pp": told.pp,
        "seq_len": told.seq_len,
        "global_batch": _whole(steps.global_batch),
        "precision": told.precision,
        "optimizer": told.optimizer or log.optimizer,
        "tokens_per_epoch": told.tokens_per_epoch or None,
        "phase": Run.Phase.FINISHED,
        "phase_since": ended_at,
        "started_at": datetime.fromtimestamp(began_s, UTC),
        "finished_at": ended_at,
        "last_step": int(steps.step[-1]) if len(steps) else 0,
        "n_tokens": n_tokens(steps) or 0,
        "spending": None,
        **_price(told, datetime.fromtimestamp(began_s, UTC)),
    }


def _span(log: Log, steps: LoggedSteps, times: Placed, *, file_s: float) -> tuple[float, float]:
    """Return when a run began and ended: from its first compile or step to its last step."""
    dated = [event for event in log.compiles if not math.isnan(event.at_s)]
    if len(steps):
        first_s = float(np.nan_to_num(steps.step_s[0])) * int(steps.weight[0])
        began_s = float(times.ended_at_s[0]) - first_s
        if times.by == BY_LOG:
            began_s = _with_compiles(began_s, dated, moved_s=times.moved_s)
        return max(0.0, began_s), float(times.ended_at_s[-1])
    moments = [moment for each in dated for moment in (each.at_s, _end_s(each))]
    moments += [error.at_s for error in log.errors if not math.isnan(error.at_s)]
    return (min(moments), max(moments)) if moments else (file_s, file_s)


def _with_compiles(began_s: float, dated: Sequence[Compile], *, moved_s: float) -> float:
    """Go back over the compiles before the first step; after a long pause it is another run."""
    for event in sorted(dated, key=_end_s, reverse=True):
        if began_s - (_end_s(event) + moved_s) > LONGEST_PAUSE_S:
            break
        began_s = min(began_s, event.at_s + moved_s)
    return began_s


def _end_s(event: Compile) -> float:
    return event.at_s + (0.0 if math.isnan(event.seconds) else event.seconds)


def _whole(value: float) -> int:
    return round(value) if math.isfinite(value) and value <= MOST else 0


def _price(told: Told, began: datetime) -> dict[str, Any]:
    """Return what the run paid by contract or catalogue; 0 where nobody can tell."""
    found = opening(told.team, told.instance, n_nodes=told.n_nodes, began=began)
    if told.n_nodes and (found["usd_per_node_hour"] or found["tariff"]):
        return found
    return {"usd_per_node_hour": 0.0, "price_basis": NOT_RECORDED, "tariff": None}


def n_tokens(steps: LoggedSteps) -> int | None:
    """Return the tokens trained in all, None where a step's are not known."""
    total = float((steps.tokens * steps.weight).sum()) if len(steps) else math.nan
    return round(total) if math.isfinite(total) and total <= MOST_TOKENS else None


def _found(
    log: Log, steps: LoggedSteps, times: Placed, told: Told, *, now: datetime
) -> dict[str, Any]:
    """Return what was understood, and what was not."""
    return {
        "file": told.file[:200],
        "imported_at": now,
        "family": log.family,
        "is_dated": times.by == BY_LOG and not times.moved_s,
        "n_steps": len(steps),
        "n_lines": log.n_lines,
        "n_other": log.n_other,
        "n_damaged": log.n_damaged,
        "curves": packed(curves_of(steps, times.ended_at_s)),
        "details": {
            "understood": dict(log.understood),
            "others": [asdict(example) for example in log.others],
            "damaged": [asdict(example) for example in log.damaged],
            "n_again": log.steps.n_again,
            "n_left_out": log.n_left_out,
            "n_guessed": log.n_guessed,
            "n_untimed": int(np.isnan(steps.step_s).sum()),
            "n_errors": len(log.errors),
            "how": steps.how,
            "placed_by": times.by,
            "why_moved": times.why_moved,
        },
    }
