"""The overview, the tour, and the page that shows how to connect nodes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_http_methods, require_safe

from fleet.access.roles import has_role, maker
from fleet.access.tokens import make_token
from fleet.alerts.impact import worst_first
from fleet.alerts.text import AlertText
from fleet.charts.deviations import SIGNALS
from fleet.charts.figures import Chart, ChartLine
from fleet.charts.frozen import frozen_link
from fleet.charts.heat import heat_groups
from fleet.charts.markers import checkpoints, in_order, markers_of_fleet
from fleet.charts.readings import MANY_NODES, fleet_readings, past_readings
from fleet.charts.runs import grid, share_now, spacing_s
from fleet.charts.windows import Window, window_of
from fleet.formatting import listed
from fleet.models import Alert, Node, Run, Token, Trial
from fleet.models.annotation import moment_of
from fleet.pages.charts import answer_chart
from fleet.pages.fields import submit
from fleet.pages.forms import TokenForm
from fleet.pages.frozen import alerts_in_window, run_in_window, window_context
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.runs import UNSEEN, rows_with_alerts, worst_runs
from fleet.runs.annotations import phase_at
from fleet.runs.node_columns import NodeColumns, fleet_now, node_columns, node_columns_at
from fleet.runs.state import watching
from fleet.runs.summaries import runs_now, standstills, with_standstill
from telemetry.ingest.exporters import KEEP
from telemetry.node_files import agent_file, reporter_wheel
from telemetry.store.connection import StoreUnavailable
from telemetry.store.history import run_history
from telemetry.store.hot import hot_store
from telemetry.store.refused import read_all_refused
from telemetry.units import DAY_S, MINUTE_S

PARTIALS = ("past", "stores", "strip", "heat-map", "runs", "alerts")
RESOLVED_SHOWN = 3
SHARES_S = 15 * 60
LIMIT_RATIO = 0.25
# So soon the page of a demo that starts is loaded again.
STARTING_S = 2
MOST_PAST_RUNS = 40
# Most of what a tab may be sent: 20 kB a second.
HEAT_BYTES_PER_S = 16_000
# Of many runs and alerts the worst; the rest is a click away.
MOST_RUNS, MOST_ALERTS, MOST_LINES = 25, 20, 12
# So many alerts are ordered by what they cost; the page renews every second.
MOST_WEIGHED = 200
PAST = frozenset({"at", "from", "to"})
WITHOUT_STEPS, MOST_NAMED = "no_steps", 2
# The step of the buttons of the time machine, and of the alerts of a day it draws so many.
STEP_S, MOST_MARKS = 600, 500


@gzip_page
@require_safe
def overview(request: HtmxRequest) -> HttpResponse:
    now, signal = timezone.now(), request.GET.get("signal", "")
    asked = window_context(request, now=now) if PAST & request.GET.keys() else {}
    is_past = asked.get("frozen")
    context = past_context(asked["window"], signal) if is_past else overview_context(signal)
    if not context["groups"] and not context["runs"] and not asked:
        is_starting = settings.DEMO and not Run.objects.exists()
        return starting(request) if is_starting else connect(request)
    context |= {name: asked.get(name, "") for name in ("frozen", "window_error")}
    context["time_machine"] = time_machine(asked.get("window") or window_of({}, now=now), now=now)
    return render_page(request, "pages/overview.html", context, partials={*PARTIALS, "heat-rows"})


def starting(request: HtmxRequest) -> HttpResponse:
    """Say that the demo's fleet is still to be made: it takes a second or two."""
    detail = "The simulated fleet is being created."
    context = {"title": "Starting", "detail": detail, "reloads": STARTING_S}
    return render(request, "error.html", context)


