"""JSON as the API reads and writes it: strict on the way in, without NaN on the way out."""

from typing import Any

import msgspec
from django.http import HttpRequest
from ninja.parser import Parser
from ninja.renderers import BaseRenderer


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
