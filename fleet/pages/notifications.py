"""The notification pages: receivers, routes, failed deliveries and the log."""

import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Q
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet.access.roles import check_role, has_role, requires
from fleet.alerts.actions import acknowledge, attempt
from fleet.alerts.events import routing_table
from fleet.alerts.matchers import FIELDS, LABEL_FIELD
from fleet.charts.image import alert_image
from fleet.formatting import untagged
from fleet.models import Alert, ConfigurationChange, Delivery, Receiver, Route, SenderHeartbeat
from fleet.models.filters import given
from fleet.models.problem import problem
from fleet.notifications.channels import ACKNOWLEDGE, CHANNELS, JSON, encode, is_from_slack
from fleet.notifications.delivery import DeliveryClient
from fleet.notifications.forms import (
    LONGEST_DEVICE,
    TARGET_AND_SECRET,
    DeviceForm,
    ReceiverForm,
    RouteForm,
    SettleForm,
)
from fleet.notifications.http_client import (
    AddressError,
    Allowed,
    HttpClient,
    Request,
    UnreachableError,
)
from fleet.notifications.listing import (
    N_SHOWN,
    AlertSummary,
    DeliveryRow,
    deliveries,
    matching,
    preview,
    recent_alerts,
    rows,
    rows_of,
)
from fleet.notifications.manual import drop, record_change, send_again, send_test
from fleet.notifications.messages import Message, item_of
from fleet.notifications.web_push import has_subscription, server_keys, subscription_of
from fleet.pages.fields import error_line, submit
from fleet.pages.render import Filter, HtmxRequest, render_page, with_page
from fleet.pages.tables import Column, Table, in_chunks, moment, number
from telemetry.errors import LARGEST_KEY, FieldError, whole_number
from telemetry.store.hot import hot_store

PER_PAGE = 50
PARTIALS = ("log",)


DELIVERIES = Table(
    "deliveries",
    "newest first",
    (
        moment("when", "When", "delivery.created_at", order="created_at"),
        Column("what", "What", lambda row: row.delivery.get_kind_display(), order="kind"),
        Column(
            "alerts", "Alerts", lambda row: [untagged(a.headline) for a in row.summaries], "", None
        ),
        Column("to", "To", "delivery.receiver.name", "", "wide", "receiver__name"),
        Column("state", "State", "delivery.state", order="state"),
        number(
            "attempts", "Attempts", "delivery.n_attempts", style="num wide", order="n_attempts"
        ),
        Column(
            "answer",
            "Last answer",
            lambda row: row.delivery.last_error or row.delivery.last_status,
            style="wide",
            order="last_error",
        ),
        moment("ended", "Ended", "delivery.ended_at", style=None),
    ),
    is_stored=True,
)


@dataclass(frozen=True, slots=True)
class DeliveryFilter(Filter):
    state: str = ""
    receiver: str = ""


def deliveries_context(page: str = "1", **filters: str) -> dict[str, Any]:
    keep = DeliveryFilter.of(filters)
    listed = deliveries().filter(**given(state=keep.state, receiver__name=keep.receiver))
    table = DELIVERIES.by(keep.given, lambda t: in_chunks(t.ordered(listed), rows))
    shown = Paginator(table.ordered(listed), PER_PAGE).get_page(page)
    return {
        "table": table,
        "page": shown,
        "rows": rows(shown),
        "keep": keep,
        "stream_filters": with_page(keep.query, shown.number),
    }


@require_safe
def delivery_list(request: HtmxRequest) -> HttpResponse:
    context = deliveries_context(**request.GET.dict()) | {
        "states": Delivery.State.values,
        "receivers": list(Receiver.objects.values_list("name", flat=True)),
    }
    return render_page(request, "notifications/delivery_list.html", context, partials=PARTIALS)


@require_safe
def delivery_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    return _detail(request, get_object_or_404(deliveries(), pk=pk))


@require_POST
@requires("operator")
def delivery_settle(request: HtmxRequest, pk: int) -> HttpResponse:
    """Send a failed delivery again or drop it, with a reason."""
    delivery = get_object_or_404(deliveries(), pk=pk)
    form = SettleForm(request.POST)
    if not _settle(form, request.user.get_username(), delivery):
        return _detail(request, delivery, form=form)
    return HttpResponseRedirect(reverse("notification-list"))


