"""The stream of a browser, `/live?topic=…&topic=…`, and the hub behind all streams.

The hub renders each watched topic once per tick and sends it to all its watchers. A stream of
several topics says before the events of another one, in an event `topic`, which of them it is.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, close_old_connections
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    QueryDict,
    StreamingHttpResponse,
)
from django.views.decorators.http import require_GET
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from fleet.access.roles import ROLES, has_role, may_still_read
from fleet.formatting import duration
from fleet.models import Alert
from fleet.pages.streaming import SharedGzip, accepts_gzip
from fleet.pages.text import OWN_PAUSE
from fleet.pages.topics import (
    TOPICS,
    Events,
    LiveTopic,
    UnknownTopicError,
    as_json,
    event,
    live_topic,
)
from fleet.runs.node_columns import reporting_now
from fleet.runs.state import is_starting, own_pause_s, reporting_nodes, watching_s
from telemetry.store.hot import TICKS, hot_store

logger = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
HEAD_EVERY_S = 1.0
# A topic that is large takes at most so much of a core, and is rendered less often.
MOST_OF_CORE = 1 / 3
# How often a stream asks whether its user may still read: enabled, signed in, with the role.
ACCESS_EVERY_S = 30.0
# A stream ends after this long; the browser reconnects.
LIFE_S = 3_600.0
MOST_WATCHERS = 2_000
HEARTBEAT = b": still here\n\n"

T = TypeVar("T")


class TooManyStreamsError(Exception):
    """The process has reached its limit of streams."""


# Why a topic cannot be followed, now or at all.
REFUSALS = (
    *(UnknownTopicError, PermissionDenied, Http404),
    *(TooManyStreamsError, DatabaseError, RedisError),
)


@dataclass(eq=False)
class Reader:
    """One open stream. Unread events are replaced by newer ones of the same topic and name.

    ``at`` is the topic, as the place in the request, that the client takes the next event for.
    """

    at: int | None = None
    _pending: dict[int, dict[str, bytes]] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, place: int, events: Mapping[str, bytes]) -> None:
        """Add events; of each name only the newest is kept until it is read."""
        if events:
            self._pending.setdefault(place, {}).update(events)
            self._woken.set()

    async def read(self) -> list[bytes]:
        """Wait for events and return them; a heartbeat after a time without any."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._woken.wait()
        except TimeoutError:
            return [HEARTBEAT]
        self._woken.clear()
        pending, self._pending = self._pending, {}
        return [data for place, each in pending.items() for data in self.of(place, each.values())]

    def of(self, place: int, events: Iterable[bytes]) -> list[bytes]:
        """Return events of one topic, after one that names it if the last ones were another's."""
        named = [] if place == self.at else [event("topic", str(place))]
        self.at = place
        return [*named, *events]


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """What an open stream has of one topic."""

    reader: Reader
    place: int

    def offer(self, events: Mapping[str, bytes]) -> None:
        self.reader.offer(self.place, events)


