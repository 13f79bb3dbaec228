"""What people do about an alert: take it, and say something about it."""

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_htmx.http import trigger_client_event

from fleet import alerting
from fleet.access import requires
from fleet.models import Alert
from fleet.views.alerts import PARTIALS, alert_context
from fleet.views.render import HtmxRequest

LONGEST = 500


@require_POST
@requires("operator")
def alert_acknowledge(request: HtmxRequest, pk: int) -> HttpResponse:
    """Take an alert; whoever had it first keeps it."""
    alert = get_object_or_404(Alert, pk=pk)
    said = request.POST.get("comment", "").strip()
    if len(said) > LONGEST:
        return _answer(request, alert, error=f"comment: is longer than {LONGEST} characters")
    by = request.user.get_username()
    if alerting.acknowledge(alert, by=by, comment=said, now=timezone.now()):
        return _answer(request, alert)
    alert.refresh_from_db()
    if alert.resolved_at is not None:
        return _answer(request, alert, error="It is over already: there is nothing left to take.")
    return _answer(request, alert, error=f"{alert.acknowledged_by} has it already.")


@require_POST
@requires("operator")
def alert_comment(request: HtmxRequest, pk: int) -> HttpResponse:
    """Add a remark to an alert's timeline."""
    alert = get_object_or_404(Alert, pk=pk)
    said = request.POST.get("comment", "")
    if len(said) > LONGEST:
        return _answer(request, alert, error=f"comment: is longer than {LONGEST} characters")
    try:
        by = request.user.get_username()
        alerting.comment(alert, by=by, text=said, now=timezone.now())
    except alerting.AlertError as error:
        return _answer(request, alert, error=str(error))
    return _answer(request, alert)


def _answer(request: HtmxRequest, alert: Alert, *, error: str = "") -> HttpResponse:
    """Give htmx the part that changed, and everybody else the page anew."""
    if not request.htmx:
        if error:
            messages.error(request, error)
        return HttpResponseRedirect(alert.get_absolute_url())
    response = _part(request, alert, error)
    return response if error else trigger_client_event(response, "alerts-changed")


def _part(request: HtmxRequest, alert: Alert, error: str) -> HttpResponse:
    """Render the part that asked; a page that has no such part only learns that it happened."""
    target = request.htmx.target
    if target not in PARTIALS:
        return HttpResponse(error, "text/plain", status=409) if error else HttpResponse(status=204)
    context = alert_context(alert.pk) | {"error": error}
    template = f"fleet/alert_detail.html#{target}"
    return render(request, template, context, status=422 if error else 200)