@require_POST
@requires("operator")
def delivery_settle_all(request: HtmxRequest) -> HttpResponse:
    """Send again or drop all failed deliveries, of one receiver or of all."""
    form, by, done = SettleForm(request.POST), request.user.get_username(), 0
    dead = Delivery.objects.dead().select_related("receiver").order_by("pk")
    if form.is_valid() and form.cleaned_data["receiver"]:
        dead = dead.filter(receiver=form.cleaned_data["receiver"])
    for delivery in list(dead):
        if not _settle(form, by, delivery):
            break
        done += 1
    if not form.is_valid():
        messages.error(request, error_line(form))
    if done or form.is_valid():
        again = form.cleaned_data["action"] == "again"
        messages.success(request, f"{done} will be sent again." if again else f"{done} dropped.")
    return HttpResponseRedirect(reverse("notification-list"))


def _settle(form: SettleForm, by: str, delivery: Delivery) -> bool:
    """Send a delivery again or drop it, as the form says; False, with its errors, if refused."""

    def settle() -> bool:
        act = drop if form.cleaned_data["action"] == "drop" else send_again
        act(delivery, by=by, note=form.cleaned_data["note"], now=timezone.now())
        return True

    return bool(submit(form, settle))


def _detail(
    request: HtmxRequest, delivery: Delivery, *, form: SettleForm | None = None
) -> HttpResponse:
    context: dict[str, Any] = {
        "delivery": delivery,
        "summaries": DeliveryRow.of(delivery).summaries,
        "events": delivery.events.select_related("alert").all(),
        "body": json.dumps(delivery.body, indent=2, ensure_ascii=False) if delivery.body else "",
        "form": form or SettleForm(),
    }
    return render_page(request, "notifications/delivery_detail.html", context)


NOTIFICATIONS_PARTIALS = ("sending", "dead", "receivers", "log")
N_LATEST, N_DEAD, N_CHANGES = 15, 50, 10
State = Delivery.State


def notifications_context() -> dict[str, Any]:
    dead, latest = rows_of(
        deliveries().filter(state=State.DEAD)[:N_DEAD],
        deliveries().exclude(state=State.DEAD)[:N_LATEST],
    )
    return {
        "receivers": receivers(),
        "dead": dead,
        "latest": latest,
        **sending(now=timezone.now()),
    }


@require_safe
def notification_list(request: HtmxRequest) -> HttpResponse:
    table = routing_table()
    routes, unrouted = preview(table, recent_alerts(now=timezone.now()))
    context = notifications_context() | {
        "kinds": ADDED_BY_ADMINS,
        "server_key": next(iter(server_keys())),
        "longest_device": LONGEST_DEVICE,
        "routes": routes,
        "unrouted": unrouted if table else [],
        "changes": ConfigurationChange.objects.filter(kind=ConfigurationChange.Kind.NOTIFICATIONS)[
            :N_CHANGES
        ],
        "can_manage": has_role(request.user, "admin"),
    }
    return render_page(
        request, "notifications/notification_list.html", context, partials=NOTIFICATIONS_PARTIALS
    )


def receivers() -> list[Receiver]:
    unfinished = Q(deliveries__state__in=(State.PENDING, State.SENDING))
    tried = unfinished & Q(deliveries__n_attempts__gt=0)
    return list(
        Receiver.objects.annotate(
            n_waiting=Count("deliveries", filter=unfinished),
            n_failing=Count("deliveries", filter=tried),
            n_unhandled=Count("deliveries", filter=Q(deliveries__state=State.DEAD)),
        )
    )


def sending(*, now: datetime) -> dict[str, Any]:
    """Return whether a sender runs, and whether the dead man's switch is sent."""
    latest = SenderHeartbeat.objects.first()
    return {
        "sender": latest,
        "is_sending": latest is not None and latest.is_alive(now),
        "has_switch": bool(settings.HEARTBEAT_URL),
        "has_mail": bool(settings.SMTP_URL),
    }


TEST_WITHIN_S = 8.0
Kind = Receiver.Kind
ADDED_BY_ADMINS = [(kind.value, kind.label) for kind in Kind if kind in TARGET_AND_SECRET]
# A mail has its styles in its elements, and nothing in it may run.
PREVIEW_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
)


class SlackUser(msgspec.Struct):
    """Who clicked: Slack gives ``username``, or only ``name`` for guests."""

    username: str = ""
    name: str = ""


class SlackAction(msgspec.Struct):
    action_id: str
    value: str = ""


