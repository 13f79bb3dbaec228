"""Pages of the support checks: the list with the form, and one check with its operators."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from fleet.access.roles import requires
from fleet.checks.support import (
    ANALYZE,
    basis_of,
    basis_sentence,
    check_operators,
    check_summary,
    grouped,
    judgements_of,
    remedy,
    store_check,
    trial_named,
)
from fleet.models import SupportCheck, Trial
from fleet.pages.check_forms import SupportForm
from fleet.pages.fields import submit
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment, number
from telemetry.checks.support import OperatorJudgement, SupportState

N_CHECKS, N_TRIALS, MOST_SHOWN = 100, 100, 500
CHECKS = Table(
    "support-checks",
    "newest first",
    (
        moment("checked", "Checked", "checked_at", order="checked_at"),
        Column("file", "File", "file", order="file"),
        number("unsupported", "Unsupported", "n_unsupported", order="n_unsupported"),
        number("unknown", "Unknown", "n_unknown", order="n_unknown"),
        number("operators", "Operators", "n_operators", style=None),
        Column("trial", "Trial", "trial", order="trial__name"),
        Column("by", "By", "by", order="by"),
    ),
    is_stored=True,
)
STYLES = {
    SupportState.UNSUPPORTED: ("bad", "▲"),
    SupportState.UNKNOWN: ("warn", "?"),
    SupportState.SUPPORTED: ("ok", "✓"),
}


@dataclass(frozen=True, slots=True)
class OperatorRow:
    judged: OperatorJudgement
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    state: str
    colour: str
    shape: str
    words: str
    n: int
    rows: list[OperatorRow]

    @property
    def n_left_out(self) -> int:
        """How many are counted but not shown."""
        return self.n - len(self.rows)


@require_http_methods(["GET", "HEAD", "POST"])
def support_list(request: HtmxRequest) -> HttpResponseBase:
    """List the checks, newest first; operators can start one."""
    if request.method == "POST":
        return _check(request)
    return _show(request, _form(trial=request.GET.get("trial", "")))


def _form(*args: Any, trial: str = "") -> SupportForm:
    trials = Trial.objects.values_list("name", flat=True)[:N_TRIALS]
    most_mb = settings.SUPPORT_MAX_BODY_BYTES // 1_000_000
    return SupportForm(*args, trials=trials, trial=trial, most_mb=most_mb)


@requires("operator")
def _check(request: HtmxRequest) -> HttpResponse:
    form = _form(request.POST, request.FILES)
    most, by = settings.SUPPORT_MAX_BODY_BYTES, request.user.get_username()

    def check() -> SupportCheck:
        trial = trial_named(form.cleaned_data["trial"])
        checked = check_operators(form.graph(), form.uploaded("report"), most_bytes=most)
        return store_check(checked, by=by, now=timezone.now(), trial=trial)

    kept = submit(form, check)
    if kept is None:
        return _show(request, form)
    messages.success(request, f"{kept.file} checked.")
    return HttpResponseRedirect(kept.get_absolute_url())


def _show(request: HtmxRequest, form: SupportForm) -> HttpResponse:
    checks = SupportCheck.objects.select_related("trial").defer("operators", "trial__figures")
    table = CHECKS.by(request.GET.dict(), lambda t: t.ordered(checks).iterator())
    context = {
        "table": table,
        "checks": [(check, check_summary(check)) for check in table.ordered(checks)[:N_CHECKS]],
        "form": form,
    }
    return render_page(request, "checks/support_list.html", context, partials=("checks",))


@require_safe
def support_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One check: the summary, then every operator with reason and remedy."""
    kept = get_object_or_404(SupportCheck.objects.select_related("trial"), pk=pk)
    basis = kept.basis
    context = {
        "check": kept,
        "headline": check_summary(kept),
        "groups": groups_of(kept),
        "report": basis.get("report"),
        "rests_on": basis_sentence(
            basis["n_listed"], basis["list_date"], has_report="report" in basis
        ),
        "analyze": ANALYZE,
    }
    return render_page(request, "checks/support_detail.html", context)


def groups_of(kept: SupportCheck) -> list[OperatorGroup]:
    """Return the operators of a check by state and risk, the worst first, without empty groups."""
    return [
        OperatorGroup(
            state.value,
            *STYLES[state],
            words.capitalize(),
            len(judgements),
            [OperatorRow(each, basis_of(each), remedy(each)) for each in judgements[:MOST_SHOWN]],
        )
        for state, words, judgements in grouped(judgements_of(kept))
    ]
