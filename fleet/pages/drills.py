"""Pages of drills: the injected faults, and whether detection found them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect, trigger_client_event

from fleet.access.roles import has_role, requires
from fleet.alerts.causes import cause_name
from fleet.models import Alert, InjectedFault, Run
from fleet.pages.fields import submit
from fleet.pages.forms import DrillRunForm
from fleet.pages.render import Filter, HtmxRequest, render_page, with_page
from fleet.pages.tables import Column, Table, in_chunks, moment, number
from fleet.simulation.drill_results import (
    DrillResult,
    by_kind,
    charts_of,
    drill_result,
    drill_results,
    drill_window,
    score_of,
)
from fleet.simulation.drills import (
    DEFAULT_KIND,
    DrillForm,
    drill_of,
    end,
    inject,
    previewed,
    why_not_allowed,
)
from fleet.simulation.ground_truth import FaultTruth
from fleet.simulation.scoring import time_limit_s
from telemetry.errors import FieldError
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.plan import Fault, RunSpec
from telemetry.simulate.validation import validate_fault
from telemetry.store.hot import hot_store
from telemetry.units import HOUR_S


@dataclass(frozen=True, slots=True)
class FaultDescription:
    """The description of a kind of fault in docs/faults.md."""

    what: str
    signature: str


@lru_cache(maxsize=1)
def _sections() -> dict[str, FaultDescription]:
    text = (Path(settings.ROOT) / "docs" / "faults.md").read_text(encoding="utf-8")
    sections = {}
    for section in text.split("\n## ")[1:]:
        kind, _, body = section.partition("\n")
        paragraph = " ".join(body.strip().split("\n\n")[0].split())
        what, _, rest = paragraph.partition("**Signature:** ")
        sections[kind.strip()] = FaultDescription(plain(what), plain(rest.partition(" **")[0]))
    return sections


def explained(kind: str) -> FaultDescription:
    return _sections().get(kind, FaultDescription("", ""))


def plain(markdown: str) -> str:
    return markdown.replace("`", "").replace("*", "").strip()


DRILLS = Table(
    "drills",
    "newest first",
    (
        moment("started", "Started", "fault.starts_at", style="wide", order="starts_at"),
        Column("fault", "Fault", lambda row: row.fault.kind, order="kind"),
        Column(
            "where", "Location", lambda row: row.fault.node or row.fault.run, "", "wide", "place"
        ),
        Column("part", "Part", "fault.device", style=None),
        number("size", "Magnitude", "fault.magnitude", style=None),
        number("step", "Step time", "truth.step_slowdown_ratio", "x", style="num wide"),
        Column("detected", "Detected", "outcome"),
        number("delay", "Time to detect", "delay_s", "s", style=None),
        Column(
            "as",
            "Detected as",
            lambda row: row.firing.cause if row.firing else "",
            style="wide",
        ),
        Column("by", "Started by", "fault.injected_by", "", "wide", "injected_by"),
    ),
    is_stored=True,
    anchor="#history",
)
LIST_PARTIALS = ("card", "history")
PARTIALS = ("verdict", "answer")
PER_PAGE = 25
# The score covers this many recent drills.
SCORED = 100
BY = {"": "anyone", "people": "users", "demo": "demo"}


@dataclass(frozen=True, slots=True)
class DrillFilter(Filter):
    by: str = ""
    kind: str = ""
    run: str = ""


def drills_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return the drills that match, newest first, and the score of recent drills."""
    now, chosen = timezone.now(), DrillFilter.of(filters)
    started = InjectedFault.objects.filter(Q(starts_at__lte=now) | ~Q(injected_by=""))
    started = started.filter(run__is_simulated=True).select_related("run", "node")
    scored = drill_results(started[:SCORED], now=now)
    if chosen.by == "demo":
        started = started.filter(injected_by="")
    elif chosen.by == "people":
        started = started.exclude(injected_by="")
    if chosen.kind:
        started = started.filter(kind=chosen.kind)
    if chosen.run:
        started = started.filter(run__name=chosen.run)
    started = started.alias(place=Coalesce("node__name", "run__name"))

    def results(some: list[InjectedFault]) -> list[DrillResult]:
        return drill_results(some, now=now)

    table = DRILLS.by(chosen.given, lambda t: in_chunks(t.ordered(started), results))
    listing = Paginator(table.ordered(started), PER_PAGE).get_page(page)
    return {
        "table": table,
        "rows": [row_of(drill) for drill in drill_results(listing.object_list, now=now)],
        "page": listing,
        "keep": chosen,
        "stream_filters": with_page(chosen.query, listing.number),
        "score": score_of(scored).score(),
        "n_scored": len(scored),
        "by_kind": [
            (FAULTS[kind].title, score) for kind, score in by_kind(scored) if kind in FAULTS
        ],
    }


