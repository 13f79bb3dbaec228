"""The way to a Prometheus-compatible store: HTTP with a token or a password, times and bounds."""

import base64
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit

PIECE = 64 * 1024
KEPT_OF_ANSWER = 300


class UnreachableError(Exception):
    """No proper answer came within the time and size allowed; the message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    retry_after: str = ""

    @property
    def said(self) -> str:
        """The beginning of the answer, as one line of plain text."""
        text = self.body[: 4 * KEPT_OF_ANSWER].decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[
            :KEPT_OF_ANSWER
        ]


@dataclass
class Endpoint:
    """One address of a long-term store.

    Where connections are kept, each thread has one of its own; that is for threads that last.
    ``url`` may carry a user and password; ``token_file`` is read for every request, so that a
    token which is renewed on disk is used at once.
    """

    url: str
    token_file: str = ""
    timeout_s: float = 10.0
    most_bytes: int = 1 << 20
    is_kept: bool = False
    _own: threading.local = field(default_factory=threading.local)
    _open: set[HTTPConnection] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Check the address once, before anything is sent."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = f"{self.shown!r} is no address of a long-term store; http://host:port/path is"
            raise ValueError(msg)

    @property
    def shown(self) -> str:
        """The address without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post once; ``path`` is added to the address.

        Raises
        ------
        UnreachableError
            Nobody answered, or not in time, or at too great a length.
        """
        connection = self._connection()
        ends_at_s = time.monotonic() + self.timeout_s
        try:
            target = (urlsplit(self.url).path.rstrip("/") + path) or "/"
            connection.request("POST", target, body, {**headers, **self._authorization()})
            response = connection.getresponse()
            answer = Answer(
                response.status,
                self._read(response, ends_at_s),
                response.headers.get("Retry-After", ""),
            )
        except (OSError, HTTPException, ValueError) as error:
            self._forget()
            raise UnreachableError(f"{self.shown}: {_why(error)}") from error
        except UnreachableError:
            self._forget()
            raise
        if response.will_close or not self.is_kept:
            self._forget()
        return answer

    def _read(self, response: HTTPResponse, ends_at_s: float) -> bytes:
        """Read an answer piece by piece, so that neither time nor length has no end."""
        body = bytearray()
        while piece := response.read1(PIECE):
            body += piece
            if len(body) > self.most_bytes:
                raise UnreachableError(f"{self.shown}: answers more than {self.most_bytes} bytes")
            if time.monotonic() > ends_at_s:
                raise UnreachableError(f"{self.shown}: no whole answer in {self.timeout_s:g} s")
        if response.length:
            raise UnreachableError(f"{self.shown}: the answer breaks off")
        response.close()  # of an answer of known length it takes this to be done with
        return bytes(body)

    def _authorization(self) -> Mapping[str, str]:
        parts = urlsplit(self.url)
        if self.token_file:
            return {"Authorization": f"Bearer {Path(self.token_file).read_text().strip()}"}
        if parts.username is None:
            return {}
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _connection(self) -> HTTPConnection:
        held: HTTPConnection | None = getattr(self._own, "connection", None)
        if held is None:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            held = (
                HTTPSConnection(
                    host,
                    parts.port,
                    timeout=self.timeout_s,
                    context=ssl.create_default_context(),
                )
                if parts.scheme == "https"
                else HTTPConnection(host, parts.port, timeout=self.timeout_s)
            )
            self._own.connection = held
            self._open.add(held)
        return held

    def close(self) -> None:
        """Close the connections of all threads; to be called when none is in use."""
        while self._open:
            self._open.pop().close()

    def _forget(self) -> None:
        """Close this thread's connection; the next request makes a new one."""
        held: HTTPConnection | None = getattr(self._own, "connection", None)
        if held is not None:
            held.close()
            self._open.discard(held)
        self._own.connection = None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
