"""Liveness of this process, and readiness of the service."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from telemetry.long_term.writer import streams
from telemetry.store.hot import hot_store

TICK_AFTER_S = 15.0
# Below this much room the database and Redis may soon refuse to write.
DISK_RESERVE_BYTES = 100_000_000


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer that the process runs, without other services."""
    return JsonResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if database, Redis, disk and ticks are healthy, else 503 and what is not."""
    checks = {
        "database": _checked(_database),
        "redis": _checked(_redis),
        "disk": _checked(_disk),
        "ticks": _checked(_ticks),
        "long_term": _checked(_long_term),
    }
    is_ready = all(check["ok"] for check in checks.values())
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "checks": checks},
        status=200 if is_ready else 503,
        headers={"Cache-Control": "no-store"},
    )


class NotReadyError(Exception):
    """Something answers, but not well enough."""


def _checked(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"ok": True, **check()}
    except NotReadyError as error:
        return {"ok": False, "why": str(error)}
    except (DatabaseError, RedisError) as error:
        return {"ok": False, "why": type(error).__name__}


def _database() -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return {"vendor": connection.vendor}


def _redis() -> dict[str, Any]:
    return {"bytes_used": hot_store().bytes_used()}


def _disk() -> dict[str, Any]:
    """Check that the database's file and our own Redis' file can be written, with room to spare.

    Where both are servers elsewhere, nothing is kept on this disk.
    """
    folders = {Path(settings.DATA_DIR)} if settings.OWN_REDIS else set()
    if connection.vendor == "sqlite":
        folders.add(Path(str(connection.settings_dict["NAME"])).parent)
    free = []
    for folder in folders:
        try:
            free.append(shutil.disk_usage(folder).free)
            if free[-1] < DISK_RESERVE_BYTES:
                left, reserve = free[-1] // 1_000_000, DISK_RESERVE_BYTES // 1_000_000
                raise NotReadyError(
                    f"the disk of {folder} has {left} MB left, below the reserve of {reserve} MB"
                )
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
        except OSError as error:
            raise NotReadyError(f"{folder} cannot be written: {error.strerror}") from error
    return {"free_bytes": min(free)} if free else {}


def _ticks() -> dict[str, Any]:
    """Check that a node reported recently; a fleet without nodes passes."""
    hot = hot_store()
    seen = hot.last_seen()
    if not seen:
        return {"nodes": 0}
    age_s = time.time() - max(seen.values())
    if age_s > TICK_AFTER_S:
        raise NotReadyError(f"the newest tick is {age_s:.0f} s old")
    return {"nodes": len(seen), "age_s": round(age_s, 1)}


def _long_term() -> dict[str, Any]:
    """Report the state of the long-term store; pages work without it."""
    now = timezone.now()
    return {
        row.stream: {
            "lag_s": round(now.timestamp() - row.second),
            "sent": row.n_sent,
            "dropped": row.n_dropped,
        }
        for row in streams()
    }
