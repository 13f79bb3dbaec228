"""The HTTP connection to the server, kept alive, and how its responses are classified."""

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
# Servers close connections that are idle for longer; 5 s is a common limit.
KEEP_ALIVE_S = 4.0
# After these statuses a retry may succeed; any other 4xx is final.
RETRYABLE = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 429})
TOO_LARGE = 413


@dataclass(frozen=True)
class ServerResponse:
    """A response: its status (0: none came) and its JSON object."""

    status: int
    body: Mapping[str, Any]
    retry_after_s: float | None = None
    location: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether trnwatch accepted the lines; a proxy's 200 has no ``accepted``."""
        return 200 <= self.status < 300 and "accepted" in self.body

    @property
    def is_rejected(self) -> bool:
        """Whether the lines are refused for good: by trnwatch, or because they are too large."""
        is_refusal = 400 <= self.status < 500 and self.status not in RETRYABLE
        return is_refusal and (bool(self.body) or self.status == TOO_LARGE)

    def __str__(self) -> str:
        text = str(self.body.get("detail") or self.body.get("title") or "")
        if not text and self.location:
            text = (
                f"redirected to {self.location}; give that address as --server if it is trnwatch"
            )
        if not text:
            text = "the response is not from trnwatch; check the address in --server"
        return f"{self.status} {text}" if self.status else text


class ServerConnection:
    """A connection to one server; the token is read again for each new connection."""

    def __init__(self, address: str, *, token: TokenFile, node: str | None, ca_file: str | None):
        """Connect to ``address``, http or https, with a path if trnwatch is served below one."""
        url = urlsplit(address)
        if url.scheme not in {"http", "https"} or not url.hostname:
            msg = f"--server: {address!r} is not a URL. Give one such as https://trnwatch.example"
            raise ValueError(msg)
        self._url = url
        self._token = token
        self._query = f"?node={quote(node, safe='')}" if node else ""
        self._tls = _tls_context(ca_file) if url.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0
        self._secret = ""

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        """Post a gzip body; network errors come back as status 0."""
        try:
            connection = self._connected()
            all_headers = {
                **headers,
                "Authorization": f"Bearer {self._secret}",
                "Content-Type": "application/x-ndjson",
                "Content-Encoding": "gzip",
            }
            connection.request(
                "POST", self._url.path.rstrip("/") + path + self._query, body, all_headers
            )
            with connection.getresponse() as raw:
                response = _read_response(raw)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return ServerResponse(0, {"detail": f"{type(error).__name__}: {error}"[:160]})
        if not response.is_accepted:
            self.close()
        return response

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        """Return the open connection, or a new one if the server may have closed it."""
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
    """The bearer token: from a file, read again so that it can be rotated, or given once."""

    def __init__(self, *, file: str | None, secret: str | None) -> None:
        self._file = file
        self._secret = secret

    def read(self) -> str:
        """Return the token; raises OSError or ValueError if there is no valid one."""
        secret = self._secret or ""
        if self._file:
            with open(self._file, encoding="ascii") as file:  # noqa: PTH123
                secret = file.read()
        secret = secret.strip()
        if not secret.isprintable() or not secret.isascii() or not secret:
            msg = (
                "token: empty or not printable ASCII. Copy it again from trnwatch's page of tokens"
            )
            raise ValueError(msg)
        return secret


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        msg = f"--ca-file (TRNWATCH_CA_FILE) {ca_file}: no certificates could be read: {error}"
        raise ValueError(msg) from error


def _read_response(response: http.client.HTTPResponse) -> ServerResponse:
    """Read a response to its end, so that the connection can be reused."""
    data = response.read(MAX_RESPONSE_BYTES)
    after = response.getheader("Retry-After", "")
    try:
        body = json.loads(data)
    except ValueError:
        body = {}
    return ServerResponse(
        response.status,
        body if isinstance(body, dict) else {},
        float(after) if after.isdecimal() else None,
        response.getheader("Location", ""),
    )
