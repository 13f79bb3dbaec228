"""Page of the budgets: how each stands and is forecast to end, and a form; for leads."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from fleet.access.rights import requires
from fleet.models import Budget, Run
from fleet.money import budgets
from fleet.money.budgets import Asked, BudgetError
from fleet.views.render import HtmxRequest, render_page

FIELDS = ("team", "run", "usd", "starts_at", "ends_at")
PARTIALS = ("budgets",)
N_RUNS = 200
N_WITHDRAWN = 50
DAY = timedelta(days=1)


def budgets_context() -> dict[str, Any]:
    """Return how every budget stands, and those withdrawn."""
    now = timezone.now()
    return {
        "burns": budgets.burns(now=now),
        "withdrawn": Budget.objects.exclude(ended_at=None).select_related("run")[:N_WITHDRAWN],
        "at": now,
    }


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def budget_list(request: HtmxRequest) -> HttpResponse:
    """List the budgets, those forecast to be overrun first; set one."""
    if request.method != "POST":
        return _show(request)
    given = {name: request.POST.get(name, "").strip() for name in FIELDS}
    try:
        by, now = request.user.get_username(), timezone.now()
        budget = budgets.set_budget(_asked(given), by=by, now=now)
    except BudgetError as error:
        return _show(request, given=given, error=error)
    messages.success(request, f"The budget is kept: {budget}.")
    return HttpResponseRedirect(reverse("budget-list"))


@require_POST
@requires("lead")
def budget_end(request: HtmxRequest, pk: int) -> HttpResponse:
    """Withdraw a budget: it is watched no more."""
    budget = get_object_or_404(Budget.objects.select_related("run"), pk=pk)
    if budgets.end_budget(budget, by=request.user.get_username(), now=timezone.now()):
        messages.success(request, f"The budget of {budget.name} is withdrawn.")
    else:
        messages.error(request, f"The budget of {budget.name} was withdrawn already.")
    there = reverse("budget-list")
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


def _asked(given: dict[str, str]) -> Asked:
    try:
        usd = float(given["usd"].replace(",", "").removeprefix("$"))
    except ValueError:
        usd = math.nan
    return Asked(
        team=given["team"],
        run=given["run"],
        usd=usd,
        starts_at=_day("starts_at", given["starts_at"]),
        # The last day counts whole.
        ends_at=_day("ends_at", given["ends_at"]) + DAY,
    )


def _day(field: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text[:10]).replace(tzinfo=UTC)
    except ValueError:
        raise BudgetError(field, "give a date, as 2026-11-30") from None


def _show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    error: BudgetError | None = None,
) -> HttpResponse:
    now = timezone.now()
    last = (now.replace(day=1) + timedelta(days=32)).replace(day=1) - DAY
    runs = Run.objects.order_by("-pk").values("name", "team")[:N_RUNS]
    context: dict[str, Any] = {
        "runs": list(runs),
        "teams": sorted({run["team"] for run in runs} - {""}),
        "given": given or {"starts_at": f"{now:%Y-%m-01}", "ends_at": f"{last:%Y-%m-%d}"},
        "error": error,
    }
    context |= budgets_context()
    status = 422 if error else 200
    return render_page(
        request, "fleet/budget_list.html", context, partials=PARTIALS, status=status
    )
