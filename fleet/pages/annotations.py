"""The annotation form on run and alert pages, and its own page with the list."""

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
from fleet.pages.fields import submit
from fleet.pages.forms import AnnotationForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.annotations import annotate

SHOWN = 50
SUBJECT = ("run", "node", "back")
TEMPLATE, PARTIALS = "runs/annotation_add.html", ("annotate",)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def annotation_add(request: HtmxRequest) -> HttpResponse:
    if request.method != "POST":
        return _show(request, AnnotationForm(initial=request.GET.dict()))
    form, by, now = AnnotationForm(request.POST), request.user.get_username(), timezone.now()
    if not submit(form, lambda: annotate(form.request(now=now), by=by, now=now)):
        return _show(request, form)
    if request.htmx:
        subject = {name: form.cleaned_data[name] for name in SUBJECT}
        context = annotate_context(**subject) | {"is_saved": True}
        response = render_page(request, TEMPLATE, context, partials=PARTIALS)
        return trigger_client_event(response, "annotations-changed")
    messages.success(request, "Annotation saved.")
    back = form.cleaned_data["back"]
    is_safe = url_has_allowed_host_and_scheme(back, {request.get_host()})
    return HttpResponseRedirect(back if is_safe else "/")


def annotate_context(*, run: str = "", node: str = "", back: str = "") -> dict[str, Any]:
    return {"annotation_form": AnnotationForm(initial={"run": run, "node": node, "back": back})}


def _show(request: HtmxRequest, form: AnnotationForm) -> HttpResponse:
    run = form["run"].value() or ""
    annotations = Annotation.objects.select_related("run", "node").order_by("-at")
    if run:
        annotations = annotations.filter(Q(run__name=run) | Q(run=None))
    context = {"annotation_form": form, "run": run, "annotations": annotations[:SHOWN]}
    return render_page(request, TEMPLATE, context, partials=PARTIALS)
