"""The kinds of values that the API takes and gives, each described once."""

import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest
from ninja import Field, Schema
from ninja.parser import Parser
from ninja.renderers import BaseRenderer
from pydantic import AfterValidator, BeforeValidator, ConfigDict, WithJsonSchema

from fleet.models.problem import ProblemError
from telemetry.errors import FieldError

Operation = Callable[..., Any]

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
LARGEST_KEY = 2**63 - 1
# As RFC 3339 writes moments; a leap second is the second before it.
RFC3339_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII
)
UNIX_SECONDS = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def parse_time(given: Any) -> datetime | None:
    """Read a moment: RFC 3339 with its zone, or Unix seconds; one beyond all time is its edge."""
    if given is None or isinstance(given, datetime):
        return given
    text = str(given)
    if UNIX_SECONDS.fullmatch(text):
        unix_s = min(max(float(text), EARLIEST.timestamp()), LATEST.timestamp())
        return datetime.fromtimestamp(unix_s, UTC)
    found = RFC3339_TIME.fullmatch(text)
    if found is None:
        raise ValueError("is no moment; write 2026-11-21T14:30:00Z, or Unix seconds")
    day, minute, second, fraction, zone = found.groups()
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
# The same where there must be one.
Time = Annotated[
    datetime,
    BeforeValidator(parse_time),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}),
]
NAME = r"^[A-Za-z0-9._-]{1,80}$"
RunName = Annotated[str, Field(pattern=NAME, examples=["llama"])]
NodeName = Annotated[str, Field(pattern=NAME, examples=["llama-03"])]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]
Key = Annotated[int, Field(ge=1, le=LARGEST_KEY, examples=[1])]


def among(values: Collection[str]) -> AfterValidator:
    """Return a check that a text is one of these."""

    def check(given: str) -> str:
        if given not in values:
            raise ValueError(f"must be one of {', '.join(filter(None, values))}")
        return given

    return AfterValidator(check)


def choice(values: Collection[str]) -> WithJsonSchema:
    """Return what the description says of a text that is one of these."""
    return WithJsonSchema({"type": "string", "enum": list(values)})


def _without_point(given: Any) -> Any:
    """Return a number without its point where it has nothing after it: JSON knows no integers."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


INTEGRAL_FLOAT = BeforeValidator(_without_point)
WholeNumber = Annotated[int, INTEGRAL_FLOAT]


class RequestSchema(Schema):
    """What is sent: every field of its very type, and none that is not known."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseSchema(Schema):
    """What is answered: all fields are there, null where there is nothing to tell."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


def conflict_on(*fields: str, **renamed: str) -> Callable[[Operation], Operation]:
    """Answer 409 instead of 400 where one of these fields does not fit what exists.

    ``renamed`` are fields that the API calls otherwise: ``take="wanted"``.
    """

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        def answered(*args: Any, **values: Any) -> Any:
            try:
                return operation(*args, **values)
            except FieldError as error:
                found = FieldError(renamed.get(error.field, error.field), error.message)
                status = 409 if found.field in fields else 400
                raise ProblemError.of(found, status=status) from error

        return answered

    return decorate


class Problem(Schema):
    """A problem document (RFC 9457): what is wrong, and where."""

    model_config = ConfigDict(extra="allow")

    type: str = Field("about:blank", description="The kind of problem; the status tells it.")
    title: str = Field(description="The status in words.", examples=["Bad Request"])
    status: int = Field(description="The HTTP status.", examples=[400])
    detail: str = Field(
        description="What is wrong and what to do about it, for people.",
        examples=["limit: must be at most 200."],
    )
    field: str | None = Field(
        None, description="The first field or parameter to mend.", examples=["limit"]
    )
    errors: list[dict[str, str]] | None = Field(
        None,
        description="Every field to mend, and why.",
        examples=[[{"field": "limit", "reason": "must be at most 200"}]],
    )


class StrictParser(Parser):
    """Reads a body as JSON, whatever type it says it has; NaN is none."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return what the body says."""
        return msgspec.json.decode(request.body)


class PlainRenderer(BaseRenderer):
    """Writes JSON: NaN as null, moments as ISO 8601 in UTC."""

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        """Return the body of an answer."""
        return msgspec.json.encode(data)
