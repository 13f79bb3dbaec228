"""Pages of the alerts: what is open and what is over, and one incident with its evidence."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from fleet.alerts.text import AlertText, facts, ruled_out
from fleet.charts.alerts import alert_window, charts_of
from fleet.charts.frozen import asked_moment, frozen_link, with_worst, written
from fleet.charts.windows import Window
from fleet.models import Alert, AlertEvent, Run
from fleet.models.alert import AlertQuerySet
from fleet.pages.alert_context import (
    SAID_BY_PEOPLE,
    changes_of,
    neighbours_of,
    nth_this_week,
    recurring,
    similar_alerts,
    until_of,
    where_of,
)
from fleet.pages.annotations import annotate_context
from fleet.pages.frozen import alert_then
from fleet.pages.post_mortem import post_mortem
from fleet.pages.render import Filter, HtmxRequest, render_page, with_page
from fleet.pages.runbooks import check_first
from fleet.runs.summaries import runs_now
from telemetry.detect import RULES
from telemetry.store.hot import HotStore, open_store

STATES = ("firing", "acknowledged", "silenced", "resolved")
SINCE: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}


@dataclass(frozen=True, slots=True)
class AlertFilter(Filter):
    """Which alerts to list."""

    state: str = ""
    rule: str = ""
    run: str = ""
    node: str = ""
    who: str = ""
    since: str = ""

    def alerts(self, *, now: datetime) -> AlertQuerySet:
        """Return the alerts that match, with what the list shows of them."""
        fields = asdict(self) | {"since": now - SINCE[self.since] if self.since in SINCE else None}
        alerts = Alert.objects.filter_by(now=now, **fields)
        return alerts.select_related("run", "node", "silence")


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One line of the list: an alert in words, and how often it came lately."""

    text: AlertText
    nth: int
    is_silenced: bool

    @property
    def alert(self) -> Alert:
        """The alert itself."""
        return self.text.alert

    @property
    def recurring(self) -> str:
        """Say that it is not here for the first time this week."""
        return recurring(self.nth, where_of(self.alert))


def rows_of(alerts: Iterable[Alert], *, now: datetime) -> list[AlertRow]:
    """Put alerts in rows; those that are silenced come after those that are not."""
    listed = list(alerts)
    nth = nth_this_week(listed)
    rows = [
        AlertRow(AlertText(alert, now), nth.get(alert.pk, 1), alert.is_silenced(now))
        for alert in listed
    ]
    return sorted(rows, key=lambda row: row.is_silenced)


LIST_PARTIALS = ("open", "resolved")
# What changes by itself while somebody looks; the others only when somebody does something.
PARTIALS = ("story", "act", "facts", "timeline", "bar")
SOUGHT_PARTIALS = (*PARTIALS, "changes", "similar")
PER_PAGE = 25
FILTERS = ("state", "rule", "run", "node", "who", "since")
SHOWN_VICTIMS = 8


