"""The page of the rules: what each one watches, its limits, and what fires now."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Max, Q
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from redis.exceptions import RedisError

from fleet.access.roles import requires
from fleet.alerts.evaluate import rule_failures
from fleet.alerts.watch_monitor import last_evaluation
from fleet.formatting import counted
from fleet.models import Alert, Run
from fleet.models.run import SHARE
from fleet.pages.forms import RunLimitsForm, submit
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.limits import RUN_LIMITS, own_limits, set_limits
from telemetry.detect import RULES
from telemetry.detect.rules import Rule
from telemetry.store.hot import hot_store

# Names that the form suggests; others can be typed.
N_SUGGESTED = 200
# Units at the end of a limit's name.
UNITS = {"_ratio": "", "_per_s": "per second", "_s": "s"}


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule, its limits as name, value and unit, and its alerts that are not drills."""

    rule: Rule
    limits: list[tuple[str, str]]
    n_open: int
    last_fired_at: datetime | None


@require_http_methods(["GET", "HEAD", "POST"])
def rule_list(request: HtmxRequest) -> HttpResponseBase:
    """List the rules with their limits; operators give a run limits of its own."""
    if request.method == "POST":
        return _set_limits(request)
    asked = request.GET.get("run", "")
    run = Run.objects.filter(name=asked).first() if asked else None
    return _show(request, RunLimitsForm(run=run) if run else None, asked=asked)


@requires("operator")
def _set_limits(request: HtmxRequest) -> HttpResponse:
    form = RunLimitsForm(request.POST)
    by, now = request.user.get_username(), timezone.now()

    def change() -> tuple[Run, int]:
        wanted = {limit.field: form.cleaned_data[limit.field] for limit in RUN_LIMITS}
        return set_limits(form.cleaned_data["run"], wanted, by=by, now=now)

    done = submit(form, change)
    if done is None:
        return _show(request, form, asked=request.POST.get("run", ""))
    run, n_changed = done
    if n_changed:
        messages.success(
            request, f"{run.name}: {counted(n_changed, 'limit')} changed from now on."
        )
    else:
        messages.info(request, f"{run.name}: nothing changed.")
    return HttpResponseRedirect(reverse("rule-list"))


def _show(request: HtmxRequest, form: RunLimitsForm | None, *, asked: str = "") -> HttpResponse:
    real = Alert.objects.filter(is_drill=False)
    by_rule = (
        real.order_by()
        .values("rule")
        .annotate(n_open=Count("pk", filter=Q(resolved_at=None)), last=Max("fired_at"))
    )
    counts = {rule: (n, at) for rule, n, at in by_rule.values_list("rule", "n_open", "last")}
    rows = [
        RuleRow(
            rule,
            [limit_text(name, value) for name, value in rule.limits.items()],
            *counts.get(rule.name, (0, None)),
        )
        for rule in RULES.values()
    ]
    active = Run.objects.active().order_by("name")
    changed = active.exclude(
        allreduce_limit_ratio=SHARE["limit_ratio"],
        allreduce_resolve_ratio=SHARE["resolve_ratio"],
        limits=None,
    )
    try:
        failures = rule_failures(hot_store())
    except RedisError:
        failures = []
    context = {
        "rows": rows,
        "failures": failures,
        "evaluated_at": last_evaluation(settings.REDIS_URL)(),
        "runs": active.values_list("name", flat=True)[:N_SUGGESTED],
        "own_limits": [(run, own) for run in changed if (own := own_limits(run))],
        "asked": asked,
        "form": form,
    }
    return render_page(request, "alerts/rule_list.html", context, partials=("rules",))


def limit_text(name: str, value: float) -> tuple[str, str]:
    """Write a limit: its name without the unit, and the value with it.

    Examples
    --------
    >>> limit_text("limit_ratio", 0.25), limit_text("silent_s", 15.0), limit_text("steps", 2)
    (('limit', '0.25'), ('silent', '15 s'), ('steps', '2'))
    """
    ending = next((each for each in UNITS if name.endswith(each)), "")
    label = name.removesuffix(ending).replace("_", " ") or name
    return label, f"{value:,g} {UNITS.get(ending, '')}".strip()
