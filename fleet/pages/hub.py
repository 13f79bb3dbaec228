"""The live hub: each watched topic is rendered once per tick and sent to all its watchers."""

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
# A stream ends after this long. The browser reconnects, and access is checked again.
LIFE_S = 3_600.0
MOST_WATCHERS = 2_000
HEARTBEAT = b": still here\n\n"


class CrowdedError(Exception):
    """The process has reached its limit of streams."""


@dataclass(eq=False)
class Watcher:
    """One open stream. Unread events are replaced by newer ones of the same name."""

    _pending: dict[str, bytes] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, events: Mapping[str, bytes]) -> None:
        """Add events; of each name only the newest is kept until it is read."""
        self._pending |= events
        if self._pending:
            self._woken.set()

    async def read(self) -> bytes:
        """Wait for events and return them; a heartbeat after a time without any."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._woken.wait()
        except TimeoutError:
            return HEARTBEAT
        self._woken.clear()
        events, self._pending = self._pending, {}
        return b"".join(events.values())


@dataclass(eq=False)
class Room:
    """The watchers of one topic, and the last events sent to them."""

    topic: LiveTopic
    sent: Events
    watchers: set[Watcher] = field(default_factory=set)

    def send(self, events: Events) -> None:
        """Send the events that differ from the last ones; points are always sent."""
        changes = {name: data for name, data in events.items() if self.sent.get(name) != data}
        self.sent |= {name: data for name, data in changes.items() if name != "points"}
        for watcher in self.watchers:
            watcher.offer(changes)


class Hub:
    """One per process (and event loop).

    Parameters
    ----------
    ticks : yields when data may have changed, and about every second at least
    head : renders the header of every page: the age of the data; given the number of streams
    most : the limit of open streams in one process
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
        self._errors: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        # One thread: database connections are per thread, and a topic is rendered once anyway.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")

    @property
    def n_watchers(self) -> int:
        return sum(len(room.watchers) for room in self._rooms.values())

    async def glance(self, topic: LiveTopic) -> Events:
        """Return a topic's current events, rendered once for simultaneous requests.

        Raises what the topic's context raises: an unknown name, an unavailable store.
        """
        if self.n_watchers >= self._most:
            raise CrowdedError
        if topic.key in self._rooms:
            return self._rooms[topic.key].sent
        if topic.key not in self._opening:
            task = asyncio.create_task(self._render(topic.render))
            task.add_done_callback(lambda _: self._opening.pop(topic.key))
            self._opening[topic.key] = task
        return await asyncio.shield(self._opening[topic.key])

    async def stream(self, topic: LiveTopic, sent: Events) -> AsyncGenerator[bytes]:
        """Yield a topic's events and then its changes, until the client disconnects."""
        state = {name: data for name, data in sent.items() if name != "points"}
        room = self._rooms.setdefault(topic.key, Room(topic, state))
        watcher = Watcher()
        room.watchers.add(watcher)
        watcher.offer(room.sent)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        ends_at = asyncio.get_running_loop().time() + LIFE_S
        try:
            yield event("parts", " ".join(topic.topic.partials))
            while asyncio.get_running_loop().time() < ends_at:
                yield await watcher.read()
        finally:
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
        """Render every room once and send the changes to its watchers."""
        now_s = asyncio.get_running_loop().time
        head_at_s = -HEAD_EVERY_S
        for room in tuple(self._rooms.values()):
            if now_s() - head_at_s >= HEAD_EVERY_S:
                # First, and again while many rooms are rendered.
                head = await self._attempt(lambda: self._head(self.n_watchers), "head")
                for each in tuple(self._rooms.values()):
                    each.send(head)
                head_at_s = now_s()
            room.send(await self._attempt(room.topic.render, room.topic.key))

    async def _attempt(self, work: Callable[[], Events], what: str) -> Events:
        """Render, or log the error: the next tick may succeed."""
        try:
            events = await self._render(work)
        except Exception as error:
            if self._errors.get(what) != repr(error):
                logger.warning("Live %s could not be rendered: %r", what, error)
            self._errors[what] = repr(error)
            return {}
        self._errors.pop(what, None)
        return events

    async def _render(self, work: Callable[[], Events]) -> Events:
        return await asyncio.get_running_loop().run_in_executor(self._thread, _connected, work)


def _connected(work: Callable[[], Events]) -> Events:
    """Do the work without expired or broken database connections."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()
