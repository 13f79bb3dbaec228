"""Pages of the trials: the list with its form, and one trial with its verdict."""

from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from fleet.access.roles import requires
from fleet.models import Run, Trial
from fleet.pages.render import HtmxRequest, render_page
from fleet.trials import services
from fleet.trials.comparison import OneTimeCosts, notes, once
from fleet.trials.figures import Candidate, TrialFigures, mismatches, read, unknowns
from fleet.trials.judgement import ARMS_DIFFER, Judgement, judged
from fleet.trials.measures import BY_NAME, DECIDING, VendorClaim, claim_for, explained
from fleet.trials.tables import IntervalChart, drawing, written_csv
from fleet.trials.verdict import ComparisonRow, sentence, worded
from telemetry.errors import FieldError
from telemetry.statistics.verdicts import DEFAULT_STEPS

ASKED = ("name", "question", "team", "baseline", "planned_steps", "planned_tokens")
N_RUNS, N_TRIALS = 200, 100


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A comparison in words, and why it has no verdict; empty where it has one."""

    row: ComparisonRow
    why: str


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """A candidate with its judgement: in words, as rows, and drawn."""

    candidate: Candidate
    sentence: str
    judgement: Judgement
    rows: list[JudgedRow]
    drawing: IntervalChart | None
    claim: VendorClaim | None
    once: list[OneTimeCosts]
    notes: list[str]

    @property
    def unlike(self) -> tuple[str, ...]:
        """In what it trains something else than the baseline."""
        return self.judgement.unlike

    @property
    def badge(self) -> str:
        """What a badge says of it; empty before any figure."""
        return self.judgement.badge

    @property
    def has_band(self) -> bool:
        """Whether the vendor's claim is drawn beside what was measured."""
        return self.drawing is not None and any(line.band for line in self.drawing.lines)

    @property
    def brief(self) -> list[ComparisonRow | None]:
        """Dollars and pace: what one line says of it."""
        found = (self.candidate.of(name) for name in ("usd_per_mtok", "tokens_per_s"))
        return [None if each is None else worded(each) for each in found]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One line of the list."""

    trial: Trial
    judged: list[CandidateVerdict]
    is_missing: bool = False


def judged_all(figures: TrialFigures) -> list[CandidateVerdict]:
    """Return every candidate of a trial with its judgement."""
    types = {arm.run: arm.instance_type for arm in figures.arms}
    baseline = next((arm for arm in figures.arms if arm.is_baseline), None)
    if baseline is None:
        return []
    found = []
    for candidate in figures.candidates:
        judgement = judged(figures, candidate)
        claim = claim_for(baseline.instance_type, types[candidate.run])
        arms = [arm for arm in figures.arms if arm.is_baseline or arm.run == candidate.run]
        found.append(
            CandidateVerdict(
                candidate,
                sentence(candidate, baseline.label, judgement),
                judgement,
                _rows(candidate, judgement),
                drawing(candidate, claim, judgement),
                claim,
                once(*arms),
                notes(candidate, *arms, judgement=judgement, has_claim=claim is not None),
            )
        )
    return found


def _rows(candidate: Candidate, judgement: Judgement) -> list[JudgedRow]:
    """Return what a candidate's table has: dollars at equal price kinds, then as measured."""
    why = ARMS_DIFFER if judgement.unlike else ""
    rows = []
    for each in judgement.at_kinds:
        row = worded(each.comparison)
        rows.append(JudgedRow(replace(row, words=f"{row.words}, {each.kind} list prices"), why))
    for found in candidate.comparisons:
        row = worded(found)
        if rows and found.measure == judgement.at_kinds[0].comparison.measure:
            row = replace(row, words=f"{row.words}, as paid")
        rows.append(JudgedRow(row, judgement.no_word(found.measure)))
    return rows


def row_of(trial: Trial) -> TrialRow:
    """Return one line of the list."""
    figures = read(trial.figures)
    if figures is None:
        return TrialRow(trial, [])
    return TrialRow(trial, judged_all(figures), is_missing=not figures.candidates)