def alerts_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return what the list of alerts shows."""
    keep, now = AlertFilter.of(filters), timezone.now()
    alerts = keep.alerts(now=now)
    over = alerts.in_state("resolved", now=now).order_by("-resolved_at", "-pk")
    resolved = Paginator(over, PER_PAGE).get_page(page)
    rows = rows_of([*alerts.open().worst_first(), *resolved], now=now)
    open_ = [row for row in rows if row.alert.is_open]
    return {
        "open": open_,
        "n_unacknowledged": sum(row.alert.acknowledged_at is None for row in open_),
        "n_silenced": sum(row.is_silenced for row in open_),
        "resolved": [row for row in rows if not row.alert.is_open],
        "page": resolved,
        "stream_filters": with_page(keep.query, resolved.number),
        "keep": keep,
        "states": STATES,
        "rules": RULES.values(),
        "runs": list(Run.objects.values_list("name", flat=True)),
        "since": list(SINCE),
        "has_any": bool(open_ or resolved.paginator.count or Alert.objects.exists()),
    }


@require_safe
def alert_list(request: HtmxRequest) -> HttpResponse:
    """List the open alerts, then those that are over."""
    asked = {name: request.GET.get(name, "") for name in FILTERS}
    context = alerts_context(page=request.GET.get("page", "1"), **asked)
    return render_page(request, "alerts/alert_list.html", context, partials=LIST_PARTIALS)


def alert_context(pk: str | int, *, at: str = "") -> dict[str, Any]:
    """Return what changes on the page of one alert; ``at`` is a moment to show it as of."""
    now = timezone.now()
    alert, hot = _found(pk), open_store(settings.REDIS_URL)
    events = list(alert.events.all())
    moment = asked_moment(at, alert=alert, now=now)
    then = alert_then(hot, alert, events, moment) if moment else alert
    share_ratio = None if moment or not alert.is_open else _share_now(hot, alert, now)
    then.evidence = with_worst(then, events, at=moment or now)
    link = frozen_link(then, at=moment or now)
    return {
        "alert": alert,
        "then": then,
        "moment": moment,
        "stream": f"alert:{alert.pk}",
        "rule": RULES.get(then.rule),
        "text": AlertText(then, moment or now, share_ratio),
        "facts": facts(then),
        "ruled_out": ruled_out(then),
        "events": [event for event in events if not moment or event.at <= moment],
        "comment": _last_word([event for event in events if not moment or event.at <= moment]),
        "charts": charts_of(then),
        "frozen_link": link,
        "here": link if moment else alert.get_absolute_url(),
        "now": now,
    }


def _found(pk: str | int) -> Alert:
    if not str(pk).isdecimal() or len(str(pk)) > 18:
        raise Http404(f"{str(pk)[:20]!r} is no number of an alert")
    return get_object_or_404(Alert.objects.select_related("run", "node", "silence"), pk=pk)


def _share_now(hot: HotStore, alert: Alert, now: datetime) -> float | None:
    """Return the run's share as its own page shows it, where that is what the alert is about."""
    if alert.run is None or alert.rule != "allreduce_share":
        return None
    return runs_now(hot, [alert.run], now_s=now.timestamp())[0].share_ratio


def _last_word(events: list[AlertEvent]) -> AlertEvent | None:
    """Return the last remark of a person that says something."""
    said = [event for event in events if event.by and event.text and event.kind in SAID_BY_PEOPLE]
    return said[-1] if said else None


def incident_context(context: dict[str, Any]) -> dict[str, Any]:
    """Return what stands on the page of one alert and does not move by itself."""
    then, now, moment = context["then"], context["now"], context["moment"]
    until = until_of(then, now=moment or now)
    neighbours = neighbours_of(then, until=until, at=moment)
    similar = similar_alerts(then, neighbours)
    hot = open_store(settings.REDIS_URL)
    about = {"run": then.run.name} if then.run else {"node": then.node.name if then.node else ""}
    return {
        "similar": similar,
        "check_first": check_first(then.rule),
        "changes": changes_of(hot, then, neighbours, now=moment or now),
        "facts": facts(then, recurring=similar.recurring),
        "shown_victims": then.victims[:SHOWN_VICTIMS],
        "more_victims": then.victims[SHOWN_VICTIMS:],
        **_window(context),
        **annotate_context(**about, back=then.get_absolute_url()),
    }


def _window(context: dict[str, Any]) -> dict[str, Any]:
    """Return which stretch the charts show: by its two ends where it is over or frozen."""
    moment: datetime | None = context["moment"]
    then: Alert = context["then"]
    window: Window = alert_window(then, now=moment or context["now"])
    query = "" if then.is_open and not moment else f"?{window.query}"
    if moment:
        query = f"?{window.query}&at={written(moment)}"
    return {"window": window, "chart_query": query, "frozen": window.frozen if moment else ""}


@require_safe
def alert_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One alert: what, where, since when, how bad, why, and who has it."""
    at = request.GET.get("at", request.GET.get("to", ""))
    context = alert_context(pk, at=at)
    if request.htmx.target not in PARTIALS:
        context |= incident_context(context)
    return render_page(request, "alerts/alert_detail.html", context, partials=SOUGHT_PARTIALS)


@require_safe
def alert_post_mortem(request: HtmxRequest, pk: int) -> HttpResponse:
    """Write one alert up as Markdown: what a post-mortem needs, and true without editing."""
    context = alert_context(pk)
    hot = open_store(settings.REDIS_URL)
    neighbours = neighbours_of(context["alert"], until=context["now"])
    text = post_mortem(
        hot,
        context["alert"],
        context["events"],
        neighbours,
        now=context["now"],
        root=request.build_absolute_uri("/").rstrip("/"),
    )
    response = HttpResponse(text, "text/markdown; charset=utf-8")
    name = f"alert-{pk}-post-mortem.md"
    response["Content-Disposition"] = (
        content_disposition_header(as_attachment=False, filename=name) or "inline"
    )
    response["Cache-Control"] = "no-store"
    return response
