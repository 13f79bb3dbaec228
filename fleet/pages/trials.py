"""Pages of the trials: the list with its form, and one trial with its verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet.access.roles import requires
from fleet.models import Run, SupportCheck, Trial
from fleet.pages.forms import TrialForm, add_field_error
from fleet.pages.render import HtmxRequest, render_page
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
from fleet.trials.text import CandidateReport, candidate_reports, written_csv
from telemetry.errors import FieldError

N_RUNS, N_TRIALS, N_CHECKS = 200, 100, 3


@dataclass(frozen=True, slots=True)
class TrialRow:
    trial: Trial
    reports: list[CandidateReport]
    is_missing: bool = False


def trial_row(trial: Trial) -> TrialRow:
    """Judge a trial for the list; ``is_missing`` if no candidate is left."""
    figures = load_figures(trial.figures)
    if figures is None:
        return TrialRow(trial, [])
    return TrialRow(trial, candidate_reports(figures), is_missing=not figures.candidates)


@require_http_methods(["GET", "HEAD", "POST"])
def trial_list(request: HtmxRequest) -> HttpResponseBase:
    """List the trials, newest first; leads can start one."""
    if request.method == "POST":
        return _begin(request)
    return _show(request, TrialForm(runs=_newest_runs()))


def _newest_runs() -> Sequence[Mapping[str, Any]]:
    return list(Run.objects.order_by("-pk").values("name", "instance_type")[:N_RUNS])


@requires("lead")
def _begin(request: HtmxRequest) -> HttpResponse:
    form = TrialForm(request.POST, runs=_newest_runs())
    if not form.is_valid():
        return _show(request, form)
    try:
        by = request.user.get_username()
        trial = services.begin(**form.cleaned_data, by=by, now=timezone.now())
    except FieldError as error:
        add_field_error(form, error)
        return _show(request, form)
    messages.success(request, f"{trial.name} started. Its figures appear within one minute.")
    return HttpResponseRedirect(trial.get_absolute_url())


def _show(request: HtmxRequest, form: TrialForm) -> HttpResponse:
    trials = Trial.objects.with_arms()[:N_TRIALS]
    context = {"rows": [trial_row(trial) for trial in trials], "form": form}
    return render_page(
        request,
        "trials/trial_list.html",
        context,
        partials=("trials",),
        status=422 if form.errors else 200,
    )


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
    return render_page(request, "trials/trial_print.html", _trial_context(trial))


def _trial_context(trial: Trial) -> dict[str, Any]:
    figures = load_figures(trial.figures)
    matches = figures.matches if figures else ()
    reports = candidate_reports(figures) if figures else []
    runs = [arm.run for arm in trial.arms.all()]
    known = {each.measure for report in reports for each in report.candidate.comparisons}
    measures = [name for name in BY_NAME if name in known]
    deciding = (report.verdict.deciding for report in reports)
    deciding_measure = next((each.measure for each in deciding if each), DECIDING[0])
    return {
        "trial": trial,
        "figures": figures,
        "reports": reports,
        "deciding_label": BY_NAME[deciding_measure].label,
        "mismatches": mismatches(matches),
        "n_differing": sum(bool(report.verdict.differing) for report in reports),
        "unknowns": unknowns(matches),
        "same": [match for match in matches if match.state == MatchState.SAME],
        "baseline": figures.baseline if figures else None,
        "has_lost": any(arm.n_lost for arm in figures.arms) if figures else False,
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
