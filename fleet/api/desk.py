"""The desk behind the door: calls that wait while others are served are then served together."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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

    async def serve(self, call: Call) -> None:
        """Serve a call; it holds its outcome afterwards."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((call, done))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve_all())
        await done

    async def _serve_all(self) -> None:
        """Serve whoever waits, until nobody does."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Whoever comes to an idle desk is served at once.
            await asyncio.sleep(max(0.0, self._free_at_s - loop.time()))
            batch, self._waiting = self._waiting[:MAX_AT_ONCE], self._waiting[MAX_AT_ONCE:]
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


def _serve(calls: Sequence[Call]) -> None:
    """Serve in the desk's own thread, which has a database connection of its own."""
    close_old_connections()
    try:
        serve(calls)
    finally:
        close_old_connections()
