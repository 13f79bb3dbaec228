"""`manage.py send_notifications`: send the outbox and heartbeats, check that monitoring runs."""

import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, close_old_connections, connection

from fleet.alerts.events import notify_newcomers
from fleet.alerts.watch_monitor import WatchMonitor, last_evaluation, programs
from fleet.charts.image import alert_image
from fleet.models import Alert, SenderHeartbeat
from fleet.notifications.delivery import (
    LONGEST_ERROR,
    DeliveryClient,
    Heartbeat,
    NotificationSender,
    Refresher,
    RetryPolicy,
    delete_old,
    remind,
)
from fleet.notifications.http_client import Allowed, HttpClient
from fleet.ops.liveness import Pulse
from telemetry.store.hot import open_store

log = logging.getLogger(__name__)

PAUSE_AFTER_ERROR_S = 1.0
STOP_WITHIN_S = 3.0
TIMES = {
    "pause": (0.25, "between checks of the outbox"),
    "lease": (20.0, "how long a claim lasts if its sender dies"),
    "timeout": (10.0, "how long a receiver may take to answer"),
    "first-retry": (2.0, "until the first retry; each later one waits twice as long"),
    "longest-retry": (60.0, "between later retries"),
    "give-up": (12 * 3600.0, "until a notification that fails is given up"),
    "refresh": (60.0, "between repeats of open alerts to Alertmanager"),
    "chores": (5.0, "between reminders, checks of monitoring, and heartbeats"),
    "blind-after": (60.0, "without an evaluation until monitoring_blind is raised"),
}


def now() -> datetime:
    return datetime.now(UTC)


DELETE_EVERY = timedelta(hours=1)


@dataclass
class PeriodicJobs:
    """What a sender does every few seconds besides sending."""

    name: str
    started_at: datetime
    check_evaluation: Callable[[datetime], bool]
    heartbeat: Heartbeat
    keep_days: int
    _deleted_at: datetime | None = None

    def run(self, *, now: datetime) -> None:
        is_watched = self.check_evaluation(now)
        if is_watched:
            self.heartbeat.beat(now=now)
        SenderHeartbeat.objects.update_or_create(
            name=self.name,
            defaults={
                "started_at": self.started_at,
                "seen_at": now,
                "is_watched": is_watched,
                "beat_at": self.heartbeat.beat_at,
                "beat_error": self.heartbeat.error[:LONGEST_ERROR],
            },
        )
        notify_newcomers(now=now)
        remind(now=now)
        if self._deleted_at is None or now - self._deleted_at >= DELETE_EVERY:
            delete_old(before=now - timedelta(days=self.keep_days))
            SenderHeartbeat.objects.filter(seen_at__lt=now - DELETE_EVERY).delete()
            self._deleted_at = now


class Command(BaseCommand):
    help = "Send notifications until SIGTERM; several may run in parallel."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        for name, (default, about) in TIMES.items():
            parser.add_argument(
                f"--{name}-s", type=float, default=default, help=f"seconds {about} ({default:g})"
            )

    def handle(self, **times: float) -> None:
        stopping = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        client = HttpClient(Allowed.of(settings.NOTIFY_ALLOW), timeout_s=times["timeout_s"])
        sender = _sender(client, times)
        url = settings.REDIS_URL
        monitor = WatchMonitor(
            last_evaluation(url), programs(url), blind_after_s=times["blind_after_s"]
        )
        heartbeat = Heartbeat(
            settings.HEARTBEAT_URL,
            timedelta(seconds=settings.HEARTBEAT_EVERY_S),
            client,
            settings.BASE_URL,
        )
        jobs = PeriodicJobs(
            sender.name,
            started_at=now(),
            check_evaluation=lambda at: monitor.check(now=at),
            heartbeat=heartbeat,
            keep_days=settings.DURABLE_KEEP_DAYS,
        )
        pulse = Pulse("sender", parts=("outbox", "chores"), redis_url=settings.REDIS_URL)

        def loop(
            part: str, wait: Callable[[float], object], pause_s: float, work: Callable[[], object]
        ) -> None:
            # A turn that fails is one too: the outage has its own message.
            _until(stopping, wait, pause_s, work, lambda: pulse.beat(part))

        background = Thread(
            target=loop,
            args=("chores", stopping.wait, times["chores_s"], lambda: jobs.run(now=now())),
            daemon=True,
        )
        background.start()
        loop("outbox", sender.wait, times["pause_s"], sender.turn)
        sender.stop(within_s=STOP_WITHIN_S)
        pulse.end()


def _until(
    stopping: Event,
    wait: Callable[[float], object],
    pause_s: float,
    work: Callable[[], object],
    prove: Callable[[], None],
) -> None:
    """Repeat work until stopped, and prove each turn; log errors and try again."""
    while not stopping.is_set():
        try:
            close_old_connections()
            work()
        except DatabaseError as error:
            log.warning("The database does not answer: %s", str(error).strip())
            connection.close()
            stopping.wait(PAUSE_AFTER_ERROR_S)
        except Exception:
            # One error must not stop all sending.
            log.exception("Sending notifications failed")
            stopping.wait(PAUSE_AFTER_ERROR_S)
        prove()
        wait(pause_s)
    connection.close()


def _draw(alert: Alert, at: datetime) -> bytes | None:
    # Within the lease: a notification does not wait for Redis.
    urls, keep_s = (settings.REDIS_URL, *settings.REDIS_OTHERS), settings.HOT_KEEP_S
    source = open_store(*urls, keep_s=keep_s, within_s=2.0)
    return alert_image(source, alert, at=at, now=at)


def _sender(client: HttpClient, times: dict[str, float]) -> NotificationSender:
    return NotificationSender(
        DeliveryClient(client, base_url=settings.BASE_URL, draw=_draw),
        clock=now,
        retry_policy=RetryPolicy(
            first_s=times["first_retry_s"],
            longest_s=times["longest_retry_s"],
            give_up_after=timedelta(seconds=times["give_up_s"]),
        ),
        lease=timedelta(seconds=times["lease_s"]),
        refresher=Refresher(every=timedelta(seconds=times["refresh_s"])),
    )
