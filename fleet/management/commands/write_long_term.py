"""`manage.py write_long_term`: send exported samples to the long-term store."""

import logging
import signal
from datetime import UTC, datetime
from threading import Event

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, close_old_connections, connection

from fleet.ops.liveness import Pulse
from telemetry.long_term.remote_write import Endpoint, StoppedError, WriteClient
from telemetry.long_term.writer import MINUTES, Position, Writer
from telemetry.store.hot import StoreUnavailable, hot_store

log = logging.getLogger(__name__)

PAUSE_S = 1.0
RETRY_AFTER_S = 2.0


class Command(BaseCommand):
    help = "Send samples to LONG_TERM_WRITE_URL until SIGTERM; run one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--minutes-since",
            metavar="DAY",
            help="send minutes again from this date or time on (UTC, ISO 8601)",
        )
        parser.add_argument("--once", action="store_true", help="stop when everything due is sent")

    def handle(self, *, minutes_since: str | None, once: bool, **_: object) -> None:
        stopping = Event()
        since = _moment(minutes_since) if minutes_since else None
        if not settings.LONG_TERM_WRITE_URL:
            raise CommandError("LONG_TERM_WRITE_URL is not set. Set the address of the store.")
        try:
            endpoint = Endpoint(
                settings.LONG_TERM_WRITE_URL, settings.LONG_TERM_TOKEN_FILE, keep_alive=True
            )
            hot = hot_store()
            client, every_s = WriteClient(endpoint, stopping), settings.LONG_TERM_EVERY_S
            writer = Writer(hot, client, every_s=every_s)
        except ValueError as error:
            raise CommandError(f"LONG_TERM: {error}") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        if since:
            Position(MINUTES).rewind(int(since.timestamp()) // 60 * 60, now=datetime.now(UTC))
        pulse = Pulse("long-term", redis_url=settings.REDIS_URL)
        while not stopping.is_set():
            pulse.beat()
            has_more = _write_next(writer, stopping)
            if once and not has_more:
                break
            if not has_more:
                stopping.wait(PAUSE_S)
        pulse.end()
        writer.client.close()
        connection.close()


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"--minutes-since: {text!r} is not a date; give 2026-11-21") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _write_next(writer: Writer, stopping: Event) -> bool:
    """Send the next samples; return whether there are more. Log errors and try again."""
    try:
        close_old_connections()
        return writer.turn()
    except StoppedError:
        return False
    except (DatabaseError, StoreUnavailable) as error:
        log.warning("Cannot read samples: %s", str(error).strip())
        connection.close()
    except Exception:
        # One error must not stop all writing.
        log.exception("Writing to the long-term store failed")
    stopping.wait(RETRY_AFTER_S)
    return True
