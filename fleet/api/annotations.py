"""Annotations: what machines and people say happened, and what was payload."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import Key, OptionalTime, RequestSchema, ResponseSchema, Text, among, choice
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Annotation
from fleet.runs.annotations import LONGEST, AnnotationRequest, annotate

router = Router(tags=["annotations"])
KINDS = tuple(Annotation.Kind.values)


class AnnotationIn(RequestSchema):
    """Something that happened."""

    kind: Annotated[str, among(KINDS), choice(KINDS)] = Field(
        description="What sort of thing.", examples=["deploy"]
    )
    text: str = Field(
        description=f"One line, at most {LONGEST} characters.",
        examples=["data loader 2.4.1"],
        json_schema_extra={"maxLength": LONGEST},
    )
    at: OptionalTime = Field(None, description="When: RFC 3339, or Unix seconds; left out: now.")
    ends_at: OptionalTime = Field(None, description="When it was over, at most 7 days later.")
    run: str = Field("", description="Name of a run.", examples=["llama"])
    node: str = Field("", description="Name of a node.")


class AnnotationOut(ResponseSchema):
    """Something that happened and may explain a curve."""

    id: int = Field(description="Number of the annotation.", examples=[9])
    at: datetime = Field(description="When it happened, or began, UTC.")
    ends_at: datetime | None = Field(description="When it was over, UTC; null: a moment.")
    kind: str = Field(description="What sort of thing.", examples=["deploy"])
    run: str | None = Field(description="The run it concerns.", examples=["llama"])
    node: str | None = Field(description="The node it concerns; neither: the whole fleet.")
    text: str = Field(description="What happened, in a line.", examples=["data loader 2.4.1"])
    by: str = Field(description="Who says so; empty: trnwatch saw it itself.", examples=["ci"])


class AnnotationPage(PageLinks):
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
    since: OptionalTime = Field(
        None, description="Happened then or later: RFC 3339, or Unix seconds."
    )
    until: OptionalTime = Field(None, description="Happened before then.")


@router.get("", response=AnnotationPage, **needs("read"), summary="List annotations")
def annotation_list(request: HttpRequest, query: Query[AnnotationFilter]) -> AnnotationPage:
    """Annotations, what was said last first."""
    notes = Annotation.objects.filter_by(**query.fields).select_related("run", "node")
    rows, links = paginate(request, notes, query, by="-pk")
    items = [AnnotationOut(**_serialize(row)) for row in rows]
    return AnnotationPage(items=items, next=links.next, prev=links.prev)


@router.get(
    "/{annotation_id}",
    response=AnnotationOut,
    **needs("read"),
    summary="One annotation",
)
def annotation_one(request: HttpRequest, annotation_id: Path[Key]) -> AnnotationOut:
    """One annotation."""
    notes = Annotation.objects.select_related("run", "node")
    return AnnotationOut(**_serialize(get_object_or_404(notes, pk=annotation_id)))


@router.post(
    "",
    response={200: AnnotationOut, 201: AnnotationOut},
    **needs("annotate"),
    summary="Annotate",
)
def annotation_new(request: HttpRequest, payload: AnnotationIn) -> Status[AnnotationOut]:
    """Keep one annotation: 201 where it is new, 200 where it was said before."""
    now, who = datetime.now(UTC), caller(request)
    by = who.token.name if who.token else who.name
    given = AnnotationRequest(**payload.model_dump() | {"at": payload.at or now})
    note, is_new = annotate(given, by=by, now=now)
    return Status(201 if is_new else 200, AnnotationOut(**_serialize(note)))


def _serialize(note: Annotation) -> dict[str, Any]:
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
