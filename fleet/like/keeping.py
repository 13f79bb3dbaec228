"""Like runs worked out now and then, so that a run's page only reads what was found."""

from datetime import datetime, timedelta

from django.db.models import F, Q

from fleet.like.measuring import told_of
from fleet.models import LikeRuns, Run
from telemetry.store.source import Source

EVERY = timedelta(minutes=10)
EVERY_WHEN_OVER = timedelta(hours=12)
# Of a long history, so many at a time: each reads all steps of itself and of its like.
AT_A_TIME = 2


def work_out_due(source: Source, *, now: datetime, at_a_time: int = AT_A_TIME) -> int:
    """Work out the runs whose turn it is, those never looked at first; return how many."""
    late = Q(like_runs=None) | Q(like_runs__worked_out_at__lt=now - EVERY, finished_at=None)
    late |= Q(like_runs__worked_out_at__lt=now - EVERY_WHEN_OVER)
    trained = Run.objects.filter(late, last_step__gt=0).order_by(
        F("like_runs__worked_out_at").asc(nulls_first=True), "pk"
    )
    runs = list(trained[:at_a_time])
    for run in runs:
        work_out(source, run, now=now)
    return len(runs)


def work_out(source: Source, run: Run, *, now: datetime) -> LikeRuns:
    """Compare a run with its like, and keep what was found."""
    found, _ = LikeRuns.objects.update_or_create(
        run=run, defaults={"worked_out_at": now, "told": told_of(source, run, now=now)}
    )
    return found
