"""The drill of a run: an operator injects a fault, and sees whether it is noticed."""

from django.conf import settings
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from fleet.access import requires
from fleet.models import InjectedFault, Run
from fleet.simulated.drill_form import DEFAULT_KIND, DrillForm
from fleet.simulated.drilling import DrillError, inject
from fleet.views.render import HtmxRequest, render_page
from telemetry.store.hot import open_store

PARTIALS = ("drill",)


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def run_drill(request: HtmxRequest, name: str) -> HttpResponse:
    """Offer the form of a drill, or inject what it says."""
    run = get_object_or_404(Run.objects.active().simulated(), name=name)
    if request.method != "POST":
        kind = request.GET.get("kind", DEFAULT_KIND)
        return _show(request, run, DrillForm(run, kind))
    form = DrillForm(run, request.POST.get("kind", ""), request.POST)
    injected = _inject(run, form, by=request.user.get_username()) if form.is_valid() else None
    if injected is None:
        return _show(request, run, form, status=422)
    if not request.htmx:
        return HttpResponseRedirect(run.get_absolute_url())
    response = _show(request, run, None, injected=injected)
    return trigger_client_event(response, "drills-changed")


def _inject(run: Run, form: DrillForm, *, by: str) -> InjectedFault | None:
    """Inject what was chosen; None, with the error beside its field, where it cannot be."""
    hot = open_store(settings.REDIS_URL)
    try:
        return inject(hot, run, **form.chosen(), by=by, now=timezone.now())
    except DrillError as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return None


def _show(
    request: HtmxRequest,
    run: Run,
    form: DrillForm | None,
    *,
    injected: InjectedFault | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {"run": run, "form": form, "injected": injected}
    return render_page(request, "fleet/run_drill.html", context, partials=PARTIALS, status=status)
