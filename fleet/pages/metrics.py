"""Pages for Prometheus: `/metrics`, `/metrics/neuron`, `/metrics/nodes/<name>`, discovery."""

import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from django.conf import settings
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
)
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fleet.metrics.collectors import fleet_registry, node_registry
from fleet.metrics.node_collectors import NeuronCollector
from fleet.models import Node, Run
from fleet.models.node import address
from fleet.models.problem import problem, store_unavailable
from fleet.pages.streaming import accepts_gzip, stream
from fleet.runs.node_columns import Roster, node_columns
from telemetry.blocks import IntArray
from telemetry.errors import LARGEST_KEY, whole_number
from telemetry.exporter.exposition import stream_page
from telemetry.store.connection import StoreUnavailable
from telemetry.store.hot import hot_store

# The targets of more nodes are parts of runs: a list of 4,000 nodes has 2.5 MB.
MOST_LISTED = 4_000
# What each node's pages are of, at most 0.27 MB of them: no part has more than 5 MB.
NODES_PER_PART = 16
LABELS = ("name", "run__name", "run__team", "instance_type", "zone", "source")


@require_safe
def sd_prometheus(request: HttpRequest) -> HttpResponse:
    """List every node that should report, or does. The list is complete, or the request fails.

    Each node is two targets: its own page, and its part of `/metrics/neuron`; of a large fleet
    each part of a run.
    """
    try:
        columns = node_columns(hot_store(), now_s=time.time(), with_cores=False)
        listed = ~columns.is_over | (columns.seen_s > time.time() - settings.HOT_KEEP_S)
        of = _parts if listed.sum() > MOST_LISTED else _nodes
        groups = list(of(request, columns.roster, np.flatnonzero(listed)))
    except (DatabaseError, StoreUnavailable) as error:
        # After a failed request Prometheus keeps its targets.
        return store_unavailable(error)
    return JsonResponse(groups, safe=False, headers={"Cache-Control": "no-store"})


def _nodes(request: HttpRequest, roster: Roster, rows: IntArray) -> Iterator[dict[str, Any]]:
    """Yield the two targets of each node, with its labels, by name.

    Both have the same ``instance``: the label ``metrics_path`` keeps their ``up`` apart.
    """
    wanted, neuron = {roster.names[row] for row in rows.tolist()}, reverse("metrics-neuron")
    for name, *facts in Node.objects.unretired().order_by("name").values_list(*LABELS):
        if name not in wanted:
            continue
        run, team, instance_type, zone, source = facts
        labels = {
            "__scheme__": request.scheme or "http",
            "instance": name,
            "node": name,
            "run": run or "",
            "team": team or "",
            "instance_type": instance_type,
            "availability_zone": zone,
            "source": source,
        }
        own = {"__metrics_path__": address("metrics-node", name)}
        of_neuron = {"__metrics_path__": neuron, "__param_node": name, "metrics_path": neuron}
        for page in (own, of_neuron):
            yield {"targets": [request.get_host()], "labels": page | labels}


def _parts(request: HttpRequest, roster: Roster, rows: IntArray) -> Iterator[dict[str, Any]]:
    """Yield the two targets of each part of a run, by run and rank.

    A node keeps its part for as long as it keeps its rank.
    """
    metrics, neuron = reverse("metrics"), reverse("metrics-neuron")
    teams = dict(Run.objects.filter(pk__in=roster.run_names).values_list("pk", "team"))
    places = np.where(roster.run > 0, roster.rank, roster.key)[rows] // NODES_PER_PART
    parts = dict.fromkeys(zip(roster.run[rows].tolist(), places.tolist(), strict=True))
    for run, part in parts:
        name = roster.run_names.get(run, "")
        labels = {
            "__scheme__": request.scheme or "http",
            "__param_run": name,
            "__param_part": str(part),
            "instance": f"{name or 'no run'}/{part}",
            "run": name,
            "team": teams.get(run, ""),
        }
        own = {"__metrics_path__": metrics}
        of_neuron = {"__metrics_path__": neuron, "metrics_path": neuron}
        for page in (own, of_neuron):
            yield {"targets": [request.get_host()], "labels": page | labels}


