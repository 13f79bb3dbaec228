"""Annotations: validated, stored once; run phases among them."""

from datetime import timedelta

import pytest

from fleet.models import Annotation, Node, Run
from fleet.runs.annotations import AnnotationRequest, annotate, annotate_phase
from telemetry.errors import FieldError
from tests.helpers import NOON

HOUR = timedelta(hours=1)


def annotation_request(**fields: object) -> AnnotationRequest:
    usual: dict[str, object] = {"kind": "deploy", "text": "loader 2.4.1", "at": NOON}
    return AnnotationRequest(**usual | fields)  # type: ignore[arg-type]


def test_it_is_kept_with_what_it_concerns(run: Run, steady: Node) -> None:
    note, is_new = annotate(annotation_request(run="llama", node="steady"), by="ci", now=NOON)

    assert is_new
    assert (note.run, note.node, note.by) == (run, steady, "ci")


def test_what_is_reported_twice_is_kept_once(db: None) -> None:
    annotate(annotation_request(), by="ci", now=NOON)
    _, is_new = annotate(annotation_request(), by="ci", now=NOON + HOUR)

    assert not is_new
    assert Annotation.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("kind", {"kind": "party"}),
        ("text", {"text": "  "}),
        ("text", {"text": "x" * 301}),
        ("text", {"text": "bell\x07"}),
        ("at", {"at": NOON + HOUR}),
        ("at", {"at": NOON - timedelta(days=400)}),
        ("ends_at", {"ends_at": NOON - HOUR}),
        ("ends_at", {"ends_at": NOON + timedelta(days=8)}),
        ("run", {"run": "missing"}),
        ("node", {"node": "missing"}),
    ],
)
def test_what_cannot_be_names_the_field(db: None, field: str, fields: dict[str, object]) -> None:
    with pytest.raises(FieldError) as refusal:
        annotate(annotation_request(**fields), by="ci", now=NOON)

    assert refusal.value.field == field
    assert Annotation.objects.count() == 0


def enter(run: Run, phase: str, minutes: int) -> None:
    was, run.phase = run.phase, phase
    annotate_phase(run, was=was, at=NOON + timedelta(minutes=minutes))


def test_a_compile_is_kept_with_its_end_and_a_restart_as_one(run: Run) -> None:
    run.last_step = 100
    enter(run, "compiling", 0)
    enter(run, "warming_up", 12)
    enter(run, "training", 13)
    enter(run, "pending", 40)
    enter(run, "training", 45)
    kept = [(note.kind, note.text) for note in run.annotations.all()]
    compile_ = run.annotations.get(kind="compile")

    assert kept == [
        ("compile", "compiling"),
        ("restart", "training resumed"),
        ("restart", "stopped, waiting to restart"),
        ("restart", "training resumed"),
    ]
    assert compile_.ends_at == NOON + timedelta(minutes=12)


def test_a_starting_run_has_no_annotation(run: Run) -> None:
    run.phase = "pending"
    enter(run, "training", 1)

    assert not run.annotations.exists()
