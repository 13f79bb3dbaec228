"""Pages of the runs: the list by team, and one training job in full."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet import formatting
from fleet.alerts.text import AlertText
from fleet.charts import runs as charts
from fleet.charts.runs import charts_of, saying_newest_steps
from fleet.costs.panel import with_cost_fields
from fleet.formatting import duration, percent
from fleet.models import Alert, Run
from fleet.models.run import RunQuerySet
from fleet.pages import text
from fleet.pages.costs import brief_money
from fleet.pages.frozen import run_alerts_then, run_in_window, run_then, window_context
from fleet.pages.imported_runs import log_context, log_page, trace_context, trace_page
from fleet.pages.nodes import rows_of
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.compiles import with_compile_flag
from fleet.runs.flops import peak_flops
from fleet.runs.inputs import inputs_of
from fleet.runs.similar_runs import similar_runs_panel
from fleet.runs.state import state_of
from fleet.runs.summaries import RunNow, runs_now
from fleet.simulation.drills import drills_of
from telemetry import catalog
from telemetry.store.hot import HotStore, open_store


def similar_runs_context(run: Run) -> dict[str, Any]:
    """Compare a run's settings with those of similar runs.

    Select the run together with ``similar_runs`` to save a query.
    """
    return {"similar_runs": similar_runs_panel(run)}


def reports_of(hot: HotStore, run: Run, *, now: datetime) -> list[tuple[str, str]]:
    """Return lines about a run's own reports; none where the job reports nothing."""
    state = state_of(hot, run.name) if run.is_reported else None
    if state is None:
        return []
    who = formatting.counted(state.n_workers, "worker")
    heard = f"{who}, last report {duration(max(0.0, now.timestamp() - state.heard_s))} ago"
    lines = [("Reports", heard)]
    n_missing = state.n_workers - len(state.members)
    if n_missing:
        lines.append(("Missing", f"{formatting.counted(n_missing, 'worker')} never reported"))
    if state.n_dropped:
        lines.append(("Lost", f"{formatting.counted(state.n_dropped, 'report')} in transit"))
    if run.step_shift:
        lines.append(
            ("Steps", f"{run.step_shift:,} ahead of the job's count: repeated after a restart")
        )
    reasons = sorted({member.reason for member in state.members.values() if member.reason})
    return lines + [("Failed", reason) for reason in reasons]


