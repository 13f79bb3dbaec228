"""Whether a run tells its loss at all: only then has its page a chart of it."""

from collections.abc import Collection

import numpy as np
from django.db.models import OuterRef, Subquery

from fleet.charts.runs import RUN_CHARTS, RunChart
from fleet.models import Run
from fleet.models.run import RunQuerySet
from telemetry.store.models import RunChunk
from telemetry.store.run_chunks import LOSS, read_steps
from telemetry.store.source import Source


def saying_newest_steps(runs: RunQuerySet) -> RunQuerySet:
    """Ask, along with the runs, for the newest of their steps that are kept for good."""
    kept = RunChunk.objects.filter(run=OuterRef("name")).order_by("-start")
    return runs.annotate(newest_steps=Subquery(kept.values("steps")[:1]))


def charts_of(hot: Source, run: Run) -> Collection[RunChart]:
    """Return the charts of a run, that of the loss only where it tells one."""
    return [chart for chart in RUN_CHARTS.values() if chart.name != "loss" or tells_loss(hot, run)]


def tells_loss(hot: Source, run: Run) -> bool:
    """Whether any step of a run's newest hour, or of its few minutes so far, tells a loss.

    The run is to be asked for with ``saying_newest_steps``.
    """
    kept = getattr(run, "newest_steps", None)
    if kept is not None:
        return bool(np.isfinite(read_steps(bytes(kept))[:, LOSS]).any())
    return bool(np.isfinite(hot.steps(run.name, since_s=0.0).loss).any())
