"""Pages of the drills: what was put into the fleet, and whether it was noticed."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import trigger_client_event

from fleet.access.rights import may, requires
from fleet.charts.drills import charts_of, drill_window
from fleet.drills.history import Told, by_kind, score_of, told, told_one
from fleet.models import Alert, InjectedFault, Run
from fleet.simulated.drilling import DrillError, end, why_not
from fleet.simulated.drills import drill_of
from fleet.views.filters import with_page
from fleet.views.render import HtmxRequest, render_page
from fleet.words.causes import cause_name
from fleet.words.faults import explained
from telemetry.simulate.kinds import FAULTS
from telemetry.store.hot import open_store

LIST_PARTIALS = ("card", "history")
PARTIALS = ("verdict", "answer")
FILTERS = ("by", "kind", "run")
PER_PAGE = 25
# The score card looks at this many of the last drills.
SCORED = 100
BY = {"": "everybody", "people": "people", "demo": "the demo"}


def drills_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return the drills behind the filter, newest first, and the score of the last of them."""
    now, chosen = timezone.now(), {name: filters.get(name, "") for name in FILTERS}
    begun = InjectedFault.objects.filter(Q(starts_at__lte=now) | ~Q(injected_by=""))
    begun = begun.filter(run__is_simulated=True).select_related("run", "node")
    scored = told(begun[:SCORED], now=now)
    listing = Paginator(_filtered(begun, chosen), PER_PAGE).get_page(page)
    query = urlencode({name: value for name, value in chosen.items() if value})
    return {
        "rows": [row_of(drill) for drill in told(listing.object_list, now=now)],
        "page": listing,
        "chosen": chosen,
        "query": query,
        "stream_filters": with_page(query, listing.number),
        "score": score_of(scored).score(),
        "n_scored": len(scored),
        "by_kind": [
            (FAULTS[kind].title, score) for kind, score in by_kind(scored) if kind in FAULTS
        ],
    }


@require_safe
def drill_list(request: HtmxRequest) -> HttpResponse:
    """List the drills, newest first, over a card that scores the last of them."""
    asked = {name: request.GET.get(name, "") for name in FILTERS}
    context = drills_context(page=request.GET.get("page", "1"), **asked) | {
        "kinds": FAULTS.values(),
        "runs": Run.objects.simulated().order_by("name"),
        "by_words": BY,
        "why_not": _why_not_start(request),
    }
    return render_page(request, "fleet/drill_list.html", context, partials=LIST_PARTIALS)


def _filtered(faults: Any, chosen: Mapping[str, str]) -> Any:
    """Keep the drills that the address asks for; what it asks in vain leaves none."""
    if chosen["by"] in {"people", "demo"}:
        faults = (
            faults.filter(injected_by="")
            if chosen["by"] == "demo"
            else faults.exclude(injected_by="")
        )
    if chosen["kind"]:
        faults = faults.filter(kind=chosen["kind"])
    if chosen["run"]:
        faults = faults.filter(run__name=chosen["run"])
    return faults


def row_of(drill: Told) -> dict[str, Any]:
    """Return what a drill's line or page shows of it."""
    now = timezone.now()
    return {"told": drill, "drill": drill_of(drill.fault, now=now), **_believed(drill)}


def _believed(drill: Told) -> dict[str, Any]:
    if drill.firing is None:
        return {"believed": ""}
    return {"believed": cause_name(drill.firing.cause)}


def _why_not_start(request: HtmxRequest) -> str:
    """Say why the one who looks cannot start a drill; empty where they can."""
    if reason := why_not():
        return reason
    if not may(request.user, "operator"):
        return "starting one needs the role operator"
    if not Run.objects.active().simulated().exists():
        return "no simulated run is under way, and real ones are never drilled"
    return ""


def drill_context(pk: str) -> dict[str, Any]:
    """Return what changes on the page of one drill."""
    now = timezone.now()
    faults = InjectedFault.objects.select_related("run", "node")
    drill = told_one(get_object_or_404(faults, pk=pk), now=now)
    others: Any = []
    if drill.alert is None:
        others = Alert.objects.open().filter(run=drill.fault.run).select_related("run", "node")
    return row_of(drill) | {
        "fault": drill.fault,
        "others": list(others),
        "window": drill_window(drill.fault, drill.firing, now=now),
        "stream": f"drill:{drill.fault.pk}",
    }


@require_safe
def drill_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One drill: the truth beside what detection made of it."""
    context = drill_context(str(pk))
    fault, window = context["fault"], context["window"]
    is_settled = context["told"].outcome != "waiting" and not context["drill"].is_running
    is_burning = context["told"].alert is not None and context["told"].alert.is_open
    context |= {
        "charts": charts_of(fault),
        # What no longer moves need not be asked for again.
        "chart_query": window.query if is_settled and not is_burning else "",
        "explained": explained(fault.kind),
        "may_end": may(request.user, "operator"),
    }
    return render_page(request, "fleet/drill_detail.html", context, partials=PARTIALS)


@require_POST
@requires("operator")
def drill_end(request: HtmxRequest, pk: int) -> HttpResponse:
    """Take a fault out of its run before its time."""
    fault = get_object_or_404(InjectedFault.objects.select_related("run", "node"), pk=pk)
    error, status = "", 200
    try:
        end(open_store(settings.REDIS_URL), fault, now=timezone.now())
    except DrillError as refused:
        error, status = str(refused), 422
    if not request.htmx and not error:
        return HttpResponseRedirect(reverse("drill-detail", args=[pk]))
    context = drill_context(str(pk)) | {"error": error, "may_end": True}
    context |= {"charts": charts_of(fault), "explained": explained(fault.kind)}
    response = render_page(
        request, "fleet/drill_detail.html", context, partials=PARTIALS, status=status
    )
    return trigger_client_event(response, "drills-changed")
