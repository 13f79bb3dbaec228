"""Annotations: what machines and people say happened, and what was said."""

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from django.db.models import QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Status

from fleet.annotating import AnnotationError, Said, annotate
from fleet.api.v1.access import needs
from fleet.api.v1.callers import caller
from fleet.api.v1.fields import Key, Moment, Text, Told
from fleet.api.v1.paging import Links, Paging, paged
from fleet.models import Annotation
from fleet.problem import ProblemError

router = Router(tags=["annotations"])
# A moment as msgspec reads it: ISO 8601 with its zone, or Unix seconds.
Instant = datetime | float | None
MOMENT = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}
SAID: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["kind", "text"],
                    "properties": {
                        "kind": {
                            "enum": list(Annotation.Kind.values),
                            "description": "What sort of thing.",
                        },
                        "text": {
                            "type": "string",
                            "maxLength": 300,
                            "description": "One line, at most 300 characters.",
                        },
                        "at": MOMENT
                        | {"description": "When: ISO 8601 with a zone, or Unix seconds; or now."},
                        "ends_at": MOMENT
                        | {"description": "When it was over, at most 7 days later."},
                        "run": {"type": "string", "description": "Name of a run."},
                        "node": {"type": "string", "description": "Name of a node."},
                    },
                },
                "example": {"kind": "deploy", "run": "llama", "text": "data loader 2.4.1"},
            }
        },
    }
}


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted; ``at`` is now where it is left out."""

    kind: str
    text: str
    at: Instant = None
    ends_at: Instant = None
    run: str = ""
    node: str = ""


class AnnotationOut(Told):
    """Something that happened and may explain a curve."""

    id: int = Field(description="Number of the annotation.", examples=[9])
    at: datetime = Field(description="When it happened, or began, UTC.")
    ends_at: datetime | None = Field(description="When it was over, UTC; null: a moment.")
    kind: str = Field(description="What sort of thing.", examples=["deploy"])
    run: str | None = Field(description="The run it concerns.", examples=["llama"])
    node: str | None = Field(description="The node it concerns; neither: the whole fleet.")
    text: str = Field(description="What happened, in a line.", examples=["data loader 2.4.1"])
    by: str = Field(description="Who says so; empty: trnwatch saw it itself.", examples=["ci"])


class AnnotationPage(Links):
    """A page of annotations."""

    items: list[AnnotationOut] = Field(description="The annotations of this page.")
    sorted_by: str = Field(default="-id", description="What was said last comes first.")


class AnnotationFilter(Paging):
    """Which annotations to list."""

    kind: Literal["", "deploy", "checkpoint", "compile", "restart", "scale", "note"] = Field(
        "", description="What sort of thing."
    )
    run: Text = Field("", description="Name of the run they concern.", examples=["llama"])
    node: Text = Field("", description="Name of the node they concern.")
    since: Moment = Field(None, description="Happened then or later: RFC 3339, or Unix seconds.")
    until: Moment = Field(None, description="Happened before then.")

    def keep(self, notes: QuerySet[Annotation]) -> QuerySet[Annotation]:
        """Keep the annotations asked for."""
        plain = {
            "kind": self.kind,
            "run__name": self.run,
            "node__name": self.node,
            "at__gte": self.since,
            "at__lt": self.until,
        }
        return notes.filter(**{name: value for name, value in plain.items() if value})


@router.get("", response=AnnotationPage, openapi_extra=needs("read"), summary="List annotations")
def annotation_list(request: HttpRequest, asked: Query[AnnotationFilter]) -> AnnotationPage:
    """Annotations, what was said last first."""
    notes = asked.keep(Annotation.objects.select_related("run", "node"))
    rows, links = paged(request, notes, asked, by="-pk")
    items = [AnnotationOut(**_told(row)) for row in rows]
    return AnnotationPage(items=items, next=links.next, prev=links.prev)


@router.get(
    "/{annotation_id}",
    response=AnnotationOut,
    openapi_extra=needs("read"),
    summary="One annotation",
)
def annotation_one(request: HttpRequest, annotation_id: Path[Key]) -> AnnotationOut:
    """One annotation."""
    notes = Annotation.objects.select_related("run", "node")
    return AnnotationOut(**_told(get_object_or_404(notes, pk=annotation_id)))


@router.post(
    "",
    response={200: AnnotationOut, 201: AnnotationOut},
    openapi_extra=needs("annotate") | SAID,
    summary="Annotate",
)
def annotation_new(request: HttpRequest) -> Status[AnnotationOut]:
    """Keep one annotation: 201 where it is new, 200 where it was said before."""
    now, who = datetime.now(UTC), caller(request)
    by = who.token.name if who.token else who.name
    try:
        note, is_new = annotate(_said(_body(request), now=now), by=by, now=now)
    except AnnotationError as error:
        raise ProblemError(400, f"{error.field}: {error.message}.", field=error.field) from error
    return Status(201 if is_new else 200, AnnotationOut(**_told(note)))


def _body(request: HttpRequest) -> Body:
    try:
        return msgspec.json.decode(request.body, type=Body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.strip("`.") or _named(reason)
        raise ProblemError(400, f"{reason}.", field=field) from error
    except msgspec.DecodeError as error:
        raise ProblemError(400, f"The body is no JSON: {error}.", field="body") from error


def _named(reason: str) -> str:
    """Return the field that a refusal quotes, or the body as a whole."""
    return reason.split("`")[-2] if " field `" in reason else "body"


def _said(body: Body, *, now: datetime) -> Said:
    at = _moment("at", body.at) or now
    ends_at = _moment("ends_at", body.ends_at)
    return Said(body.kind, body.text, at, ends_at, body.run, body.node)


def _moment(field: str, given: Instant) -> datetime | None:
    if isinstance(given, float):
        try:
            return datetime.fromtimestamp(given, UTC)
        except (ValueError, OverflowError, OSError):
            raise AnnotationError(field, "is no Unix second of this age") from None
    if given is not None and given.tzinfo is None:
        raise AnnotationError(field, "has no time zone; end it with Z or an offset")
    return given


def _told(note: Annotation) -> dict[str, Any]:
    return {
        "id": note.pk,
        "at": note.at,
        "ends_at": note.ends_at,
        "kind": note.kind,
        "run": note.run.name if note.run else None,
        "node": note.node.name if note.node else None,
        "text": note.text,
        "by": note.by,
    }
