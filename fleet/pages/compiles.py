"""The page of the compile cache: what was compiled over the fleet, why, and what it cost."""

from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.models import CompileEvent, Run
from fleet.pages.render import Filter, HtmxRequest, render_page, with_page
from fleet.runs.compiles import SINCE, WHAT, compile_rows, fleet_compile_sums

PARTIALS = ("sums", "events", "by-run")
PER_PAGE = 25
USUAL_SINCE = "30d"
MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class CompileFilter(Filter):
    """Which compiles a page shows; an unknown team or run matches none."""

    team: str = ""
    run: str = ""
    since: str = ""
    what: str = ""


def compiles_context(page: str = "1", **filters: str) -> dict[str, Any]:
    keep, now = CompileFilter.of(filters), timezone.now()
    since = SINCE.get(keep.since, SINCE[USUAL_SINCE])
    events = CompileEvent.objects.filter_by(
        team=keep.team, run=keep.run, since=now - since if since else None
    )
    what = WHAT.get(keep.what, WHAT[""])
    found = events.filter(what[1]).select_related("run").defer("run__plan", "run__clock")
    listing = Paginator(found.order_by("-at", "-pk"), PER_PAGE).get_page(page)
    return {
        "keep": keep,
        "since": keep.since if keep.since in SINCE else USUAL_SINCE,
        "sums": fleet_compile_sums(events),
        "rows": compile_rows(listing.object_list),
        "page": listing,
        "query": keep.query,
        "what": what[0],
        "stream_filters": with_page(keep.query, listing.number),
    }


@require_safe
def compile_list(request: HtmxRequest) -> HttpResponse:
    """List unplanned compiles, and the cache figures of each run."""
    runs = Run.objects.filter(compiles__isnull=False).distinct().order_by("name")
    names = list(runs.values_list("name", "team")[:MOST_RUNS])
    context = compiles_context(**request.GET.dict())
    context |= {
        "whats": {name: words for name, (words, _) in WHAT.items()},
        "sinces": SINCE,
        "runs": [name for name, _ in names],
        "teams": sorted({team for _, team in names if team}),
    }
    return render_page(request, "runs/compile_list.html", context, partials=PARTIALS)
