"""The Celery app: workers simulate, watch and roll up."""

import os
from typing import Any

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

from fleet.ops.liveness import BROKER_AWAY_S, PROOF_EVERY_S, TABLE, TASK_S, Pulse

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
def end_worker(**_: Any) -> None:
    for pulse in _pulses:
        pulse.end()


class Consumer(CeleryConsumer):
    """A worker that waits for the broker, however long, does not hang."""

    def ensure_connected(self, conn: Any) -> Any:
        beat(BROKER_AWAY_S)
        return super().ensure_connected(conn)


class Scheduler(CeleryScheduler):
    """Proves each turn that it schedules."""

    def tick(self, *arguments: Any, **options: Any) -> Any:
        result = super().tick(*arguments, **options)
        beat()
        return result

    def _ensure_connected(self) -> Any:
        beat(BROKER_AWAY_S)
        return super()._ensure_connected()  # type: ignore[misc]


@beat_init.connect
def start_scheduler(**_: Any) -> None:
    _pulses[:] = [Pulse("beat", redis_url=settings.REDIS_URL)]