LIST_PARTIALS = ("runs",)
PARTIALS = ("headline", "vitals", "alerts", "drills", "nodes", "money")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One line of the list."""

    now: RunNow
    alert: Alert | None
    usd: float
    remaining_s: float | None

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.now.run

    @property
    def state(self) -> str:
        """The word for how it is: how well it does comes before what it does."""
        return self.health or self.run.phase

    @property
    def health(self) -> str:
        """The word for how well it does, whatever it does; empty where nobody can tell."""
        if self.alert is not None:
            return self.alert.state
        if self.now.is_stale:
            return "stale"
        if self.now.is_over_limit:
            return "over_limit"
        is_known = self.run.phase == Run.Phase.TRAINING and self.now.step_s is not None
        return "healthy" if is_known else ""


def runs_context() -> dict[str, Any]:
    """Return what the list of runs shows: by team, those under way first."""
    now, hot = timezone.now(), open_store(settings.REDIS_URL)
    runs = sorted(Run.objects.all(), key=lambda run: (run.team, bool(run.finished_at), run.name))
    alerts = Alert.objects.open().exclude(run=None).worst_first()
    rows = rows_with_alerts(runs_now(hot, runs, now_s=now.timestamp()), alerts, now=now)
    teams = groupby(rows, key=lambda row: row.run.team)
    active = [row for row in rows if row.run.finished_at is None]
    return {
        "teams": [(team or "no team", list(members)) for team, members in teams],
        "n_active": len(active),
        "usd_per_hour": sum(row.run.usd_per_hour for row in active),
    }


def rows_with_alerts(
    runs: Iterable[RunNow], alerts: Iterable[Alert], *, now: datetime
) -> list[RunRow]:
    """Return a line for each run, with the first of its ``alerts``."""
    worst: dict[int | None, Alert] = {}
    for alert in alerts:
        worst.setdefault(alert.run_id, alert)
    return [row_of(each, worst.get(each.run.pk), now=now) for each in runs]


def row_of(summed_up: RunNow, alert: Alert | None, *, now: datetime) -> RunRow:
    """Return one line of the list."""
    run = summed_up.run
    return RunRow(summed_up, alert, run.usd_by(now), text.remaining_s(run, now=now))


@require_safe
def run_list(request: HtmxRequest) -> HttpResponse:
    """List every run, by team."""
    return render_page(request, "runs/run_list.html", runs_context(), partials=LIST_PARTIALS)


def _asked_for(*, is_whole: bool) -> RunQuerySet:
    """Return the runs, along with what a page of one needs to know of it."""
    runs = with_compile_flag(Run.objects.select_related("trace", "log", "similar_runs"))
    runs = saying_newest_steps(runs) if is_whole else runs
    return with_cost_fields(runs)


def run_context(name: str, *, is_whole: bool = False) -> dict[str, Any]:
    """Return what changes on the page of one run; a whole page asks for more of it."""
    now, hot = timezone.now(), open_store(settings.REDIS_URL)
    run = get_object_or_404(_asked_for(is_whole=is_whole), name=name)
    summed_up = runs_now(hot, [run], now_s=now.timestamp())[0]
    alerts = list(run.alerts.open().worst_first().select_related("run", "node"))
    newest = summed_up.last_step_at_s
    return (
        {
            "run": run,
            # What is over changes no more: its page follows what every page is told.
            "stream": "head" if run.finished_at else f"run:{run.name}",
            "row": row_of(summed_up, alerts[0] if alerts else None, now=now),
            "now": summed_up,
            "peak_flops": peak_flops(run),
            "no_steps": "no steps in this window" if run.last_step else "no steps yet",
            "headline": text.of_run(summed_up, at=now),
            "alerts": [AlertText(alert, now) for alert in alerts],
            "n_resolved": run.alerts.exclude(resolved_at=None).count(),
            "drills": drills_of(run, now=now),
            "rows": rows_of(
                hot, run.nodes.select_related("run").order_by("rank", "name"), now=now
            ),
            "can_drill": may_drill(run),
            "as_of": datetime.fromtimestamp(newest, UTC) if newest else None,
            "layout": [*layout_of(run), *reports_of(hot, run, now=now)],
        }
        | trace_context(run)
        | log_context(run)
        | brief_money(run, now=now)
    )


def run_points(name: str, *, since_s: float) -> dict[str, Any]:
    """Return what the charts of one run append."""
    run = get_object_or_404(Run, name=name)
    return charts.run_points(open_store(settings.REDIS_URL), run, since_s=since_s)


def may_drill(run: Run) -> bool:
    """Whether faults may be put into a run."""
    is_allowed = settings.DEMO or settings.ALLOW_DRILLS
    return is_allowed and run.is_simulated and run.finished_at is None


@require_safe
def run_detail(request: HtmxRequest, name: str) -> HttpResponse:
    """One run: what its steps consist of, at what pace and price, and on what."""
    now, context = timezone.now(), run_context(name, is_whole=True)
    run, summed_up = context["run"], context["now"]
    context |= window_context(request, now=now, ended_at=run.finished_at)
    context |= {
        "has_steps": run.last_step > 0 or summed_up.step_s is not None,
    }
    if context["frozen"]:
        context |= run_alerts_then(run, context["window"])
    elif run.finished_at is None and not context.get("log") and not context.get("trace"):
        nodes = [(row.node.name, row.node.shard) for row in context["rows"]]
        context["inputs"] = inputs_of(
            open_store(settings.REDIS_URL), run.name, nodes, now_s=now.timestamp()
        )
    alerts = [each.alert for each in context["alerts"]]
    context["charts"] = charts_of(open_store(settings.REDIS_URL), run, alerts)
    context |= trace_page(request, run) | similar_runs_context(run)
    if context.get("log"):
        context |= log_page(request, run, context["log"])
    elif context["frozen"]:
        context |= run_then(run, context["window"])
        # Who reports, and how, is known of now alone.
        context["layout"] = layout_of(context["run"])
    elif run.finished_at is not None and not context.get("trace"):
        context["now"], _ = run_in_window(run, context["window"])
    if run.finished_at is not None and not context["money"] and not context["frozen"]:
        # The one thing on its page that is still to come.
        context["stream"] = f"run-money:{run.name}"
    partials = (*PARTIALS, "charts")
    return render_page(request, "runs/run_detail.html", context, partials=partials)


def _batch(run: Run) -> str:
    if not run.global_batch or not run.seq_len:
        return "not reported"
    return f"{run.global_batch:,} sequences of {run.seq_len:,} tokens"


def _price(run: Run) -> str:
    usd, basis = run.price
    return f"${usd:,.2f} per node and hour, {basis}" if usd else basis


def layout_of(run: Run) -> Sequence[tuple[str, str]]:
    """Return how the job is laid out, as names and values."""
    try:
        n_ranks = run.n_nodes * catalog.instance(run.instance_type).n_cores
    except ValueError:
        n_ranks = 0
    n_groups = n_ranks // (run.tp * run.pp)
    return [
        ("Model", run.model),
        ("On", f"{run.n_nodes} \u00d7 {run.instance_type}"),
        ("Layout", f"tensor {run.tp}, pipeline {run.pp}, data {n_groups or 'unknown'}"),
        ("Batch", _batch(run)),
        ("Precision", run.precision),
        ("Price", _price(run)),
        (
            "Limit",
            f"{percent(run.allreduce_limit_ratio, 0)} all-reduce; "
            f"resolves below {percent(run.allreduce_resolve_ratio, 0)}",
        ),
    ]
