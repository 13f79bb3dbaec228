"""The list of runs, the page of one run, and the compiles of all runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.alerts.impact import impact_of, worst_first
from fleet.alerts.text import AlertText, brief
from fleet.charts import runs as charts
from fleet.charts.alerts import own_time_chart
from fleet.charts.deviations import SIGNALS, Signal
from fleet.charts.heat import HeatGroup, heat_groups
from fleet.charts.readings import fleet_readings
from fleet.charts.runs import AXES, EMAS, LossView, RunChart, charts_of, with_newest_steps
from fleet.costs.late_workers import LateWorker, late_workers
from fleet.costs.panel import with_cost_fields
from fleet.formatting import counted, duration, percent
from fleet.models import Alert, CompileEvent, Node, Run, TraceRequest
from fleet.models.node import address
from fleet.pages.costs import brief_money
from fleet.pages.frozen import frozen_run, frozen_run_alerts, run_in_window, window_context
from fleet.pages.imported_runs import log_context, log_page, trace_context, trace_page
from fleet.pages.nodes import rows_of, worst_rows
from fleet.pages.render import WEEK_DAYS, Filter, HtmxRequest, period_days, render_page, with_page
from fleet.pages.tables import (
    ROWS_AT_ONCE,
    Column,
    Table,
    TableView,
    in_chunks,
    moment,
    number,
)
from fleet.pages.text import run_headline
from fleet.runs.compile_summaries import (
    SINCE,
    WHAT,
    compile_rows,
    fleet_compile_sums,
    with_compile_flag,
)
from fleet.runs.inputs import N_NODES, inputs_of
from fleet.runs.limits import COLUMNS, own_limits
from fleet.runs.node_columns import node_columns
from fleet.runs.similar_runs import similar_runs_panel
from fleet.runs.state import own_pause_s, state_of, tokens_apart
from fleet.runs.summaries import RunNow, flops_now, hbm_now, runs_now
from fleet.simulation.drills import drills_of
from telemetry import catalog
from telemetry.store.hot import HotStore, hot_store
from telemetry.store.refused import read_refused

# As in addresses, and as on the page.
STATES = (("active", "active"), ("over", "finished"), ("retired", "retired"))
RUNS_PER_PAGE = 50
# Of a run: large, and shown on its own page only.
UNSEEN = ("plan", "clock", "labels", "spending")
LIST_PARTIALS = ("runs",)
PARTIALS = ("headline", "vitals", "alerts", "heat-map", "drills", "nodes", "money")
# Htmx replaces the element with the empty answer, and asks no more.
STOP_POLLING = 286


@dataclass(frozen=True, slots=True)
class RunRow:
    now: RunNow
    alert: Alert | None
    usd: float
    remaining_s: float | None

    @property
    def run(self) -> Run:
        return self.now.run

    @property
    def state(self) -> str:
        """Health, or the phase while the health is unknown."""
        return self.health or self.run.phase

    @property
    def what(self) -> str:
        return brief(self.alert) if self.alert else ""

    @property
    def usd_per_hour(self) -> float | None:
        return self.run.usd_per_hour or None

    @property
    def lost_usd_per_hour(self) -> float | None:
        return impact_of(self.alert).usd_per_hour if self.alert else None

    @property
    def health(self) -> str:
        if self.alert is not None:
            return self.alert.state
        if self.now.is_stale:
            return "stale"
        if self.now.is_over_limit:
            return "over_limit"
        is_known = self.run.phase == Run.Phase.TRAINING and self.now.step_s is not None
        return "healthy" if is_known else ""


@dataclass(frozen=True, slots=True)
class RunFilter(Filter):
    state: str = ""
    label: str = ""
    q: str = ""


RUNS = Table(
    "runs",
    "worst first",
    (
        Column("run", "Run", "run.name", order="name"),
        Column("team", "Team", "run.team", style="wide", order="team"),
        Column("model", "Model", "run.model", style="widest", order="model"),
        number("nodes", "Nodes", "run.n_nodes", style="wide", order="n_nodes"),
        Column("type", "Type", "run.instance_type", style=None),
        number("share", "All-reduce share", "now.share_ratio", "ratio", style="share-col"),
        number("wait", "Waiting", "now.wait_ratio", "ratio", style=None),
        number("step", "Step", "now.step_s", "s", style="num wide"),
        number("tokens", "Tokens/s", "now.tokens_per_s", style="num wide"),
        number("mfu", "MFU", "now.mfu_ratio", "ratio", style="num wide"),
        number("mtok", "$ / 1M", "now.usd_per_mtok", "USD per 1M tokens", style="num wide"),
        number("price", "$ / h", "usd_per_hour", "USD per hour", style="num wide"),
        number("cost", "Cost", "usd", "USD", style="num wide"),
        moment("started", "Started", "run.started_at", style="widest", order="started_at"),
        moment("ended", "Ended", "run.finished_at", style=None),
        Column("alert", "Open alert", "what", style="widest"),
        number("loss", "Lost per hour", "lost_usd_per_hour", "USD", style="num widest"),
        Column("state", "State", "state", style="wide"),
    ),
)


# What runs that are over have too, and the database does not: it follows from prices over time.
KNOWN_AFTERWARDS = frozenset({"price", "cost", "state"})


def runs_context(page: str = "1", **filters: str) -> dict[str, Any]:
    """Return one page of the runs that match."""
    now, hot = timezone.now(), hot_store()
    keep = RunFilter.of(filters)
    kept = Run.objects.filter_by(state=keep.state, label=keep.label, text=keep.q)
    accusing = Alert.objects.open().exclude(run=None, parts=[]).select_related("run", "node")
    alerts = sorted(accusing.defer(*(f"run__{name}" for name in UNSEEN)), key=worst_first)

    def rows_of_runs(runs: Iterable[Run]) -> list[RunRow]:
        summed_up = runs_now(hot, runs, now_s=now.timestamp(), alerts=alerts)
        return rows_with_alerts(in_worst_order(summed_up, alerts), alerts, now=now)

    active = rows_of_runs(kept.active().defer(*UNSEEN))

    def keys(table: TableView) -> list[int]:
        if table.column is not None and table.column.order:
            return list(table.ordered(kept.order_by("name")).values_list("pk", flat=True))
        over = kept.exclude(finished_at=None).order_by("-finished_at", "name")
        if table.column is not None and table.column.key in KNOWN_AFTERWARDS:
            every = [*active, *rows_of_runs(over.defer(*UNSEEN))]
            return [row.run.pk for row in table.sorted(every)]
        known = [row.run.pk for row in table.sorted(active)]
        return [*known, *over.values_list("pk", flat=True)]

    def rows_of_keys(wanted: Sequence[int]) -> list[RunRow]:
        rows = {row.run.pk: row for row in active}
        others = Run.objects.defer(*UNSEEN).in_bulk([key for key in wanted if key not in rows])
        rows |= {row.run.pk: row for row in rows_of_runs(others.values())}
        return [rows[key] for key in wanted if key in rows]

    def every(table: TableView) -> Iterator[RunRow]:
        wanted = keys(table)
        for start in range(0, len(wanted), ROWS_AT_ONCE):
            yield from rows_of_keys(wanted[start : start + ROWS_AT_ONCE])

    table = RUNS.by(keep.given, every)
    listing = Paginator(keys(table), RUNS_PER_PAGE).get_page(page)
    return {
        "keep": keep,
        "states": STATES,
        "table": table,
        "rows": rows_of_keys(list(listing)),
        "n_active": len(active),
        "usd_per_hour": sum(row.run.usd_per_hour for row in active),
        "page": listing,
        "stream_filters": with_page(keep.query, listing.number),
    }


def in_worst_order(runs: Iterable[RunNow], alerts: Iterable[Alert]) -> list[RunNow]:
    """Sort runs: those with the worst alert first, stale ones, then by their share."""
    # The worst alert is the first one.
    place: dict[str, int] = {}
    for at, alert in enumerate(alerts):
        for name in alert.runs:
            place.setdefault(name, at)

    def order(now: RunNow) -> tuple[bool, int, bool, float, str]:
        known, share = place.get(now.run.name), now.share_ratio or 0.0
        return known is None, known or 0, not now.is_stale, -share, now.run.name

    return sorted(runs, key=order)


def worst_runs(runs: Sequence[RunNow], alerts: Iterable[Alert], *, most: int) -> list[RunNow]:
    """Return what a page shows of many runs: those with an alert first, then by their share."""
    return list(runs) if len(runs) <= most else in_worst_order(runs, alerts)[:most]


def rows_with_alerts(
    runs: Iterable[RunNow], alerts: Iterable[Alert], *, now: datetime
) -> list[RunRow]:
    worst: dict[str, Alert] = {}
    for alert in alerts:
        for name in alert.runs:
            worst.setdefault(name, alert)
    return [row_of(run, worst.get(run.run.name), now=now) for run in runs]


def row_of(summary: RunNow, alert: Alert | None, *, now: datetime) -> RunRow:
    run = summary.run
    return RunRow(summary, alert, run.usd_by(now), run.remaining_s(now))


@require_safe
def run_list(request: HtmxRequest) -> HttpResponse:
    context = runs_context(**request.GET.dict())
    return render_page(request, "runs/run_list.html", context, partials=LIST_PARTIALS)


def run_context(name: str, *, is_whole: bool = False, signal: str = "") -> dict[str, Any]:
    """Return the live part of a run's page; a whole page needs more fields of the run."""
    now, hot = timezone.now(), hot_store()
    runs = with_compile_flag(Run.objects.select_related("trace", "log", "similar_runs"))
    if is_whole:
        runs = with_newest_steps(runs)
    run = get_object_or_404(with_cost_fields(runs), name=name)
    of_run = Alert.objects.open().of_run(run.name)
    alerts = sorted(of_run.select_related("run", "node"), key=worst_first)
    summary = runs_now(hot, [run], now_s=now.timestamp(), alerts=alerts)[0]
    newest = summary.last_step_at_s
    state = state_of(hot, run.name) if run.is_reported and summary.is_stale else None
    rows = rows_of(hot, run.nodes.order_by("rank", "name"), now=now)
    drills = drills_of(run, now=now)
    return (
        {
            "run": run,
            # A finished run does not change: its page follows the header only.
            "stream": "head" if run.finished_at else f"run:{run.name}",
            "row": row_of(summary, alerts[0] if alerts else None, now=now),
            "now": summary,
            "peak_flops": run.peak_flops,
            "no_steps": "no steps recently" if run.last_step else "no steps yet",
            "headline": run_headline(
                summary,
                at=now,
                pause_s=own_pause_s(hot, now_s=now.timestamp()),
                refused=read_refused(hot, [f"run:{run.name}"], now_s=now.timestamp()).get(
                    f"run:{run.name}"
                ),
                saves_since_s=state.saves_since_s if state else None,
                tokens_apart=(
                    tokens_apart(hot, run.name, run.session) if run.is_reported else None
                ),
            ),
            "alerts": [AlertText(alert, now) for alert in alerts],
            # Compared when a template asks for it.
            "heat": cache(partial(run_heat, hot, run, alerts, signal, now=now)),
            "signal": signal,
            "stream_filters": f"signal={signal}" if signal and not run.finished_at else "",
            "n_resolved": run.alerts.exclude(resolved_at=None).count(),
            "drills": drills,
            "is_drill": any(drill.is_running and drill.has_begun for drill in drills),
            "rows": worst_rows(rows),
            "n_found": len(rows),
            # All of them, by name and shard.
            "members": [(row.node.name, row.node.shard) for row in rows],
            "hardware_flops": flops_now([row.now for row in rows]),
            "hbm": hbm_now(hot, [row.now for row in rows], now_s=now.timestamp()),
            "can_drill": settings.ALLOW_DRILLS and run.is_simulated and run.finished_at is None,
            "as_of": datetime.fromtimestamp(newest, UTC) if newest else None,
            "layout": [*layout_of(run), *reports_of(hot, run, now=now)],
        }
        | trace_context(run)
        | log_context(run)
        | brief_money(run, now=now)
    )


