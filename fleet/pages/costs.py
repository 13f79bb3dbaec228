"""Pages of budgets, of the cost of a run, and of prices."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from fleet.access.roles import requires
from fleet.costs import budgets
from fleet.costs.panel import brief_panel, panel, set_training_length, with_cost_fields
from fleet.formatting import counted
from fleet.models import Budget, Run, TeamPrice
from fleet.pages.fields import submit
from fleet.pages.forms import BudgetForm, LengthForm, PriceForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment, number
from fleet.runs.prices import applicable_price, chip_price_note, set_price
from telemetry import catalog
from telemetry.store.hot import hot_store

PARTIALS = ("budgets",)
N_RUNS = 200
N_WITHDRAWN = 50


def _scope(status: budgets.BudgetStatus) -> str:
    return status.budget.run.name if status.budget.run else status.budget.team


def _status(status: budgets.BudgetStatus) -> str:
    return "overrun" if status.is_over else "within budget"


BUDGETS = Table(
    "budgets",
    "forecast overruns first",
    (
        Column("scope", "Scope", _scope),
        Column("status", "Status", _status),
        number("spent", "Spent", "spent_usd", "USD", style="num wide"),
        number("budget", "Budget", "budget.usd", "USD", style="num wide"),
        number("forecast", "Forecast", "forecast_usd", "USD", style="num wide"),
        number("hour", "Per hour", "usd_per_hour", "USD", style="num wide"),
        moment("period", "Period", "budget.starts_at", style="wide"),
        moment("end", "End of period", "budget.ends_at", style=None),
        moment("exhausted", "Exhausted at", "used_up_at", style=None),
        number("unpriced", "Runs without a price", "n_unpriced", style=None),
    ),
)


def budgets_context(**query: str) -> dict[str, Any]:
    now = timezone.now()
    statuses = budgets.budget_statuses(now=now)
    table = BUDGETS.by(query, lambda t: t.sorted(statuses))
    return {
        "table": table,
        "stream_filters": urlencode({"sort": table.sort} if table.sort else {}),
        "burns": table.rows,
        "withdrawn": Budget.objects.withdrawn().select_related("run")[:N_WITHDRAWN],
        "at": now,
    }


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def budget_list(request: HtmxRequest) -> HttpResponse:
    """List the budgets, those forecast to be overrun first, or set one."""
    now = timezone.now()
    runs = list(Run.objects.order_by("-pk").values("name", "team")[:N_RUNS])
    names = [run["name"] for run in runs]
    form = BudgetForm(request.POST if request.method == "POST" else None, runs=names, now=now)
    by = request.user.get_username()
    if budget := submit(form, lambda: budgets.set_budget(form.request(), by=by, now=now)):
        messages.success(request, f"Budget saved: {budget}.")
        return HttpResponseRedirect(reverse("budget-list"))
    context = {"form": form, "teams": sorted({run["team"] for run in runs} - {""})}
    context |= budgets_context(**request.GET.dict())
    return render_page(request, "costs/budget_list.html", context, partials=PARTIALS)


@require_POST
@requires("lead")
def budget_end(request: HtmxRequest, pk: int) -> HttpResponse:
    budget = get_object_or_404(Budget.objects.select_related("run"), pk=pk)
    if budgets.end_budget(budget, by=request.user.get_username(), now=timezone.now()):
        messages.success(request, f"Budget of {budget.name} withdrawn.")
    else:
        messages.error(request, f"The budget of {budget.name} is already withdrawn.")
    there = reverse("budget-list")
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


MONEY_PARTIALS = ("money",)


def brief_money(run: Run, *, now: datetime) -> dict[str, Any]:
    """Return the cost panel of a run, computed when first used."""
    hot = hot_store()
    return {"money": SimpleLazyObject(lambda: brief_panel(hot, run, now=now))}


def money_context(name: str) -> dict[str, Any]:
    run = get_object_or_404(with_cost_fields(Run.objects.all()), name=name)
    money = brief_panel(hot_store(), run, now=timezone.now())
    return {"run": run, "money": money}


@require_http_methods(["GET", "HEAD", "POST"])
def run_money(request: HtmxRequest, name: str) -> HttpResponseBase:
    """Show the cost of a run by activity; leads set its training length."""
    run = get_object_or_404(Run, name=name)
    if request.method == "POST":
        return _set_length(request, run)
    return _show_money(request, run, LengthForm(run))


@requires("lead")
def _set_length(request: HtmxRequest, run: Run) -> HttpResponse:
    form, by, now = LengthForm(run, request.POST), request.user.get_username(), timezone.now()
    changed = submit(form, lambda: set_training_length(run, form.cleaned_data, by=by, now=now))
    if changed is None:
        return _show_money(request, run, form)
    if changed:
        messages.success(request, f"Training length of {run.name} saved.")
    return HttpResponseRedirect(run.get_absolute_url())


def _show_money(request: HtmxRequest, run: Run, form: LengthForm) -> HttpResponse:
    now, hot = timezone.now(), hot_store()
    money = brief_panel(hot, run, now=now)
    # A finished run does not change, and the stream never adds up a long past.
    is_moving = money is not None and run.finished_at is None
    context = {
        "run": run,
        "money": money or panel(hot, run, now=now),
        "form": form,
        "stream": f"run-money:{run.name}" if is_moving else "head",
    }
    return render_page(request, "runs/run_money.html", context, partials=MONEY_PARTIALS)


N_HISTORY = 200


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The current price of an instance type for a team: a contract, else the published one."""

    instance_type: str
    team: str
    contract: TeamPrice | None
    n_runs: int

    @property
    def published(self) -> catalog.Price | None:
        """The catalogue's default; None where none is published."""
        known = catalog.instances().get(self.instance_type)
        return known.price if known and known.prices else None

    @property
    def usd_per_hour(self) -> float | None:
        if self.contract is not None:
            return self.contract.usd_per_node_hour
        return self.published.usd_per_hour if self.published else None

    @property
    def terms(self) -> str:
        if self.contract is not None:
            return self.contract.get_basis_display()
        return self.published.basis if self.published else ""

    @property
    def source(self) -> str:
        if self.contract is not None:
            return self.contract.source
        return f"published: {self.published.source.title}" if self.published else ""


