"""Annotations as they come in: checked before they are kept, and never kept twice."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from fleet.models import Annotation, Node, Run

Kind = Annotation.Kind
M = TypeVar("M", Run, Node)
LONGEST = 300
LONGEST_SPAN = timedelta(days=7)
# Clocks differ a little; what is announced for later is no annotation.
AHEAD = timedelta(minutes=5)
OLDEST = timedelta(days=366)
PHASES = {
    Run.Phase.PENDING: (Kind.RESTART, "stopped, and waits to start again"),
    Run.Phase.COMPILING: (Kind.COMPILE, "compiles"),
    Run.Phase.WARMING_UP: (Kind.RESTART, "warms up"),
    Run.Phase.TRAINING: (Kind.RESTART, "trains"),
    Run.Phase.FAILED: (Kind.RESTART, "failed"),
    Run.Phase.FINISHED: (Kind.NOTE, "has finished"),
}


class AnnotationError(ValueError):
    """An annotation that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says happened, unchecked: names as they were given."""

    kind: str
    text: str
    at: datetime
    ends_at: datetime | None = None
    run: str = ""
    node: str = ""


def annotate(said: Said, *, by: str, now: datetime) -> tuple[Annotation, bool]:
    """Keep an annotation; return it, and whether it is new: saying it twice keeps it once.

    Raises
    ------
    AnnotationError
        Where a field is missing, too long, unknown or impossible.
    """
    if said.kind not in Kind.values:
        raise AnnotationError("kind", f"must be one of {', '.join(Kind.values)}")
    _check_times(said, now)
    return Annotation.objects.get_or_create(
        at=said.at,
        ends_at=said.ends_at,
        kind=said.kind,
        run=_found(Run, "run", said.run),
        node=_found(Node, "node", said.node),
        text=_text(said.text),
        by=by,
    )


def _text(given: str) -> str:
    text = " ".join(given.split())
    if not text:
        raise AnnotationError("text", "is empty; say in a line what happened")
    if len(text) > LONGEST:
        raise AnnotationError("text", f"is longer than {LONGEST} characters")
    if not text.isprintable():
        raise AnnotationError("text", "has characters that cannot be printed")
    return text


def _check_times(said: Said, now: datetime) -> None:
    if said.at > now + AHEAD:
        raise AnnotationError("at", "lies in the future; annotate what has happened")
    if said.at < now - OLDEST:
        raise AnnotationError("at", f"lies more than {OLDEST.days} days back")
    if said.ends_at is None:
        return
    if said.ends_at < said.at:
        raise AnnotationError("ends_at", "must not be earlier than at")
    if said.ends_at - said.at > LONGEST_SPAN:
        raise AnnotationError("ends_at", f"must be at most {LONGEST_SPAN.days} days after at")


def _found(model: type[M], field: str, name: str) -> M | None:
    if not name:
        return None
    # PostgreSQL knows no text with a NUL in it.
    found = None if "\0" in name else model._default_manager.filter(name=name).first()
    if found is None:
        raise AnnotationError(field, f"there is no {field} {name[:60]!r}")
    return found


def annotate_phase(run: Run, *, was: str, at: datetime) -> None:
    """Keep that a run entered another phase: its row only knows the phase it is in.

    A compile ends with the phase after it; the first phases of a run's life are no news.
    """
    open_compiles = run.annotations.filter(kind=Kind.COMPILE, by="", ends_at=None, at__lte=at)
    if was == Run.Phase.COMPILING:
        open_compiles.update(ends_at=at)
    is_start = run.last_step == 0 and run.phase in (Run.Phase.PENDING, Run.Phase.TRAINING)
    if is_start or run.phase == Run.Phase.WARMING_UP or run.phase not in PHASES:
        return
    kind, words = PHASES[Run.Phase(run.phase)]
    Annotation.objects.get_or_create(run=run, at=at, kind=kind, by="", defaults={"text": words})