@dataclass(eq=False)
class TopicWatchers:
    """The watchers of one topic, the last events sent to them, and when the next are due."""

    topic: LiveTopic
    sent: Events
    watchers: set[Watcher] = field(default_factory=set)
    due_s: float = 0.0

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
    access_every_s : how often each stream asks whether its client may still read, in seconds
    cpu_s : the CPU time of the calling thread, in seconds
    """

    def __init__(
        self,
        *,
        ticks: Callable[[], AsyncGenerator[None]],
        head: Callable[[int], Events],
        most: int = MOST_WATCHERS,
        access_every_s: float = ACCESS_EVERY_S,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._access_every_s, self._cpu_s = access_every_s, cpu_s
        self._most = most
        self._ticks = ticks
        self._head = head
        self._watched: dict[str, TopicWatchers] = {}
        self._opening: dict[str, asyncio.Task[Events]] = {}
        self._errors: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        # One thread: database connections are per thread, and a topic is rendered once anyway.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")

    @property
    def n_watchers(self) -> int:
        return sum(len(group.watchers) for group in self._watched.values())

    async def current_events(self, topic: LiveTopic) -> Events:
        """Return a topic's current events, rendered once for simultaneous requests.

        Raises what the topic's context raises: an unknown name, an unavailable store.
        """
        if self.n_watchers >= self._most:
            raise TooManyStreamsError
        if topic.key in self._watched:
            return self._watched[topic.key].sent
        if topic.key not in self._opening:
            task = asyncio.create_task(self._render(topic.render))
            task.add_done_callback(lambda _: self._opening.pop(topic.key))
            self._opening[topic.key] = task
        return await asyncio.shield(self._opening[topic.key])

    async def stream(
        self,
        topics: Mapping[int, tuple[LiveTopic, Events]],
        *,
        refused: Collection[int] = (),
        may_read: Callable[[], bool] = lambda: True,
        packer: SharedGzip | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yield the events of topics and then their changes, until the client disconnects.

        ``topics`` and those that are ``refused`` are known by their places in the request.
        ``may_read`` is asked regularly, in the hub's thread; the stream ends when it is false.
        """
        pack = packer.add if packer else bytes
        # Of a single topic all events are.
        reader = Reader(at=None if refused or len(topics) > 1 else min(topics))
        joined = [(self._group(*topics[at]), Watcher(reader, at)) for at in topics]
        for group, watcher in joined:
            group.watchers.add(watcher)
            watcher.offer(group.sent)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        now_s = asyncio.get_running_loop().time
        ends_at, checked_at = now_s() + LIFE_S, now_s()
        try:
            for place in refused:
                yield b"".join(map(pack, reader.of(place, [event("refused", "")])))
            for group, watcher in joined:
                parts = event("parts", " ".join(group.topic.topic.partials))
                yield b"".join(map(pack, reader.of(watcher.place, [parts])))
            while now_s() < ends_at:
                events = await reader.read()
                if now_s() - checked_at >= self._access_every_s:
                    if not await self._allows(may_read):
                        break
                    checked_at = now_s()
                yield b"".join(map(pack, events))
            if packer:
                yield packer.end()
        finally:
            for group, watcher in joined:
                group.watchers.discard(watcher)
                if not group.watchers:
                    self._watched.pop(group.topic.key, None)
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    def _group(self, topic: LiveTopic, sent: Events) -> TopicWatchers:
        state = {name: data for name, data in sent.items() if name != "points"}
        return self._watched.setdefault(topic.key, TopicWatchers(topic, state))

    async def _allows(self, may_read: Callable[[], bool]) -> bool:
        try:
            return await self._render(may_read)
        except DatabaseError:
            # The header says that the database does not respond; the next check may succeed.
            return True

    async def _run(self) -> None:
        async with contextlib.aclosing(self._ticks()) as ticks:
            async for _ in ticks:
                await self.refresh()

    async def refresh(self) -> None:
        """Render every watched topic once and send the changes to its watchers."""
        now_s = asyncio.get_running_loop().time
        head_at_s = -HEAD_EVERY_S
        for group in tuple(self._watched.values()):
            if now_s() - head_at_s >= HEAD_EVERY_S:
                # The header comes first, and again if rendering many topics takes long.
                head = await self._attempt(lambda: self._head(self.n_watchers), "head")
                for each in tuple(self._watched.values()):
                    each.send(head)
                head_at_s = now_s()
            if now_s() < group.due_s:
                continue
            spent = [0.0]
            render = partial(self._timed, group.topic.render, spent)
            group.send(await self._attempt(render, group.topic.key))
            group.due_s = now_s() + spent[0] * (1 / MOST_OF_CORE - 1)

    def _timed(self, render: Callable[[], Events], spent: list[float]) -> Events:
        """Render, and note the CPU seconds that it took, also if it fails."""
        began_s = self._cpu_s()
        try:
            return render()
        finally:
            spent[0] = self._cpu_s() - began_s

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

    async def _render(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, _connected, work)


def _connected(work: Callable[[], T]) -> T:
    """Do the work without expired or broken database connections."""
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


STALE_AFTER_S = 5.0
# The shards of a tick arrive shortly after each other: wait for them and render once.
GATHER_S = 0.05
# The least time between two renderings.
REST_S = 0.4
# Without a message from Redis, render every second.
FALLBACK_S = 1.0

