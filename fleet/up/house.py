"""A running trnwatch: Redis first, then pages, then workers and the clock."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from redis.exceptions import RedisError

from fleet.up import programs
from fleet.up import redis as embedded
from fleet.up.keeper import Keeper, Program, last_line

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FIRST_PAGE_WITHIN_S = 60.0


class StartError(RuntimeError):
    """Something that must run before the first page did not."""


class House:
    """Everything that runs, around one folder and one listening socket."""

    def __init__(
        self, folder: Path, *, root: Path, env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._env = env
        self._say = say
        self._keeper = Keeper(folder, env=env, cwd=root, say=say)
        self._redis: list[Program] = []
        self._rest: list[Program] = []
        self._disk: asyncio.Task[None] | None = None

    async def run(self, listener: socket.socket, *, greet: Callable[[], None]) -> None:
        """Start everything, ``greet`` once a page can be had, and stop at a signal."""
        told = asyncio.Event()
        for signal_number in STOPPING:
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
        self._keep([programs.web(listener=listener.fileno())])
        if self._env["TRNWATCH_DEMO"] == "1":
            await self._prepare_demo()
        workers = [programs.worker(name) for name in programs.WORKERS]
        self._keep([*workers, programs.beat(), programs.sender()])
        self._keep(programs.asked_for(self._env))
        await first_page(listener.getsockname(), within_s=FIRST_PAGE_WITHIN_S)
        await asyncio.to_thread(greet)
        await self._keeper.trim_logs()

    def _keep(self, more: list[Program]) -> None:
        """Keep more programs running."""
        self._rest += more
        self._keeper.keep(more)

    async def _start_redis(self) -> None:
        """Run our own Redis, or see that the one we were told of answers."""
        url = self._env.get("REDIS_URL")
        if not url:
            folder = self._folder / "redis"
            place = embedded.choose_place(folder)
            self._redis = [embedded.program(folder, place)]
            self._keeper.keep(self._redis)
            self._say(f"Redis listens on 127.0.0.1:{place.port}.")
            url = place.url
        try:
            await embedded.until_ready(url, timeout_s=60 if self._redis else 5)
        except RedisError as error:
            if not self._redis:
                raise
            said = last_line(self._keeper.log(self._redis[0]))
            msg = f"trnwatch's own Redis does not start; it says: {said}"
            raise StartError(msg) from error
        if self._redis:
            watch = embedded.follow_disk(self._folder, url, say=self._say)
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


async def first_page(address: tuple[str, int], *, within_s: float) -> None:
    """Wait until the web server answers one request."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])  # noqa: S104
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, address[1])
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        writer.close()
