"""Which of several Redis has a shard, and their names."""

import re
from collections.abc import Sequence
from hashlib import blake2b
from urllib.parse import urlsplit

NEXT_URL = re.compile(r",\s*(?=(?:rediss?|unix)://)")


def store_urls(text: str) -> list[str]:
    """Divide a list of addresses; a comma may also be part of a password.

    Raises ValueError where one is not an address, or is there twice.
    """
    urls = [url.strip() for url in NEXT_URL.split(text.strip().rstrip(","))]
    names = [store_name(url) for url in urls]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"names {min(repeated)} twice; give each store once")
    return urls


def store_name(url: str) -> str:
    """Return host, port and database of an address, without user and password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError as error:
        raise ValueError(f"has an address with an invalid port or host: {error}") from error
    if parts.scheme == "unix":
        return parts.path
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError("must be addresses like redis://:password@host:6379/0, by comma")
    database = parts.path.strip("/") or "0"
    return f"{host}:{port}" if database == "0" else f"{host}:{port}/{database}"


def place_of(shard: str, names: Sequence[str]) -> int:
    """Return which of these stores has a shard: the one with the highest hash of both names."""
    weights = [blake2b(f"{name}\n{shard}".encode(), digest_size=8).digest() for name in names]
    return weights.index(max(weights))
