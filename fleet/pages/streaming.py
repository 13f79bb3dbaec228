"""Responses that are written while they are sent."""

from collections.abc import AsyncIterator, Iterator, Mapping

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse


def stream(
    request: HttpRequest,
    pieces: Iterator[bytes],
    content_type: str,
    *,
    headers: Mapping[str, str],
    reads_database: bool = False,
) -> StreamingHttpResponse:
    """Stream pieces, none of which is empty, without blocking the event loop.

    Pieces that read the database are written in the thread of the request, which has its
    connection; others in any thread.
    """
    content = (
        _served(pieces, is_sensitive=reads_database)
        if isinstance(request, ASGIRequest)
        else pieces
    )
    return StreamingHttpResponse(content, content_type=content_type, headers=headers)


async def _served(pieces: Iterator[bytes], *, is_sensitive: bool) -> AsyncIterator[bytes]:
    step = sync_to_async(_next, thread_sensitive=is_sensitive)
    while piece := await step(pieces):
        yield piece


def _next(pieces: Iterator[bytes]) -> bytes:
    """Return the next piece; only after the last one it is empty."""
    return next(pieces, b"")