class Click(msgspec.Struct):
    """What Slack posts about a button; everything else in it is ignored."""

    user: SlackUser
    actions: list[SlackAction] = []
    response_url: str = ""


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def receiver_new(request: HtmxRequest) -> HttpResponse:
    asked = request.POST if request.method == "POST" else request.GET
    kind = asked.get("kind", Kind.WEBHOOK)
    if kind not in TARGET_AND_SECRET:
        raise Http404(f"{kind[:20]!r} is no kind of receiver")
    form = ReceiverForm(kind, None, request.POST if request.method == "POST" else None)
    if not (form.is_bound and form.is_valid()):
        return _form(request, form)
    now, by = timezone.now(), request.user.get_username()
    receiver = Receiver.objects.create(kind=kind, created_at=now, **form.cleaned_data)
    record_change(f"added receiver {receiver} ({receiver.get_kind_display()})", by=by, now=now)
    # A device may have made the default route before.
    if not Route.objects.filter(Q(is_default=False) | Q(receivers__isnull=False)).exists():
        _default_route().receivers.add(receiver)
        messages.success(request, f"{receiver} gets every alert. Routes below change that.")
    else:
        messages.success(request, f"{receiver} is added. Select it in a route to use it.")
    return HttpResponseRedirect(reverse("notification-list"))


def _default_route() -> Route:
    route, _ = Route.objects.get_or_create(is_default=True, defaults={"name": "everything"})
    return route


@require_safe
def push_worker(request: HtmxRequest) -> HttpResponse:
    """Serve the service worker that shows notifications; browsers fetch it without a session."""
    script = (settings.ROOT / "fleet/static/fleet/push-worker.js").read_bytes()
    headers = {"Cache-Control": "no-cache"}
    return HttpResponse(script, content_type="text/javascript; charset=utf-8", headers=headers)


@require_POST
def device_new(request: HtmxRequest) -> HttpResponse:
    """Notify the user in the browser that sends this."""
    form = DeviceForm(cast("User", request.user), request.POST)
    if not form.is_valid():
        messages.error(request, f"This device was not added. {error_line(form)}")
        return HttpResponseRedirect(reverse("notification-list"))
    device = form.save(now=timezone.now())
    _default_route()
    return _done(request, f"added device {device}")


@csrf_exempt
@require_POST
def device_renew(request: HtmxRequest) -> HttpResponse:
    """Take over the new address of a device, whose browser may not be signed in any more.

    It proves itself by its last address and secret.
    """
    posted, now = request.POST.dict(), timezone.now()
    devices = Receiver.objects.filter(kind=Kind.PUSH).select_related("owner")
    old = posted.get("old_endpoint", ""), posted.get("old_auth", "")
    device = next((each for each in devices if has_subscription(each, *old)), None)
    if device is None or device.owner is None:
        return problem(401, "No device has this address and this secret.")
    posted["server_key"] = subscription_of(device).server_key
    form = DeviceForm(device.owner, posted, renewed=device)
    if not form.is_valid():
        return problem(422, error_line(form))
    by = device.owner.get_username()
    record_change(f"renewed the address of device {form.save(now=now)}", by=by, now=now)
    return HttpResponse(status=204)


def _own_or_any(request: HtmxRequest, pk: int, role: str) -> Receiver:
    """Return a device of the user, or any receiver to users of at least this role."""
    receiver = get_object_or_404(Receiver, pk=pk)
    if receiver.owner_id is None or receiver.owner_id != request.user.pk:
        check_role(request.user, role)
    return receiver


@require_http_methods(["GET", "HEAD", "POST"])
def receiver_edit(request: HtmxRequest, pk: int) -> HttpResponse:
    """Show the form of a receiver; save it, switch it on or off, or delete it.

    Deleting drops unsent notifications, so that needs a confirmation. People may change their own
    devices.
    """
    receiver = _own_or_any(request, pk, "admin")
    if request.method != "POST":
        return _form(request, ReceiverForm(receiver.kind, receiver))
    if request.POST.get("action") in {"on", "off"}:
        is_on = request.POST["action"] == "on"
        Receiver.objects.filter(pk=receiver.pk).update(is_enabled=is_on)
        return _done(request, f"switched {'on' if is_on else 'off'} receiver {receiver}")
    if request.POST.get("action") == "delete":
        n_lost = receiver.deliveries.unfinished().count() + receiver.deliveries.dead().count()
        if n_lost and request.POST.get("confirmed") != "yes":
            form = ReceiverForm(receiver.kind, receiver)
            return _form(request, form, n_lost=n_lost, status=422)
        receiver.delete()
        return _done(request, f"deleted receiver {receiver}")
    form = ReceiverForm(receiver.kind, receiver, request.POST)
    if not form.is_valid():
        return _form(request, form)
    for name, value in form.cleaned_data.items():
        setattr(receiver, name, value)
    receiver.save(update_fields=list(form.cleaned_data))
    return _done(request, f"changed receiver {receiver}")


