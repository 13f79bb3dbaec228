"""Pages of a trial's schedule: what a long run costs on each arm, and when it has paid off."""

from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.cache import patch_vary_headers
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from fleet.charts.schedules import schedule_figure
from fleet.models import Trial
from fleet.pages.charts import chart_table
from fleet.pages.render import HtmxRequest, render_page
from fleet.trials.figures import load_figures
from fleet.trials.schedule_forms import CHARTS, ScheduleRequest, parse_request
from fleet.trials.schedule_text import assumption_rows, costs_of, schedule_of
from fleet.trials.verdict import differing_fields
from telemetry.errors import FieldError

PARTIALS = ("schedule", "schedule-summary")
EMPTY: dict[str, Any] = {"t": [], "labels": [], "unit": "usd", "series": [], "events": []}


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
    context: dict[str, Any] = {
        "trial": trial,
        "asked": asked,
        "given": _given(request, asked),
        "worked": worked,
        "costs": costs_of(worked.found, has_reuse=asked.has_reuse, planned=worked.planned)
        if worked
        else None,
        "assumed": assumption_rows(worked.planned) if worked else (),
        "candidates": [arm for arm in trial.arms.all() if not arm.is_baseline],
        "unlike": differing_fields(figures, candidate) if figures and candidate else [],
        "error": error,
    }
    # A trial whose arms cannot be projected yet is no mistake of who asks, nor is half a number.
    is_mistake = error is not None and error.field != "trial" and not request.htmx
    status = 422 if is_mistake else 200
    return render_page(
        request, "trials/trial_schedule.html", context, partials=PARTIALS, status=status
    )


def _given(request: HttpRequest, asked: ScheduleRequest) -> dict[str, str]:
    """Return what the form shows: the input as given, so that an error can be corrected."""
    usual = {"days": f"{asked.days:g}", "porting_usd": f"{asked.porting_usd:.12g}"}
    usual |= {"tokens": "", "failures": ""}
    return {field: request.GET.get(field, value)[:40] for field, value in usual.items()}


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
    drawn = schedule_figure(worked.found, worked.planned, asked) if worked else EMPTY
    body = msgspec.json.encode(drawn)
    response = chart_table(request, body) or HttpResponse(body, "application/json")
    patch_vary_headers(response, ["Accept"])
    return response