@require_safe
def drill_list(request: HtmxRequest) -> HttpResponse:
    why_not = why_not_allowed()
    if not why_not and not has_role(request.user, "operator"):
        why_not = "this needs the role operator"
    elif not why_not and not Run.objects.active().simulated().exists():
        why_not = "no simulated run is active, and real runs cannot be drilled"
    context = drills_context(**request.GET.dict()) | {
        "kinds": FAULTS.values(),
        "runs": Run.objects.simulated().order_by("name"),
        "by_words": BY,
        "why_not": why_not,
    }
    return render_page(request, "simulation/drill_list.html", context, partials=LIST_PARTIALS)


def row_of(drill: DrillResult) -> dict[str, Any]:
    cause = cause_name(drill.firing.cause) if drill.firing is not None else ""
    drill_now = drill_of(drill.fault, now=timezone.now())
    return {"result": drill, "drill": drill_now, "detected_cause": cause}


def drill_context(pk: str) -> dict[str, Any]:
    now = timezone.now()
    faults = InjectedFault.objects.select_related("run", "node")
    drill = drill_result(get_object_or_404(faults, pk=pk), now=now)
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
    context = drill_context(str(pk))
    fault, window = context["fault"], context["window"]
    is_settled = context["result"].outcome != "waiting" and not context["drill"].is_running
    is_firing = context["result"].alert is not None and context["result"].alert.is_open
    context |= {
        "charts": charts_of(fault),
        # A finished chart is not fetched again.
        "chart_query": f"?{window.query}" if is_settled and not is_firing else "",
        "explained": explained(fault.kind),
    }
    return render_page(request, "simulation/drill_detail.html", context, partials=PARTIALS)


@require_POST
@requires("operator")
def drill_end(request: HtmxRequest, pk: int) -> HttpResponse:
    fault = get_object_or_404(InjectedFault.objects.select_related("run", "node"), pk=pk)
    error, status = "", 200
    try:
        end(hot_store(), fault, now=timezone.now())
    except FieldError as refused:
        error, status = str(refused), 422
    if not request.htmx and not error:
        return HttpResponseRedirect(reverse("drill-detail", args=[pk]))
    context = drill_context(str(pk)) | {"error": error}
    context |= {"charts": charts_of(fault), "chart_query": "", "explained": explained(fault.kind)}
    response = render_page(
        request, "simulation/drill_detail.html", context, partials=PARTIALS, status=status
    )
    return trigger_client_event(response, "drills-changed")


RUN_PARTIALS = ("drill",)
STARTING_PARTIALS = ("start", "preview")


@dataclass(frozen=True, slots=True)
class DrillPreview:
    truth: FaultTruth
    usd: float | None

    @property
    def usual_s(self) -> float | None:
        step_s, ratio = self.truth.step_s, self.truth.step_slowdown_ratio
        return None if step_s is None or ratio is None else step_s / ratio

    @property
    def is_slower(self) -> bool:
        """Whether steps take at least 1 % longer."""
        ratio = self.truth.step_slowdown_ratio
        return ratio is not None and ratio >= 1.01

    @property
    def within_s(self) -> float:
        return time_limit_s(self.truth)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def run_drill(request: HtmxRequest, name: str) -> HttpResponse:
    """Show the drill form of a run, or inject the fault."""
    run = get_object_or_404(drillable(), name=name)
    if request.method != "POST":
        given = request.GET
        form = DrillForm(run, given.get("kind", DEFAULT_KIND), node=given.get("node", ""))
        return _show_run(request, run, form=form)
    form = DrillForm(run, request.POST.get("kind", ""), request.POST)
    injected = _injected(request, run, form)
    if injected is None:
        return _show_run(request, run, form=form, status=422)
    if not request.htmx:
        return HttpResponseRedirect(run.get_absolute_url())
    response = _show_run(request, run, injected=injected)
    return trigger_client_event(response, "drills-changed")