def overview_context(signal: str = "") -> dict[str, Any]:
    hot, now = hot_store(), timezone.now()
    now_s = now.timestamp()
    alerts = list(Alert.objects.open().worst_first().select_related("run", "node"))
    alerts[:MOST_WEIGHED] = sorted(alerts[:MOST_WEIGHED], key=worst_first)
    active = list(Run.objects.active().defer(*UNSEEN))
    runs = runs_now(hot, active, now_s=now_s, alerts=alerts)
    nodes = node_columns(hot, now_s=now_s)
    fleet = fleet_now(hot, runs=runs, nodes=nodes, alerts=alerts)
    since = now - timedelta(days=1)
    resolved = Alert.objects.filter(resolved_at__gte=since).select_related("run", "node")
    resolved = resolved.order_by("-resolved_at")
    worst = worst_runs(runs, alerts, most=MOST_RUNS)
    readings = fleet_readings(hot, nodes, [run.name for run in active], now_s=now_s)
    signal = signal if signal in readings.level else ""
    groups = heat_groups(nodes, alerts, runs_of(nodes, active), readings, signal=signal)
    return {
        "is_demo": settings.DEMO,
        "fleet": fleet,
        # A job that has stopped may wait for its nodes again: no alert says that it stands still.
        "without_steps": listed(
            [
                *fleet.standing,
                *(n.run.name for n in runs if n.is_stale and n.state == Run.Phase.PENDING),
            ],
            MOST_NAMED,
        ),
        "watching": watching(hot, now_s=now_s),
        "as_of": datetime.fromtimestamp(fleet.tick, UTC) if fleet.tick else None,
        "runs": runs,
        "run_rows": rows_with_alerts(worst, alerts, now=now),
        "n_more_runs": len(runs) - len(worst),
        "charted": charted_runs(active),
        "groups": groups,
        "signal": signal,
        "stream_filters": f"signal={signal}" if signal else "",
        "signals": [each for each in SIGNALS.values() if each.name in readings.level],
        "is_by_node": any(row.n_nodes > 1 for group in groups for row in group.rows),
        "n_cores": int(nodes.roster.n_cores[nodes.is_shown].sum()),
        "alerts": [AlertText(alert, now) for alert in alerts[:MOST_ALERTS]],
        "n_more_alerts": max(0, len(alerts) - MOST_ALERTS),
        "resolved": [AlertText(alert, now) for alert in resolved[:RESOLVED_SHOWN]],
        "n_resolved": resolved.count(),
    }


def past_context(window: Window, signal: str = "") -> dict[str, Any]:
    """Return what the overview shows of the end of a past window; of many runs some figures."""
    hot, at = hot_store(), moment_of(window.end)
    alerts = alerts_in_window(Alert.objects.all(), Window(window.end - 1, window.end))
    firing = [text.alert for text in alerts if text.alert.is_open]
    accused = {name for alert in firing for name in alert.runs}
    went_on = Q(finished_at=None) | Q(finished_at__gt=at)
    active = list(Run.objects.filter(went_on, started_at__lte=at).defer(*UNSEEN))
    active.sort(key=lambda run: (run.name not in accused, -run.n_nodes, run.name))
    standing = standstills(firing)
    runs = []
    for run in active[:MOST_RUNS]:
        summary, n_steps = run_in_window(run, Window(window.end - MINUTE_S, window.end))
        without = {"": WITHOUT_STEPS, Run.Phase.TRAINING: WITHOUT_STEPS}
        phase = "" if n_steps else phase_at(run, at)
        summary.run.phase = Run.Phase.TRAINING if n_steps else without.get(phase, phase)
        runs.append(with_standstill(summary, standing.get(run.name)))
    nodes = node_columns_at(hot, at_s=window.end, runs={run.pk for run in active})
    resolved = Alert.objects.filter(resolved_at__lte=at, resolved_at__gt=at - timedelta(days=1))
    last = resolved.select_related("run", "node").order_by("-resolved_at")[:RESOLVED_SHOWN]
    names = [run.name for run in active[:MOST_RUNS]]
    readings = past_readings(hot, nodes, names, at_s=window.end, signal=signal)
    offered = readings.level if len(nodes.roster.names) <= MANY_NODES else SIGNALS
    signals = [each for each in SIGNALS.values() if each.name in offered]
    signal = signal if signal in readings.level else ""
    groups = heat_groups(nodes, firing, runs_of(nodes, active), readings, signal=signal)
    fleet = fleet_now(hot, runs=runs, nodes=nodes, alerts=firing)
    return {
        "is_demo": settings.DEMO,
        "fleet": fleet,
        "without_steps": listed(
            [n.run.name for n in runs if n.run.phase == WITHOUT_STEPS and n.run.last_step > 0],
            MOST_NAMED,
        ),
        "at": at,
        "at_query": f"?at={window.end}",
        "as_of": at,
        "window": window,
        "runs": active,
        "run_rows": rows_with_alerts(runs, firing, now=at),
        "n_more_runs": len(active) - len(runs),
        "charted": charted_runs(active),
        "groups": groups,
        "signal": signal,
        "signals": signals if nodes.is_up.any() else [],
        "is_by_node": any(row.n_nodes > 1 for group in groups for row in group.rows),
        "n_cores": int(nodes.roster.n_cores[nodes.is_shown].sum()),
        "alerts": alerts[:MOST_ALERTS],
        "n_more_alerts": max(0, len(alerts) - MOST_ALERTS),
        "resolved": [AlertText(alert, at) for alert in last],
        "n_resolved": resolved.count(),
    }


