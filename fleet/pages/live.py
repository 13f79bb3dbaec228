"""The stream of one tab: `/live?topic=…`, server-sent events from the hub."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from fleet.access.roles import ROLES, has_role
from fleet.models import Alert
from fleet.pages.hub import CrowdedError, Hub
from fleet.pages.topics import (
    TOPICS,
    Events,
    LiveTopic,
    UnknownTopicError,
    as_json,
    event,
    live_topic,
)
from fleet.runs.state import reporting_nodes
from fleet.runs.summaries import reporting_now
from telemetry.store.hot import TICKS, HotStore, open_store

logger = logging.getLogger(__name__)

STALE_AFTER_S = 5.0
# A tick's shards arrive within a moment of each other: wait for them, and draw once.
GATHER_S = 0.05
# Between two drawings at least so long; a tick that comes meanwhile is drawn right after.
REST_S = 0.4
# Without word from Redis (or without Redis) look every second all the same.
FALLBACK_S = 1.0

_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    """Stream what changes on one page; a topic that does not exist is refused."""
    filters = {
        name: value for name, value in request.GET.dict().items() if name != "topic" and value
    }
    try:
        topic = live_topic(TOPICS, request.GET.get("topic", ""), filters)
        await _let_in(request, topic)
        told = await hub().glance(topic)
    except UnknownTopicError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    except CrowdedError:
        return HttpResponse("Too many open streams.", status=503, headers={"Retry-After": "10"})
    except (DatabaseError, RedisError) as error:
        # The page says "reconnecting" and the browser comes back by itself.
        logger.warning("No stream for %s: %r", topic.key, error)
        return HttpResponse("The store is unavailable.", status=503, headers={"Retry-After": "2"})
    return StreamingHttpResponse(
        hub().stream(topic, told),
        content_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _let_in(request: HttpRequest, topic: LiveTopic) -> None:
    """Refuse whoever may not read the page either; most pages are everybody's."""
    role = topic.topic.role
    if role != ROLES[0] and not await sync_to_async(has_role)(request.user, role):
        raise PermissionDenied(f"This needs the role {role}.")


def hub() -> Hub:
    """Return the hub of this process's event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub(ticks=ticks, head=head))


async def ticks() -> AsyncGenerator[None]:
    """Yield soon after each tick, and every second where Redis does not tell of any."""
    async with AsyncRedis.from_url(settings.REDIS_URL, socket_connect_timeout=1) as redis:
        while True:
            try:
                async with redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(TICKS)
                    while True:
                        await _tick(channel)
                        yield
                        await asyncio.sleep(REST_S)
            except (RedisError, OSError):
                await asyncio.sleep(FALLBACK_S)
                yield


async def _tick(channel: PubSub) -> None:
    """Wait for word of a tick, or until it is time anyway; then take in all that was said."""
    if await channel.get_message(timeout=FALLBACK_S) is None:
        return
    await asyncio.sleep(GATHER_S)
    while await channel.get_message(timeout=0):
        pass


def head(n_watchers: int) -> Events:
    """Tell every page how fresh the data are and how many alerts nobody has."""
    return {"tick": event("tick", as_json(_freshness(n_watchers)))}


def _process() -> str:
    """Name this process among all that serve pages."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _freshness(n_watchers: int) -> dict[str, Any]:
    now_s = round(time.time(), 1)
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        hot.gauge_share("stream_clients", n_watchers, by=_process(), now_s=now_s)
        heard = (*hot.last_seen().values(), *map(int, reporting_nodes(hot).values()))
        tick = max(heard, default=None)
        firing = Alert.objects.open().unacknowledged().count()
        is_fresh = tick is not None and now_s - tick <= STALE_AFTER_S
        told = {"why": ""} if is_fresh else _reporting(hot, now_s)
    except RedisError:
        return {"now": now_s, "tick": None, "why": "Redis is not responding"}
    except DatabaseError:
        return {"now": now_s, "tick": None, "why": "the database is not responding"}
    return {"now": now_s, "tick": tick, "firing": firing, **told}


def _reporting(hot: HotStore, now_s: float) -> dict[str, Any]:
    """Say of data that are old whether nodes are silent, or data only come late."""
    n_reporting, n_expected = reporting_now(hot, now_s=now_s)
    if not n_reporting:
        return {"why": "no nodes are reporting"}
    return {"why": "", "reporting": [n_reporting, n_expected]}
