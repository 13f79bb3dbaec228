"""Pages of the support checks: all of them with the form, and one with its operators."""

import io
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from fleet.access.roles import requires
from fleet.checks.support import (
    ANALYZE,
    SupportFile,
    basis_of,
    basis_sentence,
    check_operators,
    headline,
    judgements_of,
    remedy,
    store_check,
    trial_named,
)
from fleet.models import SupportCheck, Trial
from fleet.pages.render import HtmxRequest, render_page
from telemetry.checks.support import OperatorJudgement, SupportState
from telemetry.errors import FieldError

N_CHECKS, N_TRIALS, MOST_SHOWN = 100, 100, 500
PASTED = "pasted text"
# Shape, word and colour of each state, the worst first.
STATES = {
    SupportState.UNSUPPORTED: ("bad", "▲", "Unsupported"),
    SupportState.UNKNOWN: ("warn", "?", "Unknown"),
    SupportState.SUPPORTED: ("ok", "✓", "Supported"),
}


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the table."""

    judged: OperatorJudgement
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """The operators in one state."""

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
    """List the checks, the newest first; operators make one here."""
    return _check(request) if request.method == "POST" else _show(request)


@requires("operator")
def _check(request: HtmxRequest) -> HttpResponse:
    most = settings.SUPPORT_MAX_BODY_BYTES
    try:
        trial = trial_named(request.POST.get("trial", ""))
        checked = check_operators(_graph(request), _uploaded(request, "report"), most_bytes=most)
    except FieldError as error:
        return _show(request, error=error)
    by = request.user.get_username()
    kept = store_check(checked, by=by, now=timezone.now(), trial=trial)
    messages.success(request, f"{kept.file} checked.")
    return HttpResponseRedirect(kept.get_absolute_url())


def _graph(request: HtmxRequest) -> SupportFile:
    """Return the file, or what was pasted in its place."""
    uploaded, text = _uploaded(request, "file"), request.POST.get("text", "")
    if uploaded and text.strip():
        raise FieldError("file", "upload a file or paste text, not both")
    if uploaded:
        return uploaded
    if not text.strip():
        raise FieldError("file", "upload a file or paste text")
    return SupportFile(PASTED, io.BytesIO(text.encode("utf-8", "replace")))


def _uploaded(request: HtmxRequest, field: str) -> SupportFile | None:
    file = request.FILES.get(field)
    if not isinstance(file, UploadedFile):
        return None
    return SupportFile(file.name or field, io.BytesIO(file.read()))


def _show(request: HtmxRequest, *, error: FieldError | None = None) -> HttpResponse:
    checks = SupportCheck.objects.select_related("trial").defer("operators", "trial__figures")
    context: dict[str, Any] = {
        "checks": [(each, headline_of(each)) for each in checks[:N_CHECKS]],
        "trials": list(Trial.objects.values_list("name", flat=True)[:N_TRIALS]),
        "trial": (request.POST if error else request.GET).get("trial", ""),
        "text": request.POST.get("text", "") if error else "",
        "error": error,
        "most_mb": settings.SUPPORT_MAX_BODY_BYTES // 1_000_000,
    }
    status = 422 if error else 200
    return render_page(
        request, "checks/support_list.html", context, partials=("checks",), status=status
    )


@require_safe
def support_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    """One check: what stands in words, then every operator with why and what to do."""
    kept = get_object_or_404(SupportCheck.objects.select_related("trial"), pk=pk)
    basis = kept.basis
    context = {
        "check": kept,
        "headline": headline_of(kept),
        "groups": groups_of(kept),
        "report": basis.get("report"),
        "rests_on": basis_sentence(
            basis["n_listed"], basis["list_date"], has_report="report" in basis
        ),
        "analyze": ANALYZE,
    }
    return render_page(request, "checks/support_detail.html", context)


def headline_of(kept: SupportCheck) -> str:
    """Say what stands, of a check that was kept."""
    return headline(kept.n_operators, kept.n_unsupported, kept.n_unknown)


def groups_of(kept: SupportCheck) -> list[OperatorGroup]:
    """Return the operators of a check by state, the worst first; states without any left out."""
    found = judgements_of(kept)
    groups = []
    for state, (colour, shape, words) in STATES.items():
        of_state = [each for each in found if each.state is state]
        rows = [OperatorRow(each, basis_of(each), remedy(each)) for each in of_state[:MOST_SHOWN]]
        if rows:
            groups.append(OperatorGroup(state.value, colour, shape, words, len(of_state), rows))
    return groups