class RunHeat(NamedTuple):
    """The nodes of a run next to each other now, and the signals to choose from."""

    groups: Sequence[HeatGroup] = ()
    signals: Sequence[Signal] = ()


def run_heat(
    hot: HotStore, run: Run, alerts: Sequence[Alert], signal: str, *, now: datetime
) -> RunHeat:
    """Compare the nodes of a run that is active, in the signal asked for."""
    if run.finished_at is not None:
        return RunHeat()
    columns = node_columns(hot, now_s=now.timestamp(), with_cores=False)
    readings = fleet_readings(hot, columns, [run.name], now_s=now.timestamp(), run=run.pk)
    known = [each for each in SIGNALS.values() if each.name in readings.level]
    signal = signal if signal in readings.level else ""
    groups = heat_groups(columns, alerts, {run.pk: run}, readings, signal=signal, only=run.pk)
    return RunHeat(groups, known)


def run_points(name: str, *, since_s: float) -> dict[str, Any]:
    run = get_object_or_404(Run, name=name)
    return charts.run_points(hot_store(), run, since_s=since_s)


# Phases before the first step.
STARTING = frozenset({Run.Phase.PENDING, Run.Phase.COMPILING, Run.Phase.WARMING_UP})


def inputs_context(run: Run, nodes: Sequence[tuple[str, str]], *, now: datetime) -> dict[str, Any]:
    """Return the panel that names what arrives of an active run; nodes are (name, shard)."""
    hot = hot_store()
    state = state_of(hot, run.name) if run.is_reported else None
    traces = [member.runtime_trace for member in state.members.values()] if state else ()
    inputs = inputs_of(hot, run.name, nodes, now_s=now.timestamp(), traces=traces)
    request: TraceRequest | None = None
    if inputs.traces_on_request or inputs.trace_problem:
        requests = TraceRequest.objects.filter(alert__run=run).select_related("alert")
        request = requests.order_by("-requested_at").first()
    return {
        "run": run,
        "inputs": inputs,
        "is_starting": run.phase in STARTING and not inputs.has_steps,
        "may_request_traces": settings.REQUEST_TRACES,
        "trace_request": request,
        "is_traced_now": request is not None and now < request.ends_at,
    }


