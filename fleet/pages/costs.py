"""Page of the prices: what holds now, what held and will, and a form for a new one; for leads."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from fleet.access.roles import requires
from fleet.costs import budgets
from fleet.costs.budgets import BudgetRequest
from fleet.costs.panel import FIELDS as LENGTH_FIELDS
from fleet.costs.panel import brief_panel, panel, set_training_length, with_cost_fields
from fleet.formatting import counted
from fleet.models import Budget, Run, TeamPrice
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.prices import PriceRequest, price_holding_at, set_price
from telemetry import catalog
from telemetry.errors import FieldError
from telemetry.store.hot import open_store

FIELDS = ("team", "run", "usd", "starts_at", "ends_at")
PARTIALS = ("budgets",)
N_RUNS = 200
N_WITHDRAWN = 50
DAY = timedelta(days=1)


def budgets_context() -> dict[str, Any]:
    """Return how every budget stands, and those withdrawn."""
    now = timezone.now()
    return {
        "burns": budgets.budget_statuses(now=now),
        "withdrawn": Budget.objects.withdrawn().select_related("run")[:N_WITHDRAWN],
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
    except FieldError as error:
        return _show(request, given=given, error=error)
    messages.success(request, f"Budget saved: {budget}.")
    return HttpResponseRedirect(reverse("budget-list"))


@require_POST
@requires("lead")
def budget_end(request: HtmxRequest, pk: int) -> HttpResponse:
    """Withdraw a budget: it is watched no more."""
    budget = get_object_or_404(Budget.objects.select_related("run"), pk=pk)
    if budgets.end_budget(budget, by=request.user.get_username(), now=timezone.now()):
        messages.success(request, f"Budget of {budget.name} withdrawn.")
    else:
        messages.error(request, f"The budget of {budget.name} is already withdrawn.")
    there = reverse("budget-list")
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


def _asked(given: dict[str, str]) -> BudgetRequest:
    try:
        usd = float(given["usd"].replace(",", "").removeprefix("$"))
    except ValueError:
        usd = math.nan
    return BudgetRequest(
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
        raise FieldError(field, "give a date, as 2026-11-30") from None


def _show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    error: FieldError | None = None,
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
        request, "costs/budget_list.html", context, partials=PARTIALS, status=status
    )


MONEY_PARTIALS = ("money",)


def brief_money(run: Run, *, now: datetime) -> dict[str, Any]:
    """Return the panel of a run, worked out only once something shows it."""
    hot = open_store(settings.REDIS_URL)
    return {"money": SimpleLazyObject(lambda: brief_panel(hot, run, now=now))}


def money_context(name: str) -> dict[str, Any]:
    """Return what changes on the page of one run's money."""
    run = get_object_or_404(with_cost_fields(Run.objects.all()), name=name)
    money = brief_panel(open_store(settings.REDIS_URL), run, now=timezone.now())
    return {"run": run, "money": money}


@require_http_methods(["GET", "HEAD", "POST"])
def run_money(request: HtmxRequest, name: str) -> HttpResponseBase:
    """Show what a run's dollars went into; leads say how long it is to be."""
    run = get_object_or_404(Run, name=name)
    return _tell(request, run) if request.method == "POST" else _money_show(request, run)


@requires("lead")
def _tell(request: HtmxRequest, run: Run) -> HttpResponse:
    given = {field: request.POST.get(field, "") for field in LENGTH_FIELDS}
    try:
        by, now = request.user.get_username(), timezone.now()
        changed = set_training_length(run, given, by=by, now=now)
    except FieldError as error:
        return _money_show(request, run, given=given, error=error)
    if changed:
        messages.success(request, f"Training length of {run.name} saved.")
    return HttpResponseRedirect(run.get_absolute_url())


def _money_show(
    request: HtmxRequest,
    run: Run,
    *,
    given: dict[str, str] | None = None,
    error: FieldError | None = None,
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
    return render_page(
        request, "runs/run_money.html", context, partials=MONEY_PARTIALS, status=status
    )


PRICES_FIELDS = ("team", "instance_type", "basis", "usd_per_node_hour", "valid_from", "source")
N_HISTORY = 200


@dataclass(frozen=True, slots=True)
class PriceRow:
    """What a team pays for a type, by contract or, where that is None, by the catalogue."""

    instance_type: str
    team: str
    contract: TeamPrice | None
    n_runs: int

    @property
    def published(self) -> catalog.Price | None:
        """The catalogue's default; None where none is published."""
        known = catalog.instances().get(self.instance_type)
        return known.price if known and known.prices else None


def rows_of(prices: list[TeamPrice], *, now: datetime) -> list[PriceRow]:
    """Return what holds now, by type and team: of contracts, and of runs under way."""
    active: dict[tuple[str, str], int] = {}
    for key in Run.objects.active().values_list("instance_type", "team"):
        active[key] = active.get(key, 0) + 1
    begun = {(price.instance_type, price.team) for price in prices if price.valid_from <= now}
    rows = []
    for instance_type, team in sorted(begun | set(active)):
        of_type = [price for price in prices if price.instance_type == instance_type]
        held = price_holding_at(of_type, team, now)
        rows.append(PriceRow(instance_type, team, held, active.get((instance_type, team), 0)))
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def price_list(request: HtmxRequest) -> HttpResponse:
    """List the prices that hold, with their history; set a new one from a date on."""
    if request.method != "POST":
        return _prices_show(request)
    given = {name: request.POST.get(name, "").strip() for name in PRICES_FIELDS}
    try:
        price, n_runs = set_price(
            _prices_asked(given), by=request.user.get_username(), now=timezone.now()
        )
    except FieldError as error:
        return _prices_show(request, given=given, error=error)
    runs = f"; applies to {counted(n_runs, 'active run')}" if n_runs else ""
    messages.success(request, f"{price} from {price.valid_from:%-d %b %Y} on{runs}.")
    return HttpResponseRedirect(reverse("price-list"))


def _prices_asked(given: dict[str, str]) -> PriceRequest:
    try:
        usd = float(given["usd_per_node_hour"].replace(",", "").removeprefix("$"))
    except ValueError:
        raise FieldError("usd_per_node_hour", "give a number of dollars, as 35.76") from None
    return PriceRequest(
        team=given["team"],
        instance_type=given["instance_type"],
        basis=given["basis"],
        usd_per_node_hour=usd,
        valid_from=day("valid_from", given["valid_from"]),
        source=given["source"],
    )


def day(field: str, text: str) -> datetime:
    """Read a date as a browser's field gives it: its first moment, UTC."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise FieldError(field, "give a date, as 2026-11-30") from None


def _prices_show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    error: FieldError | None = None,
) -> HttpResponse:
    now, prices = timezone.now(), list(TeamPrice.objects.all())
    teams = sorted({*Run.objects.values_list("team", flat=True), *(p.team for p in prices)} - {""})
    context: dict[str, Any] = {
        "rows": rows_of(prices, now=now),
        "history": sorted(prices, key=lambda price: (price.set_at, price.pk))[
            : -N_HISTORY - 1 : -1
        ],
        "published": [(each, each.prices) for each in catalog.instances().values() if each.prices],
        "types": list(catalog.instances()),
        "bases": TeamPrice.Basis.choices,
        "teams": teams,
        "given": given or {"valid_from": f"{now:%Y-%m-%d}", "basis": "contract"},
        "error": error,
        "at": now,
    }
    status = 422 if error else 200
    return render_page(request, "costs/price_list.html", context, status=status)
