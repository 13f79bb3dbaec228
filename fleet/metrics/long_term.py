"""The long-term store as this installation knows it: what it is told, and how it is asked."""

import math
from datetime import datetime

from django.conf import settings

from fleet.metrics.families import everything, neuron
from telemetry.exporter.hardware import HARDWARE
from telemetry.families import MetricFamily
from telemetry.long_term.history import LongTermHistory, open_history
from telemetry.store.hot import HotStore

DAY_S = 24 * 3600
# Of these the hot tier knows every second: they are sent from there, under their own time.
FROM_TICKS = frozenset(spec.name for spec in HARDWARE.values())


def figures(hot: HotStore, *, now: datetime) -> list[MetricFamily]:
    """Return every exported family that only this moment can tell, but for histograms.

    Those are made of steps, which the long-term store is told anyway.
    """
    ours = [
        family
        for family in everything(hot, now=now)
        if family.spec.name not in FROM_TICKS and family.spec.kind != "histogram"
    ]
    return ours if settings.LONG_TERM_OUR_NAMES_ONLY else [*ours, *neuron(hot, now=now)]


def long_term_history() -> LongTermHistory | None:
    """Return the way to older history; None where LONG_TERM_READ_URL names no store."""
    return open_history(settings.LONG_TERM_READ_URL, settings.LONG_TERM_TOKEN_FILE)


def history_s() -> float:
    """Return how far back pages can go: as the database keeps it, or as far as it may be asked."""
    return math.inf if settings.LONG_TERM_READ_URL else settings.DURABLE_KEEP_DAYS * DAY_S
