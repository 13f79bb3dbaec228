"""`manage.py send_notifications`: sends the outbox, and keeps the dead man's switch."""

import logging
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event, Thread

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, close_old_connections, connection

from fleet.alerts.watchdog import WatchMonitor, last_look
from fleet.notifications.delivery import DeliveryClient, Refresher, RetryPolicy
from fleet.notifications.http_client import Allowed, HttpClient
from fleet.notifications.sender import Heartbeat, NotificationSender, PeriodicJobs

log = logging.getLogger(__name__)

AFTER_TROUBLE_S = 1.0
STOP_WITHIN_S = 3.0
TIMES = {
    "pause": (0.25, "between looks into the outbox"),
    "lease": (20.0, "how long a claim lasts if its sender dies"),
    "timeout": (10.0, "how long a receiver may take to answer"),
    "first-retry": (2.0, "until the first retry; each later one waits twice as long"),
    "longest-retry": (60.0, "between later retries"),
    "give-up": (12 * 3600.0, "until a notification that fails is given up"),
    "refresh": (60.0, "between re-sendings to Alertmanager of what lasts"),
    "chores": (5.0, "between reminders, looks at the watching, and signs of life"),
    "blind-after": (60.0, "without a look at the fleet until monitoring_blind is raised"),
}


def now() -> datetime:
    """Return this moment."""
    return datetime.now(UTC)


class Command(BaseCommand):
    """Send what the outbox holds, for ever; needs the database and nothing else."""

    help = "Send notifications until SIGTERM; several may run side by side."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Offer the times, in seconds."""
        for name, (default, about) in TIMES.items():
            parser.add_argument(
                f"--{name}-s", type=float, default=default, help=f"seconds {about} ({default:g})"
            )

    def handle(self, **times: float) -> None:
        """Send, and run periodic checks, until stopped."""
        told = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: told.set())
        door = HttpClient(Allowed.of(settings.NOTIFY_ALLOW), timeout_s=times["timeout_s"])
        sender = _sender(door, times)
        chores = _chores(sender.name, door, times)
        beside = Thread(
            target=_until,
            args=(told, told.wait, times["chores_s"], lambda: chores.do(now=now())),
            daemon=True,
        )
        beside.start()
        _until(told, sender.wait, times["pause_s"], sender.turn)
        sender.stop(within_s=STOP_WITHIN_S)


def _until(
    told: Event,
    wait: Callable[[float], object],
    pause_s: float,
    work: Callable[[], object],
) -> None:
    """Work again and again; without a database, try again a little later."""
    while not told.is_set():
        try:
            close_old_connections()
            work()
        except DatabaseError as error:
            log.warning("The database does not answer: %s", str(error).strip())
            connection.close()
            told.wait(AFTER_TROUBLE_S)
        except Exception:
            # One bad turn must not end all sending; it is said, and tried again.
            log.exception("a turn failed")
            told.wait(AFTER_TROUBLE_S)
        wait(pause_s)
    connection.close()


def _sender(door: HttpClient, times: dict[str, float]) -> NotificationSender:
    return NotificationSender(
        DeliveryClient(door, base_url=settings.BASE_URL),
        clock=now,
        patience=RetryPolicy(
            first_s=times["first_retry_s"],
            longest_s=times["longest_retry_s"],
            give_up_after=timedelta(seconds=times["give_up_s"]),
        ),
        lease=timedelta(seconds=times["lease_s"]),
        refresher=Refresher(every=timedelta(seconds=times["refresh_s"])),
    )


def _chores(name: str, door: HttpClient, times: dict[str, float]) -> PeriodicJobs:
    vigil = WatchMonitor(last_look(settings.REDIS_URL), blind_after_s=times["blind_after_s"])
    heartbeat = Heartbeat(
        settings.HEARTBEAT_URL,
        timedelta(seconds=settings.HEARTBEAT_EVERY_S),
        door,
        settings.BASE_URL,
    )
    return PeriodicJobs(
        name,
        started_at=now(),
        keep_vigil=lambda at: vigil.keep(now=at),
        heartbeat=heartbeat,
        keep_days=settings.DURABLE_KEEP_DAYS,
    )
