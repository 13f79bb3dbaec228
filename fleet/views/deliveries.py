"""Pages of deliveries: the log, one of them, and what people do about those given up."""

import json
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from fleet.access.rights import requires
from fleet.models import Delivery, Receiver
from fleet.notify.by_hand import ByHandError, drop, send_again
from fleet.notify.listing import Row, deliveries, rows
from fleet.views.render import HtmxRequest, render_page

PER_PAGE = 50
FILTERS = ("state", "receiver")
PARTIALS = ("log",)


def deliveries_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return a page of the deliveries, the newest first."""
    keep = {name: filters.get(name, "")[:60] for name in FILTERS}
    found = deliveries()
    if keep["state"]:
        found = found.filter(state=keep["state"])
    if keep["receiver"]:
        found = found.filter(receiver__name=keep["receiver"])
    shown = Paginator(found, PER_PAGE).get_page(page)
    query = {name: value for name, value in keep.items() if value}
    number = {"page": str(shown.number)} if shown.number > 1 else {}
    return {
        "page": shown,
        "rows": rows(shown),
        "keep": keep,
        "query": urlencode(query),
        "stream_filters": urlencode(query | number),
    }


@require_safe
def delivery_list(request: HtmxRequest) -> HttpResponse:
    """List all deliveries."""
    asked = {name: request.GET.get(name, "") for name in FILTERS}
    context = deliveries_context(page=request.GET.get("page", "1"), **asked) | {
        "states": Delivery.State.values,
        "receivers": list(Receiver.objects.values_list("name", flat=True)),
    }
    return render_page(request, "fleet/delivery_list.html", context, partials=PARTIALS)


@require_safe
def delivery_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One delivery: what was sent, and how it went."""
    return _detail(request, get_object_or_404(deliveries(), pk=pk))


@require_POST
@requires("operator")
def delivery_settle(request: HtmxRequest, pk: int) -> HttpResponse:
    """Send a dead delivery again, or drop it, and say why."""
    delivery = get_object_or_404(deliveries(), pk=pk)
    try:
        _settle(request, delivery)
    except ByHandError as error:
        return _detail(request, delivery, error=str(error), status=422)
    return HttpResponseRedirect(reverse("notification-list"))


@require_POST
@requires("operator")
def delivery_settle_all(request: HtmxRequest) -> HttpResponse:
    """Send again, or drop, all that is dead, of one receiver or of every one."""
    dead = Delivery.objects.dead().select_related("receiver").order_by("pk")
    if (receiver := request.POST.get("receiver", "")).isdecimal():
        dead = dead.filter(receiver=int(receiver))
    done = 0
    try:
        for delivery in list(dead):
            _settle(request, delivery)
            done += 1
    except ByHandError as error:
        messages.error(request, str(error))
    again = request.POST.get("action") == "again"
    messages.success(request, f"{done} will be sent again." if again else f"{done} dropped.")
    return HttpResponseRedirect(reverse("notification-list"))


def _settle(request: HtmxRequest, delivery: Delivery) -> None:
    """Do what the button says."""
    act = drop if request.POST.get("action") == "drop" else send_again
    by, note = request.user.get_username(), request.POST.get("note", "")
    act(delivery, by=by, note=note, now=timezone.now())


def _detail(
    request: HtmxRequest, delivery: Delivery, *, error: str = "", status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {
        "delivery": delivery,
        "abouts": Row.of(delivery).abouts,
        "events": delivery.events.select_related("alert").all(),
        "body": json.dumps(delivery.body, indent=2, ensure_ascii=False) if delivery.body else "",
        "error": error,
    }
    return render(request, "fleet/delivery_detail.html", context, status=status)