@dataclass(frozen=True, slots=True)
class OfferRow:
    """One published price of an instance type."""

    name: str
    offer: catalog.Price


PRICES = Table(
    "prices",
    "by type and team",
    (
        Column("type", "Instance type", "instance_type"),
        Column("team", "Team", "team", style="wide"),
        number("price", "Per node-hour", "usd_per_hour", "USD"),
        Column("terms", "Terms", "terms", style="wide"),
        Column("source", "Source", "source", style="wide"),
        number("runs", "Runs", "n_runs", style="num wide"),
    ),
)
HISTORY = Table(
    "price-history",
    "newest first",
    (
        moment("from", "From", "valid_from"),
        Column("type", "Instance type", "instance_type"),
        number("price", "Per node-hour", "usd_per_node_hour", "USD"),
        Column("team", "Team", "team", style="wide"),
        Column("terms", "Terms", lambda price: price.get_basis_display(), style="wide"),
        Column("source", "Source", "source", style="wide"),
        Column("by", "Set by", "set_by", style="wide"),
        moment("at", "Set at", "set_at", style=None),
    ),
    parameter="sort_history",
    anchor="#history",
)
PUBLISHED = Table(
    "published-prices",
    "by type",
    (
        Column("type", "Instance type", "name"),
        number("price", "Per hour", "offer.usd_per_hour", "USD"),
        number("high", "Up to", "offer.usd_per_hour_high", "USD", style=None),
        Column("terms", "Terms", "offer.basis", style="wide"),
        Column("region", "Region", "offer.region", style="wide"),
        Column("source", "Source", "offer.source.title", style="wide"),
        Column("date", "Date", "offer.date", style="wide", largest_first=True),
    ),
    parameter="sort_published",
    anchor="#published",
)


def rows_of(prices: list[TeamPrice], *, now: datetime) -> list[PriceRow]:
    """Return current prices by type and team, of contracts and of active runs."""
    active: dict[tuple[str, str], int] = {}
    for key in Run.objects.active().values_list("instance_type", "team"):
        active[key] = active.get(key, 0) + 1
    begun = {(price.instance_type, price.team) for price in prices if price.valid_from <= now}
    rows = []
    for instance_type, team in sorted(begun | set(active)):
        of_type = [price for price in prices if price.instance_type == instance_type]
        current = applicable_price(of_type, team, now)
        rows.append(PriceRow(instance_type, team, current, active.get((instance_type, team), 0)))
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def price_list(request: HtmxRequest) -> HttpResponse:
    now = timezone.now()
    form = PriceForm(request.POST if request.method == "POST" else None, now=now)
    by = request.user.get_username()
    if made := submit(form, lambda: set_price(form.request(), by=by, now=now)):
        price, n_runs = made
        runs = f"; applies to {counted(n_runs, 'active run')}" if n_runs else ""
        messages.success(request, f"{price} from {price.valid_from:%-d %b %Y}{runs}.")
        doubt = chip_price_note(price.instance_type, price.usd_per_node_hour, price.basis)
        if doubt:
            messages.warning(request, f"{doubt}.")
        return HttpResponseRedirect(reverse("price-list"))
    context = prices_context(request.GET.dict(), now=now) | {"form": form}
    return render_page(request, "costs/price_list.html", context)


def prices_context(query: Mapping[str, str], *, now: datetime) -> dict[str, Any]:
    prices = list(TeamPrice.objects.all())
    teams = {*Run.objects.values_list("team", flat=True), *(price.team for price in prices)}
    by_time = sorted(prices, key=lambda price: (price.set_at, price.pk), reverse=True)
    current, instances = rows_of(prices, now=now), catalog.instances().values()
    offers = [OfferRow(each.name, offer) for each in instances for offer in each.prices]
    history = HISTORY.by(query, lambda table: table.sorted(by_time))
    return {
        "table": PRICES.by(query, lambda table: table.sorted(current)),
        "history": history,
        "history_rows": history.rows[:N_HISTORY],
        "published": PUBLISHED.by(query, lambda table: table.sorted(offers)),
        "teams": sorted(teams - {""}),
        "at": now,
    }
