"""Importing a recorded trace as a finished run with steps and a verdict."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction

from fleet.formatting import counted, percent, seconds
from fleet.models import RecordedTrace, Run
from telemetry.detect.what_if import Analysis
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.models import RunChunk

NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
NAME_RULE = "letters, digits, dashes and underscores, at most 60"
SECONDS_PER_DAY = 86_400.0
NOT_RECORDED = "not recorded"

# A replay has no gaps, so it should not take longer than the recording.
FITS_RATIO = 1.05
# Short labels.
SHORT = {
    "one_worker": "one worker",
    "stage_imbalance": "stages",
    "sequence_imbalance": "sequences",
    "communication": "transfers",
    "none": "none",
}
CAUSES = {
    "one_worker": (
        "A worker or a few",
        "slower than the others that do the same work, most of the time",
    ),
    "stage_imbalance": (
        "Uneven stages",
        "a pipeline stage that has more to do than others, on every replica",
    ),
    "sequence_imbalance": (
        "Uneven sequences",
        "micro-batches that take long forward and backward, on every worker in turn",
    ),
    "communication": (
        "Communication",
        "transfers that take longer than the same transfers usually do",
    ),
}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Facts of a trace given on import: run name, file, hardware."""

    run: str
    file: str
    model: str = ""
    instance: str = ""
    n_nodes: int = 0
    tp: int = 1
    n_ranks_missing: int = 0
    began_at_s: float | None = None


def check_name(name: str, *, is_replaced: bool) -> None:
    """Refuse an invalid name, or that of another run."""
    if not NAME.fullmatch(name):
        raise ValueError(f"--run: {name[:80]!r} is no name for a run: {NAME_RULE}")
    found = Run.objects.filter(name=name).select_related("trace").first()
    if found is None:
        return
    if not hasattr(found, "trace"):
        raise ValueError(f"--run: {name} is a run of the fleet; choose another name")
    if not is_replaced:
        at = f"{found.trace.imported_at:%Y-%m-%d %H:%M} UTC"
        raise ValueError(
            f"--run: {name} was imported on {at}; choose another name, or give --replace"
        )


@transaction.atomic
def save_trace(
    analysis: Analysis, about: TraceOptions, *, is_replaced: bool, now: datetime
) -> RecordedTrace:
    """Store a trace as a finished run with its steps; what is kept of it is kept whole.

    A trace older than steps are kept is set in time as if it said nothing of it.
    """
    check_name(about.run, is_replaced=is_replaced)
    Run.objects.filter(name=about.run).delete()
    RunChunk.objects.filter(run=about.run).delete()
    if not _is_dated(about.began_at_s, now=now):
        about = replace(about, began_at_s=None)
    steps = _placed(analysis.steps, about, now=now)
    run = Run.objects.create(**_run_fields(analysis, about, steps))
    durable.write_steps(steps)
    return RecordedTrace.objects.create(run=run, **_verdict_fields(analysis, about, now=now))


def _placed(steps: StepBatch, about: TraceOptions, *, now: datetime) -> StepBatch:
    """Shift the steps to when they were recorded, or, if unknown, so that they end now."""
    if about.began_at_s is not None:
        return replace(steps, ended_at_s=steps.ended_at_s + about.began_at_s)
    return replace(steps, ended_at_s=steps.ended_at_s + now.timestamp() - steps.ended_at_s[-1])


def _is_dated(began_at_s: float | None, *, now: datetime) -> bool:
    """Whether a trace has a recording time within the retention."""
    if began_at_s is None:
        return False
    age_s = now.timestamp() - began_at_s
    return 0 <= age_s < settings.DURABLE_KEEP_DAYS * SECONDS_PER_DAY


def _run_fields(analysis: Analysis, about: TraceOptions, steps: StepBatch) -> dict[str, Any]:
    ended_at = datetime.fromtimestamp(float(steps.ended_at_s[-1]), UTC)
    began_s = float(steps.ended_at_s[0] - steps.step_s[0])
    return {
        "name": about.run,
        "purpose": f"recorded trace {about.file}"[:200],
        "model": about.model or NOT_RECORDED,
        "instance_type": about.instance or NOT_RECORDED,
        "n_nodes": about.n_nodes,
        "tp": about.tp,
        "pp": analysis.grid.n_stages,
        "seq_len": 0,
        "global_batch": 0,
        "precision": "",
        "usd_per_node_hour": 0.0,
        "price_basis": NOT_RECORDED,
        "phase": Run.Phase.FINISHED,
        "phase_since": ended_at,
        "started_at": datetime.fromtimestamp(began_s, UTC),
        "finished_at": ended_at,
        "last_step": int(steps.step[-1]),
    }


