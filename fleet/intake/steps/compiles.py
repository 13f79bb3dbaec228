"""Compiles that jobs report: kept and judged as they come."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from fleet.compiles.keeping import keep_compiles
from fleet.models import Run
from telemetry.compiles import Compile
from telemetry.ingest.steps import CompileLine, Said


def keep_told(taken: Iterable[Said], *, correction_s: float, now_s: float) -> None:
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
        # A job trains from its first step on: until then it compiles what it needs.
        is_training = run.phase == Run.Phase.TRAINING
        trained_from = run.phase_since if is_training else None
        keep_compiles(run, events, now=now, trained_from=trained_from)


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
