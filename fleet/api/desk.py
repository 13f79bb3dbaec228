"""The desk behind the door: calls that wait while others are served are then served together."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from django.db import close_old_connections

from fleet.api.serving import Call, serve

MAX_AT_ONCE = 256
# While calls keep coming, each waits up to this long for others to be served with.
GATHER_S = 0.1


class Desk:
    """One per process (and event loop): one thread serves, so that the loop is free to listen.

    A trip to Redis costs more than a report: calls that come close together share one.
    """

    def __init__(self) -> None:
        """Open, with nobody waiting."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ingest")
        self._waiting: list[tuple[Call, asyncio.Future[None]]] = []
        self._work: asyncio.Task[None] | None = None
        self._free_at_s = 0.0
        self._due_s = math.inf
        self._came = asyncio.Event()

    async def serve(self, call: Call, *, wait_s: float = 0.0) -> None:
        """Serve a call; it holds its outcome afterwards. It may wait so long for others."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append((call, done))
        self._due_s = min(self._due_s, loop.time() + wait_s)
        self._came.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve_all())
        await done

    async def _serve_all(self) -> None:
        """Serve whoever waits, until nobody does."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Whoever comes to an idle desk is served at once.
            await asyncio.sleep(max(0.0, self._free_at_s - loop.time()))
            await self._until_due()
            batch, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
            self._due_s = 0.0 if self._waiting else math.inf
            calls = [call for call, _ in batch]
            try:
                await loop.run_in_executor(self._thread, _serve, calls)
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
            self._free_at_s = loop.time() + GATHER_S
            for _, done in batch:
                if not done.done():
                    done.set_result(None)

    async def _until_due(self) -> None:
        """Wait while everybody may, and there is room for more."""
        loop = asyncio.get_running_loop()
        while (left_s := self._due_s - loop.time()) > 0 and len(self._waiting) < MAX_AT_ONCE:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._came.wait()


def _serve(calls: Sequence[Call]) -> None:
    """Serve in the desk's own thread, which has a database connection of its own."""
    close_old_connections()
    try:
        serve(calls)
    finally:
        close_old_connections()
