"""Pages for Prometheus: `/metrics`, `/metrics/neuron`, `/metrics/nodes/<name>`, discovery."""

import time
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fleet.metrics.collectors import NeuronCollector, fleet_registry, node_registry
from fleet.models import Node
from fleet.models.node import address
from fleet.models.problem import problem, store_unavailable
from telemetry.exporter.exposition import stream_page
from telemetry.store.connection import StoreUnavailable
from telemetry.store.hot import hot_store


@require_safe
def sd_prometheus(request: HttpRequest) -> HttpResponse:
    """List every node that should report, or does. The list is complete, or the request fails.

    Each node is two targets: its own page, and its part of `/metrics/neuron`.
    """
    hot = hot_store()
    try:
        seen = hot.last_seen()
        nodes = list(Node.objects.unretired().select_related("run").order_by("name"))
    except (DatabaseError, StoreUnavailable) as error:
        # After a failed request Prometheus keeps its targets.
        return store_unavailable(error)
    since_s = time.time() - settings.HOT_KEEP_S
    listed = [node for node in nodes if not node.is_released or seen.get(node.name, 0) > since_s]
    neuron = reverse("metrics-neuron")
    groups = [group for node in listed for group in _groups(request, node, neuron=neuron)]
    return JsonResponse(groups, safe=False, headers={"Cache-Control": "no-store"})


def _groups(request: HttpRequest, node: Node, *, neuron: str) -> list[dict[str, Any]]:
    """Return the two targets of a node, with its labels.

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


OPEN_METRICS = "application/openmetrics-text"
GZIP_WINDOW = 31  # zlib: write the header and trailer of gzip
COMPRESS_LEVEL = 1


@require_safe
def metrics(request: HttpRequest) -> HttpResponseBase:
    """Serve all families; ``?nodes=0`` leaves out the hardware, which each node's page has."""
    hot = hot_store()
    with_nodes = request.GET.get("nodes") != "0"
    try:
        return streamed(request, fleet_registry(hot, now=timezone.now(), with_nodes=with_nodes))
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


@require_safe
def metrics_neuron(request: HttpRequest) -> HttpResponseBase:
    """Serve the names of AWS's exporters, of all nodes or of ``?node=NAME``."""
    hot = hot_store()
    name = request.GET.get("node")
    try:
        node = None if name is None else _node(name)
        if name is not None and node is None:
            return _unknown(name)
        return streamed(request, NeuronCollector(hot, now=timezone.now(), node=node))
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


@require_safe
def metrics_node(request: HttpRequest, name: str) -> HttpResponseBase:
    hot = hot_store()
    try:
        node = _node(name)
        if node is None:
            return _unknown(name)
        return streamed(request, node_registry(hot, node, now=timezone.now()))
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


def _node(name: str) -> Node | None:
    if "\0" in name:
        # PostgreSQL refuses NUL in text.
        return None
    return Node.objects.select_related("run").filter(name=name).first()


def _unknown(name: str) -> HttpResponseBase:
    return problem(404, f"There is no node {name!r}; /sd/prometheus names them all.")


def streamed(request: HttpRequest, collector: Collector) -> HttpResponseBase:
    """Stream a page in the format and encoding that the request accepts.

    Everything is read before the first byte is sent, so that a failing store gives a 503. If
    writing fails nevertheless, the connection breaks: a page that just ended would look complete.
    """
    families = list(collector.collect())
    _, content_type = choose_encoder(request.headers.get("Accept", ""))
    page = stream_page(families, is_open_metrics=content_type.startswith(OPEN_METRICS))
    # A weight of zero means no.
    accepted = request.headers.get("Accept-Encoding", "").split(",")
    codings = (coding.replace(" ", "").partition(";q=") for coding in accepted)
    is_packed = any(
        name == "gzip" and (not q or weight.strip("0.")) for name, q, weight in codings
    )
    body = _packed(page) if is_packed else page
    content = _served(body) if isinstance(request, ASGIRequest) else body
    response = StreamingHttpResponse(content, content_type=content_type)
    if is_packed:
        response["Content-Encoding"] = "gzip"
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept", "Accept-Encoding"])
    return response


def _packed(page: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(COMPRESS_LEVEL, wbits=GZIP_WINDOW)
    for piece in page:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


async def _served(page: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Write each piece in a thread, so that the event loop is not blocked."""
    step = sync_to_async(_next, thread_sensitive=False)
    while piece := await step(page):
        yield piece


def _next(page: Iterator[bytes]) -> bytes:
    """Return the next piece; only after the last one it is empty."""
    return next(page, b"")
