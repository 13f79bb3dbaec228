"""The limits of a run that differ from those of the rules."""

from datetime import datetime

from django.db import transaction

from fleet.formatting import percent
from fleet.models import Annotation, Run
from telemetry.errors import FieldError

LEAST_RATIO, MOST_RATIO = 0.01, 0.99


@transaction.atomic
def set_share_limit(
    name: str, *, limit_ratio: float, resolve_ratio: float, by: str, now: datetime
) -> Run:
    """Set the all-reduce share above which a run's alert fires, and below which it resolves.

    The run's charts show the change. Raises FieldError where the run does not exist, or a ratio
    is out of its range.
    """
    run = Run.objects.select_for_update().filter(name=name).first()
    if run is None:
        raise FieldError("run", f"no run is called {name[:60]!r}")
    if not LEAST_RATIO <= limit_ratio <= MOST_RATIO:
        raise FieldError("limit_percent", f"give {LEAST_RATIO:.0%} to {MOST_RATIO:.0%}")
    if not 0 < resolve_ratio <= limit_ratio:
        raise FieldError("resolve_percent", "give more than 0 %, and no more than the limit")
    before = run.allreduce_limit_ratio
    run.allreduce_limit_ratio, run.allreduce_resolve_ratio = limit_ratio, resolve_ratio
    run.save(update_fields=["allreduce_limit_ratio", "allreduce_resolve_ratio"])
    Annotation.objects.create(
        run=run,
        at=now,
        kind=Annotation.Kind.NOTE,
        text=f"all-reduce limit {percent(limit_ratio, 0)} instead of {percent(before, 0)}",
        by=by,
    )
    return run
