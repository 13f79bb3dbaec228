"""The live hub: each watched topic is rendered once per tick, its bytes go to all who watch."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from django.db import close_old_connections

from fleet.pages.topics import Events, LiveTopic, event

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
HEAD_EVERY_S = 1.0
# A stream ends after this long and the browser comes back, so that access is checked anew.
LIFE_S = 3_600.0
MOST_WATCHERS = 2_000
HEARTBEAT = b": still here\n\n"


class CrowdedError(Exception):
    """More streams are open than one process should carry."""


@dataclass(eq=False)
class Watcher:
    """One open stream. What it has not read yet is replaced by newer, never piled up."""

    _pending: dict[str, bytes] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, events: Mapping[str, bytes]) -> None:
        """Hand over events; of each name only the newest is kept until it is read."""
        self._pending |= events
        if self._pending:
            self._woken.set()

    async def read(self) -> bytes:
        """Wait for news and return it; a heartbeat if there is none for a while."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._woken.wait()
        except TimeoutError:
            return HEARTBEAT
        self._woken.clear()
        news, self._pending = self._pending, {}
        return b"".join(news.values())


@dataclass(eq=False)
class Room:
    """Those who watch one topic, and what they were last told."""

    topic: LiveTopic
    told: Events
    watchers: set[Watcher] = field(default_factory=set)

    def tell(self, events: Events) -> None:
        """Pass on what differs from what was last told; a stretch of points always does."""
        news = {name: said for name, said in events.items() if self.told.get(name) != said}
        self.told |= {name: said for name, said in news.items() if name != "points"}
        for watcher in self.watchers:
            watcher.offer(news)


class Hub:
    """One per process (and event loop).

    Parameters
    ----------
    ticks : yields whenever there may be news, and at least every second or so
    head : renders what every page is told: how fresh the data are; given the number of streams
    most : streams that one process should carry at the same time
    """

    def __init__(
        self,
        *,
        ticks: Callable[[], AsyncGenerator[None]],
        head: Callable[[int], Events],
        most: int = MOST_WATCHERS,
    ) -> None:
        self._most = most
        self._ticks = ticks
        self._head = head
        self._rooms: dict[str, Room] = {}
        self._opening: dict[str, asyncio.Task[Events]] = {}
        self._complaints: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        # One thread: database connections are per thread, and a topic is rendered once anyway.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")

    @property
    def n_watchers(self) -> int:
        """How many streams are open."""
        return sum(len(room.watchers) for room in self._rooms.values())

    async def glance(self, topic: LiveTopic) -> Events:
        """Return what a topic says now, rendered once however many ask at the same time.

        Raises what the topic's context raises: a name that nobody has, a store that is away.
        """
        if self.n_watchers >= self._most:
            raise CrowdedError
        if topic.key in self._rooms:
            return self._rooms[topic.key].told
        if topic.key not in self._opening:
            task = asyncio.create_task(self._render(topic.render))
            task.add_done_callback(lambda _: self._opening.pop(topic.key))
            self._opening[topic.key] = task
        return await asyncio.shield(self._opening[topic.key])

    async def stream(self, topic: LiveTopic, told: Events) -> AsyncGenerator[bytes]:
        """Yield what a topic says and then its changes, until the client goes."""
        state = {name: said for name, said in told.items() if name != "points"}
        room = self._rooms.setdefault(topic.key, Room(topic, state))
        watcher = Watcher()
        room.watchers.add(watcher)
        watcher.offer(room.told)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        ends_at = asyncio.get_running_loop().time() + LIFE_S
        try:
            yield event("parts", " ".join(topic.topic.partials))
            while asyncio.get_running_loop().time() < ends_at:
                yield await watcher.read()
        finally:
            self._leave(room, watcher)

    def _leave(self, room: Room, watcher: Watcher) -> None:
        room.watchers.discard(watcher)
        if not room.watchers:
            self._rooms.pop(room.topic.key, None)
        if not self._rooms and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        async with contextlib.aclosing(self._ticks()) as ticks:
            async for _ in ticks:
                await self.refresh()

    async def refresh(self) -> None:
        """Render every room once and tell those in it what changed."""
        now_s = asyncio.get_running_loop().time
        told_s = -HEAD_EVERY_S
        for room in tuple(self._rooms.values()):
            if now_s() - told_s >= HEAD_EVERY_S:
                # First of all, and again while many rooms keep the others waiting.
                await self._tell_head()
                told_s = now_s()
            room.tell(await self._attempt(room.topic.render, room.topic.key))

    async def _tell_head(self) -> None:
        head = await self._attempt(lambda: self._head(self.n_watchers), "head")
        for room in tuple(self._rooms.values()):
            room.tell(head)

    async def _attempt(self, work: Callable[[], Events], what: str) -> Events:
        """Render, or say why not and carry on: the next tick may succeed."""
        try:
            events = await self._render(work)
        except Exception as error:
            if self._complaints.get(what) != repr(error):
                logger.warning("Live %s could not be rendered: %r", what, error)
            self._complaints[what] = repr(error)
            return {}
        self._complaints.pop(what, None)
        return events

    async def _render(self, work: Callable[[], Events]) -> Events:
        return await asyncio.get_running_loop().run_in_executor(self._thread, _connected, work)


def _connected(work: Callable[[], Events]) -> Events:
    """Do the work with database connections that are not too old or broken."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()
