"""The alert list, the page of one alert, its post-mortem."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.core.paginator import Paginator
from django.db.models import F, FloatField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, NullIf
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from fleet.alerts.impact import lowered_below, worst_first
from fleet.alerts.text import AlertText, facts
from fleet.charts.alerts import alert_window, charts_of, leads_of
from fleet.charts.frozen import figures_of, frozen_link, parse_moment, written
from fleet.charts.windows import Window
from fleet.formatting import at
from fleet.models import Alert, AlertEvent, Node, ProbeRequest, Run, TraceRequest
from fleet.models.alert import AlertQuerySet
from fleet.models.alert_history import AlertHistory
from fleet.models.annotation import moment_of
from fleet.pages.alert_context import (
    COMMENT_KINDS,
    causes_of,
    changes_of,
    neighbours_of,
    nth_this_week,
    recurring,
    restart_of,
    similar_alerts,
    until_of,
    where_of,
)
from fleet.pages.annotations import annotate_context
from fleet.pages.frozen import alert_as_of, alerts_in_window, past_window
from fleet.pages.render import NO_FILTERS, Filter, HtmxRequest, render_page, with_page
from fleet.pages.rules import MARKDOWN, check_first, do_now
from fleet.pages.tables import Column, Table, TableView, in_chunks, moment, number
from fleet.runs.node_columns import reporting_now
from fleet.runs.state import watching
from telemetry.detect import RULES
from telemetry.errors import LARGEST_KEY, whole_number
from telemetry.store.hot import hot_store

# Of more requested probes, the rest is folded.
PROBES_SHOWN = 8
STATES = ("firing", "acknowledged", "recovering", "silenced", "resolved")
SINCE: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}


@dataclass(frozen=True, slots=True)
class AlertFilter(Filter):
    state: str = ""
    rule: str = ""
    run: str = ""
    node: str = ""
    who: str = ""
    marked_false: str = ""
    label: str = ""
    since: str = ""

    def alerts(self, *, now: datetime) -> AlertQuerySet:
        fields = {name: text for name, text in asdict(self).items() if name not in NO_FILTERS}
        fields |= {"since": now - SINCE[self.since] if self.since in SINCE else None}
        alerts = Alert.objects.filter_by(now=now, **fields)
        return alerts.select_related("run", "node", "silence")


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One line of the list: an alert, and how often it fired within a week."""

    text: AlertText
    nth: int
    is_silenced: bool

    @property
    def alert(self) -> Alert:
        return self.text.alert

    @property
    def recurring(self) -> str:
        return recurring(self.nth, where_of(self.alert))

    @property
    def state(self) -> str:
        return "silenced" if self.is_silenced else self.alert.state

    @property
    def lost_usd(self) -> float | None:
        return self.text.lost.usd if self.text.lost else None


def rows_of(alerts: Iterable[Alert], *, now: datetime) -> list[AlertRow]:
    """Return a row for each alert: of open ones the worst first, silenced ones last."""
    listed = list(alerts)
    nth = nth_this_week(listed)
    rows = [
        AlertRow(AlertText(alert, now), nth.get(alert.pk, 1), alert.is_silenced(now))
        for alert in listed
    ]
    worst = sorted(rows, key=lambda row: worst_first(row.alert) if row.alert.is_open else ())
    return sorted(worst, key=lambda row: row.is_silenced)


