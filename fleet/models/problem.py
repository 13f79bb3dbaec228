"""Problem documents (RFC 9457): how machines learn why a request was refused."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

import msgspec
from django.http import HttpResponse
from redis.exceptions import RedisError

from telemetry.errors import FieldError

CONTENT_TYPE = "application/problem+json"


class ProblemError(Exception):
    """A request that is refused by a problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        who: str = "",
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        # The caller, where it is known: for the audit log, not for the answer.
        self.who = who
        self.headers = {"Content-Type": CONTENT_TYPE, **(headers or {})}
        self.document = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            **more,
        }

    @classmethod
    def of(cls, error: FieldError, *, status: int = 400) -> Self:
        return cls(status, f"{str(error).rstrip('.')}.", field=error.field)

    def without_frames(self) -> Self:
        """Return this error without what its frames and causes hold, such as a request's body.

        An error that is kept, or that a frame of its own names, holds them until the next
        collection of garbage.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.document)

    def response(self) -> HttpResponse:
        return HttpResponse(self.body, status=self.status, headers=self.headers)


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> HttpResponse:
    """Return a response with a problem document; ``more`` are additional members."""
    return ProblemError(status, detail, headers=headers, **more).response()


def store_unavailable(error: Exception) -> HttpResponse:
    """Return a 503 that asks the client to try again after 5 s."""
    why = f"{error}" if isinstance(error, RedisError) else "The database does not answer."
    return problem(503, why, headers={"Retry-After": "5", "Cache-Control": "no-store"})