def refreshed_inputs(request: HtmxRequest, name: str, *, now: datetime) -> HttpResponse:
    """Answer the panel of inputs, which asks for itself now and then, until the run is over."""
    run = get_object_or_404(Run, name=name)
    if run.finished_at is not None:
        return HttpResponse(status=STOP_POLLING)
    nodes = run.nodes.order_by("rank", "name").values_list("name", "shard")[:N_NODES]
    context = inputs_context(run, list(nodes), now=now)
    return render_page(request, "runs/_run_inputs.html", context)


@require_safe
def run_detail(request: HtmxRequest, name: str) -> HttpResponse:
    now = timezone.now()
    if request.htmx.target == "run-inputs":
        return refreshed_inputs(request, name, now=now)
    signal = request.GET.get("signal", "")
    context = run_context(name, is_whole=True, signal=signal if signal in SIGNALS else "")
    run, summary = context["run"], context["now"]
    context |= window_context(request, now=now, ended_at=run.finished_at)
    context |= {"has_steps": run.last_step > 0 or summary.step_s is not None}
    if context["frozen"]:
        context |= frozen_run_alerts(run, context["window"])
    elif run.finished_at is None and not context.get("log") and not context.get("trace"):
        context |= inputs_context(run, context["members"], now=now)
    alerts = [each.alert for each in context["alerts"]]
    apart = ((alert, own_time_chart(alert)) for alert in alerts)
    context["apart"] = next(((alert, chart) for alert, chart in apart if chart), None)
    drawn = charts_of(hot_store(), run, alerts)
    context["charts"] = [with_loss_view(request, chart) for chart in drawn]
    context |= trace_page(request, run) | {"similar_runs": similar_runs_panel(run)}
    if context.get("log"):
        context |= log_page(request, run, context["log"])
    elif context["frozen"]:
        context |= frozen_run(run, context["window"])
        # Reports are known for the present only.
        context["layout"] = layout_of(context["run"])
    elif run.finished_at is not None and not context.get("trace"):
        context["now"], _ = run_in_window(run, context["window"])
    if run.finished_at is not None and not context["money"] and not context["frozen"]:
        # Its cost is still being computed.
        context["stream"] = f"run-money:{run.name}"
    context["around"] = context["window"].around()
    partials = (*PARTIALS, "charts")
    return render_page(request, "runs/run_detail.html", context, partials=partials)


