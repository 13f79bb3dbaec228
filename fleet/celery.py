"""The Celery app: workers simulate, watch and roll up; one scheduler of several asks them to."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.beat import Scheduler as CeleryScheduler
from celery.signals import (
    beat_init,
    task_postrun,
    task_prerun,
    worker_init,
    worker_ready,
    worker_shutdown,
)
from celery.worker.consumer import Consumer as CeleryConsumer
from django.conf import settings
from redis.exceptions import RedisError

from fleet.ops.liveness import (
    BROKER_AWAY_S,
    NAME,
    PROOF_EVERY_S,
    TABLE,
    TASK_S,
    Pulse,
    impatient_redis,
    program_name,
)

log = logging.getLogger(__name__)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
# System checks import every page and the API, which no worker needs: half of its start.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("trnwatch")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["telemetry", "fleet"])


_pulses: list[Pulse] = []
_timers: list[Any] = []


def beat(limit_s: float | None = None) -> None:
    """Prove that this worker or scheduler works; nothing elsewhere."""
    for pulse in _pulses:
        pulse.beat(limit_s=limit_s)


@worker_init.connect
def start_worker(**_: Any) -> None:
    _pulses[:] = [Pulse("worker", redis_url=settings.REDIS_URL)]


@worker_ready.connect
def beat_between_tasks(sender: Any, **_: Any) -> None:
    """Let the loop that takes tasks prove itself; each new connection is reported here."""
    beat()
    for timer in _timers:
        timer.cancel()
    _timers[:] = [sender.timer.call_repeatedly(PROOF_EVERY_S, beat)]


@task_prerun.connect
def begin_task(sender: Any, **_: Any) -> None:
    beat(TASK_S.get(sender.name, TABLE["worker"].silent_s))


@task_postrun.connect
def end_task(**_: Any) -> None:
    beat()


@worker_shutdown.connect
def end_pulses(**_: Any) -> None:
    for pulse in _pulses:
        pulse.end()


class Consumer(CeleryConsumer):
    """A worker that waits for the broker, however long, does not hang."""

    def ensure_connected(self, conn: Any) -> Any:
        beat(BROKER_AWAY_S)
        return super().ensure_connected(conn)


# A scheduler that has not worked for so long is replaced by another: then the first message of
# `watch_fleet` that it did not send would have expired, too.
LEASE, LEASE_S = "beat:lease", 5.0
# Redis counts the time, so the clocks of hosts may differ. A command that arrives late, or twice,
# takes nothing from another scheduler.
TAKE = """
local holder = redis.call('GET', KEYS[1]) or ARGV[1]
if holder == ARGV[1] then redis.call('SET', KEYS[1], holder, 'PX', ARGV[2]) end
return holder
"""
LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def self_or_successor() -> str:
    """Return what tells this scheduler from others of its name.

    A supervisor starts the next program of a name once the last has ended: it goes on at once.
    """
    if os.environ.get(NAME) and BOOT_ID.exists():
        return BOOT_ID.read_text().strip()
    return uuid4().hex


class Lease:
    """One scheduler of several holds it, and the others cannot while it renews it."""

    def __init__(self, broker_url: str) -> None:
        redis = impatient_redis(broker_url)
        self._take, self._leave = redis.register_script(TAKE), redis.register_script(LEAVE)
        self._me = f"{program_name('beat')}/{self_or_successor()}"
        self._holder = self._me

    def hold(self) -> bool:
        """Take or renew it; return whether this scheduler has it. Without Redis none has."""
        why = ""
        try:
            holder = self._take(keys=[LEASE], args=[self._me, int(LEASE_S * 1000)]).decode()
        except RedisError as error:
            holder, why = "", f"Redis does not answer: {error}"
        if holder != self._holder:
            log.warning("%s: tasks are sent by %s. %s", self._me, holder or "no scheduler", why)
            self._holder = holder
        return bool(holder == self._me)

    def end(self) -> None:
        """Let another scheduler take it at once."""
        with suppress(RedisError):
            self._leave(keys=[LEASE], args=[self._me])


class Scheduler(CeleryScheduler):
    """Sends tasks while it holds the lease, and proves each of its turns.

    A turn sends one message at most, and asks for the lease before.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lease = Lease(self.app.conf.broker_url)

    def tick(self, *arguments: Any, **options: Any) -> Any:
        wait_s = super().tick(*arguments, **options) if self._lease.hold() else PROOF_EVERY_S
        beat()
        return wait_s

    def close(self) -> None:
        self._lease.end()
        end_pulses()
        super().close()

    def _ensure_connected(self) -> Any:
        beat(BROKER_AWAY_S)
        return super()._ensure_connected()  # type: ignore[misc]


@beat_init.connect
def start_scheduler(**_: Any) -> None:
    _pulses[:] = [Pulse("beat", redis_url=settings.REDIS_URL)]
