"""The collectors behind `/metrics`: runs, costs, alerts, notifications, the service.

Nothing is counted in the web process: a collector reads the stores when it is asked, so every
web worker gives the same page.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from fleet.costs.budgets import BudgetStatus, budget_statuses
from fleet.costs.drift import expected_now
from fleet.metrics.node_collectors import HardwareCollector, NodeInfoCollector, with_labels
from fleet.models import Alert, Delivery, FalseMarkCount, Node, Receiver, Run, SenderHeartbeat
from fleet.ops.liveness import KEY, overdue_in
from fleet.runs.step_durations import EDGES_S, duration_rows
from fleet.runs.summaries import RunNow, runs_now
from telemetry.detect.rules import RULES
from telemetry.exporter.exposition import (
    Spec,
    add,
    counter,
    gauge,
)
from telemetry.exporter.service import ServiceCollector
from telemetry.store.hot import HotStore
from telemetry.store.refused import read_all_refused
from telemetry.units import TOKENS_PER_MTOK

# A finished run stays for a day, so that its last totals are scraped.
KEPT_AFTER_END = timedelta(days=1)
# OpenMetrics limits the labels of an exemplar, names included.
EXEMPLAR_CHARACTERS = 128


def _run_spec(name: str, about: str) -> Spec:
    kind = counter if name.endswith("_total") else gauge
    return kind(f"trnwatch_run_{name}", about, "run")


# Left out for a run whose steps have stopped arriving.
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
PHASE = gauge(
    "trnwatch_run_phase_seconds",
    "What a phase takes of a step, mean of the last minute and over workers.",
    "run",
    "phase",
)
# Kept when its steps stop.
LASTING: Mapping[Spec, Callable[[RunNow], float | None]] = {
    _run_spec("last_step_timestamp_seconds", "When the latest step ended, Unix time."): lambda r: (
        r.last_step_at_s
    ),
    _run_spec("allreduce_limit_ratio", "Share above which the run's alert fires."): lambda r: (
        r.run.allreduce_limit_ratio
    ),
    _run_spec(
        "allreduce_resolve_ratio", "Share below which the run's alert resolves."
    ): lambda r: r.run.allreduce_resolve_ratio,
}
# NaN and infinity are values that the job reported.
LOSS = _run_spec("loss", "Training loss of the newest step that reports one.")
TOKENS = _run_spec("tokens_total", "Tokens trained.")
STEPS = _run_spec("steps_total", "Steps made.")
COST = _run_spec("cost_usd_total", "Dollars spent: nodes by the hour, whatever they do.")
INFO = gauge(
    "trnwatch_run_info",
    "What a run is; always 1.",
    "run",
    "team",
    "model",
    "instance_type",
    "phase",
)
PER_HOUR = gauge("trnwatch_run_cost_usd_per_hour", "Dollars per hour of all its nodes.", "run")
NODE_SECONDS = gauge(
    "trnwatch_run_node_seconds_per_million_tokens",
    "Seconds of a node that a million tokens take, last minute.",
    "run",
)
EXPECTED = gauge(
    "trnwatch_run_expected_node_seconds_per_million_tokens",
    "The same as expected: by the estimate, or by the run's own first settled hours.",
    "run",
    "basis",
)
REFUSED = gauge(
    "trnwatch_refused_reports_per_second",
    "Reports refused over the last minute, by what they name: a node, a run, or only a token.",
    "kind",
    "name",
)
FIRING = gauge(
    "trnwatch_alerts_firing",
    "Alerts that are not resolved, acknowledged or not.",
    "rule",
    "severity",
)
UNACKNOWLEDGED = gauge(
    "trnwatch_alerts_unacknowledged",
    "Alerts that are neither resolved nor acknowledged.",
    "rule",
    "severity",
)
MARKED_FALSE = counter(
    "trnwatch_alerts_marked_false_total",
    "Alerts that a person has marked as false, without drills; removed marks stay counted.",
    "rule",
    "severity",
)
RUN_ALERTS = gauge(
    "trnwatch_run_alerts_firing",
    "Alerts about a run or its nodes that are not resolved.",
    "run",
    "rule",
)
DURATIONS = Spec(
    "trnwatch_run_step_duration_seconds",
    "histogram",
    "How long steps took, each counted once a minute after its end.",
    ("run",),
)
BUDGET: Mapping[Spec, Callable[[BudgetStatus], float | None]] = {
    gauge(name, about, "budget", "team", "run"): value
    for name, about, value in (
        ("trnwatch_budget_usd", "Dollars that a budget holds.", lambda s: s.budget.usd),
        ("trnwatch_budget_spent_usd", "Dollars spent of it so far.", lambda s: s.spent_usd),
        (
            "trnwatch_budget_forecast_usd",
            "Dollars that will be spent of it by its end, at the prices announced.",
            lambda s: s.forecast_usd,
        ),
        (
            "trnwatch_budget_cost_usd_per_hour",
            "Dollars per hour spent of it now.",
            lambda s: s.usd_per_hour,
        ),
        (
            "trnwatch_budget_end_timestamp_seconds",
            "When a budget ends, Unix time.",
            lambda s: s.budget.ends_at.timestamp(),
        ),
    )
}
NOTIFICATIONS = counter(
    "trnwatch_notifications_total",
    "Attempts that arrived or failed, and notifications given up.",
    "receiver",
    "outcome",
)
PENDING = gauge("trnwatch_notifications_pending", "Notifications on their way.", "receiver")
DEAD = gauge(
    "trnwatch_notifications_dead", "Undelivered, and neither sent again nor dropped.", "receiver"
)
SENDER_AGE = gauge(
    "trnwatch_notifications_sender_age_seconds", "Since a sender was last heard of."
)
PROGRAM_LATE = gauge(
    "trnwatch_program_late_seconds",
    "How long a program is overdue to prove that it works; 0 while it is in time.",
    "program",
)


def registry_of(*collectors: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def fleet_registry(hot: HotStore, *, now: datetime, with_nodes: bool = True) -> CollectorRegistry:
    """Return the collectors of every family under trnwatch's own names.

    ``with_nodes=False`` leaves out the hardware. The names of AWS's exporters are apart, see
    `NeuronCollector`.
    """
    return registry_of(
        *([HardwareCollector(hot, now=now)] if with_nodes else []),
        NodeInfoCollector(),
        RunCollector(hot, now=now),
        StepDurationCollector(now=now),
        AlertCollector(),
        BudgetCollector(now=now),
        NotificationCollector(now=now),
        ServiceCollector(hot, tuple(settings.CELERY_TASK_QUEUES)),
        RefusedCollector(hot, now=now),
        ProgramCollector(hot, now=now),
    )


def node_registry(hot: HotStore, nodes: QuerySet[Node], *, now: datetime) -> CollectorRegistry:
    """Return the collectors of some nodes alone."""
    return registry_of(HardwareCollector(hot, now=now, nodes=nodes), NodeInfoCollector(nodes))


@dataclass(frozen=True, eq=False, slots=True)
class RunCollector(Collector):
    """Pace, totals and costs of the runs that are active or ended within a day."""

    hot: HotStore
    now: datetime

    def collect(self) -> Iterator[Metric]:
        recent = Q(finished_at=None) | Q(finished_at__gt=self.now - KEPT_AFTER_END)
        recent_runs = Run.objects.filter(recent, trace=None)
        runs = runs_now(self.hot, recent_runs, now_s=self.now.timestamp())
        for spec, value in PACE.items():
            family = spec.family()
            for each in runs:
                add(family, None if each.is_stale else value(each), each.run.name)
            yield family
        phases = PHASE.family()
        for each in runs:
            for phase, value_s in each.phases_s.items() if not each.is_stale else ():
                add(phases, value_s, each.run.name, phase.removesuffix("_s"))
        yield phases
        losses = LOSS.family()
        for each in runs:
            if each.loss is not None and not each.is_stale:
                losses.add_metric([each.run.name], each.loss)
        yield losses
        info_spec, info_labels = with_labels(INFO, [each.run.labels for each in runs])
        for spec, value in LASTING.items():
            family = spec.family()
            for each in runs:
                add(family, value(each), each.run.name)
            yield family
        tokens, cost, info = (spec.family() for spec in (TOKENS, COST, info_spec))
        steps = CounterMetricFamily(STEPS.name, STEPS.help, labels=STEPS.labels)
        totals = self.hot.totals()
        for each, more in zip(runs, info_labels, strict=True):
            run = each.run
            add(tokens, max(run.n_tokens, totals.tokens.get(run.name, 0.0)), run.name)
            n_steps = max(run.last_step, totals.steps.get(run.name, 0))
            steps.add_metric([run.name], n_steps, exemplar=_latest_step(each))
            add(cost, run.usd_by(self.now), run.name)
            add(info, 1, run.name, run.team, run.model, run.instance_type, run.phase, *more)
        yield from (tokens, steps, cost, info)
        yield from cost_families(runs)


def _latest_step(now: RunNow) -> Exemplar | None:
    """Return the number and duration of a run's latest step, with the address of the run.

    The address is left out where the labels would become too long for OpenMetrics.
    """
    if now.last_step is None or now.last_step_at_s is None or now.step_s is None:
        return None
    labels = {"run": now.run.name, "step": str(now.last_step)}
    url = f"{settings.BASE_URL}{now.run.get_absolute_url()}"
    if len("".join((*labels, *labels.values(), "url", url))) <= EXEMPLAR_CHARACTERS:
        labels["url"] = url
    return Exemplar(labels, now.step_s, round(now.last_step_at_s, 3))


def cost_families(runs: Iterable[RunNow]) -> list[Metric]:
    """Return the cost of runs per hour, and their node time per token, real and expected."""
    per_hour, node_seconds, expected = (
        spec.family() for spec in (PER_HOUR, NODE_SECONDS, EXPECTED)
    )
    for now in runs:
        run = now.run
        if run.finished_at is not None:
            continue
        add(per_hour, run.usd_per_hour or None, run.name)
        if now.is_stale or not now.tokens_per_s or now.step_s is None:
            continue
        add(node_seconds, run.n_nodes / now.tokens_per_s * TOKENS_PER_MTOK, run.name)
        expectation = expected_now(run, tokens=now.tokens_per_s * now.step_s)
        if expectation is not None:
            add(expected, expectation.cost * TOKENS_PER_MTOK, run.name, expectation.by)
    return [per_hour, node_seconds, expected]


@dataclass(frozen=True, eq=False, slots=True)
class StepDurationCollector(Collector):
    """A histogram of step durations per run that is active or ended within a day."""

    now: datetime

    def collect(self) -> Iterator[Metric]:
        edges = [*map(floatToGoString, EDGES_S), "+Inf"]
        family = HistogramMetricFamily(DURATIONS.name, DURATIONS.help, labels=DURATIONS.labels)
        for run, counts, total_s in duration_rows(now=self.now):
            cumulative = np.cumsum(counts).tolist()
            family.add_metric([run], list(zip(edges, cumulative, strict=True)), total_s)
        yield family


@dataclass(frozen=True, eq=False, slots=True)
class RefusedCollector(Collector):
    """What is refused by node and run; no series where nothing was within a minute."""

    hot: HotStore
    now: datetime

    def collect(self) -> Iterator[Metric]:
        family = REFUSED.family()
        for subject, each in read_all_refused(self.hot, now_s=self.now.timestamp()).items():
            add(family, each.per_s, *subject.split(":", 1))
        yield family


@dataclass(frozen=True, eq=False, slots=True)
class AlertCollector(Collector):
    """Open alerts by rule and by run; a rule without alerts counts zero."""

    def collect(self) -> Iterator[Metric]:
        firing: Counter[tuple[str, str]] = Counter(
            {(rule.name, rule.severity): 0 for rule in RULES.values()}
        )
        unacknowledged = firing.copy()
        for alert in Alert.objects.open().only("rule", "severity", "acknowledged_at"):
            key = (alert.rule, Alert.Severity(alert.severity).label)
            firing[key] += 1
            unacknowledged[key] += alert.acknowledged_at is None
        by_run = Alert.objects.open().annotate(
            of_run=Coalesce(F("run__name"), F("node__run__name"))
        )
        run_alerts: Counter[tuple[str, str]] = Counter(
            by_run.exclude(of_run=None).values_list("of_run", "rule")
        )
        counts = {
            FIRING: firing,
            UNACKNOWLEDGED: unacknowledged,
            RUN_ALERTS: run_alerts,
            MARKED_FALSE: marked_false(),
        }
        for spec, counted in counts.items():
            family = spec.family()
            for labels, n in sorted(counted.items()):
                add(family, n, *labels)
            yield family


def marked_false() -> dict[tuple[str, str], int]:
    """Count alerts by rule and by severity when a person first marked them."""
    totals = {(rule.name, severity): 0 for rule in RULES.values() for severity in rule.severities}
    counts = FalseMarkCount.objects.values_list("rule", "severity", "n_alerts")
    return totals | {(rule, Alert.Severity(each).label): n for rule, each, n in counts}


@dataclass(frozen=True, eq=False, slots=True)
class BudgetCollector(Collector):
    """The budgets whose period includes ``now``."""

    now: datetime

    def collect(self) -> Iterator[Metric]:
        current = [
            status
            for status in budget_statuses(now=self.now)
            if status.budget.starts_at <= self.now < status.budget.ends_at
        ]
        for spec, value in BUDGET.items():
            family = spec.family()
            for status in current:
                budget, run = status.budget, status.budget.run
                add(family, value(status), str(budget.pk), budget.team, run.name if run else "")
            yield family


@dataclass(frozen=True, eq=False, slots=True)
class NotificationCollector(Collector):
    """Deliveries by receiver, and the sender's age; no series without receivers."""

    now: datetime

    def collect(self) -> Iterable[Metric]:
        total, pending, dead, age = (
            spec.family() for spec in (NOTIFICATIONS, PENDING, DEAD, SENDER_AGE)
        )
        unfinished = Q(deliveries__state__in=(Delivery.State.PENDING, Delivery.State.SENDING))
        seen = SenderHeartbeat.objects.order_by("-seen_at").values("seen_at")[:1]
        receivers: list[Any] = list(
            Receiver.objects.annotate(
                n_pending=Count("deliveries", filter=unfinished),
                n_unhandled=Count("deliveries", filter=Q(deliveries__state=Delivery.State.DEAD)),
                seen_at=Subquery(seen),
            )
        )
        for receiver in receivers:
            add(total, receiver.n_sent, receiver.name, "sent")
            add(total, receiver.n_failed, receiver.name, "failed")
            add(total, receiver.n_dead, receiver.name, "dead")
            add(pending, receiver.n_pending, receiver.name)
            add(dead, receiver.n_unhandled, receiver.name)
        if receivers and receivers[0].seen_at is not None:
            add(age, max(0.0, (self.now - receivers[0].seen_at).total_seconds()))
        return (total, pending, dead, age)


@dataclass(frozen=True, eq=False, slots=True)
class ProgramCollector(Collector):
    """The programs that run anywhere, as `/readyz` knows them."""

    hot: HotStore
    now: datetime

    def collect(self) -> Iterable[Metric]:
        late = PROGRAM_LATE.family()
        heard = self.hot.execute("HGETALL", KEY)
        for name, overdue_s in overdue_in(heard, now_s=self.now.timestamp()).items():
            add(late, max(0.0, overdue_s), name)
        return [late]
