"""Responses that are written while they are sent."""

import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import lru_cache

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


def accepts_gzip(request: HttpRequest) -> bool:
    """Whether the client accepts gzip; a weight of zero means no."""
    accepted = request.headers.get("Accept-Encoding", "").split(",")
    codings = (coding.replace(" ", "").partition(";q=") for coding in accepted)
    return any(
        name == "gzip" and (not q or bool(weight.strip("0."))) for name, q, weight in codings
    )


# Header without a time and a name.
GZIP_HEADER, LAST_BLOCK = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x03\0"
SHARED_PIECES = 64


@lru_cache(maxsize=SHARED_PIECES)
def deflated(piece: bytes) -> bytes:
    """Compress a piece without reference to others, up to a whole byte."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)


class SharedGzip:
    """One gzip stream of pieces that many streams have: each piece is compressed once for all.

    Deflated pieces may follow each other, because none refers to what came before it.

    Examples
    --------
    >>> import gzip
    >>> packer = SharedGzip()
    >>> packed = packer.add(b"strip;") + packer.add(b"heat;") + packer.end()
    >>> gzip.decompress(packed)
    b'strip;heat;'
    """

    def __init__(self) -> None:
        self._sum, self._n_bytes = 0, 0

    def add(self, piece: bytes) -> bytes:
        header = b"" if self._n_bytes else GZIP_HEADER
        self._sum, self._n_bytes = zlib.crc32(piece, self._sum), self._n_bytes + len(piece)
        return header + deflated(piece)

    def end(self) -> bytes:
        return LAST_BLOCK + struct.pack("<II", self._sum, self._n_bytes & 0xFFFFFFFF)
