"""What Prometheus may know of writing to the long-term store: lag, sent, refused, tried again."""

from collections.abc import Callable, Mapping
from datetime import datetime

from telemetry.families import Family, Spec
from telemetry.longterm.positions import streams
from telemetry.store.models import LongTermPosition

BY_STREAM = ("stream",)
LAG = Spec(
    "trnwatch_long_term_lag_seconds",
    "gauge",
    "How far the long-term store is behind this moment.",
    BY_STREAM,
)
COUNTS: Mapping[Spec, Callable[[LongTermPosition], int]] = {
    Spec(
        "trnwatch_long_term_samples_sent_total",
        "counter",
        "Samples that the long-term store took.",
        BY_STREAM,
    ): lambda row: row.n_sent,
    Spec(
        "trnwatch_long_term_samples_dropped_total",
        "counter",
        "Samples that the long-term store refused for good.",
        BY_STREAM,
    ): lambda row: row.n_dropped,
    Spec(
        "trnwatch_long_term_retries_total",
        "counter",
        "Requests sent again because the long-term store was away or busy.",
        BY_STREAM,
    ): lambda row: row.n_retries,
}


def long_term_families(*, now: datetime) -> list[Family]:
    """Return how each stream fares; nothing where none was ever written."""
    rows = list(streams())
    lag, counts = Family(LAG), [Family(spec) for spec in COUNTS]
    for row in rows:
        lag.add(now.timestamp() - row.second, row.stream)
        for family, count in zip(counts, COUNTS.values(), strict=True):
            family.add(float(count(row)), row.stream)
    return [lag, *counts]
