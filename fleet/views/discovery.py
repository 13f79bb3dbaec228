"""`/sd/prometheus`: the nodes as targets, for Prometheus' HTTP service discovery."""

import time
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from fleet.models import Node
from fleet.models.addresses import address
from fleet.problem import store_away
from telemetry.store.hot import StoreUnavailable, open_store


@require_safe
def sd_prometheus(request: HttpRequest) -> HttpResponse:
    """List every node that ought to report, or does: all of them, or the request fails."""
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    try:
        seen = hot.last_seen()
        nodes = list(Node.objects.select_related("run").order_by("name"))
    except (DatabaseError, StoreUnavailable) as error:
        # Prometheus keeps the targets that it knows.
        return store_away(error)
    since_s = time.time() - settings.HOT_KEEP_S
    told = [node for node in nodes if not node.is_released or seen.get(node.name, 0) > since_s]
    groups = [_group(request, node) for node in told]
    return JsonResponse(groups, safe=False, headers={"Cache-Control": "no-store"})


def _group(request: HttpRequest, node: Node) -> dict[str, Any]:
    """Return one node as a target: its own page here, and what it is."""
    run = node.run
    labels = {
        "__scheme__": request.scheme or "http",
        "__metrics_path__": address("metrics-node", node.name),
        "instance": node.name,
        "node": node.name,
        "run": run.name if run else "",
        "team": run.team if run else "",
        "instance_type": node.instance_type,
        "availability_zone": node.zone,
        "source": node.source,
    }
    return {"targets": [request.get_host()], "labels": labels}
