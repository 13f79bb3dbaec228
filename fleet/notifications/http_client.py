"""An HTTP client for addresses from outside: checked targets, one deadline, short answers."""

import socket
import ssl
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, IncompleteRead
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Timer
from typing import Self
from urllib.parse import SplitResult, urlsplit

from fleet.version import VERSION

Address = IPv4Address | IPv6Address
SCHEMES = {"http": 80, "https": 443}
# Clouds serve credentials of the machine here: forbidden whatever is allowed.
FORBIDDEN = (ip_network("169.254.0.0/16"), ip_network("fe80::/10"), ip_network("fd00:ec2::/32"))
# Networks whose addresses carry an IPv4 address in their last 32 bits.
NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/96"))


class AddressError(ValueError):
    """A target that is not an address, or one to which nothing may be sent."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Private targets that the settings allow: networks and host names."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: Collection[str]) -> Self:
        """Read entries such as ``10.0.0.0/8`` or ``alertmanager.internal``."""
        networks, names = [], set()
        for entry in filter(None, map(str.strip, entries)):
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError:
                names.add(entry.lower())
        return cls(tuple(networks), frozenset(names))

    def reaches(self, name: str, address: Address) -> bool:
        """Whether this address of a host name is a permitted target."""
        if isinstance(address, IPv6Address):
            inner = address.ipv4_mapped or address.sixtofour
            if inner is None and any(address in network for network in NAT64):
                inner = IPv4Address(int(address) & 0xFFFF_FFFF)
            address = inner or address
        if any(address in network for network in FORBIDDEN):
            return False
        if address.is_global and not address.is_multicast:
            return True
        return name.lower() in self.names or any(address in net for net in self.networks)


NO_ADDRESS = "is not an address; write https://host/path, with a port from 1 to 65535 if any"


def split(url: str) -> SplitResult:
    """Parse a URL; raises AddressError where it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Without its text and its cause, which quote the address: that may be a secret.
        raise AddressError(f"target: {NO_ADDRESS}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise AddressError(f"target: {NO_ADDRESS}")
    if parts.username or parts.password:
        raise AddressError("target: leave out user and password; use the secret")
    if port == 0 or any(char <= " " or char == "\x7f" for char in url):
        raise AddressError("target: contains an invalid character or port")
    return parts


def host_of(url: str) -> str:
    """Return scheme and host of an address, for messages; its path and query may be secret."""
    try:
        parts = split(url)
    except AddressError:
        return ""
    return f"{parts.scheme}://{parts.hostname}"


def resolve(parts: SplitResult, allowed: Allowed) -> Iterator[tuple[str, int]]:
    """Yield the permitted numeric addresses of a host, and the port.

    Connect to these, not to the name: it may resolve differently a moment later.
    """
    name = parts.hostname or ""
    port = parts.port or SCHEMES[parts.scheme]
    places = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    numbers = list(dict.fromkeys(str(place[4][0]) for place in places))
    reached = [number for number in numbers if allowed.reaches(name, ip_address(number))]
    if not reached:
        where = name if numbers == [name] else f"{name} ({', '.join(numbers)})"
        raise AddressError(
            f"target: {where} is a private address; TRNWATCH_NOTIFY_ALLOW names those allowed"
        )
    for number in reached:
        yield number, port


LONGEST_ANSWER = 64 * 1024
LONGEST_TEXT = 200


class UnreachableError(Exception):
    """There was no valid answer; another attempt may get one."""


@dataclass(frozen=True, slots=True)
class Request:
    url: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HttpResult:
    status: int
    body: bytes = b""
    retry_after: str = ""
    location: str = ""

    @property
    def text(self) -> str:
        """The beginning of the body, as one line of plain text."""
        text = self.body.decode("utf-8", "replace")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[
            :LONGEST_TEXT
        ]


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Posts to permitted targets, each request within ``timeout_s``."""

    allowed: Allowed
    timeout_s: float = 10.0

    def post(self, request: Request) -> HttpResult:
        """Post once, without redirects and proxies.

        Raises
        ------
        AddressError
            The target is not permitted.
        UnreachableError
            It did not answer, or not completely, or not in HTTP.
        """
        parts = split(request.url)
        try:
            places = list(resolve(parts, self.allowed))
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"{parts.hostname} cannot be found: {error}") from error
        connection = _PinnedConnection(parts, places, timeout_s=self.timeout_s)
        # A timeout of the socket starts again with every byte; this one does not.
        timer = Timer(self.timeout_s, connection.abort)
        timer.daemon = True
        timer.start()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"User-Agent": f"trnwatch/{VERSION}", "Connection": "close", **request.headers}
        try:
            connection.request("POST", path, body=request.body, headers=headers)
            with connection.getresponse() as response:
                body = response.read(LONGEST_ANSWER)
                if response.length and len(body) < LONGEST_ANSWER:
                    raise IncompleteRead(body, response.length)
                return HttpResult(
                    response.status,
                    body,
                    retry_after=response.headers.get("Retry-After", ""),
                    location=response.headers.get("Location", ""),
                )
        except (OSError, HTTPException, ValueError) as error:
            if connection.is_aborted or isinstance(error, TimeoutError):
                why = f"no complete answer within {self.timeout_s:g} s"
            else:
                why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise UnreachableError(why) from error
        finally:
            timer.cancel()
            connection.close()


class _PinnedConnection(HTTPConnection):
    """A connection to checked addresses, under the host name of the URL."""

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
        for number, place in enumerate(self._places, start=1):
            try:
                sock = socket.create_connection(place, self._timeout_s / len(self._places))
                break
            except OSError:
                if number == len(self._places):
                    raise
        sock.settimeout(self._timeout_s)
        self.sock = sock
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()
        if self.is_aborted:
            raise TimeoutError

    def abort(self) -> None:
        """Break off the exchange, from another thread."""
        self.is_aborted = True
        sock = self.sock
        if sock is not None:
            try:
                # The method of the plain socket: the TLS layer may be in use by the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return
