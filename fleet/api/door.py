"""The fast way in: nodes' lines straight from the web server, without Django between.

Everything else goes on to Django, but for bodies that are too large: those end here.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
from django.conf import settings

from fleet.api.bodies import check_announced, check_unpacked, too_large
from fleet.api.desk import Desk
from fleet.api.serving import Call, answer
from fleet.problem import ProblemError

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The doors, and whether their lines come without neuron-monitor's reports.
PATHS = {"/api/v1/ingest/neuron-monitor": False, "/api/v1/ingest/efa": True}
# The pages that files are uploaded to.
UPLOADS = ("/support/", "/preflight/files")
# Lines of a stream that come closer together than this are one delivery.
QUIET_S = 0.05
# A client that sends too much is read on for a while, so that it gets to hear why.
LINGER_S = 10.0
WAIT = re.compile(r"\bwait=(\d{1,4})\b", re.ASCII)
LONGEST_WAIT_S = 1.0


class ClientGoneError(Exception):
    """The client hung up before it had sent its body: nothing of it is taken."""


class Door:
    """An ASGI application in front of another."""

    def __init__(self, app: App) -> None:
        """Stand in front of ``app``."""
        self._app = app
        self._desk = Desk()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or let it pass."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        is_ours = scope["path"] in PATHS and scope["method"] == "POST"
        try:
            if is_ours:
                await self._take(scope, headers, receive, send)
            else:
                await self._pass(scope, headers, receive, send)
        except ClientGoneError:
            return
        except ProblemError as error:
            await _say(send, error.status, error.headers | {"Connection": "close"}, error.body)
            await _linger(receive)
            await send({"type": "http.response.body"})

    async def _pass(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Hand a request on to Django, as long as its body is not too large."""
        limit = page_limit(scope["path"])
        check_announced(headers.get("content-length"), limit=limit)
        size, is_over = 0, False

        async def counted() -> Message:
            nonlocal size, is_over
            message = await receive()
            size += len(message.get("body", b""))
            is_over = is_over or size > limit
            return {"type": "http.disconnect"} if is_over else message

        await self._app(scope, counted, send)
        if is_over:
            raise too_large(limit)

    async def _take(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Take lines: the body at once, or (``live=1``) as they come, for as long as they come."""
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        node, alone = query.get("node", [None])[-1], PATHS[scope["path"]]
        if query.get("live", ["0"])[-1] == "1":
            call = await self._stream(Call(headers, node, b"", 0.0, alone=alone), receive)
        else:
            check_announced(headers.get("content-length"), limit=settings.INGEST_MAX_BODY_BYTES)
            body = await _body(receive)
            call = Call(headers, node, body, time.time(), alone=alone)
            await self._desk.serve(call, wait_s=_wait_s(headers.get("prefer", "")))
        told = msgspec.json.encode(answer(call))
        await _say(send, 200, {"Content-Type": "application/json"}, told)
        await send({"type": "http.response.body"})

    async def _stream(self, call: Call, receive: Receive) -> Call:
        """Serve lines as they come in, until the client has no more."""
        check_unpacked(call.headers.get("content-encoding", ""))
        rest, is_open, first_line = b"", True, 1
        while is_open:
            rest, is_open = await _piece(receive, rest)
            lines, newline, rest = rest.rpartition(b"\n") if is_open else (rest, b"", b"")
            if lines.strip():
                piece = Call(
                    call.headers, call.node, lines, time.time(), first_line, alone=call.alone
                )
                await self._desk.serve(piece)
                call.absorb(piece)
            first_line += (lines + newline).count(b"\n")
        return call


def _wait_s(prefer: str) -> float:
    """Return how long a client said that it may wait (``Prefer: wait=1``, RFC 7240), and we do."""
    found = WAIT.search(prefer)
    return min(float(found[1]), LONGEST_WAIT_S) if found else 0.0


async def _body(receive: Receive) -> bytes:
    """Read a body to its end, if it is not too large."""
    limit = settings.INGEST_MAX_BODY_BYTES
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces)


async def _piece(receive: Receive, rest: bytes) -> tuple[bytes, bool]:
    """Read on until there is a whole line and nothing follows for a moment.

    Returns what has been read and not served yet, and whether more may come.
    """
    limit = settings.INGEST_MAX_BODY_BYTES
    pieces, size, has_line = [rest], len(rest), False
    while True:
        try:
            async with asyncio.timeout(QUIET_S if has_line else None):
                message = await receive()
        except TimeoutError:
            return b"".join(pieces), True
        if message["type"] == "http.disconnect":
            whole, newline, _ = b"".join(pieces).rpartition(b"\n")
            return whole + newline, False
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        has_line = has_line or b"\n" in pieces[-1]
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body"):
            return b"".join(pieces), False


def page_limit(path: str) -> int:
    """Return how many bytes may be sent to a page; Django holds pasted text to less."""
    if path in UPLOADS:
        return int(settings.SUPPORT_MAX_BODY_BYTES)
    return int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)


async def _say(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send an answer but for its last word, so that reading may go on."""
    headers = headers | {"Content-Length": str(len(body)), "Cache-Control": "no-store"}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _linger(receive: Receive) -> None:
    """Read and drop what the client still sends, lest the connection breaks before it listens."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body"):
                pass
    except TimeoutError:
        pass
