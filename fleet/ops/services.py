"""The programs of `make up`, their order of start, and the checks before it."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path

import psutil
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from redis.exceptions import RedisError

from fleet.ops import embedded_redis
from fleet.ops.fork_server import IS_SUPPORTED, KIND
from fleet.ops.liveness import adopt_orphans
from fleet.ops.releases import check_release
from fleet.ops.supervisor import Program, Supervisor, last_line


def workers(watchers: int) -> dict[str, str]:
    """Return the queues of each worker.

    Most wait for what must come each second, and for nothing else: a slow evaluation delays no
    tick and no other watcher, and a slow chore neither. The third one does the chores, and stands
    in for the others while one of them is replaced.
    """
    queues = ("ticks", "watch", "celery,watch,ticks", *["watch"] * (watchers - 1))
    return {f"worker-{i}": its for i, its in enumerate(queues, start=1)}


CELERY = (sys.executable, "-m", "celery", "--quiet", "--app", "fleet.celery")


def fork_server() -> Program:
    return Program(KIND, (sys.executable, "-m", "fleet.ops.fork_server"), kind=KIND)


def web(*, listener: int) -> Program:
    """Return the web servers, which inherit the listening socket.

    While they restart, connections wait in the socket's queue and are not refused.
    """
    options = ("--fd", str(listener), "--stop-within-s", "2")
    command = (sys.executable, "-m", "fleet.ops.web_server", *options)
    return Program("web", command, pass_fds=(listener,), kind="web", outlives=True, is_forked=True)


def worker(name: str, queues: str) -> Program:
    """Return a Celery worker with one process, so that the supervisor sees it end."""
    options = (
        *("--queues", queues),
        *("--pool", "solo"),
        *("--hostname", f"{name}@trnwatch"),
        *("--loglevel", "WARNING"),
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    )
    return Program(name, (*CELERY, "worker", *options), kind="worker", is_forked=True)


def beat() -> Program:
    command = (*CELERY, "beat", "--pidfile", "", "--loglevel", "WARNING")
    return Program("beat", command, kind="beat", is_forked=True)


def sender() -> Program:
    """Return the notification sender, which also checks from outside Celery that tasks run."""
    command = (sys.executable, "manage.py", "send_notifications")
    return Program("sender", command, kind="sender", is_forked=True)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PAGE_WITHIN_S = 60.0


class StartError(RuntimeError):
    """A program that the first page needs did not start."""


class Services:
    """All programs of one data folder and one listening socket."""

    def __init__(
        self, folder: Path, *, root: Path, env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._env = env
        self._say = say
        self._root = root
        self._supervisor = Supervisor(folder, env=env, cwd=root, say=say)
        self._redis: list[Program] = []
        self._programs: list[Program] = []
        self._disk_monitor: asyncio.Task[None] | None = None

    async def run(
        self, listener: socket.socket, *, prepare: Callable[[], None], on_ready: Callable[[], None]
    ) -> None:
        """Start everything, call ``on_ready`` once pages are served, and stop at a signal.

        Nothing that reads the database starts before ``prepare`` has returned.
        """
        adopt_orphans()
        stop_requested = asyncio.Event()
        for signal_number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signal_number, stop_requested.set)
        running = asyncio.create_task(
            self._start_all(listener, prepare=prepare, on_ready=on_ready)
        )
        stopping = asyncio.create_task(stop_requested.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            self._say("Stopping.")
        finally:
            stopping.cancel()
            tasks = [running, self._disk_monitor] if self._disk_monitor else [running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._supervisor.stop(self._programs, self._redis)
            await asyncio.to_thread(end_orphans)

    async def _start_all(
        self, listener: socket.socket, *, prepare: Callable[[], None], on_ready: Callable[[], None]
    ) -> None:
        """Start everything, then rotate logs.

        Redis and the fork server load while the database is prepared. Programs are forked in the
        order of their start: data are live by the time that pages are, and the demo's fleet before
        its past is simulated.
        """
        url = self._begin_redis()
        if IS_SUPPORTED:
            self._start([fork_server()])
        await asyncio.to_thread(prepare)
        await self._wait_for_redis(url)
        first, *others = (worker(*each) for each in workers(settings.WATCHERS).items())
        async with asyncio.TaskGroup() as group:
            self._start([first, beat()])
            if self._env["TRNWATCH_DEMO"] == "1":
                group.create_task(self._prepare_demo())
            self._start([web(listener=listener.fileno()), *others, sender()])
            await wait_for_first_page(listener.getsockname(), within_s=FIRST_PAGE_WITHIN_S)
            await asyncio.to_thread(on_ready)
            group.create_task(self._supervisor.trim_logs())
            if self._env.get("TRNWATCH_DEBUG") == "1":
                group.create_task(self._reload_on_change())

    async def _prepare_demo(self) -> None:
        """Start the demo's fleet, and simulate its past behind it."""
        began_s = time.monotonic()
        command = (sys.executable, "manage.py", "prepare_demo")
        program = Program("prepare-demo", command, is_forked=True)
        if await self._supervisor.once(program):
            self._say(
                "The demo's past could not be simulated: see the output above. It goes on at the "
                "next start."
            )
        else:
            self._say(f"The demo fleet is complete ({time.monotonic() - began_s:.1f} s).")

    async def _reload_on_change(self) -> None:
        """Restart everything but Redis whenever a source file changes."""
        async for changed in changed_files(self._root):
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._say(f"{changed[0]}{more} changed. Restarting.")
            # One by one, the web server first: it is back before the workers start.
            for program in self._programs:
                await self._supervisor.stop([program])
                self._supervisor.keep([program])

    def _start(self, programs: list[Program]) -> None:
        self._programs += programs
        self._supervisor.keep(programs)

    def _begin_redis(self) -> str:
        """Start our own Redis unless REDIS_URL names another; return its address."""
        if self._env.get("REDIS_URL"):
            return str(settings.REDIS_URL)
        folder = self._folder / "redis"
        address = embedded_redis.choose_address(folder)
        self._redis = [embedded_redis.program(folder, address)]
        self._supervisor.keep(self._redis)
        self._say(f"Redis listens on 127.0.0.1:{address.port}.")
        return address.url

    async def _wait_for_redis(self, url: str) -> None:
        try:
            await embedded_redis.wait_until_ready(url, timeout_s=60 if self._redis else 5)
        except RedisError as error:
            if not self._redis:
                raise
            reason = last_line(self._supervisor.log(self._redis[0]))
            raise StartError(f"trnwatch's own Redis does not start: {reason}") from error
        if self._redis:
            monitor = embedded_redis.monitor_disk(self._folder, url, say=self._say)
            self._disk_monitor = asyncio.create_task(monitor)