def _verdict_fields(analysis: Analysis, about: TraceOptions, *, now: datetime) -> dict[str, Any]:
    found, steps = analysis.found, analysis.steps
    return {
        "file": about.file[:200],
        "imported_at": now,
        "is_dated": about.began_at_s is not None,
        "n_workers": analysis.grid.n_workers,
        "n_steps": len(steps),
        "step_s": found.real_s,
        "slowdown_ratio": found.slowdown_ratio,
        "m_w": found.m_w,
        "m_s": found.m_s,
        "allreduce_share_ratio": float(steps.allreduce_share_ratio.mean()),
        "wait_share_ratio": float(steps.wait_ratio.mean()),
        "transfer_share_ratio": float(steps.transfer_ratio.mean()),
        "cause": analysis.verdict.cause,
        "culprit": (analysis.culprits or ("",))[0],
        "details": _details(analysis) | {"n_ranks_missing": about.n_ranks_missing},
    }


def _details(analysis: Analysis) -> dict[str, Any]:
    """Return the details that the page shows."""
    found, grid = analysis.found, analysis.grid
    correlation = found.correlation
    return {
        "recorded_step_s": float(analysis.steps.step_s.mean()),
        "ideal_step_s": found.ideal_s,
        "ranks": grid.ranks.tolist(),
        "worker_slowdown": np.round(found.worker_slowdown, 4).tolist(),
        "stage_slowdown": np.round(found.stage_slowdown, 4).tolist(),
        "shares": found.shares,
        "share_ratio": analysis.verdict.share_ratio,
        "correlation": correlation if np.isfinite(correlation) else None,
        "culprits": list(analysis.culprits),
        "stage": analysis.verdict.stage,
        "n_left_out": grid.n_left_out,
        "n_missing": grid.n_missing,
    }


def verdict_text(trace: RecordedTrace) -> str:
    """Say in a sentence or two what slowed a recorded run down, and whom to look at."""
    return f"{_how_slow(trace)} {_why(trace)}"


def verdict_caveats(trace: RecordedTrace) -> list[str]:
    """Say what makes a verdict less certain: what was not recorded, or does not add up."""
    details = trace.details
    caveats = []
    if n := details["n_left_out"]:
        caveats.append(f"{counted(n, 'step')} not recorded whole, left out")
    if n := details["n_missing"]:
        caveats.append(f"{counted(n, 'operation')} missing, counted as their peers")
    if n := details.get("n_ranks_missing"):
        caveats.append(
            f"{counted(n, 'rank')} of the job not in the trace; the one to blame may be among them"
        )
    if trace.step_s > FITS_RATIO * details["recorded_step_s"]:
        caveats.append(
            "played again, the operations take longer than they did: they do not wait for each "
            "other as a pipeline's do, and the verdict is a guess"
        )
    return caveats


def _how_slow(trace: RecordedTrace) -> str:
    ideal = seconds(trace.details["ideal_step_s"])
    if trace.slowdown_ratio < 1.005:
        return f"A step takes {seconds(trace.step_s)}, as long as it should."
    return (
        f"A step takes {seconds(trace.step_s)}; had every operation taken as long as its peers, "
        f"it would take {ideal}: {trace.slowdown_ratio:.2f} times as long as it should."
    )


def _why(trace: RecordedTrace) -> str:
    share = percent(min(1.0, max(0.0, trace.details["share_ratio"] or 0.0)), 0)
    match trace.cause:
        case RecordedTrace.Cause.ONE_WORKER:
            return _blamed(trace.details["culprits"], share)
        case RecordedTrace.Cause.STAGE_IMBALANCE:
            return (
                f"Pipeline stage {trace.details['stage']} has more work than the others, on every "
                f"replica: uneven stages explain {share} of the slowdown. No machine is to blame."
            )
        case RecordedTrace.Cause.SEQUENCE_IMBALANCE:
            return (
                "Some micro-batches take much longer than others, forward and backward alike, on "
                f"every worker in turn: uneven sequence lengths explain {share} of the slowdown. "
                "No machine is to blame."
            )
        case RecordedTrace.Cause.COMMUNICATION:
            return _moving(trace, share)
    if trace.details["share_ratio"] is None:
        return "Nothing slows it down that is worth a look."
    return (
        "No single cause explains it: neither a few workers, nor the stages, the sequence "
        "lengths or communication. Pauses that come and go everywhere look like this."
    )


def _blamed(culprits: list[str], share: str) -> str:
    if len(culprits) == 1:
        return f"One worker is to blame: {culprits[0]} explains {share} of the slowdown."
    others = ", ".join(culprits[1:])
    return f"A few workers are to blame, first {culprits[0]}, then {others}: {share} together."


def _moving(trace: RecordedTrace, share: str) -> str:
    if trace.details["share_ratio"] is None:
        return (
            f"Yet {percent(trace.transfer_share_ratio, 0)} of the step goes by moving gradients "
            "with all workers present: the network or the layout is the limit, no single machine."
        )
    return (
        f"Transfers that take longer than the same transfers usually do explain {share} of the "
        "slowdown. All who take part in one see it alike, so no machine is named."
    )