ALERTS = Table(
    "alerts",
    "latest first",
    (
        Column("state", "State", "state", style=None),
        Column("severity", "Severity", lambda row: row.alert.get_severity_display(), style=None),
        moment("resolved", "Resolved", "alert.resolved_at", order="resolved_at"),
        Column("alert", "Alert", "text.problem", order="rule"),
        Column("rule", "Rule", "alert.rule", style=None),
        Column("cause", "Cause", "text.cause", style="wide", order="cause"),
        Column("run", "Run", "alert.run", style=None),
        Column("nodes", "Nodes", "alert.nodes", style=None),
        Column("device", "Device", "alert.device", style=None),
        moment("onset", "Onset", "alert.onset_at", style=None),
        moment("fired", "Fired", "alert.fired_at", style=None),
        number("duration", "Duration", "text.lasted", "s", order="lasts"),
        number("lost", "Lost", "lost_usd", "USD", style="num wide", order="lost_usd"),
        number("factor", "Step factor", "text.impact.step_factor", style=None),
        number("impact", "Lost per hour", "text.impact.usd_per_hour", "USD", style=None),
        Column("owner", "Acknowledged by", "alert.owner", "", "wide", "owned_by"),
        moment("at", "Acknowledged at", "alert.acknowledged_at", style=None),
        Column("false", "Marked false", "alert.false_mark", style=None),
        Column("drill", "Drill", "alert.is_drill", style=None),
        Column("action", "", "alert.pk", style="wide operator"),
    ),
    is_stored=True,
    anchor="#resolved",
)
# What the database sorts resolved alerts by.
SORTED_BY = {
    "lasts": F("resolved_at") - F("onset_at"),
    "lost_usd": Cast(KeyTextTransform("usd", "cost"), FloatField()),
    "owned_by": Coalesce(NullIf("assigned_to", Value("")), "acknowledged_by"),
}
LIST_PARTIALS = ("open", "resolved")
# These update live; "changes" and "similar" only after an action.
PARTIALS = ("story", "now", "act", "facts", "timeline")
ALL_PARTIALS = (*PARTIALS, "changes", "similar")
PER_PAGE = 25
SHOWN_VICTIMS = 8


def alerts_context(page: str = "1", **filters: str) -> dict[str, Any]:
    keep, now = AlertFilter.of(filters), timezone.now()
    past = past_window({"at": keep.at}, now=now) if keep.at else None
    if past is None:
        alerts = keep.alerts(now=now)
        opened: Iterable[Alert] = alerts.open().worst_first()
        over = alerts.in_state("resolved", now=now)
    else:
        # The database knows today's state: that of a past time follows from the events.
        now = moment_of(past.end)
        alerts = replace(keep, state="").alerts(now=now)
        lasting = alerts_in_window(alerts, Window(past.end - 1, past.end))
        opened = [text.alert for text in lasting if text.alert.is_open]
        over = alerts.filter(resolved_at__lte=now)
        over = over if keep.state in {"", "resolved"} else over.none()
    over = over.alias(**SORTED_BY).order_by("-resolved_at", "-pk")

    def kept(some: Iterable[Alert]) -> list[AlertRow]:
        rows = rows_of(some, now=now)
        return [row for row in rows if past is None or keep.state in {"", row.state}]

    def every(table: TableView) -> Iterator[AlertRow]:
        yield from kept(opened)
        yield from in_chunks(table.ordered(over), kept)

    table = ALERTS.by(keep.given, every)
    resolved = Paginator(table.ordered(over), PER_PAGE).get_page(page)
    rows = kept([*opened, *resolved])
    open_ = [row for row in rows if row.alert.is_open]
    runs = list(Run.objects.values_list("name", flat=True))
    return {
        "open": open_,
        "n_unacknowledged": sum(row.alert.acknowledged_at is None for row in open_),
        "n_silenced": sum(row.is_silenced for row in open_),
        "resolved": [row for row in rows if not row.alert.is_open],
        "table": table,
        "page": resolved,
        "stream_filters": with_page(keep.query, resolved.number),
        "keep": keep,
        "states": STATES,
        "yes_no": ("yes", "no"),
        "rules": RULES.values(),
        "runs": runs,
        "is_watching": bool(runs) or Node.objects.exists(),
        **({} if open_ or keep.words or past else _silence_means(now)),
        **({"frozen": at(now, "full"), "frozen_at": now, "window": past} if past else {}),
        "since": list(SINCE),
    }