def end_orphans(*, within_s: float = 2.0) -> None:
    """End and collect the processes that this one has adopted.

    A program that was forked as everything stopped is known by no task: it ends by itself, and
    would stay in the table of processes.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for orphan in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                orphan.kill()
        try:
            # The kernel alone knows whether any is left: a list of processes misses one whose
            # parent, the process between it and the fork server, ends meanwhile.
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.01)


async def wait_for_first_page(address: tuple[str, int], *, within_s: float) -> None:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])  # noqa: S104
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, address[1])
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        writer.close()


# During development programs restart when a source file changes.
SOURCE_FOLDERS = ("fleet", "importers", "telemetry")
# All of these are read when a program starts. Templates and style sheets are read for each page.
SOURCE_SUFFIXES = frozenset({".py", ".toml", ".lua"})
POLL_S = 0.5


def modified_ns(root: Path) -> dict[Path, int]:
    """Map each source file, by its path below ``root``, to when it was last written."""
    times = {}
    for folder in SOURCE_FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in SOURCE_SUFFIXES:
                try:
                    times[path.relative_to(root)] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    # Editors replace a file while saving it.
                    continue
    return times


async def changed_files(root: Path, *, poll_s: float = POLL_S) -> AsyncIterator[list[Path]]:
    """Yield the files that were written, added or removed since the last time; never ends."""
    before = await asyncio.to_thread(modified_ns, root)
    while True:
        await asyncio.sleep(poll_s)
        now = await asyncio.to_thread(modified_ns, root)
        if changed := sorted(dict(before.items() ^ now.items())):
            before = now
            yield changed


MB = 1_000_000
# A start writes tables, static files, the first file of Redis, and logs.
START_BYTES = 10 * MB
# A larger database is not checked at each start: reading it takes too long.
MAX_CHECKED_BYTES = 200 * MB


class DiskFullError(RuntimeError):
    """The disk has too little room for a start."""


def check_disk_space(folder: Path) -> None:
    """Check that a folder is writable and its disk has room for a start.

    Raises OSError where the folder is not writable.
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
    """Check a small SQLite database for damage that a start would not meet at once.

    Raises DatabaseError where it is damaged.
    """
    if connection.vendor != "sqlite":
        return
    path = Path(str(connection.settings_dict["NAME"]))
    if not path.exists() or path.stat().st_size > MAX_CHECKED_BYTES:
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(1)")
        [result] = cursor.fetchone()
    if result != "ok":
        raise DatabaseError(f"database disk image is malformed: {result.splitlines()[-1]}")


def migrate_if_needed() -> int:
    """Apply missing migrations; return their number."""
    check_release({*MigrationRecorder(connection).applied_migrations()})
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        call_command("migrate", verbosity=0, interactive=False)
        # No program of this folder runs yet, so no program still needs the plain text.
        call_command("seal_receivers", stdout=StringIO())
    return len(plan)
