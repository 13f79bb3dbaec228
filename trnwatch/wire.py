"""The connection of a node to the server, and what its responses mean: reporter and agent."""

# Sockets encode host names by it: imported in the sending thread, it could be locked at a fork.
import encodings.idna  # noqa: F401
import http.client
import json
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional
from urllib.parse import urlsplit

MAX_RESPONSE_BYTES = 1 << 20
# trnwatch's servers close a connection that is idle for so long; a firewall may drop it silently.
KEEP_ALIVE_S = 20.0
DISCONNECTED = (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected)
# After these statuses a retry may succeed; any other 4xx is final.
RETRYABLE = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 429})
TOO_LARGE = 413
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 30.0


@dataclass(frozen=True)
class ServerResponse:
    """A response: its status (0: none came) and its JSON object, empty if it has none.

    ``option`` names the setting of the server's address.
    """

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: Optional[float] = None
    location: str = ""
    option: str = ""

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
            text = f"redirected to {self.location}; give that address as {self.option} if it is "
            text += "trnwatch"
        text = text or f"the response is not from trnwatch; check the address in {self.option}"
        return f"{self.status} {text}" if self.status else text


def backoff_s(
    n_failed: int,
    *,
    least_s: float = MIN_BACKOFF_S,
    asked_s: float = 0.0,
    jitter: Callable[[], float] = random.random,
) -> float:
    """Return the seconds to wait after so many failed requests, at least those asked for.

    They double from ``least_s`` up to half a minute; ``jitter`` (0 to 1) spreads a fleet.
    """
    longest_s = min(MAX_BACKOFF_S, least_s * 2.0 ** min(n_failed, 10))
    return max(asked_s, longest_s / 2) + jitter() * longest_s / 2


class ServerConnection:
    """A connection to one server, kept between requests."""

    def __init__(
        self,
        address: str,
        *,
        token: Callable[[], str],
        ca_file: Optional[str] = None,
        timeout_s: float = 20.0,
        option: str = "TRNWATCH_SERVER",
        ca_option: str = "TRNWATCH_CA_FILE",
    ) -> None:
        """Raise ValueError unless ``address`` is a URL of http or https; it may have a path.

        ``token`` is read for each request, so that it can be rotated. ``ca_file`` (PEM) replaces
        the system's certificate authorities. The options name the settings in errors.
        """
        url = urlsplit(address)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ValueError(
                f"{option}: {address!r} is not a URL. Give one such as https://trnwatch.example"
            )
        self._url = url
        self._token = token
        self._ca_file, self._ca_option = ca_file, ca_option
        self._timeout_s = timeout_s
        self._option = option
        self._connection: Optional[http.client.HTTPConnection] = None
        self._used_s = 0.0

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        """Post a body: lines, in gzip, if ``headers`` do not say otherwise.

        Raises OSError, ValueError or HTTPException without a response.
        """
        sent = {
            "Content-Encoding": "gzip",
            "Content-Type": "application/x-ndjson",
            **headers,
            "Authorization": f"Bearer {self._token()}",
        }
        now_s = time.monotonic()
        if now_s - self._used_s > KEEP_ALIVE_S:
            self.close()
        self._used_s = now_s
        if self._connection is not None:
            try:
                return self._request(path, body, sent)
            except DISCONNECTED:
                # The server closed an idle connection: retry once on a new one.
                pass
        return self._request(path, body, sent)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def tls_context(self) -> Optional[ssl.SSLContext]:
        """Return the TLS context, none for http; raises OSError naming an unusable file."""
        if self._url.scheme == "http":
            return None
        try:
            return ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            raise OSError(
                f"{self._ca_option} {self._ca_file}: no certificates could be read: {error}"
            ) from error

    def _request(self, path: str, body: bytes, headers: Mapping[str, str]) -> ServerResponse:
        try:
            connection = self._open()
            connection.request("POST", self._url.path.rstrip("/") + path, body, dict(headers))
            with connection.getresponse() as response:
                text = response.read(MAX_RESPONSE_BYTES)
        except BaseException:
            self.close()
            raise
        if response.will_close or not 200 <= response.status < 300:
            self.close()
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        after = response.getheader("Retry-After", "")
        return ServerResponse(
            response.status,
            document if isinstance(document, dict) else {},
            float(after) if after.isdecimal() else None,
            response.getheader("Location", ""),
            self._option,
        )

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            tls, host, port = self.tls_context(), self._url.hostname or "", self._url.port
            self._connection = (
                http.client.HTTPConnection(host, port, timeout=self._timeout_s)
                if tls is None
                else http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=tls)
            )
        return self._connection