def _done(request: HtmxRequest, text: str, *, anchor: str = "") -> HttpResponse:
    record_change(text, by=request.user.get_username(), now=timezone.now())
    messages.success(request, f"You {text}.")
    return HttpResponseRedirect(reverse("notification-list") + anchor)


def _form(
    request: HtmxRequest, form: ReceiverForm, *, n_lost: int = 0, status: int | None = None
) -> HttpResponse:
    context = {
        "form": form,
        "receiver": form.receiver,
        "kind": form.kind,
        "kind_name": Kind(form.kind).label,
        "kinds": ADDED_BY_ADMINS,
        "n_lost": n_lost,
        "n_unhandled": form.receiver.deliveries.dead().count() if form.receiver else 0,
    }
    return render_page(request, "notifications/receiver_edit.html", context, status=status)


@xframe_options_sameorigin
@require_safe
def receiver_preview(request: HtmxRequest, kind: str) -> HttpResponse:
    """Show how a kind of receiver gets the newest alert, as a document for a frame."""
    if kind not in Kind:
        raise Http404(f"{kind[:20]!r} is no kind of receiver")
    now = timezone.now()
    message, image = example_message(kind, now=now)
    chart = f"data:image/png;base64,{base64.b64encode(image).decode()}" if image else ""
    context: dict[str, Any] = {"message": message, "image": chart}
    template = "notifications/mail.html"
    if kind != Kind.EMAIL:
        body = CHANNELS[kind].render(message)
        shown = json.dumps(body, indent=2, ensure_ascii=False)
        context |= {"kind": kind, "kind_name": Kind(kind).label, "body": body, "json": shown}
        template = "notifications/preview.html"
    response = render(request, template, context)
    response["Content-Security-Policy"] = PREVIEW_CSP
    return response


def example_message(kind: str, *, now: datetime) -> tuple[Message, bytes | None]:
    """Compose the message of the newest alert, with its chart; a test where there is none."""
    alert = Alert.objects.select_related("run", "node").order_by("-fired_at").first()
    base_url, list_url = settings.BASE_URL, f"{settings.BASE_URL}/alerts/"
    if alert is None:
        text = "No alert has fired yet. This is what a test looks like."
        return Message(Delivery.Kind.TEST, "preview", now, (), list_url=list_url, text=text), None
    item = item_of(alert, None, base_url=base_url, now=now)
    message = Message(
        Delivery.Kind.FIRING,
        "preview",
        now,
        (item,),
        list_url=list_url,
        has_buttons=kind == Kind.SLACK,
    )
    return message, alert_image(hot_store(), alert, at=now, now=now)


ANSWER_WITHIN_S = 2.0


@csrf_exempt
@require_POST
def slack_interaction(request: HtmxRequest) -> HttpResponse:
    """Acknowledge an alert by a button in Slack; the request is signed by the Slack app."""
    now, headers = timezone.now(), request.headers
    is_signed_by = partial(
        is_from_slack,
        at=headers.get("X-Slack-Request-Timestamp", ""),
        signed=headers.get("X-Slack-Signature", ""),
        body=request.body,
        now_s=now.timestamp(),
    )
    slack = Receiver.objects.enabled().filter(kind=Kind.SLACK)
    receiver = next((each for each in slack if is_signed_by(each.secret)), None)
    if receiver is None:
        return problem(401, "The signature fits no Slack receiver, or is older than 5 minutes.")
    try:
        click = msgspec.json.decode(request.POST.get("payload", ""), type=Click)
    except msgspec.DecodeError as error:
        return problem(400, f"payload: {error}")
    by = f"{(click.user.username or click.user.name)[:140]} (Slack)"
    for action in click.actions:
        pk = whole_number(action.value, most=LARGEST_KEY)
        if action.action_id != ACKNOWLEDGE or pk is None:
            continue
        refusal = "This alert no longer exists."
        if alert := Alert.objects.filter(pk=pk).first():
            refusal = attempt(acknowledge, alert, by=by, comment="", now=now)
        if refusal:
            _answer_slack(receiver, click.response_url, refusal)
    return HttpResponse()


