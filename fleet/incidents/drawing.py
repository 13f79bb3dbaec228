"""The charts of an incident: from the seconds that were kept, else from what the stores hold."""

from datetime import datetime
from typing import Any

import msgspec

from fleet.charts.alerts import alert_figure, alert_window
from fleet.charts.figures import Figure, Heat
from fleet.charts.freezing import frozen_figure, lasting_figure
from fleet.charts.windows import Window
from fleet.incidents.moments import as_of, asked_moment
from fleet.models import Alert
from telemetry.store.source import LongTerm, Source


def incident_figure(
    source: Source,
    alert: Alert,
    chart: str,
    window: Window,
    *,
    at: str,
    now: datetime,
    long_term: LongTerm | None = None,
) -> bytes | Figure | Heat | None:
    """Return one chart of an alert, as of a moment if one is asked for; None: no such chart.

    A window inside the one that was frozen is cut out of it, by the second as on the first day.
    """
    moment = asked_moment(at, alert=alert, now=now)
    then = as_of(alert, alert.events.all(), at=moment) if moment else alert
    if _blamed(then) == _blamed(alert):
        frozen = frozen_figure(alert, chart) or lasting_figure(source, alert, chart, now=now)
        if frozen is not None and window == alert_window(alert, now=now):
            return frozen
        if frozen is not None and (cut := _cut(frozen, window)) is not None:
            return cut
    return alert_figure(source, then, chart, window, now=moment or now, long_term=long_term)


def _blamed(alert: Alert) -> tuple[object, ...]:
    return (alert.rule, alert.cause, alert.node_id, alert.device)


def _cut(frozen: bytes, window: Window) -> bytes | None:
    """Cut a window out of a frozen chart; None where it is not inside."""
    figure: dict[str, Any] = msgspec.json.decode(frozen)
    held, moments = figure.get("window"), figure.get("t")
    if not held or not moments or window.start < held[0] or window.end > held[1]:
        return None
    kept = [i for i, second in enumerate(moments) if window.start <= second <= window.end]
    figure["t"] = [moments[i] for i in kept]
    for series in figure.get("series", ()):
        series["values"] = [series["values"][i] for i in kept]
    figure["window"] = [window.start, window.end]
    return msgspec.json.encode(figure)
