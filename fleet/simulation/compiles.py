"""Compile events of simulated runs, at their start and by recompile faults."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
from django.db.models import Count

from fleet.models import CompileEvent, InjectedFault, Run
from fleet.runs.annotations import announced, announced_compiles
from fleet.runs.compiles import store_compiles
from telemetry.compiles import HIT, Compile
from telemetry.simulate.compiles import (
    ACCIDENTS,
    Toolchain,
    changed,
    compiles_at_all,
    first_compiles,
    n_first_compiles,
    recompiled,
    toolchain_of,
)
from telemetry.simulate.plan import RunSpec
from telemetry.store.history import run_steps
from telemetry.store.reading import Source

RECOMPILE = "recompile"
# A fault whose step has not ended by then ended with its run.
LOOK_BACK = timedelta(hours=6)
# Steps may be slightly shorter than the delay of the fault, because clocks have a resolution.
NEARLY = 0.99
# The step under way when a fault strikes goes on; it is the next that is held up.
NEXT_STEPS = 3


def store_simulated(source: Source, *, now: datetime) -> None:
    """Store what the active simulated runs have compiled by now, each compile once."""
    runs = list(Run.objects.active().simulated())
    kept = CompileEvent.objects.filter(run__in=runs).order_by().values_list("run")
    n_kept = dict(kept.annotate(Count("pk")))
    struck = InjectedFault.objects.filter(
        kind=RECOMPILE, run__finished_at=None, starts_at__gt=now - LOOK_BACK, starts_at__lte=now
    )
    faults = list(struck.order_by("starts_at"))
    notes = announced_compiles().filter(
        run__in=runs, ends_at__gt=now - LOOK_BACK, ends_at__lte=now
    )
    with_notes = set(notes.values_list("run_id", flat=True))
    for run in runs:
        spec = RunSpec(**run.plan)
        if not compiles_at_all(spec):
            continue
        if n_kept.get(run.pk, 0) < n_first_compiles(spec):
            store_first(run, spec, n_kept=n_kept.get(run.pk, 0), now=now, noted_at=now)
        mine = [fault for fault in faults if fault.run_id == run.pk]
        store_recompiles(source, run, spec, mine, now=now)
        if run.pk in with_notes:
            store_announced(run, spec, since=now - LOOK_BACK, now=now)


def store_announced(
    run: Run, spec: RunSpec, *, since: datetime, now: datetime, in_real_time: bool = True
) -> None:
    """Store the announced compiles that ended in (since, now]: graphs of longer sequences."""
    longer = msgspec.structs.replace(spec, seq_len=2 * spec.seq_len)
    for note in announced(run).filter(ends_at__gt=since, ends_at__lte=now):
        start = f"plan-{note.pk}"
        if note.ends_at is None or run.compiles.filter(process__endswith=f":{start}").exists():
            continue
        events = recompiled(
            longer,
            _current_toolchain(run, spec),
            at_s=note.at.timestamp(),
            seconds=(note.ends_at - note.at).total_seconds(),
            start=start,
            is_planned=True,
        )
        reported_at = now if in_real_time else note.ends_at
        store_compiles(run, events, now=reported_at, trained_from=run.started_at)


def store_first(
    run: Run, spec: RunSpec, *, n_kept: int, now: datetime, noted_at: datetime | None
) -> None:
    """Store the compiles and cache hits before a run's first step, once each is over."""
    tools = toolchain_of(spec)
    due = [
        event
        for event in first_compiles(spec, tools, epoch_s=run.started_at.timestamp())
        if _end_s(event) <= now.timestamp()
    ]
    if n_kept < len(due):
        store_compiles(run, due, now=noted_at)


def store_recompiles(
    source: Source,
    run: Run,
    spec: RunSpec,
    faults: Sequence[InjectedFault],
    *,
    now: datetime,
    in_real_time: bool = True,
) -> list[CompileEvent]:
    """Store the compiles that recompile faults caused, once the delayed step is over."""
    stored: list[CompileEvent] = []
    for fault in faults:
        start = _start(fault)
        if run.compiles.filter(process__endswith=f":{start}").exists():
            continue
        at_s = _began_s(source, run, fault, now=now)
        if at_s is None:
            continue
        tools = _current_toolchain(run, spec)
        earlier = run.injected_faults.filter(kind=RECOMPILE, starts_at__lt=fault.starts_at).count()
        events = recompiled(
            spec,
            changed(tools, ACCIDENTS[earlier % len(ACCIDENTS)]),
            at_s=at_s,
            seconds=fault.magnitude,
            start=start,
        )
        reported_at = datetime.fromtimestamp(at_s + fault.magnitude, UTC)
        noted_at = now if in_real_time else reported_at
        stored += store_compiles(run, events, now=noted_at, trained_from=run.started_at)
    return stored


def _start(fault: InjectedFault) -> str:
    """Return the name of the recompiling process: a number derived from the fault's key."""
    return str(4_000 + fault.pk)


def _end_s(event: Compile) -> float:
    return event.at_s + (0.0 if event.outcome == HIT else event.seconds)


def _began_s(source: Source, run: Run, fault: InjectedFault, *, now: datetime) -> float | None:
    """Return when the step that a fault delayed began; None until that step is over."""
    start_s = fault.starts_at.timestamp()
    end_s = min(now.timestamp(), start_s + 2 * fault.magnitude + 600.0)
    steps = run_steps(source, run.name, start_s=start_s, end_s=end_s)
    if not len(steps):
        return None
    lengths_s = np.nan_to_num(steps.step_s)[:NEXT_STEPS]
    longest = int(np.argmax(lengths_s))
    if lengths_s[longest] < NEARLY * fault.magnitude:
        return None
    began_s = float(steps.ended_at_s[longest] - lengths_s[longest])
    return began_s if math.isfinite(began_s) else None


def _current_toolchain(run: Run, spec: RunSpec) -> Toolchain:
    usual = toolchain_of(spec)
    return Toolchain(
        compiler=run.compiler_version or usual.compiler,
        flags=run.compiler_flags or usual.flags,
        cache=usual.cache,
    )


def simulate_compiles(
    source: Source, run: Run, faults: Iterable[InjectedFault], *, now: datetime
) -> list[CompileEvent]:
    """Store the compiles of a run simulated in advance; return those caused by faults."""
    spec = RunSpec(**run.plan)
    if not compiles_at_all(spec):
        return []
    store_first(run, spec, n_kept=0, now=now, noted_at=None)
    struck = sorted(
        (fault for fault in faults if fault.kind == RECOMPILE and fault.starts_at <= now),
        key=lambda fault: fault.starts_at,
    )
    stored = store_recompiles(source, run, spec, struck, now=now, in_real_time=False)
    store_announced(run, spec, since=run.started_at, now=now, in_real_time=False)
    return stored