def _show_run(
    request: HtmxRequest, run: Run, *, status: int = 200, **context: object
) -> HttpResponse:
    template = "simulation/run_drill.html"
    return render_page(
        request, template, {"run": run} | context, partials=RUN_PARTIALS, status=status
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def drill_new(request: HtmxRequest) -> HttpResponse:
    """Show the form for any run and fault, or inject the fault and open the drill."""
    given = request.POST if request.method == "POST" else request.GET
    choice = DrillRunForm(drillable().order_by("name"), given)
    run = choice.chosen()
    reason = why_not_allowed() or ("" if choice.largest else "no simulated run is active")
    if choice.largest is None or reason:
        status = 422 if request.method == "POST" else 200
        return _show(request, {"why_not": reason}, status=status)
    if request.method != "POST":
        shown = run or choice.largest
        form = DrillForm(shown, given.get("kind", DEFAULT_KIND), node=given.get("node", ""))
        return _show(request, _context(choice, shown, form), status=200 if run else 404)
    if run is None:
        form = DrillForm(choice.largest, given.get("kind", ""))
        return _show(request, _context(choice, choice.largest, form), status=422)
    form = DrillForm(run, given.get("kind", ""), given)
    injected = _injected(request, run, form)
    if injected is None:
        return _show(request, _context(choice, run, form), status=422)
    there = reverse("drill-detail", args=[injected.pk])
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


@require_safe
@requires("operator")
def drill_preview(request: HtmxRequest) -> HttpResponse:
    run = DrillRunForm(drillable(), request.GET).chosen()
    if run is None:
        raise Http404("this run is no active simulated run")
    form = DrillForm(run, request.GET.get("kind", ""), request.GET)
    return render_page(
        request,
        "simulation/drill_new.html#preview",
        {"run": run, "preview": preview_of(run, form.chosen()) if form.is_valid() else None},
    )


def drillable() -> Any:
    return Run.objects.active().simulated()


def _injected(request: HtmxRequest, run: Run, form: DrillForm) -> InjectedFault | None:
    """Inject the fault; None, with an error in the form, if that is not possible."""
    hot, by = hot_store(), request.user.get_username()
    return submit(form, lambda: inject(hot, run, **form.chosen(), by=by, now=timezone.now()))


def preview_of(run: Run, chosen: Mapping[str, Any]) -> DrillPreview | None:
    """Return the expected effect of a fault; None if the run cannot have it."""
    node, spec = chosen["node"], RunSpec(**run.plan)
    fault = Fault(
        kind=chosen["kind"],
        node=node.name if node else None,
        run=None if node else run.name,
        device=chosen["device"],
        start_s=0.0,
        duration_s=chosen["duration_s"],
        magnitude=chosen["magnitude"],
    )
    try:
        validate_fault(fault, spec)
    except FieldError:
        return None
    truth = previewed(spec, fault)
    ratio = truth.step_slowdown_ratio
    lost_s = fault.duration_s * (1 - 1 / ratio) if ratio is not None else fault.duration_s
    return DrillPreview(truth, max(0.0, lost_s) * run.usd_per_hour / HOUR_S)


def _context(choice: DrillRunForm, run: Run, form: DrillForm) -> dict[str, Any]:
    chosen = form.chosen() if form.is_bound and form.is_valid() else form.usual()
    return {
        "choice": choice,
        "run": run,
        "form": form,
        "explained": explained(form.fault.name),
        "preview": preview_of(run, chosen),
    }


def _show(request: HtmxRequest, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
    template = "simulation/drill_new.html"
    return render_page(request, template, context, partials=STARTING_PARTIALS, status=status)
