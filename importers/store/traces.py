"""Importing a recorded trace as a finished run with steps and a verdict."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction

from fleet.models import RecordedTrace, Run
from fleet.runs.imported import NOT_RECORDED
from importers.traces.trace import RankFigures, Trace
from importers.traces.what_if import Analysis
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.models import RunChunk
from telemetry.units import DAY_S

NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
NAME_RULE = "letters, digits, dashes and underscores, at most 60"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    run: str
    file: str
    trace: Trace
    model: str = ""
    instance: str = ""
    n_nodes: int = 0


def check_name(name: str, *, is_replaced: bool) -> None:
    """Raise ValueError for an invalid name, or that of another run."""
    if not NAME.fullmatch(name):
        raise ValueError(f"--run: {name[:80]!r} is not a valid run name: use {NAME_RULE}")
    run = Run.objects.filter(name=name).select_related("trace").first()
    if run is None:
        return
    if not hasattr(run, "trace"):
        raise ValueError(f"--run: {name} is not an imported trace; choose another name")
    if not is_replaced:
        at = f"{run.trace.imported_at:%Y-%m-%d %H:%M} UTC"
        raise ValueError(
            f"--run: {name} was imported on {at}; choose another name, or give --replace"
        )


@transaction.atomic
def save_trace(
    analysis: Analysis, about: TraceOptions, *, is_replaced: bool, now: datetime
) -> RecordedTrace:
    """Store a trace as a finished run with its steps.

    A trace without a time, or older than steps are kept, is stored so that it ends now.
    """
    check_name(about.run, is_replaced=is_replaced)
    Run.objects.filter(name=about.run).delete()
    RunChunk.objects.filter(run=about.run).delete()
    steps, began_at_s = analysis.steps, about.trace.began_at_s
    age_s = math.inf if began_at_s is None else now.timestamp() - began_at_s
    is_dated = 0 <= age_s < settings.DURABLE_KEEP_DAYS * DAY_S
    shift_s = now.timestamp() - steps.ended_at_s[-1]
    if is_dated and began_at_s is not None:
        shift_s = began_at_s
    steps = replace(steps, ended_at_s=steps.ended_at_s + shift_s)
    run = Run.objects.create(**_run_fields(analysis, about, steps))
    durable.write_steps(steps)
    explained, grid, verdict = analysis.found, analysis.grid, analysis.verdict
    # Shares of the time of all steps: short steps count less than long ones.
    wait, transfer = (
        float(np.average(ratio, weights=steps.step_s))
        for ratio in (steps.wait_ratio, steps.transfer_ratio)
    )
    return RecordedTrace.objects.create(
        run=run,
        imported_at=now,
        is_dated=is_dated,
        file=about.file[:200],
        n_workers=grid.n_workers,
        n_steps=len(steps),
        step_s=explained.real_s,
        slowdown_ratio=explained.slowdown_ratio,
        m_w=explained.m_w,
        m_s=explained.m_s,
        allreduce_share_ratio=wait + transfer,
        wait_share_ratio=wait,
        transfer_share_ratio=transfer,
        cause=verdict.cause,
        # Several are in the details.
        culprit=analysis.culprits[0] if verdict.cause == "one_worker" else "",
        details={
            "recorded_step_s": float(steps.step_s.mean()),
            "ideal_step_s": explained.ideal_s,
            "ranks": grid.ranks.tolist(),
            "worker_slowdown": np.round(explained.worker_slowdown, 4).tolist(),
            "stage_slowdown": np.round(explained.stage_slowdown, 4).tolist(),
            "shares": explained.shares,
            "share_ratio": verdict.share_ratio,
            "other_comm_share_ratio": other_comm_share_ratio(analysis, about.trace.figures),
            "correlation": explained.correlation if np.isfinite(explained.correlation) else None,
            "culprits": list(analysis.culprits),
            "stage": verdict.stage,
            "n_left_out": grid.n_left_out,
            "n_missing": grid.n_missing,
            "n_ranks_missing": about.trace.n_ranks_missing,
            "n_dropped": about.trace.n_dropped,
            "shows_overlap": about.trace.shows_overlap,
            "by_rank": _by_rank(analysis, about.trace.figures),
        },
    )


def other_comm_share_ratio(analysis: Analysis, figures: Sequence[RankFigures]) -> float:
    """Return the exposed share where the device's events show it, else the replay's."""
    if not figures:
        return analysis.found.other_comm_ratio
    step_s = sum(figure.step_s for figure in figures)
    return sum(figure.other_comm_s for figure in figures) / step_s if step_s else 0.0


def _by_rank(analysis: Analysis, figures: Sequence[RankFigures]) -> list[dict[str, Any]]:
    """Return the figures of each rank; waiting is estimated where it was not recorded.

    Of several tensor-parallel ranks only the first has an estimate.
    """
    waits_s = analysis.steps.phases["wait_s"].mean(axis=0).tolist()
    estimated = dict(zip(analysis.grid.ranks.ravel().tolist(), waits_s, strict=True))
    rows = []
    for figure in figures:
        wait_s = figure.wait_s if figure.wait_s is not None else estimated.get(figure.rank)
        is_recorded = figure.wait_s is not None
        rows.append(asdict(figure) | {"wait_s": wait_s, "is_wait_recorded": is_recorded})
    return rows


def _run_fields(analysis: Analysis, about: TraceOptions, steps: StepBatch) -> dict[str, Any]:
    ended_at = datetime.fromtimestamp(float(steps.ended_at_s[-1]), UTC)
    began_s = float(steps.ended_at_s[0] - steps.step_s[0])
    return {
        "name": about.run,
        "purpose": f"recorded trace {about.file}"[:200],
        "model": about.model or NOT_RECORDED,
        "instance_type": about.instance or about.trace.instance or NOT_RECORDED,
        "n_nodes": about.n_nodes,
        "tp": about.trace.tp or 1,
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