def _silence_means(now: datetime) -> dict[str, Any]:
    """Return what is known of nodes and of trnwatch itself where no alert is open."""
    now_s = now.timestamp()
    try:
        hot = hot_store()
        n_reporting, n_nodes = reporting_now(hot, now_s=now_s)
        watched = watching(hot, now_s=now_s)
    except RedisError:
        return {"has_no_store": True}
    return {"watching": watched, "fleet": {"n_nodes": n_nodes, "n_silent": n_nodes - n_reporting}}


@require_safe
def alert_list(request: HtmxRequest) -> HttpResponse:
    """List the open alerts, then the resolved ones."""
    context = alerts_context(**request.GET.dict())
    return render_page(request, "alerts/alert_list.html", context, partials=LIST_PARTIALS)


def alert_context(pk: str | int, *, at: str = "") -> dict[str, Any]:
    """Return the live part of an alert's page, or its state ``at`` an earlier time."""
    now = timezone.now()
    alert, hot = _found(pk), hot_store()
    events = list(alert.events.all())
    frozen_at = parse_moment(at, alert=alert, now=now)
    if frozen_at:
        alert_at = alert_as_of(hot, alert, events, frozen_at)
        events = [event for event in events if event.at <= frozen_at]
    else:
        alert_at = alert
    at_time = frozen_at or now
    history: AlertHistory | None = None
    if (node := alert_at.node) is not None:
        # Of the culprit, up to this alert, which may not be in it.
        until = alert_at.fired_at
        history = Alert.objects.histories([node], until=until, compares=False)[node.name]
        is_counted = not alert_at.is_drill and alert_at.earlier_id is None
        history = history if history.n_alerts > is_counted else None
    probes: list[tuple[ProbeRequest, bool]] = []
    if any(event.kind == AlertEvent.Kind.PROBE_REQUESTED for event in events):
        requested = alert.probe_requests.filter(requested_at__lte=at_time)
        # Each with whether its answer is overdue; of a whole run the latest answers first.
        probes = [(each, at_time - each.requested_at > each.WAIT) for each in requested]
        if len(probes) > PROBES_SHOWN:
            probes.sort(key=lambda row: (not row[0].is_again, -(row[0].worst_s or 0.0)))
    trace: TraceRequest | None = None
    if any(event.kind == AlertEvent.Kind.TRACE_REQUESTED for event in events):
        trace = TraceRequest.objects.filter(alert=alert, requested_at__lte=at_time).first()
    comments = [e for e in events if e.by and e.text and e.kind in COMMENT_KINDS]
    link, charts = frozen_link(alert_at, at=at_time), charts_of(alert_at)
    leads, text = leads_of(charts), AlertText(alert_at, at_time)
    return {
        "alert": alert,
        "alert_at": alert_at,
        "frozen_at": frozen_at,
        "stream": f"alert:{alert.pk}",
        "rule": RULES.get(alert_at.rule),
        "text": text,
        "facts": facts(alert_at),
        "causes": causes_of(alert_at),
        "do_now": do_now(alert) if alert.is_open and not frozen_at else None,
        "probes": probes[:PROBES_SHOWN],
        "more_probes": probes[PROBES_SHOWN:],
        "trace_request": trace,
        "trace_state": trace and trace.state(at_time),
        "history": history,
        "events": events,
        "ended": "" if alert_at.is_open else text.ended(events),
        "comment": comments[-1] if comments else None,
        "leads": leads,
        "more_charts": [each for each in charts if each not in leads],
        "restart": restart_of(hot, alert, text.impact, now=now) if not frozen_at else None,
        "lowered": lowered_below(alert_at),
        "frozen_link": link,
        "here": link if frozen_at else alert.get_absolute_url(),
        "now": now,
    }


def _found(pk: str | int) -> Alert:
    if whole_number(str(pk), most=LARGEST_KEY) is None:
        raise Http404(f"{str(pk)[:20]!r} is not the number of an alert")
    return get_object_or_404(Alert.objects.select_related("run", "node", "silence"), pk=pk)


