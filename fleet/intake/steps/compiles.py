"""Compiles that jobs report: kept and judged as they come."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from fleet.compiles.judging import FIRST_STEPS
from fleet.compiles.keeping import keep_compiles
from fleet.models import Run
from telemetry.compiles import Compile
from telemetry.ingest.steps import CompileLine, Said
from telemetry.store.hot import HotStore


def keep_told(hot: HotStore, taken: Iterable[Said], *, correction_s: float, now_s: float) -> None:
    """Keep the compiles among what arrived; told twice, one is kept once."""
    by_run: dict[str, list[CompileLine]] = {}
    for said in taken:
        if isinstance(said, CompileLine):
            by_run.setdefault(said.run, []).append(said)
    if not by_run:
        return
    now = datetime.fromtimestamp(now_s, UTC)
    for run in Run.objects.filter(name__in=by_run):
        events = [_compile(said, correction_s=correction_s) for said in by_run[run.name]]
        keep_compiles(run, events, now=now, trained_from=_trained_from(hot, run))


def _trained_from(hot: HotStore, run: Run) -> datetime | None:
    """Return since when a graph that is new surprises; None while its first steps go by."""
    if run.phase != Run.Phase.TRAINING:
        return None
    steps = hot.steps(run.name, since_s=run.phase_since.timestamp())
    if len(steps) < FIRST_STEPS:
        return None
    return datetime.fromtimestamp(float(steps.ended_at_s[FIRST_STEPS - 1]), UTC)


def _compile(said: CompileLine, *, correction_s: float) -> Compile:
    return Compile(
        module=said.module,
        outcome=said.outcome,
        at_s=said.at + correction_s,
        seconds=math.nan if said.seconds is None else said.seconds,
        rank=said.rank,
        process=f"{said.session}:{said.worker}",
        compiler=said.compiler,
        flags=said.flags,
        cache=said.cache,
        shape=said.shape,
        is_planned=said.planned,
    )
