"""Actions on an alert: acknowledge, assign, silence, comment, mark as false, resolve."""

from collections.abc import Callable
from functools import wraps

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_htmx.http import trigger_client_event

from fleet import alerts
from fleet.access.roles import requires
from fleet.models import Alert, Silence
from fleet.pages.alerts import PARTIALS, alert_context
from fleet.pages.forms import SilenceForm, error_line, submit
from fleet.pages.render import HtmxRequest
from telemetry.errors import FieldError

RESOLVED = "The alert is already resolved."
# Acts on an alert with the fields of a form, as a user; returns an error, or an empty string.
Action = Callable[[Alert, QueryDict, str], str]


def _view(act: Action) -> Callable[..., HttpResponseBase]:
    """Make the view of an action: it returns the changed part to htmx, else redirects."""

    @require_POST
    @requires("operator")
    @wraps(act)
    def view(request: HtmxRequest, pk: int) -> HttpResponse:
        alert = get_object_or_404(Alert, pk=pk)
        try:
            error = act(alert, request.POST, request.user.get_username())
        except FieldError as refused:
            error = str(refused)
        if not request.htmx:
            if error:
                messages.error(request, error)
            return HttpResponseRedirect(alert.get_absolute_url())
        response = _part(request, alert, error)
        return response if error else trigger_client_event(response, "alerts-changed")

    return view


def _part(request: HtmxRequest, alert: Alert, error: str) -> HttpResponse:
    """Render the targeted part; a page without it gets an empty response."""
    target = request.htmx.target
    if target not in PARTIALS:
        return HttpResponse(error, "text/plain", status=409) if error else HttpResponse(status=204)
    context = alert_context(alert.pk) | {"error": error}
    template = f"alerts/alert_detail.html#{target}"
    return render(request, template, context, status=422 if error else 200)


@_view
def alert_acknowledge(alert: Alert, data: QueryDict, by: str) -> str:
    """Acknowledge an alert; the first acknowledgement stays."""
    comment = data.get("comment", "")
    if alerts.acknowledge(alert, by=by, comment=comment, now=timezone.now()):
        return ""
    alert.refresh_from_db()
    return f"Already acknowledged by {alert.acknowledged_by}." if alert.is_open else RESOLVED


@_view
def alert_unacknowledge(alert: Alert, data: QueryDict, by: str) -> str:
    if alerts.unacknowledge(alert, by=by, now=timezone.now()):
        return ""
    alert.refresh_from_db()
    return "The alert is not acknowledged." if alert.is_open else RESOLVED


@_view
def alert_assign(alert: Alert, data: QueryDict, by: str) -> str:
    to, comment = data.get("to", ""), data.get("comment", "")
    if alerts.assign(alert, to=to, by=by, comment=comment, now=timezone.now()):
        return ""
    alert.refresh_from_db()
    return f"Another user assigned it to {alert.assigned_to}." if alert.is_open else RESOLVED


@_view
def alert_comment(alert: Alert, data: QueryDict, by: str) -> str:
    alerts.comment(alert, by=by, text=data.get("comment", ""), now=timezone.now())
    return ""


@_view
def alert_mark_false(alert: Alert, data: QueryDict, by: str) -> str:
    """Mark an alert as false, open or resolved; the first mark stays."""
    reason, comment = data.get("reason", ""), data.get("comment", "")
    if alerts.mark_false(alert, by=by, reason=reason, comment=comment, now=timezone.now()):
        return ""
    alert.refresh_from_db()
    return f"Already marked false by {alert.marked_false_by}."


@_view
def alert_unmark_false(alert: Alert, data: QueryDict, by: str) -> str:
    done = alerts.unmark_false(alert, by=by, now=timezone.now())
    return "" if done else "The alert is not marked as false."


@_view
def alert_resolve(alert: Alert, data: QueryDict, by: str) -> str:
    """Resolve an alert that trnwatch no longer detects."""
    comment = data.get("comment", "")
    done = alerts.resolve_manually(alert, by=by, comment=comment, now=timezone.now())
    return "" if done else RESOLVED


@_view
def alert_silence(alert: Alert, data: QueryDict, by: str) -> str:
    """Silence the problem of one alert for one of the usual spans."""
    form, now = SilenceForm(data), timezone.now()

    def silence() -> Silence:
        matchers, reason = form.cleaned_data["matchers"], form.cleaned_data["reason"]
        if not matchers:
            raise FieldError(
                "matchers", "are empty, which silences every alert. Use the silence form."
            )
        ends_at = form.ends_at(now=now)
        return alerts.silence(matchers, ends_at=ends_at, reason=reason, by=by, now=now)

    return "" if submit(form, silence) else error_line(form)
