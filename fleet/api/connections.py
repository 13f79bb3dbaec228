"""What a client may hold before we know who it is: time, bytes and connections.

uvicorn waits for ever for the rest of a request, and reads headers of any length. Web servers are
therefore started with ``--http fleet.api.connections:LimitedProtocol``.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from django.conf import settings
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fleet.access import throttling
from fleet.models.problem import ProblemError

# Where a request's scope holds its connection: in its ``extensions``.
EXTENSION = "trnwatch.connection"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server process. Caps of waiting requests hold for unidentified clients only.

    A request waits until it is whole, or until its client has shown a valid token or session.
    """

    header_s: float = 10.0
    request_s: float = 20.0
    # An answer was sent, and the client still sends its body: so long it is read and dropped.
    unread_s: float = 2.0
    header_bytes: int = 32_768
    n_headers: int = 100
    n_pipelined: int = 8
    # After a restart everybody who waited in the listening socket's queue comes at once.
    n_waiting: int = 2_000
    n_waiting_per_network: int = 1_000
    # Bytes received in requests that are not answered yet.
    held_bytes: int = 32_000_000
    held_bytes_per_network: int = 16_000_000


class Connection(Protocol):
    """What an application may say to the connection of a request."""

    def identify(self) -> None:
        """Say that the client is known: the limits of this module end for this request."""

    def count_for(self, host: str) -> None:
        """Say which client a proxy speaks for."""

    def drop_body(self) -> None:
        """Keep nothing of the body that still comes."""


