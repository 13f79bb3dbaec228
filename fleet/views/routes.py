"""Pages of routes: which alerts go to whom, in which order, and what each would catch."""

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from fleet.access.rights import requires
from fleet.matching import FIELDS, MatcherError
from fleet.models import Route
from fleet.notify.by_hand import note_change
from fleet.notify.listing import About
from fleet.notify.previewing import N_SHOWN, caught, recent_alerts
from fleet.notify.route_form import RouteForm
from fleet.views.render import HtmxRequest

MOVES = {"up": -1, "down": 1}


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def route_new(request: HtmxRequest) -> HttpResponse:
    """Offer the form of a route, or put it above the default route."""
    if request.method != "POST":
        return _form(request, RouteForm(Route()))
    route = Route(position=Route.objects.count())
    form = RouteForm(route, request.POST)
    if not form.is_valid():
        return _form(request, form)
    return _done(request, f"made the route {form.save()}")


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def route_edit(request: HtmxRequest, pk: int) -> HttpResponse:
    """Offer the form of a route there is; keep what it says, move it, or let it go."""
    route = get_object_or_404(Route, pk=pk)
    if request.method != "POST":
        return _form(request, RouteForm(route))
    action = request.POST.get("action", "")
    if action in MOVES:
        _move(route, by=MOVES[action])
        return _done(request, f"moved the route {route} {action}")
    if action == "delete" and not route.is_default:
        route.delete()
        return _done(request, f"deleted the route {route}")
    form = RouteForm(route, request.POST)
    if not form.is_valid():
        return _form(request, form)
    return _done(request, f"changed the route {form.save()}")


@transaction.atomic
def _move(route: Route, *, by: int) -> None:
    """Change places with the neighbour; the default route stays the last."""
    order = list(Route.objects.in_order().filter(is_default=False).select_for_update())
    here = next((i for i, each in enumerate(order) if each.pk == route.pk), None)
    if here is None:
        return
    there = min(max(here + by, 0), len(order) - 1)
    order.insert(there, order.pop(here))
    for position, each in enumerate(order):
        each.position = position
    Route.objects.bulk_update(order, ["position"])


def _done(request: HtmxRequest, text: str) -> HttpResponse:
    note_change(text, by=request.user.get_username(), now=timezone.now())
    messages.success(request, f"You {text}.")
    return HttpResponseRedirect(reverse("notification-list") + "#routes")


def _form(request: HtmxRequest, form: RouteForm) -> HttpResponse:
    matchers = form["matchers"].value() or "" if "matchers" in form.fields else ""
    context = {"form": form, "route": form.route, "fields": FIELDS, **_seen(matchers)}
    status = 422 if form.errors else 200
    return render(request, "fleet/route_edit.html", context, status=status)


@require_safe
def route_preview(request: HtmxRequest) -> HttpResponse:
    """Show which open and recent alerts some matchers mean."""
    seen = _seen(request.GET.get("matchers", "")[:500])
    return render(request, "fleet/_route_preview.html", seen)


def _seen(matchers: str) -> dict[str, object]:
    alerts = recent_alerts(now=timezone.now())
    try:
        meant = caught(matchers, alerts)
    except MatcherError as error:
        return {"preview_error": str(error), "n_alerts": len(alerts)}
    return {
        "meant": [About.of(alert) for alert in meant[:N_SHOWN]],
        "n_meant": len(meant),
        "n_alerts": len(alerts),
    }
