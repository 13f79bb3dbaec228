"""ASGI application that ingests node reports directly, without Django.

All other requests go on to Django, which keeps whole bodies in memory. Therefore this application
identifies clients before it reads a large body, and refuses bodies that are too large or too slow.
"""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.shortcuts import resolve_url
from msgspec import Meta

from fleet.access.audit import OUTCOMES, note_refusal
from fleet.api.clients import ANONYMOUS_BYTES, ClientCheck, own_connection
from fleet.api.connections import EXTENSION, LimitedProtocol, Unlimited
from fleet.api.ingest import (
    TURN_WITHIN_S,
    IngestRequest,
    check_announced,
    outcome_of,
    serve,
    tokens,
    too_large,
)
from fleet.models import Token
from fleet.models.problem import ProblemError
from telemetry.errors import whole_number
from telemetry.ingest.lines import split_whole

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_AT_ONCE = 256
# While requests keep coming, each waits up to this long to share a batch with others.
GATHER_S = 0.1
# Paths, and whether their lines contain no report of neuron-monitor.
PATHS = {"/api/v1/ingest/neuron-monitor": False, "/api/v1/ingest/efa": True}
# Requests to these, of several nodes, in one.
RELAY = "/api/v1/ingest/relay"
# Addresses in Django whose senders pack many samples in a request.
SAMPLES = {"/api/v1/ingest/prometheus", "/api/v1/ingest/otlp", "/api/v1/ingest/otlp/v1/metrics"}
# Addresses that browsers upload files to, and the page of each one's form.
UPLOADS = {
    "/support/": "/support/",
    "/preflight/files": "/preflight/",
    "/import/": "/import/",
}
# What a relay sends: how many requests, the size of the head of each, and how many refused lines
# the answer to each lists. Agents read the first.
MAX_RELAYED, MAX_HEAD_BYTES, MAX_RELAYED_REFUSALS = 256, 16_384, 10
# Lines of a stream that come closer together than this form one batch.
QUIET_S = 0.05
# How long the rest of a refused body is read, so that the client receives the refusal.
DRAIN_S = 10.0
# Timeouts of a body without new bytes, and of a live stream without a line.
BODY_IDLE_S = 60.0
LIVE_IDLE_S = 3600.0
# The memory for bodies in one process, until they are answered: one of the largest, which is read
# to its end in any case.
MAX_HELD_BYTES = 10_000_000
WAIT = re.compile(r"\bwait=(\d{1,4})\b", re.ASCII)
MAX_WAIT_S = 1.0


class ClientGoneError(Exception):
    """The client disconnected before its body was complete; nothing is stored."""


class BodyMemory:
    """Bytes of large bodies in memory; above the limit only the oldest is read on, others wait.

    Bodies that anybody may send are not large: they have limits of their own (connections.py).
    """

    def __init__(self, limit: int = MAX_HELD_BYTES, *, within_s: float = TURN_WITHIN_S) -> None:
        self._limit = limit
        self._within_s = within_s
        # What each body holds, the oldest first.
        self._held: dict[object, int] = {}
        self._freed = asyncio.Event()

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], Awaitable[None]]]:
        """Yield a function that counts bytes of one body; they are released at the end.

        It waits while there is no room; raises ProblemError if there is none in time.
        """
        body, n_held = object(), 0

        async def count(n_bytes: int) -> None:
            nonlocal n_held
            n_held += n_bytes
            if n_held <= ANONYMOUS_BYTES:
                return
            self._held[body] = n_held
            try:
                async with asyncio.timeout(self._within_s):
                    while (
                        sum(self._held.values()) > self._limit and next(iter(self._held)) != body
                    ):
                        await self._freed.wait()
            except TimeoutError as error:
                detail = f"More than {self._limit:,} bytes are being received. Send it again."
                raise ProblemError(503, detail, headers={"Retry-After": "5"}) from error

        try:
            yield count
        finally:
            self._held.pop(body, None)
            self._freed.set()
            self._freed = asyncio.Event()


