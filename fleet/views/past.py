"""What a page frozen in time shows beside its charts: the window summed up, and its alerts."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import Q

from fleet.charts.windows import Window
from fleet.incidents.moments import as_of
from fleet.long_term import long_term_history
from fleet.models import Alert, AlertEvent, Node, Run
from fleet.models.alert import AlertQuerySet
from fleet.money.losses import as_kept, measured
from fleet.summaries import RunNow, run_now
from fleet.words.past import of_node_then, of_run_then
from fleet.words.sentences import told
from telemetry.store.history import run_history
from telemetry.store.hot import HotStore, open_store


def run_then(run: Run, window: Window) -> dict[str, Any]:
    """Return what the page of a run shows of a window, in place of what it shows of now."""
    start, end = _ends(window)
    then, n_steps = run_in_window(run, window)
    return {
        "run": then.run,
        "now": then,
        "headline": of_run_then(then, n_steps=n_steps, start_s=window.start, end_s=window.end),
        "spent_usd": run.usd_by(end) - run.usd_by(start),
    }


def run_in_window(run: Run, window: Window) -> tuple[RunNow, int]:
    """Return a run's figures over a window, at the price of its end, and its number of steps."""
    steps, _ = run_history(
        open_store(settings.REDIS_URL),
        run.name,
        start_s=window.start,
        end_s=window.end,
        long_term=long_term_history(),
    )
    held = run_as_of(run, _ends(window)[1])
    then = replace(run_now(held, steps, now_s=window.end), is_stale=False)
    return then, int(steps.step[-1] - steps.step[0]) + 1 if len(steps) else 0


def run_alerts_then(run: Run, window: Window) -> dict[str, Any]:
    """Return the alerts of a run as they stood at the end of a window."""
    _, end = _ends(window)
    return {
        "moment": end,
        "alerts": _told(run.alerts.all(), window),
        "n_resolved": run.alerts.filter(resolved_at__lte=end).count(),
    }


def run_as_of(run: Run, at: datetime) -> Run:
    """Return a copy of a run at the price of a moment, and over only if it was; never save it."""
    held = copy.copy(run)
    held.usd_per_node_hour, held.price_basis = run.price_at(at)
    held.tariff = None
    if run.finished_at is not None and run.finished_at > at:
        held.finished_at = None
    return held


def node_then(node: Node, window: Window) -> dict[str, Any]:
    """Return what the page of a node shows of a window, in place of what it shows of now."""
    return {
        "moment": _ends(window)[1],
        "headline": of_node_then(node, start_s=window.start, end_s=window.end),
        "alerts": _told(node.alerts.all(), window),
    }


def alert_then(
    hot: HotStore, alert: Alert, events: Iterable[AlertEvent], moment: datetime
) -> Alert:
    """Return an alert as it was, with what it had cost by then."""
    then = as_of(alert, events, at=moment)
    until = then.resolved_at or moment
    then.cost = as_kept(measured(hot, then, until=until), until=until)
    return then


def _told(alerts: AlertQuerySet, window: Window) -> list[Any]:
    """Put the alerts in words that were open at some time in a window, as its end left them."""
    hot, (start, end) = open_store(settings.REDIS_URL), _ends(window)
    lasted = Q(resolved_at=None) | Q(resolved_at__gt=start)
    found = alerts.filter(lasted, fired_at__lt=end).select_related("run", "node")
    shown = [
        alert_then(hot, alert, alert.events.all(), end)
        for alert in found.prefetch_related("events")
    ]
    shown.sort(key=_worst_first)
    return [told(alert, now=end) for alert in shown]


def _worst_first(alert: Alert) -> tuple[str, bool, datetime, int]:
    """Sort as lists of open alerts are: by severity, those that nobody has first."""
    return alert.severity, alert.acknowledged_at is not None, alert.fired_at, alert.pk


def _ends(window: Window) -> tuple[datetime, datetime]:
    return datetime.fromtimestamp(window.start, UTC), datetime.fromtimestamp(window.end, UTC)
