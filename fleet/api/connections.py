"""Limits for clients that are not identified yet: time, bytes and connections.

uvicorn waits without limit for the rest of a request and reads headers of any length. Web servers
therefore start with ``--http fleet.api.connections:LimitedProtocol``.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from django.conf import settings
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fleet.access import throttling
from fleet.access.audit import OUTCOMES, note_refusal
from fleet.models.problem import ProblemError

# Where a request's scope holds its connection: in its ``extensions``.
EXTENSION = "trnwatch.connection"
# A host of RFC 9110, and a port: a name, an IPv4 address, or an IPv6 address in brackets.
HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server process. Those of waiting requests hold for unauthenticated clients.

    A request waits until it is complete, or until its client is authenticated.
    """

    header_s: float = 10.0
    request_s: float = 20.0
    # How long the rest of a body is read and dropped after the response was sent.
    unread_s: float = 2.0
    # How long a server that stops waits for a request that is on its way to it.
    last_request_s: float = 0.5
    header_bytes: int = 32_768
    n_headers: int = 100
    n_pipelined: int = 8
    # After a restart all clients in the queue of the listening socket connect at once.
    n_waiting: int = 2_000
    n_waiting_per_network: int = 1_000
    # Bytes received in requests without a response yet.
    held_bytes: int = 32_000_000
    held_bytes_per_network: int = 16_000_000


class Unlimited:
    """The connection of a server without limits, as tests of the application use it."""

    def drop_body(self, host: str = "") -> None:
        """No limit to lift or count."""

    identify = count_for = drop_body


network_of = lru_cache(maxsize=4096)(throttling.network_of)