class IngestApplication:
    """ASGI application that serves the ingest paths and forwards the rest to ``app``."""

    def __init__(
        self,
        app: App,
        *,
        body_idle_s: float = BODY_IDLE_S,
        max_held_bytes: int = MAX_HELD_BYTES,
        turn_within_s: float = TURN_WITHIN_S,
    ) -> None:
        self._app = app
        self._batcher = Batcher()
        self._client_check = ClientCheck(tokens)
        self._body_memory = BodyMemory(max_held_bytes, within_s=turn_within_s)
        self._body_idle_s = body_idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        protocol: LimitedProtocol | None = scope.get("extensions", {}).get(EXTENSION)
        connection = protocol or Unlimited()
        path = scope["path"]
        is_ours = (path in PATHS or path == RELAY) and scope["method"] == "POST"
        if scope.get("client"):
            connection.count_for(scope["client"][0])
        try:
            if is_ours:
                await self._ingest(scope, headers, receive, send)
            else:
                await self._forward(scope, headers, receive, send)
        except ClientGoneError:
            return
        except ProblemError as error:
            _audit(scope, headers, error.without_frames())
            connection.drop_body()
            answer = error.status, error.headers, error.body
            page = UPLOADS.get(scope["path"])
            if error.status == 401 and page and "text/html" in headers.get("accept", ""):
                # A browser whose session has expired.
                sign_in = redirect_to_login(page, resolve_url(settings.LOGIN_URL)).url
                answer = 303, {"Location": sign_in}, b""
            status, answer_headers, body = answer
            await _send_response(send, status, answer_headers | {"Connection": "close"}, body)
            # Read and drop the rest: otherwise the client may lose the response.
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while (await receive()).get("more_body"):
                        pass
            await send({"type": "http.response.body"})

    async def _identify(self, scope: Scope, headers: dict[str, str], needed: str = "") -> None:
        """Refuse unidentified clients; lift the connection's limits for the others."""
        await self._client_check.check(headers, needed)
        connection = scope.get("extensions", {}).get(EXTENSION)
        if connection is not None:
            connection.identify()

    async def _forward(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Forward a request to Django, unless its body is too large."""
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if scope["path"] in UPLOADS:
            limit = settings.SUPPORT_MAX_BODY_BYTES
        elif scope["path"] in SAMPLES:
            limit = settings.INGEST_MAX_BODY_BYTES
        length = headers.get("content-length")
        check_announced(length, limit=limit)
        is_known = whole_number(length or "0", most=ANONYMOUS_BYTES) is None
        if is_known:
            await self._identify(scope, headers)
        size, is_whole = 0, False
        problem: ProblemError | None = None

        async def counted() -> Message:
            nonlocal size, is_whole, is_known, problem
            if is_whole:
                # Django now waits for the client to hang up, as long as its answer takes.
                return await receive()
            try:
                message = await _receive_within(receive, self._body_idle_s)
                is_whole = not message.get("more_body")
                size += len(message.get("body", b""))
                if size > limit:
                    raise too_large(limit)
                await count(len(message.get("body", b"")))
                if size > ANONYMOUS_BYTES and not is_known:
                    await self._identify(scope, headers)
                    is_known = True
            except ProblemError as error:
                problem = error.without_frames()
                return {"type": "http.disconnect"}
            return message

        with self._body_memory.hold() as count:
            await self._app(scope, counted, send)
        if problem is not None:
            raise problem

    async def _ingest(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Ingest lines: a whole body, a stream until its end (``live=1``), or many of a relay."""
        await self._identify(scope, headers, Token.Scope.INGEST)
        if scope["path"] == RELAY:
            body = msgspec.json.encode(await self._relay(scope, headers, receive))
        else:
            node, is_live = _read_query(scope["query_string"].decode("latin-1"))
            call = IngestRequest(headers, node, b"", 0.0, alone=PATHS[scope["path"]])
            if is_live:
                await self._stream(call, receive)
            else:
                with self._body_memory.hold() as count:
                    call.body = await self._read_body(headers, receive, count)
                    call.arrived_s = time.time()
                    await self._batcher.serve(call, wait_s=_wait_s(headers.get("prefer", "")))
            body = msgspec.json.encode(outcome_of(call))
        await _send_response(send, 200, {"Content-Type": "application/json"}, body)
        await send({"type": "http.response.body"})

    async def _relay(
        self, scope: Scope, headers: dict[str, str], receive: Receive
    ) -> dict[str, Any]:
        """Serve requests of several nodes; each has its own token, and its own answer."""
        with self._body_memory.hold() as count:
            calls = relayed(await self._read_body(headers, receive, count), time.time())
            await asyncio.gather(*map(self._batcher.serve, calls))
        answers: list[dict[str, Any]] = []
        for call in calls:
            try:
                outcome = outcome_of(call)
                outcome["refused"] = outcome["refused"][:MAX_RELAYED_REFUSALS]
                answers.append({"status": 200, "body": outcome})
            except ProblemError as error:
                _audit(scope, call.headers, error.without_frames())
                after_s = int(error.headers.get("Retry-After", 0)) or None
                document = error.document | {"refused": []}
                answer = {"status": error.status, "body": document, "retry_after_s": after_s}
                answers.append(answer)
        return {"answers": answers}

    async def _read_body(
        self,
        headers: Mapping[str, str],
        receive: Receive,
        count: Callable[[int], Awaitable[None]],
    ) -> bytes:
        limit = settings.INGEST_MAX_BODY_BYTES
        check_announced(headers.get("content-length"), limit=limit)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await _receive_within(receive, self._body_idle_s)
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > limit:
                raise too_large(limit)
            await count(len(pieces[-1]))
            if not message.get("more_body"):
                return b"".join(pieces)

    async def _stream(self, call: IngestRequest, receive: Receive) -> None:
        if call.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
            detail = "A live stream cannot be compressed. Omit live=1 to send gzip."
            raise ProblemError(415, detail, field="Content-Encoding")
        rest, is_open, first_line = b"", True, 1
        while is_open:
            rest, is_open = await _read_lines(receive, rest)
            lines, rest = split_whole(rest) if is_open else (rest, b"")
            if lines.strip():
                piece = IngestRequest(
                    call.headers, call.node, lines, time.time(), first_line, alone=call.alone
                )
                await self._batcher.serve(piece)
                call.absorb(piece)
            first_line += lines.count(b"\n")


class Batcher:
    """Serves ingest requests in batches, in one thread per process; the event loop stays free.

    A round trip to Redis costs more than a report: requests that arrive together share one.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ingest")
        self._waiting: list[tuple[IngestRequest, asyncio.Future[None]]] = []
        self._work: asyncio.Task[None] | None = None
        self._free_at_s = 0.0
        self._due_s = math.inf
        self._came = asyncio.Event()

    async def serve(self, call: IngestRequest, *, wait_s: float = 0.0) -> None:
        """Serve a request and set its outcome; it may wait ``wait_s`` to share a batch."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append((call, done))
        self._due_s = min(self._due_s, loop.time() + wait_s)
        self._came.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve_all())
        await done

    async def _serve_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # A request to an idle batcher is served at once.
            await asyncio.sleep(max(0.0, self._free_at_s - loop.time()))
            while (left_s := self._due_s - loop.time()) > 0 and len(self._waiting) < MAX_AT_ONCE:
                self._came.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._came.wait()
            batch, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
            self._due_s = 0.0 if self._waiting else math.inf
            calls = [call for call, _ in batch]
            try:
                await loop.run_in_executor(self._thread, own_connection()(serve), calls)
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
            self._free_at_s = loop.time() + GATHER_S
            for _, done in batch:
                if not done.done():
                    done.set_result(None)