@dataclass(frozen=True, slots=True)
class TimeMachine:
    """A day to choose a minute from: where it begins and ends, the minute, alerts in percent."""

    start: int
    end: int
    at: int
    is_live: bool
    alerts: Sequence[tuple[float, float, str]]

    @property
    def start_at(self) -> datetime:
        return moment_of(self.start)

    @property
    def end_at(self) -> datetime:
        return moment_of(self.end)

    @property
    def earlier(self) -> int:
        return self.at - STEP_S

    @property
    def later(self) -> int | None:
        """Return the next time; None where that is the present."""
        return self.at + STEP_S if self.at + STEP_S < self.end else None


def time_machine(window: Window, *, now: datetime) -> TimeMachine:
    """Return the day around the end of a window, which ends at the latest now."""
    latest = int(now.timestamp()) // MINUTE_S * MINUTE_S
    at = latest if window.is_live else window.end
    end = min(latest, at + DAY_S // 2) if at < latest - DAY_S else latest
    start = end - DAY_S
    seen = Alert.objects.filter(fired_at__lt=moment_of(end)).filter(
        Q(resolved_at=None) | Q(resolved_at__gt=moment_of(start))
    )
    spans = []
    times = seen.order_by("-severity", "pk").values_list("fired_at", "resolved_at", "severity")
    for fired_at, resolved_at, severity in times[:MOST_MARKS]:
        first = max(fired_at.timestamp(), start)
        last = min(resolved_at.timestamp() if resolved_at else end, end)
        if last - first < DAY_S * 0.95:  # what lasts all day tells no time from another
            left, width = 100 * (first - start) / DAY_S, 100 * (last - first) / DAY_S
            spans.append((left, width, "warn" if severity == Alert.Severity.WARN else "bad"))
    return TimeMachine(start, end, at, window.is_live, spans)


def runs_of(nodes: NodeColumns, active: Sequence[Run]) -> dict[int, Run]:
    """Return the runs of nodes by key; few nodes go on reporting when their run is over."""
    runs = {run.pk: run for run in active}
    over = set(nodes.roster.run[nodes.is_up & nodes.is_over].tolist())
    return runs | (Run.objects.defer(*UNSEEN).in_bulk(over) if over else {})


def overview_heat(context: Mapping[str, Any]) -> dict[str, str]:
    """Return rows of the live heat map, packed: all of them, or of many those whose turn it is."""
    rows = [row for group in context["groups"] for row in group.rows]
    n_turns = -(-sum(len(row.cells) for row in rows) // HEAT_BYTES_PER_S) or 1
    turn = (context["fleet"].tick or 0) % n_turns
    return {row.name: row.cells for row in rows[turn::n_turns]}


def charted_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that the chart of shares shows: of many those with an alert, and large ones.

    So few lines can be distinguished, and they stay the same from second to second.
    """
    active = list(runs)
    if len(active) <= MOST_LINES:
        return active
    accused = set(Alert.objects.open().exclude(run=None).values_list("run_id", flat=True))
    return sorted(active, key=lambda run: (run.pk not in accused, -run.n_nodes, run.name))[
        :MOST_LINES
    ]


@gzip_page
@require_safe
def overview_shares(request: HtmxRequest) -> HttpResponse:
    """Return the all-reduce share of every active run, with markers of what happened."""
    return answer_chart(request, shares_figure)


def shares_figure(window: Window) -> Chart:
    """Draw a line for each run that is active now, then for those that were in a past window.

    So a run keeps its colour and shape, whatever the window.
    """
    hot, every_s = hot_store(), spacing_s(window.end - window.start)
    t_s = grid(window.start, window.end, every_s=every_s)
    runs = charted_runs(Run.objects.active().defer(*UNSEEN))
    if not window.is_live:
        start, end = moment_of(window.start), moment_of(window.end)
        past = Run.objects.filter(finished_at__gte=start, started_at__lte=end)
        runs += past.order_by("-pk")[:MOST_PAST_RUNS]
    lines, events = [], []
    for run in runs:
        # The live chart needs no more than the hot tier keeps.
        if window.is_live and window.length_s <= hot.keep_s:
            steps = hot.recent_steps(run.name, since_s=window.start, averaged=True)
        else:
            start_s, end_s = window.start - every_s, window.end
            steps, _ = run_history(hot, run.name, start_s=start_s, end_s=end_s)
        lines.append(ChartLine(run.name, share_now(steps, t_s, every_s=every_s)))
        events += checkpoints(steps, name=run.name)
    return Chart(
        "ratio",
        lines,
        t_s,
        limit=LIMIT_RATIO,
        events=in_order([*events, *markers_of_fleet(window, runs)]),
        every_s=every_s,
        window=(window.start, window.end),
    )


def overview_points(*, since_s: float) -> dict[str, Any]:
    t_s = grid(since_s, time.time())
    if not len(t_s):
        return {}
    hot, runs = hot_store(), charted_runs(Run.objects.active().only("name", "n_nodes"))
    values = [
        share_now(hot.recent_steps(run.name, since_s=since_s - SHARES_S / 5, averaged=True), t_s)
        for run in runs
    ]
    figure = Chart("ratio", [ChartLine("", line) for line in values], t_s).as_json()
    return {
        "shares": {
            "t": figure["t"],
            "values": [line["values"] for line in figure["series"]],
            "labels": [run.name for run in runs],
        }
    }


HEADLINE = "allreduce_share"


@require_safe
def tour(request: HtmxRequest) -> HttpResponse:
    return render_page(request, "pages/tour.html", tour_context())


def tour_context() -> dict[str, Any]:
    """Return the newest incident with a culprit: resolved and of the headline rule if possible."""
    now = timezone.now()
    accused = Alert.objects.exclude(node=None).select_related("run", "node")
    newest = F("resolved_at").desc(nulls_last=True)
    whole = accused.exclude(resolved_at=None).filter(rule=HEADLINE).order_by(newest)
    alert = whole.first() or accused.order_by("-fired_at").first()
    if alert is None:
        return {"alert": None, "is_demo": settings.DEMO}
    return {
        "alert": alert,
        "text": AlertText(alert, alert.resolved_at or now),
        "frozen_url": frozen_link(alert, at=alert.resolved_at or now),
        "trial": Trial.objects.order_by("-pk").first(),
        "is_demo": settings.DEMO,
    }


NEW_FOR = timedelta(hours=1)
MOST_NEW = 8
USUAL_NAME = "nodes"


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def connect(request: HtmxRequest) -> HttpResponse:
    """Show three ways to connect nodes; an admin can create the token that they need."""
    user, refused = request.user, None
    with suppress(StoreUnavailable):
        refused = read_all_refused(hot_store(), now_s=time.time())
    is_admin, form, secret = has_role(user, "admin"), TokenForm(), ""
    form.fields["name"].initial = USUAL_NAME
    if is_admin and request.method == "POST":
        form = TokenForm({"name": request.POST.get("name", ""), "scope": "ingest", "days": "365"})
        if made := submit(
            form, lambda: make_token(**form.cleaned_data, maker=maker(user), now=timezone.now())
        ):
            secret = made[1]
    since = timezone.now() - NEW_FOR
    nodes = Node.objects.exclude(source=Node.Source.SIMULATED).filter(first_seen_at__gte=since)
    tokens = Token.objects.valid(timezone.now()).filter(scope=Token.Scope.INGEST)
    used = tokens.exclude(last_used_at=None).order_by("-last_used_at")
    context = {
        # What reported first within the last hour, newest first.
        "new_nodes": nodes.select_related("run").order_by("-first_seen_at")[:MOST_NEW],
        "n_new": nodes.count(),
        "new_runs": Run.objects.filter(nodes__in=nodes).distinct().order_by("name")[:MOST_NEW],
        "last_used": used.first(),
        "n_tokens": tokens.count(),
        "refused": [(*of.split(":", 1), each) for of, each in (refused or {}).items()][:MOST_NEW],
        "form": form if is_admin else None,
        "secret": secret,
        "address": request.build_absolute_uri("/").rstrip("/"),
        "wheel": _node_files()[1],
        "keep": KEEP,
        "is_start": request.path == reverse("overview"),
    }
    return render_page(request, "pages/connect.html", context, partials={"reports"})


@require_safe
def node_file(request: HttpRequest, name: str) -> HttpResponse:
    """Send the agent or the reporter's wheel: nothing secret, and needed before any sign-in."""
    content = _node_files()[0].get(name)
    if content is None:
        raise Http404
    return HttpResponse(content, "application/octet-stream")


@cache
def _node_files() -> tuple[dict[str, bytes], str]:
    wheel, content = reporter_wheel()
    return {"trnwatch-agent.pyz": agent_file(), wheel: content}, wheel