@require_http_methods(["GET", "HEAD", "POST"])
def trial_list(request: HtmxRequest) -> HttpResponseBase:
    """List the trials, the last begun first; leads begin one here."""
    return _begin(request) if request.method == "POST" else _show(request)


@requires("lead")
def _begin(request: HtmxRequest) -> HttpResponse:
    given = {name: request.POST.get(name, "") for name in ASKED}
    candidates = request.POST.getlist("candidates")
    n_steps, n_tokens = given["planned_steps"], given["planned_tokens"].replace(",", "")
    try:
        trial = services.begin(
            given["name"],
            given["question"],
            baseline=given["baseline"],
            candidates=candidates,
            team=given["team"],
            planned_steps=_whole(n_steps),
            planned_tokens=_whole(n_tokens) if n_tokens.strip() else None,
            by=request.user.get_username(),
            now=timezone.now(),
        )
    except FieldError as error:
        return _show(request, given=given, chosen=candidates, error=error)
    messages.success(request, f"{trial.name} has begun; its figures come within a minute.")
    return HttpResponseRedirect(trial.get_absolute_url())


def _whole(text: str) -> int:
    """Return a whole number that was typed, 0 for what is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 30 else 0


def _show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    chosen: list[str] | None = None,
    error: FieldError | None = None,
) -> HttpResponse:
    trials = Trial.objects.with_arms()[:N_TRIALS]
    context: dict[str, Any] = {
        "rows": [row_of(trial) for trial in trials],
        "runs": list(Run.objects.order_by("-pk").values("name", "instance_type")[:N_RUNS]),
        "given": given or {"planned_steps": str(DEFAULT_STEPS)},
        "chosen": chosen or [],
        "error": error,
    }
    return render_page(
        request,
        "trials/trial_list.html",
        context,
        partials=("trials",),
        status=422 if error else 200,
    )


@require_safe
def trial_detail(request: HtmxRequest, name: str) -> HttpResponse:
    """One trial: what does not match, the verdict, the figures, and what it cost."""
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    return render_page(request, "trials/trial_detail.html", _told(trial), partials=("figures",))


@require_safe
def trial_print(request: HtmxRequest, name: str) -> HttpResponse:
    """One trial on one sheet, A4 across, to be printed or kept as PDF by the browser."""
    trial = get_object_or_404(Trial.objects.with_arms(), name=name)
    return render_page(request, "trials/trial_print.html", _told(trial))


def _told(trial: Trial) -> dict[str, Any]:
    figures = read(trial.figures)
    matches = figures.matches if figures else ()
    shown = judged_all(figures) if figures else []
    arms = figures.arms if figures else ()
    runs = [arm.run for arm in trial.arms.all()]
    told = {each.measure for one in shown for each in one.candidate.comparisons}
    measures = [name for name in BY_NAME if name in told]
    deciding = (each.judgement.deciding for each in shown)
    decides = next((each.measure for each in deciding if each), DECIDING[0])
    return {
        "trial": trial,
        "figures": figures,
        "judged": shown,
        "deciding_words": BY_NAME[decides].words,
        "mismatches": mismatches(matches),
        "n_unlike": sum(bool(each.unlike) for each in shown),
        "unknowns": unknowns(matches),
        "alike": [match for match in matches if match.state == "same"],
        "baseline": next((arm for arm in arms if arm.is_baseline), None),
        "has_lost": any(arm.n_lost for arm in arms),
        "explained": explained(trial, runs, measures) if measures else [],
    }


@require_POST
@requires("lead")
def trial_end(request: HtmxRequest, name: str) -> HttpResponse:
    """End a trial: later steps do not count."""
    trial = get_object_or_404(Trial, name=name)
    if services.end(trial, now=timezone.now()):
        messages.success(request, f"{trial.name} is over: later steps do not count.")
    else:
        messages.error(request, f"{trial.name} was over already.")
    return HttpResponseRedirect(trial.get_absolute_url())


@require_safe
def trial_csv(request: HtmxRequest, name: str) -> HttpResponse:
    """Give a trial's figures to a spreadsheet."""
    trial = get_object_or_404(Trial, name=name)
    text = written_csv(read(trial.figures) or TrialFigures((), (), ()))
    headers = {"Content-Disposition": f'attachment; filename="{trial.name}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
