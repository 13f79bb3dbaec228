"""The page of the shift handover: what the next shift should know, and the form of a note."""

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from fleet import alerts
from fleet.access.roles import assignable_names, has_role
from fleet.alerts.handover import Shift, as_markdown, shift_between, shift_start
from fleet.models import HandoverNote
from fleet.pages.fields import submit
from fleet.pages.forms import HandoverForm
from fleet.pages.render import HtmxRequest, render_page

HOURS = (4, 8, 12, 24, 168)
N_NOTES = 20
# What updates by itself; the note changes only when it is saved.
LIVE_PARTIALS = ("open", "resolved", "recurring", "comments", "silenced")
PARTIALS = (*LIVE_PARTIALS, "note")


@require_http_methods(["GET", "HEAD", "POST"])
def hand_over(request: HtmxRequest) -> HttpResponse:
    if request.method != "POST":
        return _show(request, request.GET.get("hours", ""))
    if not has_role(request.user, "operator"):
        raise PermissionDenied("A handover note needs the role operator.")
    form = HandoverForm(request.POST, people=_people(request))
    now, by = timezone.now(), request.user.get_username()

    def save() -> HandoverNote:
        given = form.cleaned_data
        since = shift_start(given.pop("hours"), now=now)
        return alerts.hand_over(**given, by=by, since=since, now=now)

    if not submit(form, save):
        return _show(request, form["hours"].value() or "", form=form)
    messages.success(request, "The note is saved.")
    return HttpResponseRedirect(reverse("hand-over"))


def shift_context(hours: str = "") -> dict[str, Any]:
    """Return the shift of so many hours, or since the last note of the past day."""
    now = timezone.now()
    return {"shift": shift_between(shift_start(hours, now=now), now=now), "hours": hours}


def _people(request: HtmxRequest) -> list[str]:
    return [name for name in assignable_names() if name != request.user.get_username()]


def _show(request: HtmxRequest, hours: str, *, form: HandoverForm | None = None) -> HttpResponse:
    choices, context = [str(choice) for choice in HOURS], shift_context(hours)
    notes = list(HandoverNote.objects.all()[:N_NOTES])
    context |= {
        "choices": choices,
        "stream_filters": f"hours={hours}" if hours in choices else "",
        "notes": notes,
        "markdown": _markdown(request, context["shift"], notes),
        "form": form or HandoverForm(initial={"hours": hours}, people=_people(request)),
    }
    return render_page(request, "alerts/handover.html", context, partials=PARTIALS)


@require_safe
def hand_over_markdown(request: HtmxRequest) -> HttpResponse:
    now = timezone.now()
    shift = shift_between(shift_start(request.GET.get("hours", ""), now=now), now=now)
    text = _markdown(request, shift, HandoverNote.objects.all()[:N_NOTES])
    return HttpResponse(text, "text/markdown; charset=utf-8")


def _markdown(request: HtmxRequest, shift: Shift, notes: Iterable[HandoverNote]) -> str:
    """Write a shift and its notes, the note that began it first."""
    root = request.build_absolute_uri("/").rstrip("/")
    recent = [note for note in notes if note.at >= shift.since]
    return as_markdown(shift, recent[::-1], root=root)
