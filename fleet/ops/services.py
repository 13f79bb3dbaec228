"""What must stand before the first page: the tables, and the static files in one folder."""

import asyncio
import hashlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from redis.exceptions import RedisError

from fleet.ops import embedded_redis
from fleet.ops.reload import changed_files
from fleet.ops.supervisor import Program, Supervisor, last_line

WORKERS = ("worker-1", "worker-2")


def web(*, listener: int) -> Program:
    """Return the web server, which inherits the listening socket.

    While it starts again after a fall, callers wait in the socket's queue and are not refused.
    """
    options = (
        *("--fd", str(listener)),
        *("--timeout-graceful-shutdown", "2"),
        *("--log-level", "warning"),
        *("--http", "fleet.api.connections:LimitedProtocol"),
        "--no-server-header",
        # fleet/asgi.py reads them, from trusted proxies alone.
        "--no-proxy-headers",
    )
    command = (sys.executable, "-m", "uvicorn", "fleet.asgi:application", *options)
    return Program("web", command, pass_fds=(listener,))


def worker(name: str) -> Program:
    """Return one Celery worker; one process each, so the keeper sees every one that dies."""
    options = (
        *("--pool", "solo"),
        *("--hostname", f"{name}@trnwatch"),
        *("--loglevel", "WARNING"),
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    )
    return Program(name, (*_celery(), "worker", *options))


def beat() -> Program:
    """Return Celery's clock."""
    return Program("beat", (*_celery(), "beat", "--pidfile", "", "--loglevel", "WARNING"))


def sender() -> Program:
    """Return what sends notifications, and watches the watching from outside Celery."""
    return Program("sender", (sys.executable, "manage.py", "send_notifications"))


def optional_programs(env: Mapping[str, str]) -> list[Program]:
    """Return what runs only where a setting asks for it: the writer to the long-term store."""
    if not (env.get("LONG_TERM_WRITE_URL") or env.get("LONG_TERM_WRITE_URL_FILE")):
        return []
    return [Program("long-term", (sys.executable, "manage.py", "write_long_term"))]


def _celery() -> tuple[str, ...]:
    """Return the start of every Celery command."""
    return (sys.executable, "-m", "celery", "--quiet", "--app", "fleet.celery")


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PAGE_WITHIN_S = 60.0


class StartError(RuntimeError):
    """Something that must run before the first page did not."""


class Services:
    """Everything that runs, around one folder and one listening socket."""

    def __init__(
        self, folder: Path, *, root: Path, env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._env = env
        self._say = say
        self._root = root
        self._keeper = Supervisor(folder, env=env, cwd=root, say=say)
        self._redis: list[Program] = []
        self._rest: list[Program] = []
        self._disk: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket, *, greet: Callable[[], None]) -> None:
        """Start everything, ``greet`` once a page can be had, and stop at a signal."""
        told = asyncio.Event()
        for signal_number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signal_number, told.set)
        life = asyncio.create_task(self._live(listener, greet=greet))
        order = asyncio.create_task(told.wait())
        try:
            await asyncio.wait({life, order}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
            self._say("Stopping.")
        finally:
            order.cancel()
            tasks = [life, self._disk] if self._disk else [life]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._keeper.stop(self._rest, self._redis)

    async def _live(self, listener: socket.socket, *, greet: Callable[[], None]) -> None:
        """Start everything in order, then look after the logs.

        Pages come first: they can be had while the demo's past is still being made. Workers
        and beat, by which time goes on, follow when it stands.
        """
        await self._start_redis()
        self._keep([web(listener=listener.fileno())])
        if self._env["TRNWATCH_DEMO"] == "1":
            await self._prepare_demo()
        workers = [worker(name) for name in WORKERS]
        self._keep([*workers, beat(), sender()])
        self._keep(optional_programs(self._env))
        await wait_for_first_page(listener.getsockname(), within_s=FIRST_PAGE_WITHIN_S)
        await asyncio.to_thread(greet)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keeper.trim_logs())
            if self._env.get("TRNWATCH_DEBUG") == "1":
                group.create_task(self._reload_on_change())

    async def _reload_on_change(self) -> None:
        """Restart everything but Redis whenever a source file changes."""
        async for changed in changed_files(self._root):
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._say(f"{changed[0]}{more} changed. Restarting.")
            # One after the other, the web server first: it is back before the workers start.
            for program in self._rest:
                await self._keeper.stop([program])
                self._keeper.keep([program])

    def _keep(self, more: list[Program]) -> None:
        """Keep more programs running."""
        self._rest += more
        self._keeper.keep(more)

    async def _start_redis(self) -> None:
        """Run our own Redis, or see that the one we were told of answers."""
        url = self._env.get("REDIS_URL")
        if not url:
            folder = self._folder / "redis"
            place = embedded_redis.choose_address(folder)
            self._redis = [embedded_redis.program(folder, place)]
            self._keeper.keep(self._redis)
            self._say(f"Redis listens on 127.0.0.1:{place.port}.")
            url = place.url
        try:
            await embedded_redis.wait_until_ready(url, timeout_s=60 if self._redis else 5)
        except RedisError as error:
            if not self._redis:
                raise
            said = last_line(self._keeper.log(self._redis[0]))
            msg = f"trnwatch's own Redis does not start; it says: {said}"
            raise StartError(msg) from error
        if self._redis:
            watch = embedded_redis.monitor_disk(self._folder, url, say=self._say)
            self._disk = asyncio.create_task(watch)

    async def _prepare_demo(self) -> None:
        """Make the demo fleet's past, once."""
        began_s = time.monotonic()
        command = (sys.executable, "manage.py", "prepare_demo")
        code = await self._keeper.once(Program("prepare-demo", command))
        if code:
            msg = "The demo fleet could not be prepared; its words stand above."
            raise StartError(msg)
        self._say(f"The demo fleet stands ({time.monotonic() - began_s:.1f} s).")


