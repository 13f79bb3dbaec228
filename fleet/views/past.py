"""What a page frozen in time shows beside its charts: the window summed up, and its alerts."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import Q

from fleet.charts.windows import Window
from fleet.long_term import long_term_history
from fleet.models import Alert, Node, Run
from fleet.models.alert import AlertQuerySet
from fleet.summaries import run_now
from fleet.words.past import of_node_then, of_run_then
from fleet.words.sentences import told
from telemetry.store.history import run_history
from telemetry.store.hot import open_store


def run_then(run: Run, window: Window, *, now: datetime) -> dict[str, Any]:
    """Return what the page of a run shows of a window, in place of what it shows of now."""
    hot = open_store(settings.REDIS_URL)
    steps, _ = run_history(
        hot,
        run.name,
        start_s=window.start,
        end_s=window.end,
        long_term=long_term_history(),
    )
    then = replace(run_now(run, steps, now_s=window.end), is_stale=False)
    n_steps = int(steps.step[-1] - steps.step[0]) + 1 if len(steps) else 0
    start, end = (datetime.fromtimestamp(second, UTC) for second in (window.start, window.end))
    return {
        "now": then,
        "headline": of_run_then(then, n_steps=n_steps, start_s=window.start, end_s=window.end),
        "spent_usd": run.usd_by(end) - run.usd_by(start),
        "alerts": _told(run.alerts.all(), window, now=now),
    }


def node_then(node: Node, window: Window, *, now: datetime) -> dict[str, Any]:
    """Return what the page of a node shows of a window, in place of what it shows of now."""
    return {
        "headline": of_node_then(node, start_s=window.start, end_s=window.end),
        "alerts": _told(node.alerts.all(), window, now=now),
    }


def _told(alerts: AlertQuerySet, window: Window, *, now: datetime) -> list[Any]:
    """Put the alerts in words that were open at some time in a window."""
    start, end = (datetime.fromtimestamp(second, UTC) for second in (window.start, window.end))
    lasted = Q(resolved_at=None) | Q(resolved_at__gt=start)
    found: AlertQuerySet = alerts.filter(lasted, fired_at__lt=end)
    shown: list[Alert] = list(found.worst_first().select_related("run", "node"))
    return [told(alert, now=now) for alert in shown]