def with_loss_view(request: HttpRequest, chart: RunChart) -> RunChart:
    """Return the chart of the loss as the address asks for it, with links to its other views."""
    if chart.name != "loss":
        return chart
    view = LossView.of(request.GET.dict())

    def links(name: str, texts: Mapping[str, str]) -> list[tuple[str, str, bool]]:
        choices = []
        for value, text in texts.items():
            query = request.GET.copy()
            query[name] = value
            choices.append((text, query.urlencode(), getattr(view, name) == value))
        return choices

    smoothing = {each: "none" if each == "0" else each for each in EMAS}
    return replace(
        chart,
        kind="lines" if view.by == "time" else "course",
        help=view.help,
        query=f"&by={view.by}&ema={view.ema}" if view != LossView() else "",
        choices=(("Drawn over", links("by", AXES)), ("Smoothing", links("ema", smoothing))),
    )


PERIODS_DAYS = (1, 7, 30)
WORKERS = Table(
    "workers",
    "most lost first",
    (
        Column("worker", "Worker", "worker.name"),
        number("lost", "Node-hours lost", "node_hours", "h"),
        number("cost", "Cost", "usd", "USD"),
        number("late", "Late for", "worker.late_s", "s"),
        Column("reason", "Takes longer", "reason"),
    ),
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, what it made its run lose, and that by day."""

    worker: LateWorker
    node_hours: float
    usd: float | None
    by_day: Sequence[float] = ()
    url: str = ""

    @property
    def reason(self) -> str:
        return self.worker.reason or "not known" if self.worker.late_s else ""


MOST_WORKERS = 50


@require_safe
def run_workers(request: HtmxRequest, name: str) -> HttpResponse:
    """Show which workers of a run made the others wait, over days."""
    run = get_object_or_404(Run, name=name)
    days = period_days(request, PERIODS_DAYS)
    end = run.finished_at or timezone.now()
    late = late_workers(run, start=end - timedelta(days=days), end=end)
    every = [
        WorkerRow(each, late.node_hours(each.lost_s), each.usd if run.usd_per_hour else None)
        for each in late.workers
    ]
    table = WORKERS.by(request.GET.dict(), lambda t: t.sorted(every), file=f"{run.name}-workers")
    shown = table.rows[:MOST_WORKERS]
    # A month of columns is too wide.
    days_shown = days == WEEK_DAYS
    seconds = sorted({d for row in shown for d in row.worker.by_day}) if days_shown else []
    names = {row.worker.node for row in shown}
    known = set(Node.objects.filter(name__in=names).values_list("name", flat=True))
    context = {
        "run": run,
        "found": late,
        "table": table,
        "rows": [
            replace(
                row,
                url=address("node-detail", row.worker.node) if row.worker.node in known else "",
                by_day=[late.node_hours(row.worker.by_day.get(day, 0.0)) for day in seconds],
            )
            for row in shown
        ],
        "n_more": len(late.workers) - len(shown),
        "shown_days": [datetime.fromtimestamp(day, UTC) for day in seconds],
        "untimed_ratio": 1 - late.timed_s / late.trained_s if late.trained_s else 0.0,
        "days": days,
        "choices": PERIODS_DAYS,
        "longest": PERIODS_DAYS[-1],
    }
    return render_page(request, "runs/run_workers.html", context)


def layout_of(run: Run) -> list[tuple[str, str]]:
    """Return names and values of the panel "Layout"."""
    try:
        n_ranks = run.n_nodes * catalog.instance(run.instance_type).n_cores
    except ValueError:
        n_ranks = 0
    recipe = run.recipe or {}
    cp = recipe.get("cp", 1)
    n_groups = n_ranks // (run.tp * run.pp * cp)
    layout = f"tensor {run.tp}, pipeline {run.pp}, data {n_groups or 'unknown'}"
    more = {"context": cp if cp > 1 else None, "micro-batch": recipe.get("micro_batch")}
    more["recompute"] = recipe.get("recompute")
    usd, basis = run.price
    limit, resolve = run.allreduce_limit_ratio, run.allreduce_resolve_ratio
    own = own_limits(run, others_than=COLUMNS)
    is_batch_known = run.global_batch and run.seq_len
    batch = f"{run.global_batch:,} sequences of {run.seq_len:,} tokens"
    return [
        ("Model", run.model),
        ("Nodes", f"{run.n_nodes} \u00d7 {run.instance_type}"),
        (
            "Layout",
            ", ".join([layout, *(f"{name} {each}" for name, each in more.items() if each)]),
        ),
        ("Batch", batch if is_batch_known else "not reported"),
        ("Precision", run.precision),
        ("Price", f"${usd:,.2f} per node-hour, {basis}" if usd else basis),
        ("All-reduce limit", f"{percent(limit, 0)}; resolves below {percent(resolve, 0)}"),
        *[("Own limit", f"{label} {value}, usually {usual}") for label, value, usual in own],
    ]


def reports_of(hot: HotStore, run: Run, *, now: datetime) -> list[tuple[str, str]]:
    """Return layout rows about a run's own reports; none if the job does not report."""
    state = state_of(hot, run.name) if run.is_reported else None
    if state is None:
        return []
    who = counted(state.n_workers, "worker")
    heard = f"{who}, last report {duration(max(0.0, now.timestamp() - state.heard_s))} ago"
    lines = [("Reports", heard)]
    n_missing = state.n_workers - len(state.members)
    if n_missing:
        lines.append(("Missing", f"{counted(n_missing, 'worker')} never reported"))
    if state.n_dropped:
        lines.append(("Lost", f"{counted(state.n_dropped, 'report')} in transit"))
    if run.step_shift:
        lines.append(
            ("Steps", f"{run.step_shift:,} ahead of the job's count: repeated after a restart")
        )
    reasons = sorted({member.reason for member in state.members.values() if member.reason})
    return lines + [("Failed", reason) for reason in reasons]


COMPILES = Table(
    "compiles",
    "newest first",
    (
        moment("at", "Time", "event.at", style="wide", order="at"),
        Column("run", "Run", "event.run.name", order="run__name"),
        Column("graph", "Graph", "event.module", style="wide", order="module"),
        number("seconds", "Compile time", "event.seconds", "s", order="seconds"),
        number("cost", "Cost", "usd", "USD", style="num wide"),
        Column("changes", "Changes in the cache key", "changes"),
        Column("outcome", "Outcome", lambda row: row.event.get_outcome_display(), style=None),
        Column("why", "Why", lambda row: row.event.get_verdict_display(), style=None),
        Column("process", "Process", "event.process", style=None),
    ),
    is_stored=True,
    anchor="#events",
)
COMPILES_BY_RUN = Table(
    "by-run",
    "most unplanned compile time first",
    (
        Column("run", "Run", "run.name"),
        Column("team", "Team", "run.team", style=None),
        number("graphs", "Graphs", "n_graphs", style="num wide"),
        number("hits", "Hits", "hit_ratio", "ratio"),
        number("compiled", "Compiled", "n_misses"),
        number("failed", "Failed", "n_failures", style="num wide"),
        number("time", "Compile time", "wall_s", "s", style="num wide"),
        number("unplanned", "Unplanned", "lost_s", "s"),
        number(
            "cost", "Cost", lambda row: row.usd if row.lost_s else None, "USD", style="num wide"
        ),
        Column("cache", "Cache", "cache", style="wide"),
        Column("compiler", "neuronx-cc", "compiler", style="wide"),
    ),
    parameter="sort_runs",
    anchor="#by-run",
)
COMPILE_PARTIALS = ("sums", "events", "by-run")
COMPILES_PER_PAGE = 25
USUAL_SINCE = "30d"
MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class CompileFilter(Filter):
    """Which compiles a page shows; an unknown team or run matches none."""

    team: str = ""
    run: str = ""
    since: str = ""
    what: str = ""
    sort_runs: str = ""


def compiles_context(page: str = "1", **filters: str) -> dict[str, Any]:
    keep, now = CompileFilter.of(filters), timezone.now()
    since = SINCE.get(keep.since, SINCE[USUAL_SINCE])
    events = CompileEvent.objects.filter_by(
        team=keep.team, run=keep.run, since=now - since if since else None
    )
    what = WHAT.get(keep.what, WHAT[""])
    shown_events = events.filter(what[1]).select_related("run").defer("run__plan", "run__clock")
    newest = shown_events.order_by("-at", "-pk")
    table = COMPILES.by(keep.given, lambda t: in_chunks(t.ordered(newest), compile_rows))
    listing = Paginator(table.ordered(newest), COMPILES_PER_PAGE).get_page(page)
    sums = fleet_compile_sums(events)
    return {
        "table": table,
        "by_run": COMPILES_BY_RUN.by(keep.given, lambda t: t.sorted(sums.rows)),
        "keep": keep,
        "since": keep.since if keep.since in SINCE else USUAL_SINCE,
        "sums": sums,
        "rows": compile_rows(listing.object_list),
        "page": listing,
        "what": what[0],
        "stream_filters": with_page(keep.query, listing.number),
    }


@require_safe
def compile_list(request: HtmxRequest) -> HttpResponse:
    """List unplanned compiles, and the cache figures of each run."""
    runs = Run.objects.filter(compiles__isnull=False).distinct().order_by("name")
    names = list(runs.values_list("name", "team")[:MOST_RUNS])
    context = compiles_context(**request.GET.dict())
    context |= {
        "whats": {name: words for name, (words, _) in WHAT.items()},
        "sinces": SINCE,
        "runs": [name for name, _ in names],
        "teams": sorted({team for _, team in names if team}),
    }
    return render_page(request, "runs/compile_list.html", context, partials=COMPILE_PARTIALS)