async def wait_for_first_page(address: tuple[str, int], *, within_s: float) -> None:
    """Wait until the web server answers one request."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])  # noqa: S104
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, address[1])
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        writer.close()


MB = 1_000_000
# What a start writes: tables, static files, Redis' first file, logs.
START_BYTES = 10 * MB
# Reading so much takes a fraction of a second.
CHECKED_BYTES = 200 * MB


class DiskFullError(RuntimeError):
    """The disk is too full to start on; says how full."""


def check_disk_space(folder: Path) -> None:
    """See that a folder can be written, and that its disk has room for a start.

    Raises OSError where it cannot be written.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))
    free = shutil.disk_usage(folder).free
    if free < START_BYTES:
        raise DiskFullError(
            f"The disk is full: {folder} has {free / MB:.1f} MB left, and a start takes "
            f"{START_BYTES // MB} MB. Free some space and start again, or name another folder by "
            "TRNWATCH_DATA_DIR."
        )


def check_database() -> None:
    """Look through a small SQLite database for damage, which a start would not meet at once.

    Raises DatabaseError where it is damaged.
    """
    if connection.vendor != "sqlite":
        return
    path = Path(str(connection.settings_dict["NAME"]))
    if not path.exists() or path.stat().st_size > CHECKED_BYTES:
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(1)")
        [said] = cursor.fetchone()
    if said != "ok":
        raise DatabaseError(f"database disk image is malformed: {said.splitlines()[-1]}")


def migrate_if_needed() -> int:
    """Bring the tables up to date; gives how many migrations that took."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        call_command("migrate", verbosity=0, interactive=False)
        # All that runs on this folder begins after this: nobody is left who reads plain text.
        call_command("seal_receivers", stdout=StringIO())
    return len(plan)


def collect_static_if_needed(folder: Path) -> bool:
    """Gather the static files into ``folder`` unless they are what was gathered last."""
    mark = folder.with_name(f"{folder.name}.mark")
    now = _fingerprint()
    if folder.is_dir() and mark.exists() and mark.read_text() == now:
        return False
    call_command("collectstatic", verbosity=0, interactive=False, clear=True)
    mark.write_text(now)
    return True


def _fingerprint() -> str:
    """Sum up the name, size and age of every static file."""
    digest = hashlib.sha256()
    for finder in get_finders():
        for name, storage in finder.list([]):
            facts = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
