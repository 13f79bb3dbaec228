"""Pages of the trials: the list with its form, one trial with its verdict, its schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet.access.roles import requires
from fleet.charts.schedules import schedule_figure
from fleet.models import Run, SupportCheck, Trial
from fleet.pages.charts import chart_table
from fleet.pages.fields import submit
from fleet.pages.forms import TrialForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment
from fleet.trials import services
from fleet.trials.figures import (
    BY_NAME,
    DECIDING,
    MatchState,
    TrialFigures,
    definitions,
    load_figures,
    mismatches,
    unknowns,
)
from fleet.trials.schedule_forms import CHARTS, ENGINEERS, ScheduleRequest, parse_request
from fleet.trials.schedule_text import assumption_rows, costs_of, schedule_of
from fleet.trials.text import CandidateReport, candidate_reports, layout_warning, written_csv
from fleet.trials.verdict import differing_fields
from telemetry.errors import FieldError

N_RUNS, N_TRIALS, N_CHECKS = 200, 100, 3


@dataclass(frozen=True, slots=True)
class TrialRow:
    trial: Trial
    reports: list[CandidateReport]
    is_missing: bool = False


def _answers(row: TrialRow) -> str:
    lines = (f"{report.decision.answer} {report.decision.advice}" for report in row.reports)
    return " ".join(lines)


def _verdicts(row: TrialRow) -> list[str]:
    return [report.verdict.badge or "none" for report in row.reports]


TRIALS = Table(
    "trials",
    "newest first",
    (
        moment("started", "Started", "trial.created_at", order="created_at"),
        Column("name", "Name", "trial.name", order="name"),
        Column("team", "Team", "trial.team", order="team"),
        moment("ended", "Ended", "trial.ended_at", order="ended_at"),
        Column("question", "Question", "trial.question", style=None),
        Column(
            "runs", "Runs", lambda row: [arm.label for arm in row.trial.compared_arms], "", None
        ),
        Column("verdict", "Verdict", _verdicts, style=None),
        Column("answer", "Answer", _answers, style=None),
        Column("by", "Started by", "trial.created_by", style=None),
    ),
    is_stored=True,
)


def trial_row(trial: Trial) -> TrialRow:
    """Judge a trial for the list; ``is_missing`` if no candidate is left."""
    figures = load_figures(trial.figures)
    if figures is None:
        return TrialRow(trial, [])
    return TrialRow(
        trial, candidate_reports(figures, timezone.now().date()), is_missing=not figures.candidates
    )


@require_http_methods(["GET", "HEAD", "POST"])
def trial_list(request: HtmxRequest) -> HttpResponseBase:
    """List the trials, newest first; leads can start one."""
    if request.method == "POST":
        return _begin(request)
    return _show(request, TrialForm(runs=_newest_runs()))


def _newest_runs() -> Sequence[Mapping[str, Any]]:
    return list(Run.objects.order_by("-pk").values("name", "instance_type", "n_nodes")[:N_RUNS])


@requires("lead")
def _begin(request: HtmxRequest) -> HttpResponse:
    form = TrialForm(request.POST, runs=_newest_runs())
    by, now = request.user.get_username(), timezone.now()
    trial = submit(form, lambda: services.begin(**form.cleaned_data, by=by, now=now))
    if trial is None:
        return _show(request, form)
    messages.success(request, f"{trial.name} started. Its figures appear within one minute.")
    return HttpResponseRedirect(trial.get_absolute_url())


def _show(request: HtmxRequest, form: TrialForm) -> HttpResponse:
    newest = Trial.objects.with_arms().order_by("-pk")
    table = TRIALS.by(request.GET.dict(), lambda t: map(trial_row, t.ordered(newest)))
    rows = [trial_row(trial) for trial in table.ordered(newest)[:N_TRIALS]]
    context = {"table": table, "rows": rows, "form": form}
    return render_page(request, "trials/trial_list.html", context, partials=("trials",))


@require_safe
def trial_detail(request: HtmxRequest, name: str) -> HttpResponse:
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    checks = SupportCheck.objects.filter(trial=trial).defer("operators")[:N_CHECKS]
    context = _trial_context(trial) | {"checks": checks}
    return render_page(request, "trials/trial_detail.html", context, partials=("figures",))


@require_safe
def trial_print(request: HtmxRequest, name: str) -> HttpResponse:
    """Show one trial on one landscape A4 sheet, to print or save as PDF."""
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    context = _trial_context(trial)
    first = next((report.candidate.run for report in context["reports"]), "")
    try:
        context["schedule"] = schedule_of(trial, ScheduleRequest(candidate=first))
    except FieldError:
        # An arm without a price or steps has no projection; the slide says why elsewhere.
        context["schedule"] = None
    return render_page(request, "trials/trial_print.html", context)


def _trial_context(trial: Trial) -> dict[str, Any]:
    stored = load_figures(trial.figures)
    figures = stored or TrialFigures()
    reports = candidate_reports(figures, timezone.now().date())
    runs = [arm.run for arm in trial.arms.all()]
    known = {
        comparison.measure for report in reports for comparison in report.candidate.comparisons
    }
    measures = [name for name in BY_NAME if name in known]
    deciding = (report.verdict.deciding for report in reports)
    deciding_measure = next((each.measure for each in deciding if each), DECIDING[0])
    far = [arm for arm in figures.arms if arm.layout and arm.layout.is_far]
    return {
        "trial": trial,
        "figures": stored,
        "layout_warnings": [layout_warning(arm) for arm in far if not arm.replicate_of],
        "reports": reports,
        "deciding_label": BY_NAME[deciding_measure].label,
        "mismatches": mismatches(figures.matches),
        "n_differing": sum(bool(report.verdict.differing) for report in reports),
        "unknowns": unknowns(figures.matches),
        "same": [match for match in figures.matches if match.state == MatchState.SAME],
        "baseline": figures.baseline,
        "has_lost": any(arm.n_lost for arm in figures.arms),
        "has_replicates": any(arm.replicate_of for arm in figures.arms),
        "has_drift": any(arm.pace_change_ratio for arm in figures.arms),
        "definitions": definitions(trial, runs, measures) if measures else [],
    }


@require_POST
@requires("lead")
def trial_end(request: HtmxRequest, name: str) -> HttpResponse:
    """End a trial: later steps do not count."""
    trial = get_object_or_404(Trial, name=name)
    if services.end(trial, now=timezone.now()):
        messages.success(request, f"{trial.name} ended. Later steps are ignored.")
    else:
        messages.error(request, f"{trial.name} has already ended.")
    return HttpResponseRedirect(trial.get_absolute_url())


@require_safe
def trial_csv(request: HtmxRequest, name: str) -> HttpResponse:
    trial = get_object_or_404(Trial, name=name)
    text = written_csv(load_figures(trial.figures) or TrialFigures())
    headers = {"Content-Disposition": f'attachment; filename="{trial.name}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)


SCHEDULE_PARTIALS = ("schedule", "schedule-summary")
EMPTY_CHART: dict[str, Any] = {"t": [], "labels": [], "unit": "usd", "series": [], "events": []}


@require_safe
def trial_schedule(request: HtmxRequest, name: str) -> HttpResponse:
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    asked, worked, error = ScheduleRequest(), None, None
    try:
        asked = parse_request(request.GET.dict())
        worked = schedule_of(trial, asked)
    except FieldError as refused:
        error = refused
    figures = load_figures(trial.figures)
    candidates = figures.candidates if figures else ()
    candidate = next((each for each in candidates if asked.candidate in ("", each.run)), None)
    usual = {"days": f"{asked.days:g}", "porting_usd": f"{asked.porting_usd:.12g}"}
    usual |= dict.fromkeys(("tokens", "failures", *ENGINEERS), "")
    context: dict[str, Any] = {
        "trial": trial,
        "asked": asked,
        # As given, so that a mistake can be corrected.
        "given": {field: request.GET.get(field, value)[:40] for field, value in usual.items()},
        "has_engineers": any(request.GET.get(field) for field in ENGINEERS),
        "worked": worked,
        "costs": costs_of(worked.found, has_reuse=asked.has_reuse, planned=worked.planned)
        if worked
        else None,
        "assumed": assumption_rows(worked.planned) if worked else (),
        "candidates": trial.compared_arms[1:],
        "unlike": differing_fields(figures, candidate) if figures and candidate else [],
        "error": error,
    }
    # Neither a trial without a projection yet nor a half-typed number is an error of the user.
    is_mistake = error is not None and error.field != "trial" and not request.htmx
    status = 422 if is_mistake else 200
    return render_page(
        request, "trials/trial_schedule.html", context, partials=SCHEDULE_PARTIALS, status=status
    )


@gzip_page
@require_safe
def trial_schedule_chart(request: HttpRequest, name: str, chart: str) -> HttpResponse:
    """Return the data of a schedule's chart, or the same as a table."""
    by = chart.removeprefix("dollars-by-")
    if by not in CHARTS or by == chart:
        raise Http404(f"a schedule has no chart {chart}; it has dollars-by-{CHARTS[0]}")
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    try:
        asked = parse_request(request.GET.dict() | {"by": by})
        worked = schedule_of(trial, asked)
    except FieldError as error:
        refusal = {"error": {"field": error.field, "message": error.message}}
        return HttpResponse(msgspec.json.encode(refusal), "application/json", status=400)
    drawn = schedule_figure(worked.found, worked.planned, asked) if worked else EMPTY_CHART
    body = msgspec.json.encode(drawn)
    response = chart_table(request, body) or HttpResponse(body, "application/json")
    patch_vary_headers(response, ["Accept"])
    return response
