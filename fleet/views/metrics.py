"""`/metrics`: everything Prometheus may scrape."""

import gzip

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder

from fleet.exposition import alert_families, expected_nodes, run_families
from fleet.notify.families import notification_families
from telemetry.exposition import node_families
from telemetry.families import Family, text
from telemetry.service_families import service_families
from telemetry.store.hot import StoreUnavailable, open_store

OPEN_METRICS = "application/openmetrics-text"


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape, in the form and encoding it asks for."""
    _, content_type = choose_encoder(request.headers.get("Accept", ""))
    try:
        page = text(fleet_families(), is_open_metrics=content_type.startswith(OPEN_METRICS))
    except StoreUnavailable as error:
        # Prometheus then reads up == 0: better than a page with half of the series.
        return HttpResponse(f"{error}\n", status=503, content_type="text/plain; charset=utf-8")
    response = HttpResponse(page, content_type=content_type)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.content = gzip.compress(page, compresslevel=1, mtime=0)
        response["Content-Encoding"] = "gzip"
    patch_vary_headers(response, ["Accept", "Accept-Encoding"])
    return response


def fleet_families() -> list[Family]:
    """Return every family there is: nodes, runs, alerts, and the service itself."""
    hot, now = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S), timezone.now()
    return [
        *node_families(hot, now_s=now.timestamp(), expected=expected_nodes()),
        *run_families(hot, now=now),
        *alert_families(),
        *notification_families(now=now),
        *service_families(hot),
    ]
