"""One POST to a stranger: to a checked address, within a time, its answer kept short."""

import socket
import ssl
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from threading import Timer
from urllib.parse import SplitResult

from fleet.notify.addresses import SCHEMES, Allowed, resolve, split
from fleet.version import VERSION

LONGEST_ANSWER = 64 * 1024
KEPT_OF_ANSWER = 200


class UnreachableError(Exception):
    """No proper answer came; another attempt may get one."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted where."""

    url: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes = b""
    retry_after: str = ""
    location: str = ""

    @property
    def said(self) -> str:
        """The beginning of the answer, as one line of plain text."""
        text = self.body.decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[
            :KEPT_OF_ANSWER
        ]


@dataclass(frozen=True, slots=True)
class Door:
    """The way out: what may be reached, and how long all of it may take."""

    allowed: Allowed
    timeout_s: float = 10.0

    def post(self, request: Request) -> Answer:
        """Post once, following no redirect and asking no proxy.

        Raises
        ------
        AddressError
            The target may not be reached, now or later.
        UnreachableError
            It could not be reached, or answered nothing, or not all, or no HTTP.
        """
        parts = split(request.url)
        try:
            places = list(resolve(parts, self.allowed))
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"{parts.hostname} cannot be found: {error}") from error
        return self._exchange(_Pinned(parts, places, timeout_s=self.timeout_s), request, parts)

    def _exchange(self, connection: "_Pinned", request: Request, parts: SplitResult) -> Answer:
        # A time-out of the socket counts anew with every byte; this one does not.
        clock = Timer(self.timeout_s, connection.abort)
        clock.daemon = True
        clock.start()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"User-Agent": f"trnwatch/{VERSION}", "Connection": "close", **request.headers}
        try:
            connection.request("POST", path, body=request.body, headers=headers)
            return _read(connection.getresponse())
        except (OSError, HTTPException, ValueError) as error:
            if connection.is_aborted or isinstance(error, TimeoutError):
                why = f"no whole answer within {self.timeout_s:g} s"
            else:
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise UnreachableError(why) from error
        finally:
            clock.cancel()
            connection.close()


def _read(response: HTTPResponse) -> Answer:
    with response:
        body = response.read(LONGEST_ANSWER)
        if response.length and len(body) < LONGEST_ANSWER:
            raise IncompleteRead(body, response.length)
        return Answer(
            response.status,
            body,
            retry_after=response.headers.get("Retry-After", ""),
            location=response.headers.get("Location", ""),
        )


class _Pinned(HTTPConnection):
    """A connection to addresses that were checked, under the name that was asked for."""

    def __init__(
        self, parts: SplitResult, places: list[tuple[str, int]], *, timeout_s: float
    ) -> None:
        super().__init__(
            parts.hostname or "", parts.port or SCHEMES[parts.scheme], timeout=timeout_s
        )
        self.default_port = SCHEMES[parts.scheme]
        self.is_aborted = False
        self._places = places
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    def connect(self) -> None:
        """Connect to the first address that answers."""
        self.sock = self._plain()
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()
        if self.is_aborted:
            raise TimeoutError

    def _plain(self) -> socket.socket:
        errors: list[OSError] = []
        for place in self._places:
            try:
                sock = socket.create_connection(place, self._timeout_s / len(self._places))
            except OSError as error:
                errors.append(error)
            else:
                sock.settimeout(self._timeout_s)
                return sock
        raise errors[-1]

    def abort(self) -> None:
        """Break off, from another thread, whatever goes on."""
        self.is_aborted = True
        sock = self.sock
        if sock is not None:
            try:
                # Of the plain socket: what lies above it may be in use by the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return
