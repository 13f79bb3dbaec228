"""What people say happened: the small form on the pages of runs and alerts, and by itself."""

from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from fleet.access.roles import requires
from fleet.models import Annotation
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.annotations import AnnotationRequest, Kind, annotate
from telemetry.errors import FieldError

FIELDS = ("kind", "text", "at", "run", "node", "back")
SHOWN = 50
TEMPLATE, PARTIALS = "runs/annotation_add.html", ("annotate",)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def annotation_add(request: HtmxRequest) -> HttpResponse:
    """Add an annotation, or show the form for it."""
    given = request.POST if request.method == "POST" else request.GET
    fields = {name: given.get(name, "").strip() for name in FIELDS}
    if request.method != "POST":
        return _form(request, fields)
    now = timezone.now()
    try:
        at = _moment(fields["at"]) or now
        said = AnnotationRequest(
            fields["kind"], fields["text"], at, run=fields["run"], node=fields["node"]
        )
        annotate(said, by=request.user.get_username(), now=now)
    except FieldError as error:
        return _form(request, fields, error=error, status=422)
    return _kept(request, fields)


def _moment(given: str) -> datetime | None:
    """Read the moment that a browser's field gives: UTC, to the minute or second."""
    if not given:
        return None
    try:
        return datetime.fromisoformat(given).replace(tzinfo=UTC)
    except ValueError:
        raise FieldError("at", "must be a date and time, for example 2026-11-21T14:29") from None


def annotate_context(*, run: str = "", node: str = "", back: str = "") -> dict[str, Any]:
    """Return what the form needs wherever it stands."""
    return {"kinds": Kind.values, "given": {"run": run, "node": node, "back": back}}


def _form(
    request: HtmxRequest,
    fields: dict[str, str],
    *,
    error: FieldError | None = None,
    status: int = 200,
) -> HttpResponse:
    about = Annotation.objects.select_related("run", "node").order_by("-at")
    if fields["run"]:
        about = about.filter(Q(run__name=fields["run"]) | Q(run=None))
    context = {"kinds": Kind.values, "given": fields, "error": error, "said": about[:SHOWN]}
    return render_page(request, TEMPLATE, context, partials=PARTIALS, status=status)


def _kept(request: HtmxRequest, fields: dict[str, str]) -> HttpResponse:
    """Say that it is kept: to htmx by an empty form, to others on the page they came from."""
    if request.htmx:
        about = {name: fields[name] for name in ("run", "node", "back")}
        context = {"kinds": Kind.values, "given": about, "is_kept": True}
        response = render_page(request, TEMPLATE, context, partials=PARTIALS)
        return trigger_client_event(response, "annotations-changed")
    messages.success(request, "Annotation saved.")
    back = fields["back"]
    is_safe = url_has_allowed_host_and_scheme(back, {request.get_host()})
    return HttpResponseRedirect(back if is_safe else "/")
