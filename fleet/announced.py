"""Compiles that are announced to simulated runs: annotations with a span, played as planned."""

from collections.abc import Iterable

from django.db.models import QuerySet

from fleet.models import Annotation, Run
from telemetry.simulate.plan import Benign

# Only what is announced in this name is played: what people say of a run does nothing to it.
ANNOUNCER = "the plan"
PLANNED_COMPILE = "planned_compile"


def announced(run: Run) -> QuerySet[Annotation]:
    """Return the compiles that were announced to a run, the first begins first."""
    told = run.annotations.filter(kind=Annotation.Kind.COMPILE, by=ANNOUNCER)
    return told.exclude(ends_at=None).order_by("at", "pk")


def benign_of(run: Run, notes: Iterable[Annotation], *, epoch_s: int) -> tuple[Benign, ...]:
    """Write announced compiles as the simulator reads them."""
    return tuple(
        Benign(
            kind=PLANNED_COMPILE,
            run=run.name,
            start_s=note.at.timestamp() - epoch_s,
            duration_s=(note.ends_at - note.at).total_seconds(),
        )
        for note in notes
        if note.ends_at is not None
    )
