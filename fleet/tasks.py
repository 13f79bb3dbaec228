"""The fleet's Celery tasks: thin wrappers that open the store and call one feature each."""

from datetime import UTC, datetime, timedelta

from celery import Task, shared_task
from celery.utils.nodenames import worker_direct
from django.conf import settings

from fleet.alerts.evaluate import forget_idle
from fleet.alerts.probe_requests import update_probe_requests
from fleet.alerts.trace_requests import update_trace_requests
from fleet.alerts.watchers import NODES_PER_S, WATCHES_S, watch_runs, worker_of
from fleet.celery import beat
from fleet.charts.frozen import freeze_due
from fleet.checks.preflights import advance_all, update_preflight_alerts
from fleet.costs.drift import update_cost_alerts
from fleet.costs.losses import update_alert_costs
from fleet.costs.spending import update_spending
from fleet.ingest import prometheus
from fleet.ingest.phases import update_reported_runs
from fleet.ingest.samples import forget_samples
from fleet.models import Run
from fleet.ops.liveness import TABLE
from fleet.runs.retirement import retire_quiet
from fleet.runs.similar_runs import update_due_comparisons
from fleet.runs.state import watching
from fleet.runs.step_durations import update_step_durations
from fleet.simulation import demo_history
from fleet.simulation.compiles import store_simulated
from fleet.simulation.demo_history import announce_next
from fleet.simulation.runs import follow_runs, publish_plans, store_clocks
from fleet.simulation.samples import answer_samples
from fleet.trials.schedule import update_observed_runs
from fleet.trials.services import update_due_figures
from telemetry.store.hot import hot_store


def has_past() -> bool:
    """Whether the past of the demo's runs is complete: sums and comparisons wait for it."""
    return not (settings.DEMO and Run.objects.without_past().exists())


@shared_task(bind=True, ignore_result=True, expires=WATCHES_S)
def watch_fleet(self: Task[[int], None], watcher: int = 0) -> None:
    """Update runs, run detection and alerts, then announce the tick to the pages.

    A worker that takes the turn of a watcher that another worker is hands it over.
    """
    hot, of = hot_store(), settings.WATCHERS
    name = str(self.request.hostname)
    has_other_tasks = not {"ticks", "celery"}.isdisjoint(self.app.amqp.queues.consume_from)
    sizes = Run.objects.active().values_list("pk", "n_nodes")
    n_nodes = sum(n_nodes for key, n_nodes in sizes if key % of == watcher)
    worker = worker_of(
        hot, name, watcher=watcher, of=of, stands_in=has_other_tasks, n_nodes=n_nodes
    )
    forget_idle(now_s=hot.now())
    if worker != name:
        if worker:
            queue = worker_direct(worker)
            self.apply_async((watcher,), queue=queue, expires=WATCHES_S)
        return
    # The first look at many nodes reads their last minutes.
    beat(TABLE["worker"].silent_s + n_nodes / NODES_PER_S)
    now = datetime.now(UTC)
    follow_runs(hot, now=now, watcher=watcher, of=of)
    update_reported_runs(hot, now=now, watcher=watcher, of=of)
    if not watch_runs(hot, now=now, watcher=watcher, of=of):
        return
    update_probe_requests(hot, now=now)
    update_trace_requests(hot, now=now)
    answer_samples(hot, now=now)
    watch = watching(hot, now_s=now.timestamp())
    back_at = now - timedelta(seconds=watch.watched_s or 0.0) if watch.is_new else None
    update_alert_costs(hot, now=now, back_at=back_at)
    hot.publish_tick(int(now.timestamp()))


# Compiles take minutes, so a few seconds of delay do not matter.
@shared_task(ignore_result=True, expires=10)
def store_compiles() -> None:
    """Store what the simulated runs have compiled by now."""
    if has_past():
        store_simulated(hot_store(), now=datetime.now(UTC))


# On an overloaded machine messages may wait for seconds: this one must not expire each time before
# its turn, or nodes seem silent while their samples queue.
@shared_task(ignore_result=True, expires=30)
def assemble_scrapes() -> None:
    """Store what Prometheus wrote, once a scrape is complete."""
    hot = hot_store()
    prometheus.assemble(hot, now_s=datetime.now(UTC).timestamp())


@shared_task(ignore_result=True, expires=30)
def hand_over_plans() -> None:
    """Publish the simulation plans again, because Redis may have lost them."""
    hot = hot_store()
    now = datetime.now(UTC)
    if settings.DEMO and has_past():
        demo_history.extend(hot, now=now)
        announce_next(hot, now=now)
    publish_plans(hot, now=now)


@shared_task(ignore_result=True, expires=60)
def copy_clocks() -> None:
    """Copy the simulated runs' clocks into the database."""
    store_clocks(hot_store())


@shared_task(ignore_result=True, expires=60)
def freeze_evidence() -> None:
    """Save the evidence of resolved alerts while the hot tier still has it."""
    hot = hot_store()
    freeze_due(hot, now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=30)
def compare_similar_runs() -> None:
    if has_past():
        update_due_comparisons(hot_store(), now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=30)
def update_trials() -> None:
    """Compute due trial comparisons in advance, for their pages."""
    if has_past():
        update_due_figures(hot_store(), now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=10)
def advance_preflights() -> None:
    advance_all(now=datetime.now(UTC))


# The names in messages stay, so that hosts may be upgraded one by one.
@shared_task(name="fleet.tasks.look_at_preflights", ignore_result=True, expires=15)
def check_preflights() -> None:
    """Check whether runs that require a preflight had one."""
    update_preflight_alerts(now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=30)
def observe_runs() -> None:
    """Record the progress of trial runs, for schedule projections."""
    if has_past():
        update_observed_runs(hot_store(), now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=60)
def count_durations() -> None:
    """Add the last minute's step durations to the histograms."""
    hot = hot_store()
    update_step_durations(hot, now=datetime.now(UTC))


@shared_task(ignore_result=True, expires=600)
def retire_quiet_rows() -> None:
    """Retire nodes and runs that have not reported for long; delete old samples of nodes."""
    hot, now = hot_store(), datetime.now(UTC)
    retire_quiet(hot, after=timedelta(days=settings.RETIRE_AFTER_DAYS), now=now)
    forget_samples(keep_days=settings.DURABLE_KEEP_DAYS, now=now)


@shared_task(name="fleet.tasks.keep_money", ignore_result=True, expires=60)
def update_costs() -> None:
    """Update the runs' spending and the cost alerts."""
    if not has_past():
        return
    hot = hot_store()
    now = datetime.now(UTC)
    update_spending(hot, now=now)
    update_cost_alerts(hot, now=now)
