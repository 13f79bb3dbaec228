"""Annotations: check and store them; planned compiles of simulated runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from django.db.models import QuerySet

from fleet.models import Annotation, Node, Run
from telemetry.errors import FieldError
from telemetry.simulate.plan import Benign

Kind = Annotation.Kind
# What people and programs may record.
OFFERED = tuple(str(kind) for kind in Kind.values if kind != Kind.LIMIT)
M = TypeVar("M", Run, Node)
LONGEST = 300
LONGEST_SPAN = timedelta(days=7)
# Tolerance for clock differences.
AHEAD = timedelta(minutes=5)
OLDEST = timedelta(days=366)
PHASES = {
    Run.Phase.PENDING: (Kind.RESTART, "stopped, waiting to restart"),
    Run.Phase.COMPILING: (Kind.COMPILE, "compiling"),
    Run.Phase.WARMING_UP: (Kind.RESTART, "warming up"),
    Run.Phase.TRAINING: (Kind.RESTART, "training resumed"),
    Run.Phase.FAILED: (Kind.RESTART, "failed"),
    Run.Phase.FINISHED: (Kind.NOTE, "finished"),
}


@dataclass(frozen=True, slots=True)
class AnnotationRequest:
    """An annotation as sent, not validated yet."""

    kind: str
    text: str
    at: datetime
    ends_at: datetime | None = None
    run: str = ""
    node: str = ""


def annotate(request: AnnotationRequest, *, by: str, now: datetime) -> tuple[Annotation, bool]:
    """Store an annotation, once if it is sent twice; return it, and whether it is new.

    Raises FieldError if a field is invalid.
    """
    if request.kind not in OFFERED:
        raise FieldError("kind", f"must be one of {', '.join(OFFERED)}")
    _check_times(request, now)
    return Annotation.objects.get_or_create(
        at=request.at,
        ends_at=request.ends_at,
        kind=request.kind,
        run=_found(Run, "run", request.run),
        node=_found(Node, "node", request.node),
        text=_text(request.text),
        by=by,
    )


def _text(given: str) -> str:
    text = " ".join(given.split())
    if not text:
        raise FieldError("text", "is empty; describe in one line what happened")
    if len(text) > LONGEST:
        raise FieldError("text", f"is longer than {LONGEST} characters")
    if not text.isprintable():
        raise FieldError("text", "has characters that cannot be printed")
    return text


def _check_times(request: AnnotationRequest, now: datetime) -> None:
    if request.at > now + AHEAD:
        raise FieldError("at", "is in the future; give a time in the past")
    if request.at < now - OLDEST:
        raise FieldError("at", f"is more than {OLDEST.days} days ago")
    if request.ends_at is None:
        return
    if request.ends_at < request.at:
        raise FieldError("ends_at", "must not be earlier than at")
    if request.ends_at - request.at > LONGEST_SPAN:
        raise FieldError("ends_at", f"must be at most {LONGEST_SPAN.days} days after at")


def _found(model: type[M], field: str, name: str) -> M | None:
    if not name:
        return None
    # PostgreSQL does not support NUL in text.
    row = None if "\0" in name else model._default_manager.filter(name=name).first()
    if row is None:
        raise FieldError(field, f"there is no {field} {name[:60]!r}")
    return row


def annotate_phase(run: Run, *, was: str, at: datetime) -> None:
    """Annotate that a run entered another phase; its row has only the current one.

    The next phase ends a compile. The first phases of a run are not annotated.
    """
    open_compiles = run.annotations.filter(kind=Kind.COMPILE, by="", ends_at=None, at__lte=at)
    if was == Run.Phase.COMPILING:
        open_compiles.update(ends_at=at)
    is_start = run.last_step == 0 and run.phase in (Run.Phase.PENDING, Run.Phase.TRAINING)
    if is_start or run.phase == Run.Phase.WARMING_UP or run.phase not in PHASES:
        return
    kind, words = PHASES[Run.Phase(run.phase)]
    Annotation.objects.get_or_create(run=run, at=at, kind=kind, by="", defaults={"text": words})


def phase_at(run: Run, at: datetime) -> str:
    """Return the phase that a run was in at a time, by what was annotated; empty if unknown."""
    phases = {text: phase for phase, (_, text) in PHASES.items()}
    notes = run.annotations.filter(by="", text__in=phases, at__lte=at).order_by("-at", "-pk")
    last = notes.values_list("text", flat=True).first()
    return str(phases[last]) if last is not None else ""


# The simulator follows only annotations by this name, not those of users.
ANNOUNCER = "the plan"
PLANNED_COMPILE = "planned_compile"


def announced(run: Run) -> QuerySet[Annotation]:
    return announced_compiles().filter(run=run).order_by("at", "pk")


def announced_compiles() -> QuerySet[Annotation]:
    """Return the announced compiles of all runs."""
    planned = Annotation.objects.filter(kind=Annotation.Kind.COMPILE, by=ANNOUNCER)
    return planned.exclude(ends_at=None)


def benign_of(run: Run, notes: Iterable[Annotation], *, epoch_s: int) -> tuple[Benign, ...]:
    """Convert planned compiles for the simulator."""
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
