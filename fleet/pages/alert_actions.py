"""Actions on an alert: acknowledge, assign, silence, comment, resolve."""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_htmx.http import trigger_client_event

from fleet import alerts
from fleet.access.roles import requires
from fleet.alerts.silences import end_of
from fleet.models import Alert
from fleet.pages.alerts import PARTIALS, alert_context
from fleet.pages.render import HtmxRequest
from telemetry.errors import FieldError

RESOLVED = "The alert is already resolved."
Act = Callable[[Alert, str], str]


@require_POST
@requires("operator")
def alert_acknowledge(request: HtmxRequest, pk: int) -> HttpResponse:
    """Acknowledge an alert; the first acknowledgement stays."""

    def act(alert: Alert, by: str) -> str:
        comment = request.POST.get("comment", "")
        if alerts.acknowledge(alert, by=by, comment=comment, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return f"Already acknowledged by {alert.acknowledged_by}." if alert.is_open else RESOLVED

    return _respond(request, pk, act)


@require_POST
@requires("operator")
def alert_unacknowledge(request: HtmxRequest, pk: int) -> HttpResponse:
    def act(alert: Alert, by: str) -> str:
        if alerts.unacknowledge(alert, by=by, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return "The alert is not acknowledged." if alert.is_open else RESOLVED

    return _respond(request, pk, act)


@require_POST
@requires("operator")
def alert_assign(request: HtmxRequest, pk: int) -> HttpResponse:
    def act(alert: Alert, by: str) -> str:
        to, comment = request.POST.get("to", ""), request.POST.get("comment", "")
        if alerts.assign(alert, to=to, by=by, comment=comment, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return f"Another user assigned it to {alert.assigned_to}." if alert.is_open else RESOLVED

    return _respond(request, pk, act)


@require_POST
@requires("operator")
def alert_comment(request: HtmxRequest, pk: int) -> HttpResponse:
    def act(alert: Alert, by: str) -> str:
        alerts.comment(alert, by=by, text=request.POST.get("comment", ""), now=timezone.now())
        return ""

    return _respond(request, pk, act)


@require_POST
@requires("operator")
def alert_resolve(request: HtmxRequest, pk: int) -> HttpResponse:
    """Resolve an alert that trnwatch no longer detects."""

    def act(alert: Alert, by: str) -> str:
        comment = request.POST.get("comment", "")
        done = alerts.resolve_manually(alert, by=by, comment=comment, now=timezone.now())
        return "" if done else RESOLVED

    return _respond(request, pk, act)


@require_POST
@requires("operator")
def alert_silence(request: HtmxRequest, pk: int) -> HttpResponse:
    """Silence the problem of one alert for one of the usual spans."""

    def act(alert: Alert, by: str) -> str:
        now, data = timezone.now(), request.POST
        matchers = data.get("matchers", "")
        if not matchers.strip():
            return "matchers: are empty, which silences every alert. Use the silence form."
        ends_at = end_of(data.get("span", ""), until=data.get("until", ""), now=now)
        alerts.silence(matchers, ends_at=ends_at, reason=data.get("reason", ""), by=by, now=now)
        return ""

    return _respond(request, pk, act)


def _respond(request: HtmxRequest, pk: int, act: Act) -> HttpResponse:
    """Act, then return the changed part to htmx, or redirect to the page."""
    alert = get_object_or_404(Alert, pk=pk)
    try:
        error = act(alert, request.user.get_username())
    except FieldError as refused:
        error = str(refused)
    if not request.htmx:
        if error:
            messages.error(request, error)
        return HttpResponseRedirect(alert.get_absolute_url())
    response = _part(request, alert, error)
    return response if error else trigger_client_event(response, "alerts-changed")


def _part(request: HtmxRequest, alert: Alert, error: str) -> HttpResponse:
    """Render the targeted part; a page without it gets an empty response."""
    target = request.htmx.target
    if target not in PARTIALS:
        return HttpResponse(error, "text/plain", status=409) if error else HttpResponse(status=204)
    context = alert_context(alert.pk) | {"error": error}
    template = f"alerts/alert_detail.html#{target}"
    return render(request, template, context, status=422 if error else 200)
