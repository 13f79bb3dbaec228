"""Liveness of this process, and readiness of the service."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from fleet.ops.liveness import Register, late_in
from telemetry.store.hot import HotStore, open_store

TICK_AFTER_S = 15.0
# How long a check may take. Who asks waits for seconds, and has others to ask.
CHECK_WITHIN_S = 1.0
# Below this much room the database and Redis may soon refuse to write.
DISK_RESERVE_BYTES = 100_000_000


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer that the process runs, without other services."""
    return JsonResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if stores, disk, ticks and programs are healthy, else 503 and what is not."""
    checks = {"database": _checked(_database), "redis": _checked(_redis), "disk": _checked(_disk)}
    # A store that does not answer is not asked again: each question takes its whole time.
    is_there = checks["redis"]["ok"]
    needs_redis = {"ticks": _ticks, "programs": _programs}
    if settings.REDIS_OTHERS:
        needs_redis["stores"] = _stores
    for name, check in needs_redis.items():
        checks[name] = _checked(check) if is_there else {"ok": False, "why": "needs redis"}
    is_ready = all(check["ok"] for check in checks.values())
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "checks": checks},
        status=200 if is_ready else 503,
        headers={"Cache-Control": "no-store"},
    )


class NotReadyError(Exception):
    """Something answers, but not well enough."""

    def __init__(self, why: str, **details: Any) -> None:
        super().__init__(why)
        self.details = details


class Inquiry:
    """A question that may never be answered; it is asked in a thread, and once at a time."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._thread: Thread | None = None
        self._began_s = 0.0
        self._errors: list[DatabaseError] = []

    def answer(self, *, within_s: float = CHECK_WITHIN_S) -> None:
        """Raise the error of the answer, or NotReadyError where none comes in time."""
        if self._thread is None or not self._thread.is_alive():
            self._errors, self._began_s = [], time.monotonic()
            self._thread = Thread(target=self._run, name="readyz", daemon=True)
            self._thread.start()
        thread, errors = self._thread, self._errors
        thread.join(within_s)
        if thread.is_alive():
            raise NotReadyError(f"no answer for {time.monotonic() - self._began_s:.0f} s")
        if errors:
            raise errors[0]

    def _run(self) -> None:
        errors = self._errors
        try:
            self._ask()
        except DatabaseError as error:
            errors.append(error)
        finally:
            connection.close()


def _select() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


DATABASE = Inquiry(_select)


def _impatient_store() -> HotStore:
    """Return a store that does not wait for a Redis that hangs."""
    return open_store(settings.REDIS_URL, *settings.REDIS_OTHERS, within_s=CHECK_WITHIN_S)


def _checked(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"ok": True, **check()}
    except NotReadyError as error:
        return {"ok": False, "why": str(error), **error.details}
    except (DatabaseError, RedisError) as error:
        return {"ok": False, "why": type(error).__name__}


def _database() -> dict[str, Any]:
    DATABASE.answer()
    return {"vendor": connection.vendor}


def _redis() -> dict[str, Any]:
    return {"bytes_used": _impatient_store().bytes_used()}


def _stores() -> dict[str, Any]:
    """Check that each of several stores answers."""
    now_s, missing = time.time(), _impatient_store().missing()
    away_s = {
        name: round(now_s - gap.since_s) for name, gap in missing.items() if gap.back_s is None
    }
    if away_s:
        raise NotReadyError(f"do not answer: {', '.join(away_s)}", away_s=away_s)
    return {"stores": 1 + len(settings.REDIS_OTHERS)}


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
    hot = _impatient_store()
    seen = hot.last_seen()
    if not seen:
        return {"nodes": 0}
    age_s = time.time() - max(seen.values())
    if age_s > TICK_AFTER_S:
        raise NotReadyError(f"the newest tick is {age_s:.0f} s old")
    return {"nodes": len(seen), "age_s": round(age_s, 1)}


def _programs() -> dict[str, Any]:
    """Check that every program that runs anywhere has proved in time that it works."""
    overdue_s = Register(settings.REDIS_URL).overdue_s(now_s=time.time())
    if late := late_in(overdue_s):
        raise NotReadyError(f"overdue: {', '.join(late)}", late_s=late)
    return {"running": list(overdue_s)}
