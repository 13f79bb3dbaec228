"""The data of charts, as JSON or as an HTML table: one address per chart."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from fleet.charts.alerts import alert_window
from fleet.charts.figures import Chart, Heat, table_of
from fleet.charts.frozen import incident_figure, parse_moment
from fleet.charts.image import alert_image as image_of
from fleet.charts.image import is_image_key
from fleet.charts.imported_logs import LOG_CHARTS, log_figure
from fleet.charts.markers import marked
from fleet.charts.node_maps import MAPS, WORKER_MAPS, node_map, worker_map
from fleet.charts.nodes import NODE_CHARTS, charts_of, node_figure
from fleet.charts.runs import RUN_CHARTS, LossView, expected_cost_marks, run_figure, viewed_loss
from fleet.charts.windows import Window, window_of
from fleet.metrics.long_term import long_term_history
from fleet.models import Alert, InjectedFault, Node, Run
from fleet.runs.devices import parts_of
from fleet.simulation.drill_results import drill_figure, drill_result, drill_window
from telemetry.errors import LARGEST_SECOND, FieldError, whole_number
from telemetry.store.hot import hot_store


def chart_table(request: HttpRequest, body: bytes | str, *, of: str = "") -> HttpResponse | None:
    """Return a chart's figures as an HTML page; None if the request prefers JSON.

    The title comes from the address: ``/runs/llama/charts/share``, ``/overview/shares``; what the
    chart is ``of`` too, unless it is given.
    """
    if request.get_preferred_type(["application/json", "text/html"]) != "text/html":
        return None
    page, _, chart = request.path.rpartition("/")
    owner, _, _ = page.rpartition("/charts")
    name = of or owner.rpartition("/")[2]
    title = chart.replace("-", " ").capitalize()
    query = request.GET.urlencode()
    context = {
        "title": f"{title} of {name or 'the fleet'}",
        "of": name or "the fleet",
        "back": f"{owner}/{f'?{query}' if query else ''}",
        "table": table_of(msgspec.json.decode(body)),
    }
    return render(request, "charts/chart_table.html", context)


LIVE_S, IMAGE_S = 2, 3600
PAST_S = 300


@gzip_page
@require_safe
def node_chart(request: HttpRequest, name: str, chart: str) -> HttpResponse:
    """Return one chart of a node; the parts of the ``device`` in the address stand out."""
    node = get_object_or_404(Node.objects.select_related("run"), name=name)
    if (signal := MAPS.get(chart)) is not None:
        return answer_chart(
            request,
            lambda window: node_map(
                hot_store(), node, signal, window, long_term=long_term_history()
            ),
        )
    drawn = next((each for each in charts_of(node) if each.name == chart), None)
    if drawn is None:
        known = ", ".join([*NODE_CHARTS, *MAPS])
        raise Http404(f"{name} has no chart {chart}; it has {known}")
    device = whole_number(request.GET.get("device", ""), most=node.n_devices - 1)
    is_of_device = drawn.part in ("core", "device")
    marks = parts_of(node, device, drawn.metric) if is_of_device and device is not None else ()
    return answer_chart(
        request,
        lambda window: marked(
            node_figure(
                hot_store(), node, drawn, window, marked=marks, long_term=long_term_history()
            ),
            window,
            run=node.run_id,
            node=node.pk,
        ),
    )


@gzip_page
@require_safe
def run_chart(request: HttpRequest, name: str, chart: str) -> HttpResponse:
    run = get_object_or_404(Run.objects.select_related("log"), name=name)
    is_logged = chart in LOG_CHARTS and hasattr(run, "log")
    if not is_logged and chart not in RUN_CHARTS and chart not in WORKER_MAPS:
        known = ", ".join([*RUN_CHARTS, *WORKER_MAPS])
        raise Http404(f"a run has no chart {chart}; it has {known}")
    view = LossView.of(request.GET.dict())

    def draw(window: Window) -> Chart | Heat:
        hot, long_term = hot_store(), long_term_history()
        if chart in WORKER_MAPS:
            return worker_map(hot, run, MAPS[chart], window)
        if is_logged:
            figure = log_figure(run.log, chart, window)
        elif chart == "loss" and view != LossView():
            figure = viewed_loss(hot, run, window, view, long_term=long_term)
        else:
            figure = run_figure(hot, run, chart, window, long_term=long_term)
        if chart == "cost" and "expected" in request.GET and not is_logged:
            marks = expected_cost_marks(hot, run, now_s=timezone.now().timestamp())
            # On a log scale a pause leaves the levels apart.
            return replace(figure, marks=marks, scale="log", events=())
        return marked(figure, window, run=run.pk)

    return answer_chart(request, draw)


@gzip_page
@require_safe
def alert_chart(request: HttpRequest, pk: int, chart: str) -> HttpResponse:
    """Return one chart of an alert, by default over its own frozen window."""
    alert = get_object_or_404(Alert.objects.select_related("run", "node"), pk=pk)
    now = timezone.now()
    mine = alert_window(alert, now=now)

    def draw(window: Window) -> bytes | Chart | Heat:
        hot, at = hot_store(), request.GET.get("at", "")
        figure = incident_figure(
            hot, alert, chart, window, at=at, now=now, long_term=long_term_history()
        )
        if figure is None:
            raise Http404(f"alert {pk} has no chart {chart}")
        moment = parse_moment(at, alert=alert, now=now)
        seen = replace(window, end=min(window.end, int(moment.timestamp()))) if moment else window
        return marked(figure, seen, run=alert.run_id, node=alert.node_id, without=alert.pk)

    return answer_chart(request, draw, default=mine)


@require_safe
def alert_image(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the first chart of an alert at a time as a PNG, for its signed address.

    Chat and mail programs fetch it without a session.
    """
    at_s, key = (
        whole_number(request.GET.get("at", ""), most=LARGEST_SECOND),
        request.GET.get("key"),
    )
    now = timezone.now()
    if at_s is None or not is_image_key(key or "", alert=pk, at_s=at_s, now=now):
        raise Http404("the address of this image is not signed, or has expired")
    alert = get_object_or_404(Alert.objects.select_related("run", "node"), pk=pk)
    image = image_of(
        hot_store(),
        alert,
        at=datetime.fromtimestamp(at_s, UTC),
        now=now,
        long_term=long_term_history(),
    )
    if image is None:
        raise Http404(f"alert {pk} has no chart at that time")
    # What is later than its time does not change it, but for steps that arrive late.
    headers = {"Cache-Control": f"public, max-age={IMAGE_S}"}
    return HttpResponse(image, content_type="image/png", headers=headers)


