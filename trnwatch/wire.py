"""The HTTP connection of the reporter: gzipped lines of JSON, kept alive."""

import gzip
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Optional
from urllib.parse import urlsplit

PATH = "/api/v1/ingest/steps"
TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 65_536
DISCONNECTED = (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected)


class ReportConnection:
    """A connection to the server; raises OSError or http.client.HTTPException on failure."""

    def __init__(self, server: str, *, ca_file: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Raise ValueError if ``server`` is not an http or https URL.

        ``ca_file`` (PEM) replaces the system's certificate authorities.
        """
        url = urlsplit(server)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError(f"TRNWATCH_SERVER: {server!r} is not an http:// or https:// URL")
        self._secure = url.scheme == "https"
        self._host, self._port = url.hostname, url.port
        self._path = url.path.rstrip("/") + PATH
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._connection: Optional[http.client.HTTPConnection] = None

    def post(self, lines: list[bytes], token: str) -> tuple[int, dict[str, Any]]:
        """Post lines; return the status and the response's JSON object, empty if it has none."""
        headers = {
            "Authorization": "Bearer " + token,
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
            "X-Trnwatch-At": f"{time.time():.3f}",
        }
        if hasattr(time, "CLOCK_BOOTTIME"):
            # Shows the server when this machine's wall clock was set.
            headers["X-Trnwatch-Up"] = f"{time.clock_gettime(time.CLOCK_BOOTTIME):.3f}"
        body = gzip.compress(b"\n".join(lines), 1)
        if self._connection is not None:
            try:
                return self._request(body, headers)
            except DISCONNECTED:
                # The server closed an idle connection: retry once on a new one.
                self.close()
        return self._request(body, headers)

    def _request(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            connection = self._open()
            connection.request("POST", self._path, body, headers)
            with connection.getresponse() as response:
                text = response.read(MAX_RESPONSE_BYTES)
                if response.will_close:
                    self.close()
                return response.status, _json_object(text)
        except BaseException:
            self.close()
            raise

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind: Any = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            more = {"context": _tls_context(self._ca_file)} if self._secure else {}
            self._connection = kind(self._host, self._port, timeout=self._timeout_s, **more)
        return self._connection

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Return the TLS context; raises OSError with the file's name if it is unusable."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise OSError(
            f"TRNWATCH_CA_FILE {ca_file}: no certificates could be read: {error}"
        ) from error


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def encode_line(said: Mapping[str, object]) -> bytes:
    """Encode one line; fields that are None are left out."""
    known = {name: value for name, value in said.items() if value is not None}
    return json.dumps(known, separators=(",", ":"), allow_nan=False).encode()
