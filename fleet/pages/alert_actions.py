"""What people do about an alert: take it, give it on, silence it, say something about it."""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_POST
from django_htmx.http import trigger_client_event

from fleet import alerts
from fleet.access.roles import requires
from fleet.alerts import AlertError, SilenceError
from fleet.alerts.matchers import MatcherError, SpanError, end_of
from fleet.models import Alert
from fleet.pages.alerts import PARTIALS, alert_context
from fleet.pages.render import HtmxRequest

OVER = "It is over already: there is nothing left to do."
Act = Callable[[Alert, str], str]


@require_POST
@requires("operator")
def alert_acknowledge(request: HtmxRequest, pk: int) -> HttpResponse:
    """Take an alert; whoever had it first keeps it."""

    def act(alert: Alert, by: str) -> str:
        said = request.POST.get("comment", "")
        if alerts.acknowledge(alert, by=by, comment=said, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return f"{alert.acknowledged_by} has it already." if alert.is_open else OVER

    return _answer(request, pk, act)


@require_POST
@requires("operator")
def alert_unacknowledge(request: HtmxRequest, pk: int) -> HttpResponse:
    """Give an alert back: nobody has it any more."""

    def act(alert: Alert, by: str) -> str:
        if alerts.unacknowledge(alert, by=by, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return "Nobody has it: there is nothing to give back." if alert.is_open else OVER

    return _answer(request, pk, act)


@require_POST
@requires("operator")
def alert_assign(request: HtmxRequest, pk: int) -> HttpResponse:
    """Give an alert to somebody."""

    def act(alert: Alert, by: str) -> str:
        to, said = request.POST.get("to", ""), request.POST.get("comment", "")
        if alerts.assign(alert, to=to, by=by, comment=said, now=timezone.now()):
            return ""
        alert.refresh_from_db()
        return f"It went to {alert.assigned_to} meanwhile." if alert.is_open else OVER

    return _answer(request, pk, act)


@require_POST
@requires("operator")
def alert_comment(request: HtmxRequest, pk: int) -> HttpResponse:
    """Add a remark to an alert's timeline."""

    def act(alert: Alert, by: str) -> str:
        alerts.comment(alert, by=by, text=request.POST.get("comment", ""), now=timezone.now())
        return ""

    return _answer(request, pk, act)


@require_POST
@requires("operator")
def alert_resolve(request: HtmxRequest, pk: int) -> HttpResponse:
    """Call an alert over that trnwatch can no longer see."""

    def act(alert: Alert, by: str) -> str:
        said = request.POST.get("comment", "")
        done = alerts.resolve_by_hand(alert, by=by, comment=said, now=timezone.now())
        return "" if done else OVER

    return _answer(request, pk, act)


@require_POST
@requires("operator")
def alert_silence(request: HtmxRequest, pk: int) -> HttpResponse:
    """Silence the problem of one alert for one of the usual spans."""

    def act(alert: Alert, by: str) -> str:
        now, asked = timezone.now(), request.POST
        matchers = asked.get("matchers", "")
        if not matchers.strip():
            return (
                "matchers: are empty, which would mute everything; make that a silence of its own"
            )
        ends_at = end_of(asked.get("span", ""), until=asked.get("until", ""), now=now)
        alerts.silence(matchers, ends_at=ends_at, reason=asked.get("reason", ""), by=by, now=now)
        return ""

    return _answer(request, pk, act)


def _answer(request: HtmxRequest, pk: int, act: Act) -> HttpResponse:
    """Act, and give htmx the part that changed, everybody else the page anew."""
    alert = get_object_or_404(Alert, pk=pk)
    try:
        error = act(alert, request.user.get_username())
    except (AlertError, MatcherError, SilenceError, SpanError) as refused:
        error = str(refused)
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
    template = f"alerts/alert_detail.html#{target}"
    return render(request, template, context, status=422 if error else 200)
