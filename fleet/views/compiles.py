"""The page of the compile cache: what was compiled over the fleet, why, and what it cost."""

from dataclasses import dataclass

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.compiles.fleetwide import SINCE, WHAT, asked_for, listed, summed_over
from fleet.models import Run
from fleet.views.filters import Filter
from fleet.views.render import HtmxRequest, render_page

PARTIALS = ("sums", "events", "by-run")
PER_PAGE = 25
USUAL_SINCE = "30d"
MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class CompileFilter(Filter):
    """Which compiles a page shows; what it does not know, it keeps none of."""

    team: str = ""
    run: str = ""
    since: str = ""
    what: str = ""


@require_safe
def compile_list(request: HtmxRequest) -> HttpResponse:
    """List what was compiled though nobody announced it, and what each run's cache did."""
    keep, now = CompileFilter.of(request.GET.dict()), timezone.now()
    since = SINCE.get(keep.since, SINCE[USUAL_SINCE])
    events = asked_for(team=keep.team, run=keep.run, since=since, now=now)
    what = WHAT.get(keep.what, WHAT[""])
    found = events.filter(what[1]).select_related("run").defer("run__plan", "run__clock")
    page = Paginator(found.order_by("-at", "-pk"), PER_PAGE).get_page(request.GET.get("page"))
    runs = Run.objects.filter(compiles__isnull=False).distinct().order_by("name")
    names = list(runs.values_list("name", "team")[:MOST_RUNS])
    context = {
        "keep": keep,
        "since": keep.since if keep.since in SINCE else USUAL_SINCE,
        "sums": summed_over(events),
        "rows": listed(page.object_list),
        "page": page,
        "query": keep.query,
        "what": what[0],
        "whats": {name: words for name, (words, _) in WHAT.items()},
        "sinces": SINCE,
        "runs": [name for name, _ in names],
        "teams": sorted({team for _, team in names if team}),
    }
    return render_page(request, "fleet/compile_list.html", context, partials=PARTIALS)
