"""Looks at runs, kept so that pages need not look for themselves."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from fleet.models import ObservedRun, Run, Trial
from fleet.projecting.observing import Observed, observe
from telemetry.store.source import Source

AGAIN = timedelta(minutes=5)


def keep_observed(hot: Source, *, now: datetime) -> int:
    """Look at the runs of trials again: those not seen for five minutes; return how many.

    A trial that is over is looked at once more, as of its end.
    """
    due = {
        arm.run: trial.until(now)
        for trial in Trial.objects.with_arms().order_by("pk")
        for arm in trial.arms.all()
    }
    kept = dict(ObservedRun.objects.values_list("run_id", "observed_at"))
    n = 0
    for run, until in due.items():
        last = kept.get(run.pk)
        if last is None or (last < until and now - last >= AGAIN):
            keep(hot, run, until=until)
            n += 1
    return n


def keep(hot: Source, run: Run, *, until: datetime) -> Observed:
    """Look at a run, and keep what was seen."""
    seen = observe(hot, run, until=until)
    figures = msgspec.to_builtins(seen)
    ObservedRun.objects.update_or_create(
        run=run, defaults={"figures": figures, "observed_at": until}
    )
    return seen


def kept_of(runs: Iterable[Run]) -> dict[int, tuple[Observed, datetime]]:
    """Return what is kept of some runs, by their key, and as of when."""
    rows = ObservedRun.objects.filter(run__in=list(runs))
    return {row.run_id: (msgspec.convert(row.figures, Observed), row.observed_at) for row in rows}
