"""`/sd/prometheus`: the nodes as targets, for Prometheus' HTTP service discovery."""

import time
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from fleet.models import Node
from fleet.models.addresses import address
from fleet.problem import store_away
from telemetry.store.hot import StoreUnavailable, open_store


@require_safe
def sd_prometheus(request: HttpRequest) -> HttpResponse:
    """List every node that ought to report, or does: all of them, or the request fails.

    Each is two targets: its own page, and its part of the page of AWS's names.
    """
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    try:
        seen = hot.last_seen()
        nodes = list(Node.objects.select_related("run").order_by("name"))
    except (DatabaseError, StoreUnavailable) as error:
        # Prometheus keeps the targets that it knows.
        return store_away(error)
    since_s = time.time() - settings.HOT_KEEP_S
    told = [node for node in nodes if not node.is_released or seen.get(node.name, 0) > since_s]
    neuron = reverse("metrics-neuron")
    groups = [group for node in told for group in _groups(request, node, neuron=neuron)]
    return JsonResponse(groups, safe=False, headers={"Cache-Control": "no-store"})


def _groups(request: HttpRequest, node: Node, *, neuron: str) -> list[dict[str, Any]]:
    """Return one node as two targets, and what it is.

    Both have the same ``instance``: the label ``metrics_path`` keeps their ``up`` apart.
    """
    run = node.run
    labels = {
        "__scheme__": request.scheme or "http",
        "instance": node.name,
        "node": node.name,
        "run": run.name if run else "",
        "team": run.team if run else "",
        "instance_type": node.instance_type,
        "availability_zone": node.zone,
        "source": node.source,
    }
    pages = (
        {"__metrics_path__": address("metrics-node", node.name)},
        {"__metrics_path__": neuron, "__param_node": node.name, "metrics_path": neuron},
    )
    return [{"targets": [request.get_host()], "labels": page | labels} for page in pages]
