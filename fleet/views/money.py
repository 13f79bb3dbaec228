"""The money of a run: its panel by itself, and what leads tell of its length."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_http_methods

from fleet.access.rights import requires
from fleet.models import Run
from fleet.money.panel import brief_panel, panel, saying_what_money_needs
from fleet.money.planning import FIELDS, LengthError, tell_length
from fleet.views.render import HtmxRequest, render_page
from telemetry.store.hot import open_store

PARTIALS = ("money",)


def brief_money(run: Run, *, now: datetime) -> dict[str, Any]:
    """Return the panel of a run, worked out only once something shows it."""
    hot = open_store(settings.REDIS_URL)
    return {"money": SimpleLazyObject(lambda: brief_panel(hot, run, now=now))}


def money_context(name: str) -> dict[str, Any]:
    """Return what changes on the page of one run's money."""
    run = get_object_or_404(saying_what_money_needs(Run.objects.all()), name=name)
    money = brief_panel(open_store(settings.REDIS_URL), run, now=timezone.now())
    return {"run": run, "money": money}


@require_http_methods(["GET", "HEAD", "POST"])
def run_money(request: HtmxRequest, name: str) -> HttpResponseBase:
    """Show what a run's dollars went into; leads say how long it is to be."""
    run = get_object_or_404(Run, name=name)
    return _tell(request, run) if request.method == "POST" else _show(request, run)


@requires("lead")
def _tell(request: HtmxRequest, run: Run) -> HttpResponse:
    given = {field: request.POST.get(field, "") for field in FIELDS}
    try:
        by, now = request.user.get_username(), timezone.now()
        changed = tell_length(run, given, by=by, now=now)
    except LengthError as error:
        return _show(request, run, given=given, error=error)
    if changed:
        messages.success(request, f"The length of {run.name} is kept.")
    return HttpResponseRedirect(run.get_absolute_url())


def _show(
    request: HtmxRequest,
    run: Run,
    *,
    given: dict[str, str] | None = None,
    error: LengthError | None = None,
) -> HttpResponse:
    now, hot = timezone.now(), open_store(settings.REDIS_URL)
    money = brief_panel(hot, run, now=now)
    # What is over moves no more; and the stream never adds up a whole past.
    is_moving = money is not None and run.finished_at is None
    context = {
        "run": run,
        "money": money or panel(hot, run, now=now),
        "given": given or {},
        "error": error,
        "stream": f"run-money:{run.name}" if is_moving else "head",
    }
    status = 422 if error else 200
    return render_page(request, "fleet/run_money.html", context, partials=PARTIALS, status=status)
