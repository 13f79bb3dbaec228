"""Histograms of step durations, updated once a minute, for quantiles in Prometheus."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import Q
from numpy.typing import NDArray

from fleet.models import Run, StepDurations
from telemetry.blocks import FloatArray
from telemetry.store.history import run_steps
from telemetry.store.reading import Source

# Workers may report a step this late. Counts never decrease.
LATE_S = 60
# A query returns up to 2,000 steps without averaging. Limits the catch-up after an outage.
PIECE_S, MOST_PIECES = 300, 48
# Finished runs are exported for this long.
EXPORTED_AFTER_END = timedelta(days=1)


# Twelve to a decade (E12): each edge is at most a quarter above the one before.
E12 = (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
# From ten milliseconds to a thousand seconds. Never change them: counts are kept by edge.
EDGES_S = (*(float(f"{digits}e{power}") for power in range(-2, 3) for digits in E12), 1000.0)


def count_by_edge(values: FloatArray, edges: Sequence[float] = EDGES_S) -> NDArray[np.int64]:
    """Count values by the first edge that they do not exceed: (n_edges + 1,), the last above all.

    NaN and infinity are not counted.

    Examples
    --------
    >>> count_by_edge(np.array([0.5, 1.0, 1.1, 9.0, np.nan]), edges=(1.0, 2.0))
    array([2, 1, 1])
    """
    places = np.searchsorted(np.asarray(edges), values[np.isfinite(values)], side="left")
    return np.bincount(places, minlength=len(edges) + 1).astype(np.int64)


def update_step_durations(source: Source, *, now: datetime) -> int:
    """Count steps since the last update; return how many.

    Each step is counted once, a minute after its end. Steps of earlier versions that have left the
    hot tier are not counted.
    """
    due = Q(finished_at=None) | Q(finished_at__gt=now - EXPORTED_AFTER_END)
    runs = Run.objects.filter(due, trace=None).select_related("step_durations")
    until_s = int(now.timestamp()) - LATE_S
    n = 0
    for run in runs.defer("plan", "clock", "spending"):
        kept: StepDurations | None = getattr(run, "step_durations", None)
        if kept is None:
            since_s = max(int(run.started_at.timestamp()), until_s - source.keep_s)
            kept = StepDurations(run=run, until_s=since_s, last_step=-1, counts=[], total_s=0.0)
        is_complete = run.finished_at is not None and run.finished_at.timestamp() < kept.until_s
        if until_s > kept.until_s and not is_complete:
            n += _count(source, run, kept, until_s=until_s)
    return n


def _count(source: Source, run: Run, kept: StepDurations, *, until_s: int) -> int:
    counts = np.array(kept.counts or [0] * (len(EDGES_S) + 1), np.int64)
    last_step, total_s, end_s, n = kept.last_step, kept.total_s, kept.until_s, 0
    for start_s in range(kept.until_s, until_s, PIECE_S)[:MOST_PIECES]:
        end_s = min(start_s + PIECE_S, until_s)
        steps = run_steps(source, run.name, start_s=start_s, end_s=end_s)
        # The tiers may differ slightly in when a step ended: its number identifies it.
        step_s = steps.step_s[(steps.step > last_step) & (steps.step_s > 0)]
        last_step = max([last_step, *steps.step[-1:].tolist()])
        counts += count_by_edge(step_s)
        total_s += float(step_s.sum())
        n += len(step_s)
    fields = {"last_step": last_step, "counts": counts.tolist(), "total_s": total_s}
    return n if _keep(kept, {"until_s": end_s, **fields}) else 0


def _keep(before: StepDurations, fields: dict[str, Any]) -> bool:
    """Store the counts; return False if another process stored them first."""
    if not before.counts:
        run = before.run
        return StepDurations.objects.get_or_create(run=run, defaults=fields)[1]
    same = StepDurations.objects.filter(pk=before.pk, until_s=before.until_s)
    return bool(same.update(**fields))


def duration_rows(*, now: datetime) -> Iterable[tuple[str, list[int], float]]:
    """Yield run, counts and total seconds of runs that are active or ended within a day."""
    recent = Q(run__finished_at=None) | Q(run__finished_at__gt=now - EXPORTED_AFTER_END)
    rows = StepDurations.objects.filter(recent).order_by("run__name")
    for name, counts, total_s in rows.values_list("run__name", "counts", "total_s"):
        # Counts by other edges, of an earlier version, cannot be exported.
        if len(counts) == len(EDGES_S) + 1:
            yield name, counts, total_s