def _answer_slack(receiver: Receiver, url: str, text: str) -> None:
    """Show a text to the person who clicked; only at the host that messages are sent to."""
    if not url or urlsplit(url).netloc != urlsplit(receiver.target).netloc:
        return
    client = HttpClient(Allowed.of(settings.NOTIFY_ALLOW), timeout_s=ANSWER_WITHIN_S)
    body = {"response_type": "ephemeral", "replace_original": False, "text": text}
    with suppress(AddressError, UnreachableError):
        client.post(Request(url, encode(body), dict(JSON)))


@require_POST
def receiver_test(request: HtmxRequest, pk: int) -> HttpResponse:
    receiver = _own_or_any(request, pk, "operator")
    http = HttpClient(Allowed.of(settings.NOTIFY_ALLOW), timeout_s=TEST_WITHIN_S)
    client = DeliveryClient(http, settings.BASE_URL)
    outcome = send_test(receiver, client, by=request.user.get_username(), now=timezone.now())
    context = {"receiver": receiver, "outcome": outcome}
    if request.htmx:
        return render(request, "notifications/_receiver_answer.html", context)
    if outcome.is_sent:
        messages.success(request, f"{receiver} accepted the test: {outcome.status}.")
    else:
        messages.error(request, f"{receiver} did not accept the test: {outcome.why}")
    return HttpResponseRedirect(reverse("notification-list"))


MOVES = {"up": -1, "down": 1}


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def route_new(request: HtmxRequest) -> HttpResponse:
    """Show the form of a route, or add the route above the default route."""
    if request.method != "POST":
        return _routes_form(request, RouteForm(Route()))
    route = Route(position=Route.objects.count())
    form = RouteForm(route, request.POST)
    if not form.is_valid():
        return _routes_form(request, form)
    return _done(request, f"added route {form.save()}", anchor="#routes")


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def route_edit(request: HtmxRequest, pk: int) -> HttpResponse:
    """Show the form of a route; save, move or delete it."""
    route = get_object_or_404(Route, pk=pk)
    if request.method != "POST":
        return _routes_form(request, RouteForm(route))
    action = request.POST.get("action", "")
    if action in MOVES:
        _move(route, by=MOVES[action])
        return _done(request, f"moved route {route} {action}", anchor="#routes")
    if action == "delete" and not route.is_default:
        route.delete()
        return _done(request, f"deleted route {route}", anchor="#routes")
    form = RouteForm(route, request.POST)
    if not form.is_valid():
        return _routes_form(request, form)
    return _done(request, f"changed route {form.save()}", anchor="#routes")


@transaction.atomic
def _move(route: Route, *, by: int) -> None:
    """Swap a route with its neighbour; the default route stays last."""
    order = list(Route.objects.in_order().filter(is_default=False).select_for_update())
    here = next((i for i, each in enumerate(order) if each.pk == route.pk), None)
    if here is None:
        return
    there = min(max(here + by, 0), len(order) - 1)
    order.insert(there, order.pop(here))
    for position, each in enumerate(order):
        each.position = position
    Route.objects.bulk_update(order, ["position"])


def _routes_form(request: HtmxRequest, form: RouteForm) -> HttpResponse:
    matchers = form["matchers"].value() or "" if "matchers" in form.fields else ""
    context = {"form": form, "route": form.route, "fields": (*FIELDS, LABEL_FIELD)}
    return render_page(request, "notifications/route_edit.html", context | _seen(matchers))


@require_safe
@requires("operator")
def route_preview(request: HtmxRequest) -> HttpResponse:
    seen = _seen(request.GET.get("matchers", ""))
    return render(request, "notifications/_route_preview.html", seen)


def _seen(matchers: str) -> dict[str, object]:
    alerts = recent_alerts(now=timezone.now())
    try:
        matched = matching(matchers, alerts)
    except FieldError as error:
        return {"preview_error": str(error), "n_alerts": len(alerts)}
    return {
        "matching": [AlertSummary.of(alert) for alert in matched[:N_SHOWN]],
        "n_matching": len(matched),
        "n_alerts": len(alerts),
    }
