"""How the API says no: a problem document (RFC 9457) that names what is wrong."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from django.http import HttpResponse

CONTENT_TYPE = "application/problem+json"


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> HttpResponse:
    """Answer with a problem document; ``more`` are members of its own."""
    document = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    body = msgspec.json.encode(document)
    return HttpResponse(body, status=status, content_type=CONTENT_TYPE, headers=headers)