_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    """Stream the topics that are asked for: `overview`, `alerts?state=open`.

    One that cannot be followed ends the request if it is the only one. Of several it is sent as
    `refused`, so that no tab takes the stream from the others.
    """
    topics: dict[int, tuple[LiveTopic, Events]] = {}
    refused: dict[int, Exception] = {}
    for place, asked in enumerate(request.GET.getlist("topic") or [""]):
        try:
            name, _, query = asked.partition("?")
            filters = {key: value for key, value in QueryDict(query).dict().items() if value}
            topic = live_topic(TOPICS, name, filters)
            role = topic.topic.role
            if role != ROLES[0] and not await sync_to_async(has_role)(request.user, role):
                raise PermissionDenied(f"This needs the role {role}.")
            topics[place] = topic, await hub().current_events(topic)
        except REFUSALS as error:
            if not isinstance(error, UnknownTopicError | PermissionDenied | Http404):
                logger.warning("No stream for %s: %r", asked, error)
            refused[place] = error
    if not topics:
        return refusal(next(iter(refused.values())))
    role = max((topic.topic.role for topic, _ in topics.values()), key=ROLES.index)
    packer = SharedGzip() if accepts_gzip(request) else None
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}
    return StreamingHttpResponse(
        hub().stream(
            topics,
            refused=refused,
            may_read=lambda: may_still_read(request, role),
            packer=packer,
        ),
        content_type="text/event-stream",
        headers=headers | ({"Content-Encoding": "gzip"} if packer else {}),
    )


def refusal(error: Exception) -> HttpResponse:
    """Answer a request of which no topic can be followed; the browser tries again later."""
    if isinstance(error, UnknownTopicError):
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    if isinstance(error, TooManyStreamsError):
        return HttpResponse("Too many open streams.", status=503, headers={"Retry-After": "10"})
    if isinstance(error, DatabaseError | RedisError):
        return HttpResponse("The store is unavailable.", status=503, headers={"Retry-After": "2"})
    raise error


def hub() -> Hub:
    new = Hub(ticks=ticks, head=head, access_every_s=ACCESS_EVERY_S)
    return _hubs.setdefault(asyncio.get_running_loop(), new)


async def ticks() -> AsyncGenerator[None]:
    """Yield soon after each tick, and every second without one."""
    async with AsyncRedis.from_url(settings.REDIS_URL, socket_connect_timeout=1) as redis:
        while True:
            try:
                async with redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(TICKS)
                    while True:
                        # A tick or the time limit; further messages of the tick are dropped.
                        if await channel.get_message(timeout=FALLBACK_S) is not None:
                            await asyncio.sleep(GATHER_S)
                            while await channel.get_message(timeout=0):
                                pass
                        yield
                        await asyncio.sleep(REST_S)
            except (RedisError, OSError):
                await asyncio.sleep(FALLBACK_S)
                yield


def head(n_watchers: int) -> Events:
    """Render the header of every page: the age of the data, and unacknowledged alerts."""
    now_s, process = round(time.time(), 1), f"{socket.gethostname()}:{os.getpid()}"
    state: dict[str, Any]
    try:
        hot = hot_store()
        hot.gauge_share("stream_clients", n_watchers, by=process, now_s=now_s)
        reported = (*hot.last_seen().values(), *map(int, reporting_nodes(hot).values()))
        tick = max(reported, default=None)
        firing = Alert.objects.open().unacknowledged().count()
        state = {"now": now_s, "tick": tick, "firing": firing, "why": ""}
        if tick is None or now_s - tick > STALE_AFTER_S:
            # Nodes are silent, or data arrive late.
            n_reporting, n_expected = reporting_now(hot, now_s=now_s)
            pause_s = own_pause_s(hot, now_s=now_s)
            if pause_s is not None:
                state["why"] = f"{OWN_PAUSE} for {duration(pause_s)}"
            elif n_reporting:
                state["reporting"] = [n_reporting, n_expected]
            elif is_starting(watching_s(hot, now_s=now_s), was_heard=tick is not None):
                state["why"] = "starting: no node has reported yet"
            else:
                state["why"] = "no nodes are reporting"
    except RedisError:
        state = {"now": now_s, "tick": None, "why": "Redis is not responding"}
    except DatabaseError:
        state = {"now": now_s, "tick": None, "why": "the database is not responding"}
    return {"tick": event("tick", as_json(state))}
