"""`manage.py write_long_term`: sends everything exported to the long-term store, for ever."""

import logging
import signal
from datetime import UTC, datetime
from threading import Event

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, close_old_connections, connection

from telemetry.long_term.remote_write import Endpoint, StoppedError, WriteClient
from telemetry.long_term.writer import MINUTES, Position, Writer
from telemetry.store.hot import StoreUnavailable, open_store

log = logging.getLogger(__name__)

PAUSE_S = 1.0
AFTER_TROUBLE_S = 2.0


class Command(BaseCommand):
    """Write to LONG_TERM_WRITE_URL what hot and durable tier gain."""

    help = "Send samples to LONG_TERM_WRITE_URL until SIGTERM; one such program is enough."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Offer to send once more what the durable tier has."""
        parser.add_argument(
            "--minutes-since",
            metavar="DAY",
            help="begin with the minutes of this day or moment (UTC, ISO 8601), then go on",
        )
        parser.add_argument(
            "--once", action="store_true", help="end when everything that is due was sent"
        )

    def handle(self, *, minutes_since: str | None, once: bool, **_: object) -> None:
        """Write until stopped."""
        stopping = Event()
        since = _moment(minutes_since) if minutes_since else None
        writer = _writer(stopping)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        if since:
            Position(MINUTES).rewind(int(since.timestamp()) // 60 * 60, now=datetime.now(UTC))
        while not stopping.is_set():
            has_more = _turn(writer, stopping)
            if once and not has_more:
                break
            if not has_more:
                stopping.wait(PAUSE_S)
        writer.client.close()
        connection.close()


def _writer(stopping: Event) -> Writer:
    if not settings.LONG_TERM_WRITE_URL:
        raise CommandError("LONG_TERM_WRITE_URL is not set: there is nowhere to write to.")
    try:
        endpoint = Endpoint(
            settings.LONG_TERM_WRITE_URL, settings.LONG_TERM_TOKEN_FILE, keep_alive=True
        )
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        return Writer(hot, WriteClient(endpoint, stopping), every_s=settings.LONG_TERM_EVERY_S)
    except ValueError as error:
        raise CommandError(f"LONG_TERM: {error}") from error


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"--minutes-since: {text!r} is no day; give 2026-11-21") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _turn(writer: Writer, stopping: Event) -> bool:
    """Deliver the next slices; without Redis or the database, try again a little later."""
    try:
        close_old_connections()
        return writer.turn()
    except StoppedError:
        return False
    except (DatabaseError, StoreUnavailable) as error:
        log.warning("What is to be sent cannot be read: %s", str(error).strip())
        connection.close()
    except Exception:
        # One bad turn must not end all writing; it is said, and tried again.
        log.exception("a turn failed")
    stopping.wait(AFTER_TROUBLE_S)
    return True
