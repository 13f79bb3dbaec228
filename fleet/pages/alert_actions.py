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
from fleet.pages.fields import error_line, submit
from fleet.pages.forms import SilenceForm
from fleet.pages.render import HtmxRequest
from telemetry.errors import FieldError

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


def _form(name: str, action: Callable[..., bool], *fields: str) -> Callable[..., HttpResponseBase]:
    """Make the view of an action that takes the fields of its form as they are."""

    def act(alert: Alert, data: QueryDict, by: str) -> str:
        given = {field: data.get(field, "") for field in fields}
        return alerts.attempt(action, alert, by=by, now=timezone.now(), **given)

    act.__name__ = name
    return _view(act)


alert_acknowledge = _form("alert_acknowledge", alerts.acknowledge, "comment")
alert_unacknowledge = _form("alert_unacknowledge", alerts.unacknowledge)
alert_assign = _form("alert_assign", alerts.assign, "to", "comment")
alert_mark_false = _form("alert_mark_false", alerts.mark_false, "reason", "comment")
alert_unmark_false = _form("alert_unmark_false", alerts.unmark_false)
alert_resolve = _form("alert_resolve", alerts.resolve_manually, "comment")


@_view
def alert_comment(alert: Alert, data: QueryDict, by: str) -> str:
    alerts.comment(alert, by=by, text=data.get("comment", ""), now=timezone.now())
    return ""


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
