"""How machines are told no: a problem document (RFC 9457) that names what is wrong."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from django.http import HttpResponse
from redis.exceptions import RedisError

CONTENT_TYPE = "application/problem+json"


class ProblemError(Exception):
    """A request that is answered by a problem document."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """Keep the status, what to say, and the document's own members."""
        super().__init__(detail)
        self.status = status
        self.headers = {"Content-Type": CONTENT_TYPE, **(headers or {})}
        self.document = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            **more,
        }

    @property
    def body(self) -> bytes:
        """The document as it is sent."""
        return msgspec.json.encode(self.document)

    def response(self) -> HttpResponse:
        """Answer with the document."""
        return HttpResponse(self.body, status=self.status, headers=self.headers)


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> HttpResponse:
    """Answer with a problem document; ``more`` are members of its own."""
    return ProblemError(status, detail, headers=headers, **more).response()


def store_away(error: Exception) -> HttpResponse:
    """Answer while a store is away: a client that asks again soon is better off than with half."""
    why = f"{error}" if isinstance(error, RedisError) else "The database does not answer."
    return problem(503, why, headers={"Retry-After": "5", "Cache-Control": "no-store"})
