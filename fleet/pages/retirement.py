"""Retire nodes and runs, and bring them back."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_POST

from fleet.access.roles import requires
from fleet.models import Node, Run
from fleet.runs.retirement import retire, unretire
from telemetry.errors import FieldError
from telemetry.store.hot import hot_store


@require_POST
@requires("operator")
def node_retire(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, get_object_or_404(Node.objects.select_related("run"), name=name))


@require_POST
@requires("operator")
def run_retire(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, get_object_or_404(Run, name=name))


def _act(request: HttpRequest, row: Node | Run) -> HttpResponse:
    by, now = request.user.get_username(), timezone.now()
    try:
        if request.POST.get("undo") == "yes":
            done = unretire(row, by=by)
            text = "is back in use." if done else "is not retired."
        else:
            done = retire(hot_store(), row, by=by, now=now)
            text = "is retired." if done else "is already retired."
    except FieldError as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(row.get_absolute_url())
    note = messages.success if done else messages.error
    note(request, f"{row.name} {text}")
    return HttpResponseRedirect(row.get_absolute_url())