class ConnectionTracker:
    """The requests of one server that wait for their client, and the bytes held for them."""

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._since_s: dict[LimitedProtocol, float] = {}
        self._n_waiting: dict[str, int] = {}
        self._held_bytes: dict[str, int] = {}
        self.held_bytes = 0
        # As fleet/asgi.py reads their headers; without an application, only their list is used.
        proxies = ProxyHeadersMiddleware(cast("Any", None), settings.TRUSTED_PROXIES)
        self._proxies = proxies.trusted_hosts

    def network_of_peer(self, host: str) -> str:
        """Return the network of a peer; empty for a proxy, which forwards for many clients."""
        return "" if host in self._proxies else network_of(host)

    def __contains__(self, connection: object) -> bool:
        """Whether a request of a connection is still incomplete."""
        return connection in self._since_s

    def enter(self, connection: "LimitedProtocol") -> None:
        """Add a waiting request; beyond a limit the oldest one is refused."""
        network = connection.network
        self._since_s[connection] = self._loop.time()
        _add_count(self._n_waiting, network, 1)
        if self._timer is None:
            self._wait()
        if network and self._n_waiting[network] > self._limits.n_waiting_per_network:
            oldest = next(each for each in self._since_s if each.network == network)
            oldest.refuse(429, "Too many unfinished requests from this network.")
        elif len(self._since_s) > self._limits.n_waiting:
            next(iter(self._since_s)).refuse(503, "Too many unfinished requests. Try again.")

    def leave(self, connection: "LimitedProtocol") -> None:
        if self._since_s.pop(connection, None) is not None:
            _add_count(self._n_waiting, connection.network, -1)

    def hold(self, network: str, n_bytes: int) -> None:
        """Count bytes held; negative: bytes released."""
        self.held_bytes += n_bytes
        _add_count(self._held_bytes, network, n_bytes)

    def refusal(self, network: str) -> tuple[int, str] | None:
        """Return the status and detail of a refusal where too many bytes are held, else None."""
        if network and self._held_bytes.get(network, 0) > self._limits.held_bytes_per_network:
            return 429, "Too many unanswered bytes from this network. Try again."
        if self.held_bytes > self._limits.held_bytes:
            return 503, "Too many unanswered bytes. Try again."
        return None

    def _wait(self) -> None:
        pause_s = min(1.0, self._limits.header_s / 4)
        self._timer = self._loop.call_later(pause_s, self._check)

    def _check(self) -> None:
        """Refuse requests that take too long; repeat while any waits."""
        now_s = self._loop.time()
        for connection, since_s in list(self._since_s.items()):
            connection.check_age(now_s - since_s)
        self._timer = None
        if self._since_s:
            self._wait()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with deadlines and caps for clients that are not identified yet."""

    limits: ClassVar[Limits] = Limits()
    _trackers: ClassVar[WeakKeyDictionary[ServerState, ConnectionTracker]] = WeakKeyDictionary()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        tracker = self._trackers.get(server_state)
        if tracker is None:
            tracker = self._trackers[server_state] = ConnectionTracker(self.limits, self.loop)
        self._tracker = tracker
        self.network = self._address = ""
        self._held_bytes = 0
        self._header_bytes = 0
        self._has_begun = self._has_header = False
        self._is_identified = self._is_dropping = self._is_refused = self._is_last = False
        self._refusal: tuple[int, str] | None = None
        self._cycles: list[RequestResponseCycle] = []

    # Called by the tracker and the application

    def identify(self) -> None:
        """Lift the limits for the request being read."""
        if self._has_begun:
            self._is_identified = True
            self._tracker.leave(self)
        self._release()

    def count_for(self, host: str) -> None:
        """Count for the client behind a proxy."""
        self._address, network = host, network_of(host)
        if network == self.network:
            return
        is_waiting, held_bytes = self in self._tracker, self._held_bytes
        self._tracker.leave(self)
        self._release()
        self.network = network
        self._hold(held_bytes)
        if is_waiting:
            self._tracker.enter(self)

    def drop_body(self) -> None:
        self._is_dropping = True
        self.cycle.body = bytearray()
        self._release()

    def check_age(self, age_s: float) -> None:
        """Refuse a request that took too long, and close a connection without one."""
        if self._has_header and age_s >= self.limits.request_s:
            self.refuse(408, f"The request did not end within {self.limits.request_s:g} s.")
        elif not self._has_header and age_s >= self.limits.header_s:
            if self._held_bytes:
                self.refuse(408, f"The header did not end within {self.limits.header_s:g} s.")
            else:
                self.transport.close()

    def refuse(self, status: int, detail: str) -> None:
        """Send a refusal, unless a response has begun, then close; further input is dropped."""
        if self._is_refused:
            return
        self._is_refused = True
        if status in OUTCOMES:
            note_refusal(status, who="", address=self._address, request="connection", why=detail)
        self._tracker.leave(self)
        self._release()
        self._unset_keepalive_if_required()
        if not any(cycle.response_started for cycle in self._unanswered()):
            error = ProblemError(status, detail)
            headers: Mapping[str, str] = {
                **error.headers,
                "Content-Length": str(len(error.body)),
                "Cache-Control": "no-store",
                "Connection": "close",
            }
            lines = [f"HTTP/1.1 {status} {error.document['title']}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + error.body)
        self._disconnect()
        if self.transport.is_closing():
            return
        # Closing with unread bytes resets the connection, and the client loses the response.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(self.limits.unread_s, self.transport.abort)

    # Called by the event loop

    def shutdown(self) -> None:
        """Answer what is being sent, then close: closing at once would reset the connection."""
        self._is_last = True
        for cycle in self._unanswered():
            cycle.keep_alive = False
        self.loop.call_later(self.limits.last_request_s, self._close_idle)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.network = self._tracker.network_of_peer(self._address)
        self._tracker.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what was counted for the client."""
        self._tracker.leave(self)
        self._release()
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        had_begun = self._has_begun
        if not self._is_identified:
            if self not in self._tracker:
                self._tracker.enter(self)
            self._hold(len(data))
            if refusal := self._tracker.refusal(self.network):
                self.refuse(*refusal)
                return
        super().data_received(data)
        # httptools keeps a header until it is whole, however long it is.
        if had_begun and self._has_begun and not self._has_header:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes and not self._is_refused:
                self.refuse(*self._header_too_large())

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP, or that is above a limit."""
        self.refuse(*(self._refusal or (400, "This is not a request of HTTP/1.1.")))

    # Called by the parser

    def on_message_begin(self) -> None:
        """Start to wait for a complete request."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        self._has_begun, self._has_header, self._header_bytes = True, False, 0
        if self not in self._tracker:
            self._tracker.enter(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, up to a number and total size."""
        self._header_bytes += len(name) + len(value)
        limits = self.limits
        if self._header_bytes > limits.header_bytes or len(self.headers) >= limits.n_headers:
            self._refusal = self._header_too_large()
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request, unless too many of the same connection are pending."""
        if len(self.url) > self.limits.header_bytes:
            self._refusal = 414, f"The URL has more than {self.limits.header_bytes:,} bytes."
            raise ValueError("too long a URL")
        if len(self.pipeline) >= self.limits.n_pipelined:
            self._refusal = 429, "Too many requests without waiting for their answers."
            raise ValueError("too many requests in a row")
        if reason := host_error(
            self.url, [value for name, value in self.headers if name == b"host"]
        ):
            self._refusal = 400, reason
            raise ValueError(reason)
        self._has_header = True
        super().on_headers_complete()
        self._cycles = [*self._unanswered(), self.cycle]
        if self._is_last:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self._is_dropping and not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._has_begun = self._is_identified = self._is_dropping = False
        self._tracker.leave(self)

    def on_response_complete(self) -> None:
        """Close a connection whose client still sends a body that is not read."""
        super().on_response_complete()
        self._release()
        if self._has_begun and self._has_header and not self.pipeline:
            self.loop.call_later(self.limits.unread_s, self._close_unread, self.cycle)

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _disconnect(self) -> None:
        """Signal every pending request that its client disconnected."""
        self.pipeline.clear()
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.body = bytearray()
            cycle.message_event.set()

    def _close_idle(self) -> None:
        if not self._has_begun and not self._unanswered():
            self.transport.close()

    def _close_unread(self, cycle: object) -> None:
        if self._has_begun and self.cycle is cycle:
            self.transport.close()

    def _header_too_large(self) -> tuple[int, str]:
        limits = self.limits
        return (
            431,
            f"The header has more than {limits.header_bytes:,} bytes or {limits.n_headers} lines.",
        )

    def _hold(self, n_bytes: int) -> None:
        self._held_bytes += n_bytes
        self._tracker.hold(self.network, n_bytes)

    def _release(self) -> None:
        if self._held_bytes:
            self._tracker.hold(self.network, -self._held_bytes)
            self._held_bytes = 0


def host_error(target: bytes, hosts: Sequence[bytes]) -> str:
    """Return what is wrong with the Host headers of a request (RFC 9112, 3.2); empty: nothing."""
    if len(hosts) != 1:
        return f"The request has {len(hosts)} Host headers. Send one."
    if not HOST.fullmatch(hosts[0]):
        return "Host is not a host name or address, with or without a port."
    if target.startswith(b"/") or b"://" not in target:
        return ""
    scheme, _, rest = target.partition(b"://")
    asked = re.split(rb"[/?#]", rest, maxsplit=1)[0].lower()
    port = DEFAULT_PORTS.get(scheme.lower(), b"")
    if asked.removesuffix(port) != hosts[0].lower().removesuffix(port):
        return "Host differs from the host in the address of the request."
    return ""


def _add_count(counts: dict[str, int], network: str, n: int) -> None:
    """Add to a count; a count of zero is deleted to save memory."""
    n += counts.get(network, 0)
    if n:
        counts[network] = n
    else:
        counts.pop(network, None)
