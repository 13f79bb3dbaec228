"""What a page with a window tells its template: which stretch it shows, and whether it moves."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.alerts.text import AlertText
from fleet.charts.frozen import as_of
from fleet.charts.windows import DEFAULT, Window, lengths_within, window_of
from fleet.costs.losses import dump_cost, measure_cost
from fleet.formatting import count, percent, seconds, si, usd
from fleet.metrics.long_term import history_s, long_term_history
from fleet.models import Alert, AlertEvent, Node, Run
from fleet.models.alert import AlertQuerySet
from fleet.runs.summaries import RunNow, run_now
from telemetry.errors import FieldError
from telemetry.store.history import run_history
from telemetry.store.hot import HotStore, open_store


def of_run_then(then: RunNow, *, n_steps: int, start_s: float, end_s: float) -> SafeString:
    """Say how a run got on in a window."""
    if not n_steps:
        text = "<b>{}</b> completed no step {}."
        return format_html(text, then.run.name, _window(start_s, end_s))
    return format_html(
        "{} <b>{}</b> took <b>{}</b> step{} of <b>{}</b>, <b{}>{}</b> of it in all-reduce: "
        "{} tokens/s at <b>{}</b> per 1M.",
        _window(start_s, end_s).replace("from", "From", 1),
        then.run.name,
        count(n_steps),
        "" if n_steps == 1 else "s",
        seconds(then.step_s),
        SafeString(' class="bad-text"') if then.is_over_limit else "",
        percent(then.share_ratio),
        si(then.tokens_per_s),
        usd(then.usd_per_mtok),
    )


def of_node_then(node: Node, *, start_s: float, end_s: float) -> SafeString:
    """Say what a node's page shows of a window, and where it stands now."""
    return format_html(
        'The charts show <b>{}</b> {}. For its current state see <a href="{}">the live page</a>.',
        node.name,
        _window(start_s, end_s),
        node.get_absolute_url(),
    )


def _window(start_s: float, end_s: float) -> str:
    first, last = (datetime.fromtimestamp(second, UTC) for second in (start_s, end_s))
    day = "" if first.date() == last.date() else f"{last:%-d %b} "
    return f"from {first:%-d %b %H:%M:%S} to {day}{last:%H:%M:%S} UTC"


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
    then.cost = dump_cost(measure_cost(hot, then, until=until), until=until)
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
    return [AlertText(alert, end) for alert in shown]


def _worst_first(alert: Alert) -> tuple[str, bool, datetime, int]:
    """Sort as lists of open alerts are: by severity, those that nobody has first."""
    return alert.severity, alert.acknowledged_at is not None, alert.fired_at, alert.pk


def _ends(window: Window) -> tuple[datetime, datetime]:
    return datetime.fromtimestamp(window.start, UTC), datetime.fromtimestamp(window.end, UTC)


def window_context(
    request: HttpRequest, *, now: datetime, ended_at: datetime | None = None
) -> dict[str, Any]:
    """Return the window that the address asks for; one that cannot be is told, not obeyed.

    Of what is over, since ``ended_at``, the last so many minutes are shown: nothing came after.
    """
    end = ended_at or now
    try:
        window, complaint = window_of(request.GET.dict(), now=end), ""
    except FieldError as error:
        window, complaint = window_of({}, now=end), str(error)
    is_over = ended_at is not None and window.is_live
    return {
        "window": Window(window.start, window.end) if is_over else window,
        "length": window.name,
        "window_error": complaint,
        "frozen": window.frozen,
        # Points by the second are for the shortest window only; longer ones have their own ids.
        "id_suffix": "" if window.name == DEFAULT and not is_over else "-long",
        "lengths": lengths_within(history_s()),
    }
