"""Types of request and response fields, base schemas, JSON parser and renderer."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from inspect import get_annotations
from typing import Annotated, Any, Self, get_type_hints

import msgspec
from annotated_types import GroupedMetadata
from django.db import models
from django.http import HttpRequest
from ninja import Field, Schema
from ninja.parser import Parser
from ninja.renderers import BaseRenderer
from pydantic import AfterValidator, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.fields import FieldInfo

from fleet.models.filters import LABEL_NAME
from fleet.models.problem import ProblemError
from telemetry.errors import LARGEST_KEY, FieldError

Operation = Callable[..., Any]

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
# A leap second is read as the second before it.
RFC3339_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII
)
UNIX_SECONDS = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def parse_time(given: Any) -> datetime | None:
    """Read RFC 3339 with its zone, or Unix seconds; limited to EARLIEST and LATEST."""
    if given is None or isinstance(given, datetime):
        return given
    text = str(given)
    if UNIX_SECONDS.fullmatch(text):
        unix_s = min(max(float(text), EARLIEST.timestamp()), LATEST.timestamp())
        return datetime.fromtimestamp(unix_s, UTC)
    match = RFC3339_TIME.fullmatch(text)
    if match is None:
        raise ValueError("is not a time; write 2026-11-21T14:30:00Z, or Unix seconds")
    day, minute, second, fraction, zone = match.groups()
    plain = f"{day}T{minute}{'59' if second == '60' else second}{fraction or ''}{zone.upper()}"
    moment = datetime.fromisoformat(plain)
    try:
        return min(max(moment.astimezone(UTC), EARLIEST), LATEST)
    except OverflowError:
        return EARLIEST if moment.year == 1 else LATEST


OptionalTime = Annotated[
    datetime | None,
    BeforeValidator(parse_time),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}),
]
Time = Annotated[
    datetime,
    BeforeValidator(parse_time),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}),
]
NAME = r"^[A-Za-z0-9._-]{1,80}$"
RunName = Annotated[str, Field(pattern=NAME, examples=["llama"])]
NodeName = Annotated[str, Field(pattern=NAME, examples=["llama-03"])]
TrialName = Annotated[
    str, Field(pattern=NAME, description="Name of a trial.", examples=["bakeoff"])
]
Key = Annotated[int, Field(ge=1, le=LARGEST_KEY, examples=[1])]
LINE = r"^[^\x00-\x1f\x7f]*$"
NON_BLANK_LINE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"
Text = Annotated[str, Field(pattern=LINE)]
LabelFilter = Annotated[
    str,
    Field(
        pattern=rf"^({LABEL_NAME}(=[^\x00-\x1f\x7f]*)?)?$",
        description="Label as name=value, or a name for any value.",
        examples=["namespace=ml"],
    ),
]
LABELS = "Its surroundings (pod, namespace, Slurm job and so on) by label name."
# A slug, or empty.
OPTIONAL_SLUG = r"^[A-Za-z0-9_-]{0,60}$"


# Reads null from an empty string, and the name from a run, node or trial.
NullableText = Annotated[
    str | None, BeforeValidator(lambda value: getattr(value, "name", value) or None)
]


@dataclass(frozen=True)
class OneOf(GroupedMetadata):
    """A text that is one of ``values``, as validation and OpenAPI enum."""

    values: tuple[str, ...]

    def __iter__(self) -> Iterator[object]:
        yield AfterValidator(self.check)
        yield WithJsonSchema({"type": "string", "enum": list(self.values)})

    def check(self, given: str) -> str:
        if given not in self.values:
            raise ValueError(f"must be one of {', '.join(filter(None, self.values))}")
        return given


# JSON has no integers: 3.0 is accepted as 3.
INTEGRAL_FLOAT = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)
WholeNumber = Annotated[int, INTEGRAL_FLOAT]


class RequestSchema(Schema):
    """A request body; fields have exactly their type, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


COLUMN_TYPES: tuple[tuple[Any, type], ...] = (
    (models.BooleanField, bool),
    (models.CharField, str),
    (models.DateTimeField, datetime),
    (models.FloatField, float),
    (models.IntegerField, int),
)


def type_in(source: Any, field: str) -> Any:
    """Return the type of a model's column, or of an attribute or property of a data class."""
    member = getattr(source, field, None)
    if isinstance(member, property):
        return get_type_hints(member.fget)["return"]
    if not issubclass(source, models.Model):
        return get_type_hints(source)[field]
    column = source._meta.pk if field == "id" else source._meta.get_field(field)
    of_type = next(of_type for kind, of_type in COLUMN_TYPES if isinstance(column, kind))
    return of_type | None if column.null else of_type


def doc(text: str, *examples: Any, default: Any = ..., **limits: Any) -> Any:
    """Describe a field; one of a response without an annotation has the type in its source."""
    return Field(default, description=text, examples=list(examples) or None, **limits)


class DocumentedSchema(Schema):
    """A schema of `doc` fields; ``source`` is the data class or model that types them."""

    model_config = ConfigDict(ignored_types=(FieldInfo,))

    def __init_subclass__(cls, source: Any = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        given = get_annotations(cls)
        fields = {name: value for name, value in vars(cls).items() if isinstance(value, FieldInfo)}
        if bare := given.keys() - fields.keys():
            raise TypeError(f"{cls.__name__}: describe {', '.join(sorted(bare))} by doc(…)")
        # In the order of the class.
        cls.__annotations__ = {
            name: given[name] if name in given else type_in(source, name) for name in fields
        }


class ResponseSchema(DocumentedSchema):
    """A response; every field is present, null where unknown."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    @classmethod
    def from_object(cls, source: Any, /, **values: Any) -> Self:
        """Return ``values``, and the other fields from attributes of ``source``."""
        names = cls.model_fields.keys() - values.keys()
        return cls(**{name: getattr(source, name) for name in names}, **values)


def conflict_on(*fields: str, **renamed: str) -> Callable[[Operation], Operation]:
    """Answer 409 instead of 400 where one of these fields conflicts with stored data.

    ``renamed`` maps names of the domain to names of the API: ``take="wanted"``.
    """

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        def answered(*args: Any, **values: Any) -> Any:
            try:
                return operation(*args, **values)
            except FieldError as error:
                renamed_error = FieldError(renamed.get(error.field, error.field), error.message)
                status = 409 if renamed_error.field in fields else 400
                raise ProblemError.of(renamed_error, status=status) from error

        return answered

    return decorate


class Problem(Schema):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field("about:blank", description="Always about:blank: see `status`.")
    title: str = Field(description="The status as text.", examples=["Bad Request"])
    status: int = Field(description="The HTTP status.", examples=[400])
    detail: str = Field(
        description="What is wrong and how to fix it, for people.",
        examples=["limit: must be at most 200."],
    )
    field: str | None = Field(
        None, description="The first invalid field or parameter.", examples=["limit"]
    )
    errors: list[dict[str, str]] | None = Field(
        None,
        description="Every invalid field, and why.",
        examples=[[{"field": "limit", "reason": "must be at most 200"}]],
    )


class StrictParser(Parser):
    """Reads a body as JSON, whatever its Content-Type; refuses NaN."""

    def parse_body(self, request: HttpRequest) -> Any:
        return msgspec.json.decode(request.body)


class PlainRenderer(BaseRenderer):
    """Writes JSON: NaN as null, times as ISO 8601 in UTC."""

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        return msgspec.json.encode(data)