@gzip_page
@require_safe
def drill_chart(request: HttpRequest, pk: int, chart: str) -> HttpResponse:
    """Return one chart of a drill, by default over its own window."""
    fault = get_object_or_404(InjectedFault.objects.select_related("run", "node"), pk=pk)
    now = timezone.now()
    drill = drill_result(fault, now=now)

    def draw(window: Window) -> Chart:
        hot = hot_store()
        long_term = long_term_history()
        figure = drill_figure(hot, fault, drill.firing, chart, window, long_term=long_term)
        if figure is None:
            raise Http404(f"drill {pk} has no chart {chart}")
        return figure

    return answer_chart(request, draw, default=drill_window(fault, drill.firing, now=now))


def answer_chart(
    request: HttpRequest,
    draw: Callable[[Window], bytes | Chart | Heat],
    *,
    default: Window | None = None,
) -> HttpResponse:
    """Respond with a chart over the window in the address, as JSON or as a table."""
    now = timezone.now()
    try:
        own = None if any(field in request.GET for field in ("window", "from", "to")) else default
        window = own or window_of(request.GET.dict(), now=now)
    except FieldError as error:
        refusal = {"error": {"field": error.field, "message": error.message}}
        return HttpResponse(msgspec.json.encode(refusal), "application/json", status=400)
    drawn = draw(window)
    body = drawn if isinstance(drawn, bytes) else msgspec.json.encode(drawn.as_json())
    response = chart_table(request, body) or _cached(request, body, window, now=now)
    patch_vary_headers(response, ["Accept"])
    return response


def _cached(request: HttpRequest, body: bytes, window: Window, *, now: datetime) -> HttpResponse:
    """Respond with an ETag; the past is cached longer."""
    tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    same = request.headers.get("If-None-Match") == tag
    response = HttpResponseNotModified() if same else HttpResponse(body, "application/json")
    is_past = not window.is_live and window.end < now.timestamp() - settings.HOT_KEEP_S
    response["ETag"] = tag
    response["Cache-Control"] = f"private, max-age={PAST_S if is_past else LIVE_S}"
    return response
