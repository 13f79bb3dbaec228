"""The long-term store of this installation: how pages read it."""

import math

from django.conf import settings

from telemetry.long_term.history import LongTermHistory, open_history
from telemetry.units import DAY_S


def long_term_history() -> LongTermHistory | None:
    return open_history(settings.LONG_TERM_READ_URL, settings.LONG_TERM_TOKEN_FILE)


def history_s() -> float:
    """Return how far back pages reach, in seconds: infinite with a long-term store."""
    return math.inf if settings.LONG_TERM_READ_URL else settings.DURABLE_KEEP_DAYS * DAY_S
