"""Pages of preflights: the list with its form, one preflight while it runs and after."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet.access.roles import requires
from fleet.checks.preflight_files import judge_files, unpack_uploads
from fleet.checks.preflight_text import (
    LIMITS,
    WORST,
    collective_rows,
    listed,
    pair_rows,
    reasons,
    sentences,
    written_csv,
)
from fleet.checks.preflights import (
    load_measured,
    load_result,
    request_preflight,
    set_requirement_by,
    stages,
)
from fleet.formatting import counted
from fleet.models import Node, Preflight, Run
from fleet.pages.check_forms import PreflightFilesForm, PreflightForm, RequirementForm
from fleet.pages.fields import LONGEST_LIST, submit
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment
from telemetry.checks.preflight import PreflightResult
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_pairs import NodeVerdict
from telemetry.errors import FieldError

PREFLIGHTS = Table(
    "preflights",
    "newest first",
    (
        Column("number", "Number", "pk", order="pk", largest_first=True),
        moment("asked", "Started", "asked_at", order="asked_at"),
        Column(
            "verdict", "Verdict", lambda row: row.verdict if row.is_over else "", order="verdict"
        ),
        Column("run", "Run", "run", order="run__name"),
        Column("type", "Type", "instance_type", order="instance_type"),
        Column("nodes", "Nodes", "names", style=None),
        Column("by", "Started by", "asked_by", order="asked_by"),
        moment("finished", "Finished", "finished_at", style=None),
    ),
    is_stored=True,
)
PER_PAGE = 25
PARTIALS = ("found",)
WORST_FIRST = (NodeVerdict.FAIL, NodeVerdict.HOLD, NodeVerdict.PASS)


@require_http_methods(["GET", "HEAD", "POST"])
def preflight_list(request: HtmxRequest) -> HttpResponseBase:
    """List the preflights, newest first; operators can request one.

    The form proposes a run's nodes, or those that the address names.
    """
    if request.method == "POST":
        return _ask(request)
    name = request.GET.get("run", "")
    nodes = list(Node.objects.filter(run__name=name).order_by("rank", "name")) if name else []
    initial = {"nodes": request.GET.get("nodes", "")[:LONGEST_LIST]}
    if nodes:
        names = "\n".join(node.name for node in nodes)
        initial = {"nodes": names, "instance_type": nodes[0].instance_type, "run": name}
    return _show(request, form=PreflightForm(initial=initial))


def _files_form(*args: Any) -> PreflightFilesForm:
    most_mb = settings.SUPPORT_MAX_BODY_BYTES // 1_000_000
    limits = f"up to {settings.DATA_UPLOAD_MAX_NUMBER_FILES} files, or one .zip or .tar.gz of them"
    return PreflightFilesForm(*args, limits=f"{limits}; {most_mb} MB in total")


@requires("operator")
def _ask(request: HtmxRequest) -> HttpResponse:
    form = PreflightForm(request.POST)
    by = request.user.get_username()

    def ask() -> Preflight:
        given = form.cleaned_data
        return request_preflight(
            given["nodes"],
            instance_type=given["instance_type"],
            take=given["take"],
            run=run_named(given["run"]),
            by=by,
            now=timezone.now(),
        )

    preflight = submit(form, ask)
    if preflight is None:
        return _show(request, form=form)
    return HttpResponseRedirect(preflight.get_absolute_url())


def run_named(name: str) -> Run | None:
    """Find the run whose nodes are checked; None without a name, FieldError if unknown."""
    run = Run.objects.filter(name=name).first() if name and "\0" not in name else None
    if name and run is None:
        raise FieldError("run", f"there is no run {name[:60]!r}")
    return run


def _show(
    request: HtmxRequest,
    *,
    form: PreflightForm | None = None,
    files_form: PreflightFilesForm | None = None,
) -> HttpResponse:
    preflights = Preflight.objects.defer("measured").select_related("run")
    query = request.GET.dict()
    table = PREFLIGHTS.by(query, lambda t: t.ordered(preflights).iterator())
    page = Paginator(table.ordered(preflights), PER_PAGE).get_page(query.get("page"))
    form, files_form = form or PreflightForm(), files_form or _files_form()
    context = {
        "rows": [
            (each, sentences(each, result)) if (result := load_result(each)) else (each, [])
            for each in page
        ],
        "table": table,
        "query": urlencode({"sort": table.sort} if table.sort else {}),
        "page": page,
        "is_moving": any(not each.is_over for each in page),
        "runs": Run.objects.active().simulated().only("name", "n_nodes", "instance_type"),
        "form": form,
        "files_form": files_form,
    }
    return render_page(request, "checks/preflight_list.html", context, partials=("preflights",))


def preflight_context(preflight: Preflight) -> dict[str, Any]:
    measured, result = load_measured(preflight), load_result(preflight)
    context: dict[str, Any] = {
        "preflight": preflight,
        "found": result,
        "stage": _stage(preflight),
        "n_pairs": int(measured.was_probed.sum()) // 2,
        "n_pairs_in_all": len(measured.nodes) * (len(measured.nodes) - 1) // 2,
        "collectives": collective_rows(measured),
        "limits": LIMITS,
    }
    return context | (_verdicts(preflight, measured, result) if result else {})


def _verdicts(preflight: Preflight, measured: Measured, found: PreflightResult) -> dict[str, Any]:
    first, *more = sentences(preflight, found)
    racks = found.racks.racks if found.racks else []
    order = sorted(found.nodes, key=lambda node: WORST_FIRST.index(found.nodes[node]))
    known = set(Node.objects.filter(name__in=order).values_list("name", flat=True))
    return {
        "headline": first,
        "sentences": more,
        "rack_sizes": listed([str(len(rack)) for rack in racks]),
        "rows": [
            {
                "name": node,
                "verdict": found.nodes[node].value,
                "reasons": reasons(found, node),
                "is_chosen": node in found.chosen,
                "is_known": node in known,
            }
            for node in order
        ],
        "chosen": "\n".join(found.chosen),
        "worst": pair_rows(measured, worst=WORST),
    }


def _stage(preflight: Preflight) -> str:
    if preflight.is_over:
        return ""
    return stages(len(preflight.names))[preflight.n_done].label


@require_safe
def preflight_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    preflight = get_object_or_404(Preflight.objects.select_related("run"), pk=pk)
    context = preflight_context(preflight)
    return render_page(request, "checks/preflight_detail.html", context, partials=PARTIALS)


@gzip_page
@require_safe
def preflight_pairs(request: HtmxRequest, pk: int) -> HttpResponse:
    preflight = get_object_or_404(Preflight, pk=pk)
    measured = load_measured(preflight)
    headers = {"Content-Disposition": f'attachment; filename="preflight-{preflight.pk}-pairs.csv"'}
    return HttpResponse(written_csv(measured), "text/csv; charset=utf-8", headers=headers)


@require_POST
@requires("operator")
def run_preflight(request: HtmxRequest, name: str) -> HttpResponse:
    """Set whether a run requires a passed preflight before it starts."""
    run = get_object_or_404(Run, name=name)
    form = RequirementForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"requires: {form.errors['requires'][0]}")
        return HttpResponseRedirect(run.get_absolute_url())
    requires_one = form.cleaned_data["requires"]
    by = request.user.get_username()
    set_requirement_by(run, requires=requires_one, by=by, now=timezone.now())
    if not requires_one:
        message = f"{run.name} does not require a preflight."
    else:
        message = (
            run.preflight_doubt or f"{run.name} requires a preflight, and its nodes passed one."
        )
    messages.success(request, message)
    return HttpResponseRedirect(run.get_absolute_url())


@require_POST
@requires("operator")
def preflight_files(request: HtmxRequest) -> HttpResponse:
    """Evaluate the output of probes; nothing is stored if a file cannot be read."""
    form = _files_form(request.POST, request.FILES)
    by = request.user.get_username()

    def evaluate() -> Preflight:
        given = form.cleaned_data
        return judge_files(
            unpack_uploads((each.name or "file", each.read()) for each in given["files"]),
            instance_type=given["files_instance_type"],
            take=given["files_take"],
            by=by,
            now=timezone.now(),
        )

    names = {"instance_type": "files_instance_type", "take": "files_take"}
    preflight = submit(form, evaluate, **names)
    if preflight is None:
        return _show(request, files_form=form)
    messages.success(request, f"{counted(len(form.cleaned_data['files']), 'file')} evaluated.")
    return HttpResponseRedirect(preflight.get_absolute_url())
