"""Starting a drill: an operator picks run, fault, place and size, and sees what it would do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe
from django_htmx.http import HttpResponseClientRedirect, trigger_client_event

from fleet.access.rights import requires
from fleet.drills.preview import previewed
from fleet.drills.scoring import IN_TIME_S, IN_TIME_STEPS
from fleet.drills.truth import Truth
from fleet.models import InjectedFault, Run
from fleet.simulated.drill_form import DEFAULT_KIND, DrillForm
from fleet.simulated.drilling import DrillError, inject, why_not
from fleet.views.render import HtmxRequest, render_page
from fleet.words.faults import explained
from telemetry.simulate.plan import Fault, RunSpec
from telemetry.simulate.validation import ScenarioError, validate_fault
from telemetry.store.hot import open_store

RUN_PARTIALS = ("drill",)
PARTIALS = ("start", "preview")
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Preview:
    """What a fault would cost a run, and how soon it should be noticed."""

    truth: Truth
    usd: float | None

    @property
    def usual_s(self) -> float | None:
        """How long a step takes without it."""
        step_s, ratio = self.truth.step_s, self.truth.step_slowdown_ratio
        return None if step_s is None or ratio is None else step_s / ratio

    @property
    def is_felt(self) -> bool:
        """Whether steps take longer at all: by a hundredth."""
        ratio = self.truth.step_slowdown_ratio
        return ratio is not None and ratio >= 1.01

    @property
    def within_s(self) -> float:
        """Within which time it should be noticed."""
        return max(IN_TIME_S, IN_TIME_STEPS * (self.truth.step_s or 0.0))


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def run_drill(request: HtmxRequest, name: str) -> HttpResponse:
    """Offer the form of a drill on a run's page, or inject what it says."""
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
    template = "fleet/run_drill.html"
    return render_page(
        request, template, {"run": run} | context, partials=RUN_PARTIALS, status=status
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def drill_new(request: HtmxRequest) -> HttpResponse:
    """Offer every run and every fault, or inject what was chosen and follow it."""
    given = request.POST if request.method == "POST" else request.GET
    runs = list(drillable().order_by("name"))
    run = _chosen(runs, given.get("run"))
    reason = why_not() or ("" if run else "no simulated run is under way")
    if run is None or reason:
        status = 422 if request.method == "POST" else 200
        return _show(request, {"why_not": reason}, status=status)
    if request.method != "POST":
        form = DrillForm(run, given.get("kind", DEFAULT_KIND), node=given.get("node", ""))
        return _show(request, _context(runs, run, form))
    form = DrillForm(run, given.get("kind", ""), given)
    injected = _injected(request, run, form)
    if injected is None:
        return _show(request, _context(runs, run, form), status=422)
    there = reverse("drill-detail", args=[injected.pk])
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


@require_safe
@requires("operator")
def drill_preview(request: HtmxRequest) -> HttpResponse:
    """Say what the chosen fault would do to the chosen run."""
    run = _chosen(list(drillable()), request.GET.get("run"))
    if run is None:
        raise Http404("there is no simulated run under way to preview a fault in")
    form = DrillForm(run, request.GET.get("kind", ""), request.GET)
    return render_page(
        request,
        "fleet/drill_new.html#preview",
        {"run": run, "preview": preview_of(run, form.chosen()) if form.is_valid() else None},
    )


def drillable() -> Any:
    """Return the runs that faults may be put into."""
    return Run.objects.active().simulated()


def _chosen(runs: Sequence[Run], name: str | None) -> Run | None:
    """Return the run of that name, or else the largest; 404 where the name is none of them."""
    if name:
        found = next((run for run in runs if run.name == name), None)
        if found is None:
            raise Http404(f"{name} is no simulated run that is under way")
        return found
    return max(runs, key=lambda run: run.n_nodes, default=None)


def _injected(request: HtmxRequest, run: Run, form: DrillForm) -> InjectedFault | None:
    """Inject what was chosen; None, with the error beside its field, where it cannot be."""
    if not form.is_valid():
        return None
    hot, by = open_store(settings.REDIS_URL), request.user.get_username()
    try:
        return inject(hot, run, **form.chosen(), by=by, now=timezone.now())
    except DrillError as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return None


def preview_of(run: Run, chosen: Mapping[str, Any]) -> Preview | None:
    """Return what a fault would do to a run; None where the run cannot have it."""
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
    except ScenarioError:
        return None
    truth = previewed(spec, fault)
    ratio = truth.step_slowdown_ratio
    lost_s = fault.duration_s * (1 - 1 / ratio) if ratio is not None else fault.duration_s
    return Preview(truth, max(0.0, lost_s) * run.usd_per_hour / SECONDS_PER_HOUR)


def _context(runs: Sequence[Run], run: Run, form: DrillForm) -> dict[str, Any]:
    """Return the form, what is written of its fault, and what it would do as it stands."""
    chosen = form.chosen() if form.is_bound and form.is_valid() else form.usual()
    return {
        "runs": runs,
        "run": run,
        "form": form,
        "explained": explained(form.fault.name),
        "preview": preview_of(run, chosen),
    }


def _show(request: HtmxRequest, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
    template = "fleet/drill_new.html"
    return render_page(request, template, context, partials=PARTIALS, status=status)