def _audit(scope: Scope, headers: Mapping[str, str], error: ProblemError) -> None:
    if error.status in OUTCOMES and (error.status != 401 or "authorization" in headers):
        note_refusal(
            error.status,
            who=error.who,
            address=(scope.get("client") or ("",))[0],
            request=f"{scope['method']} {scope['path']}",
            why=str(error),
        )


def _wait_s(prefer: str) -> float:
    """Return how long a request may wait (``Prefer: wait=1``, RFC 7240), in seconds."""
    match = WAIT.search(prefer)
    return min(float(match[1]), MAX_WAIT_S) if match else 0.0


class RelayedHead(msgspec.Struct):
    """What a relay says of one node's request: ``n`` bytes of body follow its line.

    The relay held it for ``held_s``.
    """

    target: Annotated[str, Meta(max_length=500)]
    headers: dict[str, str]
    n: Annotated[int, Meta(ge=0)]
    held_s: Annotated[float, Meta(ge=0, le=60)] = 0.0


_HEAD = msgspec.json.Decoder(RelayedHead)


def relayed(body: bytes, arrived_s: float) -> list[IngestRequest]:
    """Return the requests in a relay's body; raises ProblemError."""
    calls: list[IngestRequest] = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start, start + MAX_HEAD_BYTES)
        try:
            head = _HEAD.decode(body[start : max(start, end)])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            detail = f"Request {len(calls) + 1} does not begin with a line of JSON: {error}"
            raise ProblemError(400, detail, field="body") from error
        path, _, query = head.target.partition("?")
        first, start = end + 1, end + 1 + head.n
        if path not in PATHS or start > len(body) or len(calls) == MAX_RELAYED:
            detail = f"Request {len(calls) + 1} is not one of an agent, is cut short, or is one "
            detail += f"too many: a relay sends {MAX_RELAYED} at most."
            raise ProblemError(400, detail, field="body")
        node, _ = _read_query(query)
        arrived = arrived_s - head.held_s
        call = IngestRequest(head.headers, node, body[first:start], arrived, alone=PATHS[path])
        calls.append(call)
    return calls


def _read_query(query: str) -> tuple[str | None, bool]:
    """Return the node that a query names, and whether the request is a live stream."""
    values = parse_qs(query, keep_blank_values=True) if query else {}
    return values.get("node", [None])[-1], values.get("live", ["0"])[-1] == "1"


async def _receive_within(receive: Receive, within_s: float) -> Message:
    try:
        async with asyncio.timeout(within_s):
            return await receive()
    except TimeoutError as error:
        detail = f"No part of the body arrived for {within_s:g} s. Send it again."
        raise ProblemError(408, detail) from error


async def _read_lines(receive: Receive, rest: bytes) -> tuple[bytes, bool]:
    """Read until there is a complete line and no more bytes follow for `QUIET_S`.

    Returns the bytes read, and whether the stream goes on.
    """
    limit = settings.INGEST_MAX_BODY_BYTES
    pieces, size, has_line = [rest], len(rest), False
    while True:
        try:
            async with asyncio.timeout(QUIET_S if has_line else LIVE_IDLE_S):
                message = await receive()
        except TimeoutError as error:
            if not has_line:
                detail = f"No line arrived for {LIVE_IDLE_S:g} s. Start the stream again."
                raise ProblemError(408, detail) from error
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


async def _send_response(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """Send a response without ending it, so that the body can still be read."""
    headers = headers | {"Content-Length": str(len(body)), "Cache-Control": "no-store"}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": True})