def _asked_part(request: HttpRequest) -> QuerySet[Node] | None:
    """Return the nodes of ``?run=NAME&part=NUMBER``; None without a part."""
    if "part" not in request.GET:
        return None
    part, run = whole_number(request.GET["part"], most=LARGEST_KEY), request.GET.get("run", "")
    if part is None or "\0" in run:
        return Node.objects.none()
    nodes = Node.objects.filter(run__name=run) if run else Node.objects.filter(run=None)
    first = part * NODES_PER_PART
    place = "rank" if run else "pk"
    return nodes.filter(**{f"{place}__gte": first, f"{place}__lt": first + NODES_PER_PART})


OPEN_METRICS = "application/openmetrics-text"
GZIP_WINDOW = 31  # zlib: write the header and trailer of gzip
COMPRESS_LEVEL = 1


@require_safe
def metrics(request: HttpRequest) -> HttpResponseBase:
    """Serve all families; ``?nodes=0`` leaves out the hardware, which each node's page has.

    ``?run=NAME&part=NUMBER`` serves the hardware of some nodes of a run, and nothing else.
    """
    hot = hot_store()
    with_nodes = request.GET.get("nodes") != "0"
    try:
        if (part := _asked_part(request)) is not None:
            if not part:
                return _unknown_part()
            return streamed(request, node_registry(hot, part, now=timezone.now()))
        return streamed(request, fleet_registry(hot, now=timezone.now(), with_nodes=with_nodes))
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


@require_safe
def metrics_neuron(request: HttpRequest) -> HttpResponseBase:
    """Serve the names of AWS's exporters: of all nodes, of ``?node=NAME``, of a part of a run."""
    hot = hot_store()
    name = request.GET.get("node")
    nodes: QuerySet[Node] | None
    try:
        if name is not None:
            nodes = _node(name)
            if not nodes:
                return _unknown(name)
        elif (part := _asked_part(request)) is not None and not part:
            return _unknown_part()
        else:
            nodes = part
        collector = NeuronCollector(
            hot, now=timezone.now(), nodes=nodes, is_alone=name is not None
        )
        return streamed(request, collector)
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


@require_safe
def metrics_node(request: HttpRequest, name: str) -> HttpResponseBase:
    hot = hot_store()
    try:
        node = _node(name)
        if not node:
            return _unknown(name)
        return streamed(request, node_registry(hot, node, now=timezone.now()))
    except (DatabaseError, StoreUnavailable) as error:
        return store_unavailable(error)


def _node(name: str) -> QuerySet[Node]:
    # PostgreSQL refuses NUL in text.
    return Node.objects.none() if "\0" in name else Node.objects.filter(name=name)


def _unknown(name: str) -> HttpResponseBase:
    return problem(404, f"There is no node {name!r}; /sd/prometheus names them all.")


def _unknown_part() -> HttpResponseBase:
    return problem(404, "part: no such nodes; /sd/prometheus names all parts of a large fleet.")


def streamed(request: HttpRequest, collector: Collector) -> HttpResponseBase:
    """Stream a page in the format and encoding that the request accepts.

    Everything is read before the first byte is sent, so that a failing store gives a 503. If
    writing fails nevertheless, the connection breaks: a page that just ended would look complete.
    """
    families = list(collector.collect())
    _, content_type = choose_encoder(request.headers.get("Accept", ""))
    page = stream_page(families, is_open_metrics=content_type.startswith(OPEN_METRICS))
    is_packed = accepts_gzip(request)
    body = _packed(page) if is_packed else page
    headers = {"Cache-Control": "no-store"}
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    response = stream(request, body, content_type, headers=headers)
    patch_vary_headers(response, ["Accept", "Accept-Encoding"])
    return response


def _packed(page: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(COMPRESS_LEVEL, wbits=GZIP_WINDOW)
    for piece in page:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()
