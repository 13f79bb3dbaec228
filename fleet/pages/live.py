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
from redis.exceptions import RedisError

from fleet.access.roles import ROLES, has_role
from fleet.models import Alert
from fleet.pages.hub import CrowdedError, Hub
from fleet.pages.topics import (
    TOPICS,
    Events,
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
# The shards of a tick arrive shortly after each other: wait for them and render once.
GATHER_S = 0.05
# The least time between two renderings.
REST_S = 0.4
# Without a message from Redis, render every second.
FALLBACK_S = 1.0

_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


@require_GET
async def live(request: HttpRequest) -> HttpResponseBase:
    filters = {
        name: value for name, value in request.GET.dict().items() if name != "topic" and value
    }
    try:
        topic = live_topic(TOPICS, request.GET.get("topic", ""), filters)
        role = topic.topic.role
        if role != ROLES[0] and not await sync_to_async(has_role)(request.user, role):
            raise PermissionDenied(f"This needs the role {role}.")
        events = await hub().glance(topic)
    except UnknownTopicError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    except CrowdedError:
        return HttpResponse("Too many open streams.", status=503, headers={"Retry-After": "10"})
    except (DatabaseError, RedisError) as error:
        # The page shows "reconnecting", and the browser reconnects.
        logger.warning("No stream for %s: %r", topic.key, error)
        return HttpResponse("The store is unavailable.", status=503, headers={"Retry-After": "2"})
    return StreamingHttpResponse(
        hub().stream(topic, events),
        content_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def hub() -> Hub:
    return _hubs.setdefault(asyncio.get_running_loop(), Hub(ticks=ticks, head=head))


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
    return {"tick": event("tick", as_json(_freshness(n_watchers)))}


def _freshness(n_watchers: int) -> dict[str, Any]:
    now_s, process = round(time.time(), 1), f"{socket.gethostname()}:{os.getpid()}"
    try:
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        hot.gauge_share("stream_clients", n_watchers, by=process, now_s=now_s)
        reported = (*hot.last_seen().values(), *map(int, reporting_nodes(hot).values()))
        tick = max(reported, default=None)
        firing = Alert.objects.open().unacknowledged().count()
        is_fresh = tick is not None and now_s - tick <= STALE_AFTER_S
        state = {"why": ""} if is_fresh else _reporting(hot, now_s)
    except RedisError:
        return {"now": now_s, "tick": None, "why": "Redis is not responding"}
    except DatabaseError:
        return {"now": now_s, "tick": None, "why": "the database is not responding"}
    return {"now": now_s, "tick": tick, "firing": firing, **state}


def _reporting(hot: HotStore, now_s: float) -> dict[str, Any]:
    """Return, for old data, whether nodes are silent or data arrive late."""
    n_reporting, n_expected = reporting_now(hot, now_s=now_s)
    if not n_reporting:
        return {"why": "no nodes are reporting"}
    return {"why": "", "reporting": [n_reporting, n_expected]}
