"""The starts of a run: how long each took to its first step, and what of that was compiling."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from fleet.annotating import PHASES
from fleet.compiles.summing import covered_s
from fleet.like.finding import like_runs
from fleet.models import Annotation, ObservedRun, Run

# Texts of the annotations that a run's phases leave.
STOPPED, TRAINS = PHASES[Run.Phase.PENDING][1], PHASES[Run.Phase.TRAINING][1]
MOST_STARTS = 50


class Start(msgspec.Struct, frozen=True):
    """One start: seconds of compiling, None where nobody told, and of all else until it trained.

    ``n_compiled`` graphs were compiled, not found in a cache.
    """

    compile_s: float | None
    load_s: float
    n_compiled: int = 0


def starts_of(run: Run, *, first_began: datetime, until: datetime) -> tuple[Start, ...]:
    """Return a run's first start, then each time that it began anew."""
    spans = [(run.started_at, first_began), *_anew(run, first_began, until)]
    return tuple(_start(run, begun, ready) for begun, ready in spans[:MOST_STARTS])


def _anew(run: Run, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield from when to when a run got ready again.

    A simulated run may compile amid training, by plan; it has begun anew only where it stopped.
    """
    kinds = (Annotation.Kind.RESTART, Annotation.Kind.COMPILE)
    notes = run.annotations.filter(by="", kind__in=kinds, at__gt=after, at__lte=until)
    begun: datetime | None = None
    for at, text in notes.order_by("at", "pk").values_list("at", "text"):
        if text == TRAINS:
            if begun is not None:
                yield begun, at
            begun = None
        elif begun is None and (text == STOPPED or not run.is_simulated):
            begun = at


def _start(run: Run, begun: datetime, ready: datetime) -> Start:
    told = run.compiles.filter(at__gte=begun - timedelta(seconds=1), at__lt=ready)
    spans = [
        (at.timestamp(), seconds)
        for at, seconds in told.exclude(seconds=None).values_list("at", "seconds")
        if at is not None and seconds is not None
    ]
    compile_s = covered_s(spans) if spans else (0.0 if told.exists() else None)
    taken_s = (ready - begun).total_seconds()
    return Start(compile_s, max(0.0, taken_s - (compile_s or 0.0)), len(spans))


def starts_alike(run: Run) -> tuple[Start, ...]:
    """Return the starts that are kept of other runs of the same training on the same nodes."""
    alike = like_runs(run).filter(precision=run.precision).values("pk")
    kept = ObservedRun.objects.filter(run__in=alike).order_by("run")
    found = (figures.get("starts", ()) for figures in kept.values_list("figures", flat=True))
    return tuple(msgspec.convert(each, Start) for starts in found for each in starts)[:MOST_STARTS]


def compiles_of(first: Start, others: Iterable[Start]) -> tuple[float, ...]:
    """Return the seconds of each compile of as many graphs as the first start's, or more."""
    return tuple(
        each.compile_s
        for each in (first, *others)
        if each.compile_s and each.n_compiled >= max(1, first.n_compiled)
    )


def loads_of(first: Start, others: Iterable[Start]) -> tuple[float, ...]:
    """Return the seconds of each loading; where compiling is told apart, only of such starts."""
    is_told = first.compile_s is not None
    alike = (each for each in others if (each.compile_s is not None) == is_told)
    return tuple(each.load_s for each in (first, *alike) if each.load_s > 0)
