"""The wire: one connection to the server that is kept, and what its answers mean."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 20.0
MAX_RESPONSE_BYTES = 1 << 20
# Servers hang up on a connection that is idle for longer; 5 s is a usual time.
KEEP_ALIVE_S = 4.0
# Sent again later, these may well be taken; with any other 4xx they never will.
RETRYABLE = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 429})
TOO_LARGE = 413


@dataclass(frozen=True)
class ServerResponse:
    """What the server said: its status (0: nobody answered) and its words."""

    status: int
    told: Mapping[str, Any]
    retry_after_s: float | None = None
    location: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether the lines are with the server now: it says how many; no portal between does."""
        return 200 <= self.status < 300 and "accepted" in self.told

    @property
    def is_hopeless(self) -> bool:
        """Whether these lines will never be taken: trnwatch says so, or they are too large."""
        is_refusal = 400 <= self.status < 500 and self.status not in RETRYABLE
        return is_refusal and (bool(self.told) or self.status == TOO_LARGE)

    def __str__(self) -> str:
        words = str(self.told.get("detail") or self.told.get("title") or "")
        if not words and self.location:
            words = f"it has moved to {self.location}: is that its address?"
        if not words:
            words = "that is no answer of trnwatch: is its address right?"
        return f"{self.status} {words}" if self.status else words


class ServerConnection:
    """A server behind an address; ``token`` is read anew for each connection."""

    def __init__(self, address: str, *, token: TokenFile, node: str | None, ca_file: str | None):
        """Speak to ``address`` (http or https, with a path if it is behind one)."""
        url = urlsplit(address)
        if url.scheme not in {"http", "https"} or not url.hostname:
            msg = (
                f"{address!r} is no address of a server; give one such as https://trnwatch.example"
            )
            raise ValueError(msg)
        self._url = url
        self._token = token
        self._query = f"?node={quote(node, safe='')}" if node else ""
        self._tls = _tls_context(ca_file) if url.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0
        self._secret = ""

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        """Post a gzip body; an answer in any case."""
        try:
            connection = self._connected()
            said = {
                **headers,
                "Authorization": f"Bearer {self._secret}",
                "Content-Type": "application/x-ndjson",
                "Content-Encoding": "gzip",
            }
            connection.request("POST", self._url.path.rstrip("/") + path + self._query, body, said)
            with connection.getresponse() as response:
                answer = _read_response(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return ServerResponse(0, {"detail": f"{type(error).__name__}: {error}"[:160]})
        if not answer.is_taken:
            self.close()
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        """Return the connection, a new one if there is none that the server still keeps."""
        now_s = time.monotonic()
        if now_s - self._used_s > KEEP_ALIVE_S:
            self.close()
        self._used_s = now_s
        if self._connection is None:
            self._secret = self._token.read()
            host, port = self._url.hostname or "", self._url.port
            if self._tls is None:
                self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            else:
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=TIMEOUT_S, context=self._tls
                )
        return self._connection


class TokenFile:
    """Where the bearer token is: a file, read anew so that it may be changed, or given once."""

    def __init__(self, *, file: str | None, secret: str | None) -> None:
        self._file = file
        self._secret = secret

    def read(self) -> str:
        """Return the token; raises OSError or ValueError where there is none that can be sent."""
        secret = self._secret or ""
        if self._file:
            with open(self._file, encoding="ascii") as file:  # noqa: PTH123
                secret = file.read()
        secret = secret.strip()
        if not secret.isprintable() or not secret.isascii() or not secret:
            msg = "the token is empty or is no token"
            raise ValueError(msg)
        return secret


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return whom to trust: the authorities of a file, else the system's."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        msg = f"--ca-file (TRNWATCH_CA_FILE) {ca_file}: no certificates can be read: {error}"
        raise ValueError(msg) from error


def _read_response(response: http.client.HTTPResponse) -> ServerResponse:
    """Read an answer to its end, so that the connection can be used again."""
    data = response.read(MAX_RESPONSE_BYTES)
    after = response.getheader("Retry-After", "")
    try:
        told = json.loads(data)
    except ValueError:
        told = {}
    return ServerResponse(
        response.status,
        told if isinstance(told, dict) else {},
        float(after) if after.isdecimal() else None,
        response.getheader("Location", ""),
    )
