"""Evidence that lasts: an alert's charts by the second, kept before the seconds are forgotten."""

from datetime import datetime, timedelta

import msgspec
import zstandard

from fleet.charts.alerts import AFTER_S, alert_figure, alert_window, charts_of
from fleet.models import Alert, FrozenChart
from telemetry.store.source import Source


def freeze(source: Source, alert: Alert, *, now: datetime) -> None:
    """Keep the charts of an alert as they can be drawn now."""
    window = alert_window(alert, now=now)
    packer = zstandard.ZstdCompressor(level=9)
    for chart in charts_of(alert):
        figure = alert_figure(source, alert, chart.name, window, now=now)
        if figure is not None:
            packed = packer.compress(msgspec.json.encode(figure.as_json()))
            FrozenChart.objects.update_or_create(
                alert=alert, name=chart.name, defaults={"figure": packed}
            )


def frozen_figure(alert: Alert, chart: str) -> bytes | None:
    """Return a frozen chart as JSON; None where an alert is open, or outlasted the seconds."""
    found = alert.frozen_charts.filter(name=chart).values_list("figure", flat=True).first()
    return None if found is None else zstandard.ZstdDecompressor().decompress(bytes(found))


def freeze_what_is_due(hot: Source, *, now: datetime) -> list[Alert]:
    """Freeze the alerts that are over and wholly in the hot tier still; return them.

    An alert that lasted longer than the hot tier keeps is drawn by the minute instead.
    """
    settled, oldest = now - timedelta(seconds=AFTER_S), now - timedelta(seconds=hot.keep_s)
    due = Alert.objects.filter(
        resolved_at__lte=settled, resolved_at__gt=oldest, frozen_charts=None
    ).select_related("run", "node")
    kept = [alert for alert in due if alert_window(alert, now=now).start > oldest.timestamp()]
    for alert in kept:
        freeze(hot, alert, now=now)
    return kept