def incident_context(context: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an alert's page that does not update live."""
    alert, frozen_at = context["alert_at"], context["frozen_at"]
    now = frozen_at or context["now"]
    neighbours = neighbours_of(alert, until=until_of(alert, now=now), at=frozen_at)
    similar = similar_alerts(alert, neighbours)
    hot = hot_store()
    about = (
        {"run": alert.run.name} if alert.run else {"node": alert.node.name if alert.node else ""}
    )
    window = alert_window(alert, now=now)
    if frozen_at:
        query = f"?{window.query}&at={written(frozen_at)}"
    else:
        query = "" if alert.is_open else f"?{window.query}"
    return {
        "similar": similar,
        "check_first": check_first(alert),
        "changes": changes_of(hot, alert, neighbours, now=now),
        "facts": facts(alert, recurring=similar.recurring),
        "shown_victims": alert.victims[:SHOWN_VICTIMS],
        "more_victims": alert.victims[SHOWN_VICTIMS:],
        "window": window,
        "chart_query": query,
        "frozen": window.frozen if frozen_at else "",
        **annotate_context(**about, back=alert.get_absolute_url()),
    }


@require_safe
def alert_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    at = request.GET.get("at", request.GET.get("to", ""))
    context = alert_context(pk, at=at)
    if request.htmx.target not in PARTIALS:
        context |= incident_context(context)
    return render_page(request, "alerts/alert_detail.html", context, partials=ALL_PARTIALS)


@require_safe
def alert_post_mortem(request: HtmxRequest, pk: int) -> HttpResponse:
    """Show an alert's post-mortem as a page, with its Markdown to copy."""
    markdown, alert = post_mortem_of(request, pk)
    # Safe: MARKDOWN escapes raw HTML. A box to tick is a box on paper too.
    html = MARKDOWN.render(markdown).replace("<li>[ ] ", "<li>☐ ")
    context = {"alert": alert, "text": SafeString(html), "markdown": markdown}
    return render_page(request, "alerts/post_mortem.html", context)


@require_safe
def alert_post_mortem_markdown(request: HtmxRequest, pk: int) -> HttpResponse:
    headers = {
        "Content-Disposition": f'inline; filename="alert-{pk}-post-mortem.md"',
        "Cache-Control": "no-store",
    }
    markdown, _ = post_mortem_of(request, pk)
    return HttpResponse(markdown, "text/markdown; charset=utf-8", headers=headers)


def post_mortem_of(request: HtmxRequest, pk: int) -> tuple[str, Alert]:
    """Write an alert's post-mortem as Markdown that is correct without editing."""
    context = alert_context(pk)
    alert, events, now = context["alert"], context["events"], context["now"]
    hot = hot_store()
    neighbours = neighbours_of(alert, until=now)
    similar = similar_alerts(alert, neighbours)
    changes = changes_of(hot, alert, neighbours, now=now)
    acknowledged = next((event for event in events if event.kind == event.Kind.ACKNOWLEDGED), None)
    # What happened: time, kind, text, user.
    rows = [(alert.onset_at, "began", "", "")]
    rows += [(e.at, e.get_kind_display().lower(), e.text, e.by) for e in events]
    rows += [(c.at, c.kind, c.text, c.by) for c in changes]
    context |= {
        "text": AlertText(alert, now),
        "root": request.build_absolute_uri("/").rstrip("/"),
        "fired_after": alert.fired_at - alert.onset_at,
        "acknowledged": acknowledged,
        "acknowledged_after": acknowledged and acknowledged.at - alert.fired_at,
        "timeline": sorted(rows, key=lambda row: row[0]),
        "facts": facts(alert, recurring=similar.recurring),
        "figures": figures_of(hot, alert, now=now),
        "frozen_link": frozen_link(alert, at=alert.resolved_at or now),
        "has_runbook": alert.rule in RULES,
        "changes": changes,
        "actions": [(event, event.at - alert.fired_at) for event in events if event.by],
        "similar": similar.alerts,
    }
    return re.sub(r"\n{3,}", "\n\n", render_to_string("alerts/post_mortem.md", context)), alert
