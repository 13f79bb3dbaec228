"""Pages of the alerts: what is open and what is over, and one incident with its evidence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Self

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from fleet.charts.alerts import alert_window, charts_of
from fleet.models import Alert, Node, Run
from fleet.views.render import HtmxRequest, render_page
from fleet.words.facts import facts, like, ruled_out
from fleet.words.sentences import told
from telemetry.detect import RULES

LIST_PARTIALS = ("open", "resolved")
PARTIALS = ("story", "act", "facts", "timeline", "bar")
PER_PAGE = 25
STATES = ("firing", "acknowledged", "resolved")
SINCE: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
}
FILTERS = ("state", "rule", "run", "since")


@dataclass(frozen=True, slots=True)
class AlertFilter:
    """Which alerts to list; the address holds it."""

    state: str = ""
    rule: str = ""
    run: str = ""
    since: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the filter from an address."""
        return cls(**{name: query.get(name, "").strip()[:100] for name in FILTERS})

    @property
    def query(self) -> str:
        """Return the filter as an address holds it; empty where it keeps everything."""
        return urlencode({name: value for name, value in asdict(self).items() if value})

    def keep(self, alerts: QuerySet[Alert]) -> QuerySet[Alert]:
        """Keep the alerts asked for, whatever their state."""
        if self.rule:
            alerts = alerts.filter(rule=self.rule)
        if self.run:
            alerts = alerts.filter(run__name=self.run)
        if self.since in SINCE:
            alerts = alerts.filter(fired_at__gte=timezone.now() - SINCE[self.since])
        return alerts.select_related("run", "node")

    def open(self) -> QuerySet[Alert]:
        """Return the open ones asked for: worst first, those that nobody has before the others."""
        alerts = self.keep(Alert.objects.open().worst_first())
        if self.state == "firing":
            return alerts.filter(acknowledged_at=None)
        if self.state == "acknowledged":
            return alerts.exclude(acknowledged_at=None)
        return alerts.none() if self.state == "resolved" else alerts

    def resolved(self) -> QuerySet[Alert]:
        """Return the resolved ones asked for, the latest first."""
        over = self.keep(Alert.objects.exclude(resolved_at=None).order_by("-resolved_at", "-pk"))
        return over if self.state in ("", "resolved") else over.none()


def alerts_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return what the list of alerts shows."""
    keep, now = AlertFilter.of(filters), timezone.now()
    resolved = Paginator(keep.resolved(), PER_PAGE).get_page(page)
    open_ = [told(alert, now=now) for alert in keep.open()]
    return {
        "open": open_,
        "n_unowned": sum(each.alert.acknowledged_at is None for each in open_),
        "resolved": [told(alert, now=now) for alert in resolved],
        "page": resolved,
        "stream_filters": "&".join(filter(None, (keep.query, _page_query(resolved.number)))),
        "keep": keep,
        "states": STATES,
        "rules": RULES.values(),
        "runs": list(Run.objects.values_list("name", flat=True)),
        "since": list(SINCE),
        "has_any": bool(open_ or resolved.paginator.count or Alert.objects.exists()),
    }


def _page_query(number: int) -> str:
    return f"page={number}" if number > 1 else ""


@require_safe
def alert_list(request: HtmxRequest) -> HttpResponse:
    """List the open alerts, then those that are over."""
    asked = {name: request.GET.get(name, "") for name in FILTERS}
    context = alerts_context(page=request.GET.get("page", "1"), **asked)
    return render_page(request, "fleet/alert_list.html", context, partials=LIST_PARTIALS)


def alert_context(pk: str | int) -> dict[str, Any]:
    """Return what changes on the page of one alert."""
    now = timezone.now()
    if not str(pk).isdecimal():
        raise Http404(f"{str(pk)[:20]!r} is no number of an alert")
    alert = get_object_or_404(Alert.objects.select_related("run", "node"), pk=pk)
    events = list(alert.events.all())
    window = alert_window(alert, now=now)
    return {
        "alert": alert,
        "stream": f"alert:{alert.pk}",
        "rule": RULES.get(alert.rule),
        "told": told(alert, now=now),
        "facts": facts(alert, n_before=like(alert).count()),
        "ruled_out": ruled_out(alert),
        "events": events,
        "comment": next((event for event in events if event.kind == "acknowledged"), None),
        "victims": list(Node.objects.filter(name__in=alert.victims)),
        "charts": charts_of(alert),
        "window": window,
        # What is over is asked for by its own two ends, and then no more.
        "chart_query": "" if alert.is_open else f"?{window.query}",
        "now": now,
    }


@require_safe
def alert_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One alert: what, where, since when, how bad, why, and who has it."""
    return render_page(request, "fleet/alert_detail.html", alert_context(pk), partials=PARTIALS)
