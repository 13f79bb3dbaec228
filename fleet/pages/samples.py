"""Samples of a node: request one, and the page, charts and CSV of one."""

import msgspec
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import HttpResponseClientRefresh

from fleet.access.roles import requires
from fleet.charts.samples import CHARTS, NodeSample
from fleet.ingest.samples import load_sample, request_sample
from fleet.models import Node, SampleRequest
from fleet.pages.charts import chart_table
from fleet.pages.nodes import PARTIALS, node_context, sample_row
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.summaries import nodes_now
from telemetry.errors import FieldError
from telemetry.store.hot import hot_store


@require_POST
@requires("operator")
def node_sample(request: HtmxRequest, name: str) -> HttpResponse:
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    hot, now, error = hot_store(), timezone.now(), ""
    is_up = nodes_now(hot, [node], now_s=now.timestamp())[0].is_up
    try:
        request_sample(hot, node, by=request.user.get_username(), is_up=is_up, now=now)
    except FieldError as refused:
        error = refused.message
    if request.htmx:
        context = node_context(name) | {"sample_error": error}
        status = 422 if error else 200
        template = "nodes/node_detail.html"
        return render_page(request, template, context, partials=PARTIALS, status=status)
    if error:
        messages.error(request, error)
    else:
        messages.success(request, f"A sample of {node.name} is requested.")
    return HttpResponseRedirect(f"{node.get_absolute_url()}#sample")


def _sample(name: str, pk: int) -> SampleRequest:
    rows = SampleRequest.objects.select_related("node")
    row: SampleRequest = get_object_or_404(rows, pk=pk, node__name=name)
    return row


def _stored(name: str, pk: int) -> NodeSample:
    row = _sample(name, pk)
    answer = load_sample(row)
    if answer is None:
        raise Http404(f"request {pk} of {name} has no stored sample")
    return NodeSample(row.node, answer)


@require_safe
def sample_detail(request: HtmxRequest, name: str, pk: int) -> HttpResponse:
    """Show one sample, or how far its request is."""
    row = _sample(name, pk)
    answer = load_sample(row)
    each = sample_row(row, is_stored=answer is not None, now=timezone.now())
    if request.htmx and not each.is_under_way:
        # The page waited for this.
        return HttpResponseClientRefresh()
    context = {
        "node": row.node,
        "each": each,
        "sample": answer,
        "wait_s": SampleRequest.WAIT.total_seconds(),
        "has_few_cores": row.node.n_cores <= 8,
    }
    if answer is not None:
        sample = NodeSample(row.node, answer)
        context |= {
            "window": sample.window,
            "every_s": answer.every_s,
            "sources": sample.sources(),
            "has_two_sources": all(n in sample.tables for n in ("monitor", "driver")),
            "charts": sample.charts,
        }
    return render_page(request, "nodes/sample_detail.html", context)


@gzip_page
@require_safe
def sample_chart(request: HtmxRequest, name: str, pk: int, chart: str) -> HttpResponse:
    if chart not in CHARTS:
        raise Http404(f"a sample has no chart {chart}; it has {', '.join(CHARTS)}")
    body = msgspec.json.encode(_stored(name, pk).figure(chart).as_json())
    table = chart_table(request, body, of=f"the sample of {name}")
    return table or HttpResponse(body, "application/json")


@gzip_page
@require_safe
def sample_csv(request: HtmxRequest, name: str, pk: int) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}-sample-{pk}.csv"'}
    return HttpResponse(_stored(name, pk).csv(), "text/csv; charset=utf-8", headers=headers)
