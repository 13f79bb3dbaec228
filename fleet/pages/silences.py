"""Pages of the silences: what is muted until when and why, and muting something new."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Prefetch
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django_htmx.http import HttpResponseClientRedirect, trigger_client_event

from fleet import alerts as alerts_module
from fleet.access.roles import requires
from fleet.alerts.handover import AgedSilence
from fleet.alerts.matchers import matchers_of, written
from fleet.alerts.silences import SPANS, preview
from fleet.alerts.text import headline
from fleet.models import Alert, Silence
from fleet.pages.fields import submit
from fleet.pages.forms import SilenceEndForm, SilenceForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, TableView, moment
from telemetry.errors import LARGEST_KEY, FieldError, whole_number

OVER = "The silence has already expired, or its end was changed by another user."
N_PAST, N_LISTED = 50, 12
LIST_PARTIALS, PARTIALS = ("silences", "over"), ("silence",)


OVER_TABLE = Table(
    "silences",
    "latest first",
    (
        moment("expired", "Expired", "ends_at", order="ends_at"),
        Column("matchers", "Matchers", "matchers", order="matchers"),
        Column("reason", "Reason", "reason", style="wide", order="reason"),
        Column("by", "By", "by", order="by"),
        moment("started", "Started", "starts_at", style=None),
        Column("expired_by", "Expired by", "expired_by", style=None),
    ),
    is_stored=True,
    anchor="#over",
)


@dataclass(frozen=True, slots=True)
class SilencedAlertRow:
    alert: Alert
    headline: SafeString


def with_headlines(alerts: Iterable[Alert]) -> list[SilencedAlertRow]:
    """Pair alerts, selected with run and node, with their headlines."""
    return [SilencedAlertRow(alert, headline(alert)) for alert in alerts]


def silences_context(**query: str) -> dict[str, Any]:
    """Return the active silences, oldest first, and the expired ones."""
    now = timezone.now()
    muted = Prefetch("alerts", Alert.objects.open().select_related("run", "node"))
    silences = Silence.objects.active(now).order_by("starts_at", "pk").prefetch_related(muted)
    over = Silence.objects.over(now)

    def every(table: TableView) -> Iterator[Silence]:
        yield from silences
        yield from table.ordered(over).iterator()

    table = OVER_TABLE.by(query, every)
    return {
        "table": table,
        "stream_filters": urlencode({"sort": table.sort} if table.sort else {}),
        "silences": [
            (AgedSilence.of(silence, now=now), with_headlines(silence.alerts.all()))
            for silence in silences
        ],
        "over": list(table.ordered(over)[:N_PAST]),
    }


@require_safe
def silence_list(request: HtmxRequest) -> HttpResponse:
    return render_page(
        request,
        "alerts/silence_list.html",
        silences_context(**request.GET.dict()),
        partials=LIST_PARTIALS,
    )


def silence_context(pk: str | int) -> dict[str, Any]:
    if whole_number(str(pk), most=LARGEST_KEY) is None:
        raise Http404(f"{str(pk)[:20]!r} is not the number of a silence")
    silence = get_object_or_404(Silence, pk=pk)
    return {
        "silence": silence,
        "aged": AgedSilence.of(silence, now=timezone.now()),
        "events": silence.events.all(),
        "muted": with_headlines(silence.alerts.open().select_related("run", "node")),
        "spans": SPANS,
        "form": SilenceEndForm(initial={"until": silence.ends_at}),
        "stream": f"silence:{silence.pk}",
    }


@require_safe
def silence_detail(request: HtmxRequest, pk: int) -> HttpResponse:
    return _detail(request, pk)


def _detail(request: HtmxRequest, pk: int, *, form: SilenceEndForm | None = None) -> HttpResponse:
    context = silence_context(pk) | ({"form": form} if form else {})
    return render_page(request, "alerts/silence_detail.html", context, partials=PARTIALS)


@require_POST
@requires("operator")
def silence_end(request: HtmxRequest, pk: int) -> HttpResponse:
    silence, form = get_object_or_404(Silence, pk=pk), SilenceEndForm(request.POST)
    by, now = request.user.get_username(), timezone.now()

    def change() -> bool:
        if form.cleaned_data["span"] == "now":
            return alerts_module.expire(silence, by=by, now=now)
        return alerts_module.move_end(silence, to=form.ends_at(now=now), by=by, now=now)

    done = submit(form, change, ends_at="until")
    if done is False:
        form.add_error(None, OVER)
    if not done:
        return _detail(request, pk, form=form)
    if request.htmx:
        return trigger_client_event(_detail(request, pk), "alerts-changed")
    back = form.cleaned_data["back"]
    is_safe = url_has_allowed_host_and_scheme(back, {request.get_host()})
    return HttpResponseRedirect(back if is_safe else silence.get_absolute_url())


@require_http_methods(["GET", "HEAD", "POST"])
@requires("operator")
def silence_new(request: HtmxRequest) -> HttpResponse:
    if request.method != "POST":
        given = request.GET.dict()
        if (pk := whole_number(given.get("alert", ""), most=LARGEST_KEY)) is not None:
            alert = get_object_or_404(Alert.objects.select_related("run", "node"), pk=pk)
            given["matchers"] = written(matchers_of(alert))
            given["reason"] = f"in progress: alert {alert.pk}"
        return _form(request, SilenceForm(initial=given))
    form, by, now = SilenceForm(request.POST), request.user.get_username(), timezone.now()
    made = submit(form, lambda: _silence(form, by=by, now=now), ends_at="until")
    if made is None:
        return _form(request, form)
    messages.success(request, f"Silence {made.pk} is active.")
    there = made.get_absolute_url()
    return HttpResponseClientRedirect(there) if request.htmx else HttpResponseRedirect(there)


def _silence(form: SilenceForm, *, by: str, now: datetime) -> Silence:
    """Create the silence of a form; one that matches every alert needs a confirmation."""
    given = form.cleaned_data
    seen = preview(given["matchers"], now=now)
    if seen.is_everything and not given["confirmed"]:
        raise FieldError(
            "matchers",
            f"these match every alert, all {seen.n_open} open ones and all {seen.n_past} of "
            "the last 7 days. Narrow them, or confirm below.",
        )
    return alerts_module.silence(
        given["matchers"], ends_at=form.ends_at(now=now), reason=given["reason"], by=by, now=now
    )


def _form(request: HtmxRequest, form: SilenceForm) -> HttpResponse:
    matched = _matching(form["matchers"].value() or "")
    if not (("seen" in matched and matched["seen"].is_everything) or form["confirmed"].value()):
        del form.fields["confirmed"]
    context = {"form": form, **matched}
    return render_page(request, "alerts/silence_new.html", context, partials=("silence-form",))


@require_safe
@requires("operator")
def silence_preview(request: HtmxRequest) -> HttpResponse:
    context = _matching(request.GET.get("matchers", ""))
    return render_page(request, "alerts/_silence_preview.html", context)


def _matching(matchers: str) -> dict[str, Any]:
    try:
        seen = preview(matchers, now=timezone.now())
    except FieldError as error:
        return {"matchers_error": str(error)}
    n_more = max(0, len(seen.past) - N_LISTED)
    past = with_headlines(seen.past[:N_LISTED])
    return {"seen": seen, "open": with_headlines(seen.open), "past": past, "n_more": n_more}
