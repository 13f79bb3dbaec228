"""The page of one device of a node, next to its peers."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.alerts.causes import device_number
from fleet.alerts.correlation import finding_of_part
from fleet.alerts.text import AlertText
from fleet.charts.nodes import charts_of, note_of, unmeasured_of
from fleet.models import Alert, Node
from fleet.pages.frozen import window_context
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.devices import device_figures
from fleet.runs.summaries import nodes_now
from telemetry import catalog
from telemetry.errors import whole_number
from telemetry.store.hot import hot_store

PARTIALS = ("lead", "figures", "alerts")
HISTORY = timedelta(days=30)
MOST_ALERTS = 50


def device_context(name: str, *, at_s: int | None = None) -> dict[str, Any]:
    """Return the live part of a device's page, for ``<node>/<number>``, or a past second's."""
    of_node, _, number_text = name.rpartition("/")
    node = get_object_or_404(Node.objects.select_related("run"), name=of_node)
    number = whole_number(number_text, most=node.n_devices - 1)
    if number is None:
        last = node.n_devices - 1
        raise Http404(f"{node.name} has no device {number_text[:20]}; it has 0 to {last}")
    now, hot = timezone.now(), hot_store()
    row = nodes_now(hot, [node], now_s=now.timestamp())[0]
    newest = hot.newest().get(node.shard) if row.is_up else None
    second = at_s or newest
    accused = alerts_of(node, number, since=now - HISTORY)
    instance = catalog.instances().get(node.instance_type)
    return {
        "node": node,
        "number": number,
        "now": row,
        "chip": instance.chip.name if instance else "",
        "stream": f"device:{node.name}/{number}",
        "is_measured": node.source != Node.Source.SIMULATED,
        "figures": device_figures(hot, node, number, at_s=second) if second else [],
        "second": datetime.fromtimestamp(second, UTC) if second else None,
        "n_open": sum(alert.is_open for alert in accused),
        "alerts": [AlertText(alert, now) for alert in accused],
        "history_days": HISTORY.days,
        "as_of": datetime.fromtimestamp(newest, UTC) if newest else None,
    }


def alerts_of(node: Node, number: int, *, since: datetime) -> list[Alert]:
    """Return the alerts that accuse a device or one of its cores, the newest first."""
    lasted = Q(resolved_at=None) | Q(resolved_at__gt=since)
    alerts = Alert.objects.filter(lasted, Q(node=node) | ~Q(parts=[])).order_by("-fired_at", "-pk")
    accused = [a for a in alerts.select_related("run", "node") if number in _devices(a, node)]
    return accused[:MOST_ALERTS]


def _devices(alert: Alert, node: Node) -> set[int | None]:
    parts = map(finding_of_part, alert.parts)
    named = [(each.node, each.part, each.device) for each in parts]
    if alert.node_id == node.pk:
        named.append((node.name, alert.part, alert.device))
    n_cores = node.cores_per_device
    return {
        device_number(part, number, cores_per_device=n_cores)
        for name, part, number in named
        if name == node.name
    }


@require_safe
def device_detail(request: HtmxRequest, name: str, number: int) -> HttpResponse:
    """Show one device, now or in a past window."""
    shown = window_context(request, now=timezone.now())
    at_s = shown["window"].end if shown["frozen"] else None
    context = device_context(f"{name}/{number}", at_s=at_s) | shown
    node = context["node"]
    blocks = hot_store().latest([node.shard])
    unmeasured = unmeasured_of(node, blocks.get(node.shard))
    mine = [c for c in charts_of(node) if c.part in ("core", "device")]
    context["charts"] = [(each, note_of(each, node)) for each in mine if each not in unmeasured]
    context["unmeasured"] = [each for each in unmeasured if each in mine]
    context["chart_query"] = f"?{context['window'].query}&device={number}"
    return render_page(request, "nodes/device_detail.html", context, partials=PARTIALS)
