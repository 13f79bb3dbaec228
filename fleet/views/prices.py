"""Page of the prices: what holds now, what held and will, and a form for a new one; for leads."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from fleet.access.rights import requires
from fleet.models import Run, TeamPrice
from fleet.pricing.prices import Asked, PriceError, holding, set_price
from fleet.views.render import HtmxRequest, render_page
from fleet.words.wording import counted
from telemetry import catalog

FIELDS = ("team", "instance_type", "basis", "usd_per_node_hour", "valid_from", "source")
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
        held = holding(of_type, team, now)
        rows.append(PriceRow(instance_type, team, held, active.get((instance_type, team), 0)))
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def price_list(request: HtmxRequest) -> HttpResponse:
    """List the prices that hold, with their history; set a new one from a date on."""
    if request.method != "POST":
        return _show(request)
    given = {name: request.POST.get(name, "").strip() for name in FIELDS}
    try:
        price, n_runs = set_price(
            _asked(given), by=request.user.get_username(), now=timezone.now()
        )
    except PriceError as error:
        return _show(request, given=given, error=error)
    runs = f"; it changes what {counted(n_runs, 'run')} under way will pay" if n_runs else ""
    messages.success(request, f"{price} from {price.valid_from:%-d %b %Y} on{runs}.")
    return HttpResponseRedirect(reverse("price-list"))


def _asked(given: dict[str, str]) -> Asked:
    try:
        usd = float(given["usd_per_node_hour"].replace(",", "").removeprefix("$"))
    except ValueError:
        raise PriceError("usd_per_node_hour", "give a number of dollars, as 35.76") from None
    return Asked(
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
        raise PriceError(field, "give a date, as 2026-11-30") from None


def _show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    error: PriceError | None = None,
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
    return render_page(request, "fleet/price_list.html", context, status=status)
