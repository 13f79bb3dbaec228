"""Where notifications may go: anywhere public, and private places only where settings allow it."""

import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Self
from urllib.parse import SplitResult, urlsplit

Address = IPv4Address | IPv6Address
SCHEMES = {"http": 80, "https": 443}
# Where clouds keep credentials of the machine: never, whatever is allowed.
NEVER = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("fd00:ec2::/32"),
)
# Networks whose addresses carry an IPv4 address in their last 32 bits.
NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/96"))


class AddressError(ValueError):
    """A target that is no address, or one where nothing may be sent; says which and why."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Private places that settings allow: networks, and names as they stand in an address."""

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
        """Whether something may be sent to this address of this name."""
        address = _bare(address)
        if any(address in network for network in NEVER):
            return False
        if address.is_global and not address.is_multicast:
            return True
        return name.lower() in self.names or any(address in net for net in self.networks)


def _bare(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and any(address in network for network in NAT64):
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner or address


def split(url: str) -> SplitResult:
    """Read an address of the web, or say what is wrong with it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"target: {url[:80]!r} is no address: {error}") from error
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise AddressError(f"target: {url[:80]!r} is no address; write https://host/path")
    if parts.username or parts.password:
        raise AddressError("target: leave out user and password; use the secret")
    if port == 0 or any(char <= " " or char == "\x7f" for char in url):
        raise AddressError("target: holds a character or a port that no address has")
    return parts


def resolve(parts: SplitResult, allowed: Allowed) -> Iterator[tuple[str, int]]:
    """Yield the numeric addresses and the port where this may be sent.

    Whoever connects must use these, not the name: it may lead elsewhere a moment later.
    """
    name = parts.hostname or ""
    port = parts.port or SCHEMES[parts.scheme]
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    numbers = list(dict.fromkeys(str(place[4][0]) for place in found))
    reached = [number for number in numbers if allowed.reaches(name, ip_address(number))]
    if not reached:
        where = name if numbers == [name] else f"{name} ({', '.join(numbers)})"
        raise AddressError(
            f"target: {where} is a private address; TRNWATCH_NOTIFY_ALLOW names those allowed"
        )
    for number in reached:
        yield number, port