class Unlimited:
    """The connection of a server without limits, as tests of the application use it."""

    def identify(self) -> None:
        """Do nothing."""

    def count_for(self, host: str) -> None:
        """Do nothing."""

    def drop_body(self) -> None:
        """Do nothing."""


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
        # As fleet/asgi.py reads their headers.
        self._proxies = ProxyHeadersMiddleware(
            _no_application, settings.TRUSTED_PROXIES
        ).trusted_hosts

    def network_of_peer(self, host: str) -> str:
        """Return the network of who connects; empty for a proxy, who speaks for many."""
        return "" if host in self._proxies else network_of(host)

    def __contains__(self, connection: object) -> bool:
        """Whether a connection waits for its client."""
        return connection in self._since_s

    def enter(self, connection: "LimitedProtocol") -> None:
        """Begin to wait. Beyond a cap the oldest waiting request makes room for this one."""
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
        """Wait no longer."""
        if self._since_s.pop(connection, None) is not None:
            _add_count(self._n_waiting, connection.network, -1)

    def hold(self, network: str, n_bytes: int) -> None:
        """Count bytes; negative: bytes that are held no longer."""
        self.held_bytes += n_bytes
        _add_count(self._held_bytes, network, n_bytes)

    def refusal(self, network: str) -> tuple[int, str] | None:
        """Return what to answer where too much is held, None where it is not."""
        if network and self._held_bytes.get(network, 0) > self._limits.held_bytes_per_network:
            return 429, "Too many unanswered bytes from this network. Try again."
        if self.held_bytes > self._limits.held_bytes:
            return 503, "Too many unanswered bytes. Try again."
        return None

    def _wait(self) -> None:
        pause_s = min(1.0, self._limits.header_s / 4)
        self._timer = self._loop.call_later(pause_s, self._check)

    def _check(self) -> None:
        """Refuse whoever takes too long; look again while anybody waits."""
        now_s = self._loop.time()
        for connection, since_s in list(self._since_s.items()):
            connection.check_age(now_s - since_s)
        self._timer = None
        if self._since_s:
            self._wait()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with deadlines and caps for clients that are not identified yet."""

    limits: ClassVar[Limits] = Limits()
    _ledgers: ClassVar[WeakKeyDictionary[ServerState, ConnectionTracker]] = WeakKeyDictionary()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        ledger = self._ledgers.get(server_state)
        if ledger is None:
            ledger = self._ledgers[server_state] = ConnectionTracker(self.limits, self.loop)
        self._ledger = ledger
        self.network = ""
        self._held_bytes = 0
        self._header_bytes = 0
        self._has_begun = self._has_header = False
        self._is_identified = self._is_dropping = self._is_refused = False
        self._refusal: tuple[int, str] | None = None
        self._cycles: list[RequestResponseCycle] = []

    # What the ledger and the application ask for

    def identify(self) -> None:
        """Lift the limits for the request that is read now."""
        if self._has_begun:
            self._is_identified = True
            self._ledger.leave(self)
        self._release()

    def count_for(self, host: str) -> None:
        """Count for the client a proxy speaks for."""
        network = network_of(host)
        if network == self.network:
            return
        is_waiting, held_bytes = self in self._ledger, self._held_bytes
        self._ledger.leave(self)
        self._release()
        self.network = network
        self._hold(held_bytes)
        if is_waiting:
            self._ledger.enter(self)

    def drop_body(self) -> None:
        """Drop what still comes of the body."""
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
        """Answer, unless an answer has begun, and close; for a moment what comes is dropped."""
        if self._is_refused:
            return
        self._is_refused = True
        self._ledger.leave(self)
        self._release()
        self._unset_keepalive_if_required()
        if not any(cycle.response_started for cycle in self._unanswered()):
            self.transport.write(_response_bytes(ProblemError(status, detail)))
        self._hang_up()
        if self.transport.is_closing():
            return
        # To close with bytes unread resets the connection, and the client loses the answer.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(self.limits.unread_s, self.transport.abort)

    # What the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a first request."""
        super().connection_made(transport)
        self.network = self._ledger.network_of_peer(self.client[0] if self.client else "")
        self._ledger.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._ledger.leave(self)
        self._release()
        self._hang_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes, and read it."""
        if self._is_refused:
            return
        had_begun = self._has_begun
        if not self._is_identified:
            if self not in self._ledger:
                self._ledger.enter(self)
            self._hold(len(data))
            if refusal := self._ledger.refusal(self.network):
                self.refuse(*refusal)
                return
        super().data_received(data)
        # httptools keeps a header until it is whole, however long it is.
        if had_begun and self._has_begun and not self._has_header:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes and not self._is_refused:
                self.refuse(*self._header_too_large())

    def send_400_response(self, msg: str) -> None:
        """Answer to what is no HTTP, or above a limit."""
        self.refuse(*(self._refusal or (400, "This is not a request of HTTP/1.1.")))

    # What the parser calls

    def on_message_begin(self) -> None:
        """Wait for a request to be whole."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]
        self._has_begun, self._has_header, self._header_bytes = True, False, 0
        if self not in self._ledger:
            self._ledger.enter(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, up to a number and size of all."""
        self._header_bytes += len(name) + len(value)
        limits = self.limits
        if self._header_bytes > limits.header_bytes or len(self.headers) >= limits.n_headers:
            self._refusal = self._header_too_large()
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a request, unless too many of the same client wait for it."""
        if len(self.url) > self.limits.header_bytes:
            self._refusal = 414, f"The URL has more than {self.limits.header_bytes:,} bytes."
            raise ValueError("too long a URL")
        if len(self.pipeline) >= self.limits.n_pipelined:
            self._refusal = 429, "Too many requests without waiting for their answers."
            raise ValueError("too many requests in a row")
        self._has_header = True
        super().on_headers_complete()
        self._cycles = [*self._unanswered(), self.cycle]

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body, where anybody still reads it."""
        if not self._is_dropping and not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait no longer: the rest is ours to do."""
        super().on_message_complete()
        self._has_begun = self._is_identified = self._is_dropping = False
        self._ledger.leave(self)

    def on_response_complete(self) -> None:
        """Close a connection whose client still sends what nobody reads."""
        super().on_response_complete()
        self._release()
        if self._has_begun and self._has_header and not self.pipeline:
            self.loop.call_later(self.limits.unread_s, self._close_unread, self.cycle)

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _hang_up(self) -> None:
        """Tell the application of every request here that its client is gone."""
        self.pipeline.clear()
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.body = bytearray()
            cycle.message_event.set()

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
        self._ledger.hold(self.network, n_bytes)

    def _release(self) -> None:
        if self._held_bytes:
            self._ledger.hold(self.network, -self._held_bytes)
            self._held_bytes = 0


def _add_count(counts: dict[str, int], network: str, n: int) -> None:
    """Count; a network that nothing is counted for takes no room."""
    n += counts.get(network, 0)
    if n:
        counts[network] = n
    else:
        counts.pop(network, None)


async def _no_application(*_: object) -> None:
    """Stand in for an application where only the list of proxies is wanted."""


def _response_bytes(error: ProblemError) -> bytes:
    """Return a whole response of HTTP/1.1."""
    headers: Mapping[str, str] = {
        **error.headers,
        "Content-Length": str(len(error.body)),
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {error.status} {error.document['title']}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + error.body
