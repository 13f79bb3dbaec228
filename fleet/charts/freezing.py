"""Evidence that lasts: an alert's charts by the second, kept before the seconds are forgotten."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import zstandard
from django.db import transaction
from django.db.models import Prefetch, Q

from fleet.charts.alerts import AFTER_S, alert_figure, alert_window, charts_of
from fleet.charts.windows import Window
from fleet.models import Alert, FrozenChart
from telemetry.store.source import Source

Drawn = dict[str, Any]
# What would be forgotten this soon is kept now; whatever keeps it may be late.
IN_TIME_S = 180
# The newest seconds may not all be there yet.
NEWEST_S = 5


def freeze(source: Source, alert: Alert, *, now: datetime) -> None:
    """Keep the charts of an alert as they can be drawn now."""
    _keep(source, alert, alert_window(alert, now=now), now=now, kept_until=None)


def frozen_figure(alert: Alert, chart: str) -> bytes | None:
    """Return a frozen chart as JSON; None where an alert has none, or goes on."""
    whole = alert.frozen_charts.filter(name=chart, kept_until=None)
    packed = None if alert.is_open else whole.values_list("figure", flat=True).first()
    return None if packed is None else _unpacked(packed)


def lasting_figure(source: Source, alert: Alert, chart: str, *, now: datetime) -> bytes | None:
    """Return a chart of an alert that goes on: what is kept of it, then what is live.

    None where nothing is kept yet: then all of it is live.
    """
    kept = alert.frozen_charts.filter(name=chart, kept_until__isnull=False).first()
    if kept is None or kept.kept_until is None:
        return None
    window = alert_window(alert, now=now)
    rest = Window(int(kept.kept_until.timestamp()), window.end)
    drawn = msgspec.json.decode(_unpacked(kept.figure))
    if rest.end > rest.start:
        figure = alert_figure(source, alert, chart, rest, now=now)
        drawn = drawn if figure is None else joined(drawn, figure.as_json())
    return msgspec.json.encode(drawn)


def freeze_what_is_due(hot: Source, *, now: datetime) -> list[Alert]:
    """Keep what would soon be forgotten, and what is over as a whole; return the latter.

    An alert that lasts longer than the hot tier keeps is kept piece by piece, each piece while
    it is there by the second.
    """
    settled, oldest = now - timedelta(seconds=AFTER_S), now - timedelta(seconds=hot.keep_s)
    wanted = Q(resolved_at=None) | Q(resolved_at__gt=oldest)
    over = []
    charts = Prefetch("frozen_charts", FrozenChart.objects.defer("figure"))
    alerts = Alert.objects.filter(wanted).select_related("run", "node")
    for alert in alerts.prefetch_related(charts):
        kept = list(alert.frozen_charts.all())
        is_over = alert.resolved_at is not None and alert.resolved_at <= settled
        if kept and all(chart.kept_until is None for chart in kept):
            continue
        if _keep_piece(hot, alert, kept, is_over=is_over, now=now) and is_over:
            over.append(alert)
    return over


def _keep_piece(
    hot: Source, alert: Alert, kept: list[FrozenChart], *, is_over: bool, now: datetime
) -> bool:
    """Keep the next piece of an alert if it is over, or if its seconds are soon forgotten."""
    whole, oldest = alert_window(alert, now=now), int(now.timestamp()) - hot.keep_s
    known = [int(c.kept_until.timestamp()) for c in kept if c.kept_until is not None]
    start = max(known, default=whole.start)
    end = whole.end if is_over else min(whole.end, int(now.timestamp()) - NEWEST_S)
    is_soon_lost = start < oldest + IN_TIME_S
    if (
        end <= start
        or not (is_over or is_soon_lost)
        or (is_over and not known and start <= oldest)
    ):
        return False
    kept_until = None if is_over else datetime.fromtimestamp(end, UTC)
    _keep(hot, alert, Window(max(start, oldest), end), now=now, kept_until=kept_until)
    return True


@transaction.atomic
def _keep(
    source: Source, alert: Alert, window: Window, *, now: datetime, kept_until: datetime | None
) -> None:
    """Keep the charts over a window, after what of them is kept already."""
    held = FrozenChart.objects.filter(alert=alert, kept_until__isnull=False)
    before = {chart.name: chart.figure for chart in held}
    for chart in charts_of(alert):
        figure = alert_figure(source, alert, chart.name, window, now=now)
        if figure is None:
            continue
        drawn = figure.as_json()
        if chart.name in before:
            drawn = joined(msgspec.json.decode(_unpacked(before[chart.name])), drawn)
        packed = zstandard.ZstdCompressor(level=9).compress(msgspec.json.encode(drawn))
        FrozenChart.objects.update_or_create(
            alert=alert, name=chart.name, defaults={"figure": packed, "kept_until": kept_until}
        )
    if kept_until is None:
        held.update(kept_until=None)


def joined(older: Mapping[str, Any], newer: Mapping[str, Any]) -> Drawn:
    """Lay one piece of a chart after another: lines by their labels, a gap where one has none.

    Bars have no time: the newer stand for both.
    """
    if newer.get("labels") or "series" not in newer or "series" not in older:
        return dict(newer)
    n_older = sum(t < newer["t"][0] for t in older["t"]) if newer["t"] else len(older["t"])
    after = {line["label"]: line for line in newer["series"]}
    before = {line["label"]: line for line in older["series"]}
    lines = []
    for label, line in (before | after).items():
        first = before[label]["values"][:n_older] if label in before else [None] * n_older
        last = after[label]["values"] if label in after else [None] * len(newer["t"])
        lines.append(line | {"values": [*first, *last]})
    windows = [piece["window"] for piece in (older, newer) if piece.get("window")]
    whole = [windows[0][0], windows[-1][1]] if windows else None
    t = [*older["t"][:n_older], *newer["t"]]
    return {**newer, "t": t, "series": lines, "window": whole}


def _unpacked(packed: bytes | memoryview) -> bytes:
    return zstandard.ZstdDecompressor().decompress(bytes(packed))
