"""The long-term store of this installation: what it is sent from here, and how pages read it."""

import math
from datetime import datetime

from django.conf import settings
from prometheus_client import Metric

from fleet.metrics.collectors import NeuronCollector, fleet_registry
from telemetry.exporter.hardware import HARDWARE
from telemetry.long_term.history import LongTermHistory, open_history
from telemetry.store.hot import HotStore

DAY_S = 24 * 3600
# The hot tier has every second of these: the writer sends them from there, with their own time.
SENT_FROM_HOT = frozenset(spec.family_name for spec in HARDWARE.values())


def figures(hot: HotStore, *, now: datetime) -> list[Metric]:
    """Collect the exported families that are known only now.

    Histograms are left out: they are made of steps, which the long-term store gets anyway.
    """
    ours = [
        family
        for family in fleet_registry(hot, now=now).collect()
        if family.name not in SENT_FROM_HOT and family.type != "histogram"
    ]
    if settings.LONG_TERM_OUR_NAMES_ONLY:
        return ours
    return [*ours, *NeuronCollector(hot, now=now).collect()]


def long_term_history() -> LongTermHistory | None:
    return open_history(settings.LONG_TERM_READ_URL, settings.LONG_TERM_TOKEN_FILE)


def history_s() -> float:
    """Return how far back pages reach, in seconds: infinite with a long-term store."""
    return math.inf if settings.LONG_TERM_READ_URL else settings.DURABLE_KEEP_DAYS * DAY_S
