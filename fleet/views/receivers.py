"""Pages of receivers: make one, change it, switch it on or off, let it go, try it out."""

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.rights import requires
from fleet.models import Receiver, Route
from fleet.notify.addresses import Allowed
from fleet.notify.attempt import Courier
from fleet.notify.by_hand import note_change, try_out
from fleet.notify.http import Door
from fleet.notify.receiver_form import ReceiverForm
from fleet.views.render import HtmxRequest

TEST_WITHIN_S = 8.0
Kind = Receiver.Kind


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def receiver_new(request: HtmxRequest) -> HttpResponse:
    """Offer the form of a receiver of some kind, or make it."""
    asked = request.POST if request.method == "POST" else request.GET
    kind = asked.get("kind", Kind.WEBHOOK)
    if kind not in Kind:
        raise Http404(f"{kind[:20]!r} is no kind of receiver")
    form = ReceiverForm(kind, None, request.POST if request.method == "POST" else None)
    if not (form.is_bound and form.is_valid()):
        return _form(request, form)
    now, by = timezone.now(), request.user.get_username()
    receiver = Receiver.objects.create(kind=kind, created_at=now, **form.cleaned_data)
    note_change(f"made the receiver {receiver} ({receiver.get_kind_display()})", by=by, now=now)
    if not Route.objects.exists():
        route = Route.objects.create(name="everything", is_default=True)
        route.receivers.add(receiver)
        messages.success(request, f"{receiver} is told of every alert. Routes below change that.")
    else:
        messages.success(request, f"{receiver} is there; tick it on a route to use it.")
    return HttpResponseRedirect(reverse("notification-list"))


@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def receiver_edit(request: HtmxRequest, pk: int) -> HttpResponse:
    """Offer the form of a receiver there is; keep what it says, switch it, or let it go."""
    receiver = get_object_or_404(Receiver, pk=pk)
    if request.method != "POST":
        return _form(request, ReceiverForm(receiver.kind, receiver))
    if request.POST.get("action") in {"on", "off"}:
        return _switch(request, receiver, is_on=request.POST["action"] == "on")
    if request.POST.get("action") == "delete":
        return _delete(request, receiver)
    form = ReceiverForm(receiver.kind, receiver, request.POST)
    if not form.is_valid():
        return _form(request, form)
    for name, value in form.cleaned_data.items():
        setattr(receiver, name, value)
    receiver.save(update_fields=list(form.cleaned_data))
    return _done(request, f"changed the receiver {receiver}")


def _switch(request: HtmxRequest, receiver: Receiver, *, is_on: bool) -> HttpResponse:
    Receiver.objects.filter(pk=receiver.pk).update(is_enabled=is_on)
    return _done(request, f"switched the receiver {receiver} {'on' if is_on else 'off'}")


def _delete(request: HtmxRequest, receiver: Receiver) -> HttpResponse:
    """Let a receiver go; what was still to be sent to it must be meant to go too."""
    n_lost = receiver.deliveries.unfinished().count() + receiver.deliveries.dead().count()
    if n_lost and request.POST.get("confirmed") != "yes":
        form = ReceiverForm(receiver.kind, receiver)
        return _form(request, form, n_lost=n_lost, status=422)
    receiver.delete()
    return _done(request, f"deleted the receiver {receiver}")


def _done(request: HtmxRequest, text: str) -> HttpResponse:
    note_change(text, by=request.user.get_username(), now=timezone.now())
    messages.success(request, f"You {text}.")
    return HttpResponseRedirect(reverse("notification-list"))


def _form(
    request: HtmxRequest, form: ReceiverForm, *, n_lost: int = 0, status: int = 200
) -> HttpResponse:
    context = {
        "form": form,
        "receiver": form.receiver,
        "kind": form.kind,
        "kind_name": Kind(form.kind).label,
        "kinds": Kind.choices,
        "n_lost": n_lost,
        "n_unhandled": form.receiver.deliveries.dead().count() if form.receiver else 0,
    }
    status = 422 if form.errors else status
    return render(request, "fleet/receiver_edit.html", context, status=status)


@require_POST
@requires("operator")
def receiver_test(request: HtmxRequest, pk: int) -> HttpResponse:
    """Send a receiver a test, and show what it answered."""
    receiver = get_object_or_404(Receiver, pk=pk)
    door = Door(Allowed.of(settings.NOTIFY_ALLOW), timeout_s=TEST_WITHIN_S)
    outcome = try_out(
        receiver,
        Courier(door, settings.BASE_URL),
        by=request.user.get_username(),
        now=timezone.now(),
    )
    context = {"receiver": receiver, "outcome": outcome}
    if request.htmx:
        return render(request, "fleet/_receiver_answer.html", context)
    if outcome.is_sent:
        messages.success(request, f"{receiver} took the test: {outcome.status}.")
    else:
        messages.error(request, f"{receiver} did not take the test: {outcome.why}")
    return HttpResponseRedirect(reverse("notification-list"))
