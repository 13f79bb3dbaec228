"""Annotations: events that people and machines record."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    Key,
    NullableText,
    OneOf,
    OptionalTime,
    RequestSchema,
    ResponseSchema,
    Text,
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.models import Annotation
from fleet.runs.annotations import LONGEST, OFFERED, AnnotationRequest, annotate

router = Router(tags=["annotations"])


class AnnotationIn(RequestSchema):
    """An annotation to record."""

    kind: Annotated[str, OneOf(OFFERED)] = doc("Kind of event.", "deploy")
    text: str = doc(
        f"One line, at most {LONGEST} characters.",
        "data loader 2.4.1",
        json_schema_extra={"maxLength": LONGEST},
    )
    at: OptionalTime = doc("Time: RFC 3339 or Unix seconds. Default: now.", default=None)
    ends_at: OptionalTime = doc("End, at most 7 days later.", default=None)
    run: str = doc("Name of a run.", "llama", default="")
    node: str = doc("Name of a node.", default="")


class AnnotationOut(ResponseSchema, source=Annotation):
    """An event that may explain a change in a chart."""

    id = doc("Number of the annotation.", 9)
    at = doc("Start, UTC.")
    ends_at = doc("End, UTC; null: a point in time.")
    kind = doc("Kind of event.", "deploy")
    run: NullableText = doc("Name of the run.", "llama")
    node: NullableText = doc("Name of the node; no run or node: the fleet.")
    text = doc("What happened, in one line.", "data loader 2.4.1")
    by = doc("Who recorded it; empty: trnwatch itself.", "ci")


class AnnotationPage(NewestFirst[AnnotationOut]):
    """A page of annotations."""


class AnnotationFilter(Paging):
    """Filter of annotations."""

    kind: Literal["", "deploy", "checkpoint", "compile", "restart", "scale", "note", "limit"] = (
        doc("Kind of event.", default="")
    )
    run: Text = doc("Name of the run.", "llama", default="")
    node: Text = doc("Name of the node.", default="")
    since: OptionalTime = doc("At or after: RFC 3339 or Unix seconds.", default=None)
    until: OptionalTime = doc("Before.", default=None)


@router.get("", response=AnnotationPage, **needs("read"), summary="List annotations")
def annotation_list(request: HttpRequest, query: Query[AnnotationFilter]) -> AnnotationPage:
    """List annotations, newest first."""
    notes = Annotation.objects.filter_by(**query.fields).select_related("run", "node")
    rows, links = paginate(request, notes, query, by="-pk")
    return AnnotationPage(items=[AnnotationOut.from_object(row) for row in rows], **links)


@router.get("/{annotation_id}", response=AnnotationOut, **needs("read"), summary="One annotation")
def annotation_one(request: HttpRequest, annotation_id: Path[Key]) -> AnnotationOut:
    """Get one annotation."""
    notes = Annotation.objects.select_related("run", "node")
    return AnnotationOut.from_object(get_object_or_404(notes, pk=annotation_id))


@router.post(
    "", response={200: AnnotationOut, 201: AnnotationOut}, **needs("annotate"), summary="Annotate"
)
def annotation_new(request: HttpRequest, payload: AnnotationIn) -> Status[AnnotationOut]:
    """Record an annotation: 201 if it is new, 200 if it was recorded before."""
    now, who = datetime.now(UTC), caller(request)
    by = who.token.name if who.token else who.name
    given = AnnotationRequest(**payload.model_dump() | {"at": payload.at or now})
    note, is_new = annotate(given, by=by, now=now)
    return Status(201 if is_new else 200, AnnotationOut.from_object(note))
