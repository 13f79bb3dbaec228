"""Fields of responses: their text stands in the schema, their type in the data class or model."""

from dataclasses import dataclass
from datetime import datetime

import pytest

from fleet.api.fields import ResponseSchema, doc
from fleet.models import Annotation


@dataclass(frozen=True)
class Figures:
    step_s: float | None
    n_steps: int

    @property
    def is_long(self) -> bool:
        return self.n_steps > 1


class FiguresOut(ResponseSchema, source=Figures):
    n_steps = doc("Number of steps.", 7)
    step_s = doc("Mean step.")
    name: str = doc("Name.", default="none")
    is_long = doc("Whether it is long.")


class NoteOut(ResponseSchema, source=Annotation):
    id = doc("Number.")
    ends_at = doc("End.")
    text = doc("What happened.")


def test_a_field_has_the_type_of_its_source_and_the_text_of_the_schema() -> None:
    described = FiguresOut.model_json_schema(mode="serialization")
    fields = described["properties"]
    assert list(fields) == described["required"] == ["n_steps", "step_s", "name", "is_long"]
    assert fields["n_steps"] == {
        "title": "N Steps",
        "type": "integer",
        "description": "Number of steps.",
        "examples": [7],
    }
    assert fields["step_s"]["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert fields["is_long"]["type"] == "boolean"
    assert fields["name"]["default"] == "none"


def test_a_response_is_read_from_its_source() -> None:
    assert FiguresOut.from_object(Figures(1.5, 2), name="llama").model_dump() == {
        "n_steps": 2,
        "step_s": 1.5,
        "name": "llama",
        "is_long": True,
    }


def test_a_column_of_a_model_has_its_type() -> None:
    types = {name: field.annotation for name, field in NoteOut.model_fields.items()}
    assert types == {"id": int, "ends_at": datetime | None, "text": str}


def test_a_field_that_the_source_lacks_is_refused() -> None:
    with pytest.raises(KeyError, match="nodes"):

        class _Wrong(ResponseSchema, source=Figures):
            nodes = doc("Nodes.")


def test_a_field_without_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match="_Bare: describe n_steps"):

        class _Bare(ResponseSchema, source=Figures):
            n_steps: int
