"""Pages of a past window: the window in the address, and runs, nodes and alerts at its end."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import Q
from django.http import HttpRequest

from fleet.alerts.impact import worst_first
from fleet.alerts.text import AlertText
from fleet.charts.frozen import as_of
from fleet.charts.windows import DEFAULT, Window, lengths_within, window_of
from fleet.costs.losses import dump_cost, greater_cost, measure_cost
from fleet.formatting import render_line
from fleet.metrics.long_term import history_s, long_term_history
from fleet.models import Alert, AlertEvent, Node, Run
from fleet.models.alert import AlertQuerySet
from fleet.runs.summaries import RunNow, run_now
from telemetry.errors import FieldError
from telemetry.store.history import run_history
from telemetry.store.hot import HotStore, hot_store


def window_context(
    request: HttpRequest, *, now: datetime, ended_at: datetime | None = None
) -> dict[str, Any]:
    """Return the window in the address; the default, with an error, if it is invalid.

    For something that ended at ``ended_at``, relative windows end there.
    """
    end = ended_at or now
    try:
        window, error = window_of(request.GET.dict(), now=end), ""
    except FieldError as refused:
        window, error = window_of({}, now=end), str(refused)
    is_over = ended_at is not None and window.is_live
    return {
        "window": Window(window.start, window.end) if is_over else window,
        "length": window.name,
        "window_error": error,
        "frozen": window.frozen,
        # Charts of the shortest window get each second live; longer ones have ids of their own.
        "id_suffix": "" if window.name == DEFAULT and not is_over else "-long",
        "lengths": lengths_within(history_s()),
        "around": window.around(),
        "given": {name: request.GET.get(name, "") for name in ("from", "to")} if error else {},
    }


def past_window(query: Mapping[str, str], *, now: datetime) -> Window | None:
    """Return the window that ends ``at`` a past time; None where none is asked for, or invalid."""
    try:
        return window_of(query, now=now) if "at" in query else None
    except FieldError:
        return None


def frozen_run(run: Run, window: Window) -> dict[str, Any]:
    """Return what a run's page shows of a window instead of the current state."""
    start, end = _ends(window)
    summary, n_steps = run_in_window(run, window)
    return {
        "run": summary.run,
        "now": summary,
        "headline": render_line(
            "runs/_headline.html#window",
            run=summary.run,
            now=summary,
            n_steps=n_steps,
            start=start,
            end=end,
        ),
        "has_steps": n_steps > 0 or run.last_step > 0,
        "spent_usd": run.usd_by(end) - run.usd_by(start),
    }


def run_in_window(run: Run, window: Window) -> tuple[RunNow, int]:
    """Return a run's figures over a window, at the price of its end, and its number of steps."""
    steps, _ = run_history(
        hot_store(),
        run.name,
        start_s=window.start,
        end_s=window.end,
        long_term=long_term_history(),
    )
    run_then = run_as_of(run, _ends(window)[1])
    summary = replace(run_now(run_then, steps, now_s=window.end), is_stale=False)
    return summary, int(steps.step[-1] - steps.step[0]) + 1 if len(steps) else 0


def run_as_of(run: Run, at: datetime) -> Run:
    """Return an unsaved copy of a run with its price and state at a time."""
    copied = copy.copy(run)
    copied.usd_per_node_hour, copied.price_basis = run.price_at(at)
    copied.tariff = None
    if run.finished_at is not None and run.finished_at > at:
        copied.finished_at = None
    return copied


def frozen_run_alerts(run: Run, window: Window) -> dict[str, Any]:
    end = _ends(window)[1]
    return {
        "frozen_at": end,
        "alerts": alerts_in_window(Alert.objects.of_run(run.name), window),
        "n_resolved": run.alerts.filter(resolved_at__lte=end).count(),
    }


def frozen_node(node: Node, window: Window) -> dict[str, Any]:
    """Return what a node's page shows of a window instead of the current state."""
    start, end = _ends(window)
    return {
        "frozen_at": end,
        "headline": render_line("nodes/_headline.html#window", node=node, start=start, end=end),
        "alerts": alerts_in_window(node.alerts.all(), window),
    }


def alert_as_of(hot: HotStore, alert: Alert, events: Iterable[AlertEvent], at: datetime) -> Alert:
    """Return an unsaved copy of an alert with its state and cost at a time."""
    copied = as_of(alert, events, at=at)
    until = copied.resolved_at or at
    measured = dump_cost(measure_cost(hot, copied, until=until), until=until)
    known = copied.cost if copied.cost.get("until_s", 0.0) <= at.timestamp() else {}
    copied.cost = greater_cost(known, measured)
    return copied


def alerts_in_window(alerts: AlertQuerySet, window: Window) -> list[AlertText]:
    """Return the alerts that were open within a window, as of its end, the worst first."""
    hot, (start, end) = hot_store(), _ends(window)
    lasted = Q(resolved_at=None) | Q(resolved_at__gt=start)
    lasting = alerts.filter(lasted, fired_at__lt=end).select_related("run", "node")
    shown = [
        alert_as_of(hot, alert, alert.events.all(), end)
        for alert in lasting.prefetch_related("events")
    ]
    # By the state at that time.
    shown.sort(key=lambda each: (*worst_first(each), each.pk))
    return [AlertText(alert, end) for alert in shown]


def _ends(window: Window) -> tuple[datetime, datetime]:
    return datetime.fromtimestamp(window.start, UTC), datetime.fromtimestamp(window.end, UTC)
