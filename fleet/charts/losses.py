"""Which charts the page of a run has, and what they are captioned with."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
from django.db.models import OuterRef, Subquery

from fleet.charts.runs import RUN_CHARTS, WHO_WAITS, RunChart
from fleet.models import Alert, Run
from fleet.models.run import RunQuerySet
from fleet.words.evidence import blames_late_worker
from telemetry.store.models import RunChunk
from telemetry.store.run_chunks import LOSS, read_steps
from telemetry.store.source import Source


def saying_newest_steps(runs: RunQuerySet) -> RunQuerySet:
    """Ask, along with the runs, for the newest of their steps that are kept for good."""
    kept = RunChunk.objects.filter(run=OuterRef("name")).order_by("-start")
    return runs.annotate(newest_steps=Subquery(kept.values("steps")[:1]))


def charts_of(hot: Source, run: Run, alerts: Iterable[Alert] = ()) -> Collection[RunChart]:
    """Return the charts of a run, that of the loss only where it tells one.

    Only where one of the ``alerts`` found a late worker is a culprit looked for in who waits.
    """
    is_late = any(blames_late_worker(alert) for alert in alerts)
    return [
        replace(chart, help=WHO_WAITS) if chart.name == "workers" and is_late else chart
        for chart in RUN_CHARTS.values()
        if chart.name != "loss" or tells_loss(hot, run)
    ]


def tells_loss(hot: Source, run: Run) -> bool:
    """Whether any step of a run's newest hour, or of its few minutes so far, tells a loss.

    The run is to be asked for with ``saying_newest_steps``.
    """
    kept = getattr(run, "newest_steps", None)
    if kept is not None:
        return bool(np.isfinite(read_steps(bytes(kept))[:, LOSS]).any())
    return bool(np.isfinite(hot.steps(run.name, since_s=0.0).loss).any())
