"""What Prometheus may know of notifications: what arrived, what waits, what was given up."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from fleet.costs.budgets import burns
from fleet.costs.drift import expected_now
from fleet.metrics.identities import identities
from fleet.models import Alert, Delivery, Node, Receiver, Run, SenderHeartbeat
from fleet.runs.step_durations import duration_rows
from fleet.runs.summaries import TOKENS_PER_MTOK, RunNow, runs_now
from telemetry.detect.rules import RULES
from telemetry.exporter.efa_exporter import efa_families
from telemetry.exporter.hardware import look, node_families
from telemetry.exporter.neuron_exporter import neuron_families
from telemetry.exporter.service import service_families
from telemetry.families import (
    EXEMPLAR_CHARACTERS,
    Exemplar,
    Family,
    HistogramFamily,
    MetricFamily,
    Spec,
)
from telemetry.long_term.writer import long_term_families
from telemetry.store.hot import HotStore
from telemetry.store.node_state import last_reports

PER_HOUR = Spec(
    "trnwatch_run_cost_usd_per_hour", "gauge", "Dollars per hour of all its nodes.", ("run",)
)
NODE_SECONDS = Spec(
    "trnwatch_run_node_seconds_per_million_tokens",
    "gauge",
    "Seconds of a node that a million tokens take, last minute.",
    ("run",),
)
EXPECTED = Spec(
    "trnwatch_run_expected_node_seconds_per_million_tokens",
    "gauge",
    "The same as expected: by the estimate, or by the run's own first settled hours.",
    ("run", "basis"),
)
RUN_ALERTS = Spec(
    "trnwatch_run_alerts_firing",
    "gauge",
    "Alerts about a run or its nodes that are not resolved.",
    ("run", "rule"),
)
OF_BUDGET = ("budget", "team", "run")
BUDGET = Spec("trnwatch_budget_usd", "gauge", "Dollars that a budget holds.", OF_BUDGET)
SPENT = Spec("trnwatch_budget_spent_usd", "gauge", "Dollars spent of it so far.", OF_BUDGET)
FORECAST = Spec(
    "trnwatch_budget_forecast_usd",
    "gauge",
    "Dollars that will be spent of it by its end, at the prices announced.",
    OF_BUDGET,
)
BURN = Spec(
    "trnwatch_budget_cost_usd_per_hour", "gauge", "Dollars per hour spent of it now.", OF_BUDGET
)
ENDS = Spec(
    "trnwatch_budget_end_timestamp_seconds", "gauge", "When a budget ends, Unix time.", OF_BUDGET
)


def cost_families(runs: Iterable[RunNow]) -> list[Family]:
    """Return what runs cost by the hour, what their tokens take, and what they should."""
    per_hour, node_seconds, expected = map(Family, (PER_HOUR, NODE_SECONDS, EXPECTED))
    for now in runs:
        run = now.run
        if run.finished_at is not None:
            continue
        per_hour.add(run.usd_per_hour or None, run.name)
        if now.is_stale or not now.tokens_per_s or now.step_s is None:
            continue
        node_seconds.add(run.n_nodes / now.tokens_per_s * TOKENS_PER_MTOK, run.name)
        found = expected_now(run, tokens=now.tokens_per_s * now.step_s)
        if found is not None:
            expected.add(found.cost * TOKENS_PER_MTOK, run.name, found.by)
    return [per_hour, node_seconds, expected]


def budget_families(*, now: datetime) -> list[Family]:
    """Return how the budgets stand whose period is now."""
    families = held, spent, forecast, burn, ends = [
        Family(spec) for spec in (BUDGET, SPENT, FORECAST, BURN, ENDS)
    ]
    for each in burns(now=now):
        budget = each.budget
        if not budget.starts_at <= now < budget.ends_at:
            continue
        labels = (str(budget.pk), budget.team, budget.run.name if budget.run else "")
        held.add(budget.usd, *labels)
        spent.add(each.spent_usd, *labels)
        forecast.add(each.forecast_usd, *labels)
        burn.add(each.usd_per_hour, *labels)
        ends.add(budget.ends_at.timestamp(), *labels)
    return families


def run_alert_family() -> Family:
    """Return how many alerts are open about each run or its nodes, by rule; none is no series."""
    family = Family(RUN_ALERTS)
    about = Alert.objects.open().annotate(whose=Coalesce(F("run__name"), F("node__run__name")))
    counted = Counter(about.exclude(whose=None).values_list("whose", "rule"))
    for labels, n in sorted(counted.items()):
        family.add(n, *labels)
    return family


# A run that is over is still told of for a day, so that its last totals are scraped.
TOLD_AFTER_END = timedelta(days=1)


def _run_spec(name: str, about: str) -> Spec:
    is_total = name.endswith("_total")
    return Spec(f"trnwatch_run_{name}", "counter" if is_total else "gauge", about, ("run",))


# Of a run whose steps have stopped coming none of these is said.
PACE: Mapping[Spec, Callable[[RunNow], float | None]] = {
    _run_spec("step_seconds", "Duration of a step, mean of the last minute."): lambda r: r.step_s,
    _run_spec(
        "allreduce_share_ratio", "Exposed gradient all-reduce over step time, newest steps."
    ): lambda r: r.share_ratio,
    _run_spec(
        "allreduce_wait_ratio", "Part of the step spent waiting for peers, newest steps."
    ): lambda r: r.wait_ratio,
    _run_spec(
        "allreduce_transfer_ratio", "Part of the step spent moving gradients, newest steps."
    ): lambda r: r.transfer_ratio,
    _run_spec("tokens_per_second", "Tokens trained per second."): lambda r: r.tokens_per_s,
    _run_spec("mfu_ratio", "Model FLOPs over the peak of all nodes."): lambda r: r.mfu_ratio,
    _run_spec(
        "cost_per_million_tokens_usd", "Dollars per million tokens at this pace."
    ): lambda r: r.usd_per_mtok,
}
LIMIT = _run_spec("allreduce_limit_ratio", "Share above which the run's alert fires.")
RESOLVE = _run_spec("allreduce_resolve_ratio", "Share below which the run's alert resolves.")
LAST_STEP = _run_spec("last_step_timestamp_seconds", "When the latest step ended, Unix time.")
TOKENS = _run_spec("tokens_total", "Tokens trained.")
STEPS = _run_spec("steps_total", "Steps made.")
COST = _run_spec("cost_usd_total", "Dollars spent: nodes by the hour, whatever they do.")
INFO = Spec(
    "trnwatch_run_info",
    "gauge",
    "What a run is; always 1.",
    ("run", "team", "model", "instance_type", "phase"),
)
NODE_INFO = Spec(
    "trnwatch_node_info",
    "gauge",
    "What a node is, and what it trains; always 1.",
    ("node", "run", "instance_type", "source"),
)
FIRING = Spec(
    "trnwatch_alerts_firing",
    "gauge",
    "Alerts that are not resolved, acknowledged or not.",
    ("rule", "severity"),
)
UNACKNOWLEDGED = Spec(
    "trnwatch_alerts_unacknowledged",
    "gauge",
    "Alerts that nobody has taken.",
    ("rule", "severity"),
)


def run_families(hot: HotStore, *, now: datetime) -> list[Family]:
    """Return everything about the runs that go on, or ended within a day."""
    recent = Q(finished_at=None) | Q(finished_at__gt=now - TOLD_AFTER_END)
    runs = runs_now(hot, Run.objects.filter(recent, trace=None), now_s=now.timestamp())
    families = []
    for spec, value in PACE.items():
        family = Family(spec)
        for each in runs:
            family.add(None if each.is_stale else value(each), each.run.name)
        families.append(family)
    last_step = Family(LAST_STEP)
    for each in runs:
        last_step.add(each.last_step_at_s, each.run.name)
    return [*families, last_step, *_run_totals(runs, hot, now=now), *cost_families(runs)]


def _run_totals(runs: Iterable[RunNow], hot: HotStore, *, now: datetime) -> list[Family]:
    """Return what runs have amounted to so far, and what they are."""
    limit, resolve, tokens, steps, cost, info = map(
        Family, (LIMIT, RESOLVE, TOKENS, STEPS, COST, INFO)
    )
    counted = hot.totals()
    for each in runs:
        run = each.run
        limit.add(run.allreduce_limit_ratio, run.name)
        resolve.add(run.allreduce_resolve_ratio, run.name)
        tokens.add(max(run.n_tokens, counted.tokens.get(run.name, 0.0)), run.name)
        n_steps = max(run.last_step, counted.steps.get(run.name, 0))
        steps.add(n_steps, run.name, exemplar=latest_step(each))
        cost.add(run.usd_by(now), run.name)
        info.add(1.0, run.name, run.team, run.model, run.instance_type, run.phase)
    return [limit, resolve, tokens, steps, cost, info]


def latest_step(now: RunNow) -> Exemplar | None:
    """Return the latest step of a run, and how long steps take, as an example of its steps.

    It leads to the run: by name, and by address where that is short enough to be told.
    """
    if now.last_step is None or now.last_step_at_s is None or now.step_s is None:
        return None
    labels = {"run": now.run.name, "step": str(now.last_step)}
    url = f"{settings.BASE_URL}{now.run.get_absolute_url()}"
    if len("".join((*labels, *labels.values(), "url", url))) <= EXEMPLAR_CHARACTERS:
        labels["url"] = url
    return Exemplar(labels, now.step_s, round(now.last_step_at_s, 3))


def alert_families() -> list[Family]:
    """Return how many alerts there are of each rule; a rule that is kept counts zero."""
    firing, unacknowledged = Family(FIRING), Family(UNACKNOWLEDGED)
    known = {(rule.name, rule.severity): 0 for rule in RULES.values()}
    everything: Counter[tuple[str, str]] = Counter(known)
    untaken = everything.copy()
    for alert in Alert.objects.open().only("rule", "severity", "acknowledged_at"):
        kind = (alert.rule, Alert.Severity(alert.severity).label)
        everything[kind] += 1
        untaken[kind] += alert.acknowledged_at is None
    for family, counts in ((firing, everything), (unacknowledged, untaken)):
        for kind, n in sorted(counts.items()):
            family.add(n, *kind)
    return [firing, unacknowledged]


def node_info_family(nodes: QuerySet[Node] | None = None) -> Family:
    """Return what every node that ought to report is; ``run`` is empty where it trains nothing."""
    family = Family(NODE_INFO)
    told = (Node.objects.all() if nodes is None else nodes).filter(run__finished_at=None)
    for name, run, *rest in told.values_list("name", "run__name", "instance_type", "source"):
        family.add(1.0, name, run or "", *rest)
    return family


def expected_nodes() -> list[str]:
    """Name the nodes that ought to report: all but those of runs that are over."""
    return list(Node.objects.filter(run__finished_at=None).values_list("name", flat=True))


DURATIONS = Spec(
    "trnwatch_run_step_duration_seconds",
    "histogram",
    "How long steps took, each counted once a minute after its end.",
    ("run",),
)


def duration_family(*, now: datetime) -> HistogramFamily:
    """Return the histogram of each run that goes on, or ended within a day."""
    family = HistogramFamily(DURATIONS)
    for run, counts, total_s in duration_rows(now=now):
        family.add(counts, total_s, run)
    return family


TOTAL = Spec(
    "trnwatch_notifications_total",
    "counter",
    "Attempts that arrived or failed, and notifications given up.",
    ("receiver", "outcome"),
)
PENDING = Spec(
    "trnwatch_notifications_pending", "gauge", "Notifications on their way.", ("receiver",)
)
DEAD = Spec(
    "trnwatch_notifications_dead", "gauge", "Given up, and nobody has dealt with.", ("receiver",)
)
SENDER_AGE = Spec(
    "trnwatch_notifications_sender_age_seconds", "gauge", "Since a sender was last heard of."
)


def notification_families(*, now: datetime) -> list[Family]:
    """Return how each receiver gets on; where there is none there is nothing to say."""
    total, pending, dead, age = map(Family, (TOTAL, PENDING, DEAD, SENDER_AGE))
    receivers = list(_receivers())
    for receiver in receivers:
        outcomes = {"sent": receiver.n_sent, "failed": receiver.n_failed, "dead": receiver.n_dead}
        for outcome, n in outcomes.items():
            total.add(n, receiver.name, outcome)
        pending.add(receiver.n_pending, receiver.name)
        dead.add(receiver.n_unhandled, receiver.name)
    if receivers and receivers[0].seen_at is not None:
        age.add(max(0.0, (now - receivers[0].seen_at).total_seconds()))
    return [total, pending, dead, age]


def _receivers() -> QuerySet[Any, Any]:
    unfinished = Q(deliveries__state__in=(Delivery.State.PENDING, Delivery.State.SENDING))
    heard = SenderHeartbeat.objects.order_by("-seen_at").values("seen_at")[:1]
    return Receiver.objects.annotate(
        n_pending=Count("deliveries", filter=unfinished),
        n_unhandled=Count("deliveries", filter=Q(deliveries__state=Delivery.State.DEAD)),
        seen_at=Subquery(heard),
    )


def everything(hot: HotStore, *, now: datetime, with_nodes: bool = True) -> list[MetricFamily]:
    """Return every family of trnwatch's own names: nodes (unless left out), runs, alerts, service.

    The names of AWS's exporters are on a page of their own: `neuron`.
    """
    nodes = whole_fleet(hot, now=now) if with_nodes else []
    return [
        *nodes,
        node_info_family(),
        *run_families(hot, now=now),
        *alert_families(),
        duration_family(now=now),
        run_alert_family(),
        *budget_families(now=now),
        *notification_families(now=now),
        *service_families(hot),
        *long_term_families(now=now),
    ]


def whole_fleet(hot: HotStore, *, now: datetime) -> list[MetricFamily]:
    """Return the hardware families of all nodes."""
    return [*node_families(hot, now_s=now.timestamp(), expected=expected_nodes())]


def one_node(hot: HotStore, node: Node, *, now: datetime) -> list[MetricFamily]:
    """Return the families of one node alone."""
    is_expected = node.run is None or node.run.finished_at is None
    expected = [node.name] if is_expected else []
    scene = look(hot, now_s=now.timestamp(), only={node.name: node.shard})
    families = node_families(hot, now_s=now.timestamp(), expected=expected, scene=scene)
    return [*families, node_info_family(Node.objects.filter(pk=node.pk))]


def neuron(hot: HotStore, *, now: datetime, node: Node | None = None) -> list[MetricFamily]:
    """Return the families of AWS's exporters: of every node, or of one alone."""
    rows = Node.objects.all() if node is None else Node.objects.filter(pk=node.pk)
    only = None if node is None else {node.name: node.shard}
    scene = look(hot, now_s=now.timestamp(), only=only)
    who = identities(rows)
    real = [name for name in scene.up if name in who and not who[name].is_simulated]
    return [
        *neuron_families(scene, who, last_reports(hot, real)),
        *efa_families(hot, scene, who, is_alone=node is not None),
    ]
