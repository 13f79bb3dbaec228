"""`manage.py prepare_demo`: create the demo fleet with its history, and publish its plans."""

import os
import signal
import time
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from threading import Thread

from django.core.management.base import BaseCommand
from django.db import connections, transaction

from fleet.costs.spending import update_spending
from fleet.models import Run
from fleet.ops.child_process import signal_on_parent_exit
from fleet.runs.similar_runs import update_due_comparisons
from fleet.simulation import demo_history
from fleet.simulation.demo import create_fleet, ensure_preflight, ensure_probe, ensure_trials
from fleet.simulation.demo_history import (
    announce_past,
    compile_past,
    create_past_deploys,
    simulate_history,
)
from fleet.simulation.runs import publish_plans
from fleet.trials.services import update_due_figures
from telemetry.store.hot import hot_store

PARENT_CHECK_S = 1.0


class Command(BaseCommand):
    help = "Create the demo fleet with its history, if missing; then publish its plans."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--hours", type=float, default=24.0, help="hours of history (24)")

    def handle(self, *, hours: float, **options: object) -> None:
        hot = hot_store()
        now = datetime.now(UTC).replace(microsecond=0)
        if not Run.objects.simulated().exists():
            # All or nothing: an interrupted command must not leave a fleet without faults.
            with transaction.atomic():
                create_fleet(now=now, longest=timedelta(hours=hours))
                demo_history.create_past_faults(now=now)
                create_past_deploys(now=now)
                announce_past(now=now)
                ensure_probe(now=now)
        # A run without a clock has no complete history yet; it is simulated from its start.
        unlived = Run.objects.simulated().filter(clock={}).order_by("-n_nodes")
        # One process per core.
        names = list(unlived.values_list("name", flat=True))
        connections.close_all()
        pool = ProcessPoolExecutor(
            os.cpu_count(),
            mp_context=get_context("fork"),
            initializer=end_with,
            initargs=(os.getpid(),),
        )
        with pool:
            for line in pool.map(partial(simulate_past, now=now), names):
                self.stdout.write(line)
        ensure_trials(now=now)
        ensure_preflight()
        update_due_figures(hot, now=datetime.now(UTC))
        update_spending(hot, now=datetime.now(UTC))
        update_due_comparisons(hot, now=datetime.now(UTC), batch_size=20)
        demo_history.extend(hot, now=now)
        demo_history.start_first_fault(hot, now=now)
        publish_plans(hot, now=datetime.now(UTC))


def end_with(parent: int) -> None:
    """End this process when the command ends, even if it is killed, and at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal_on_parent_exit(parent, signal.SIGKILL)
    Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Poll for the end of the parent process, where the kernel cannot signal it."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def simulate_past(name: str, *, now: datetime) -> str:
    """Simulate the history of one run, and return a summary."""
    began = time.monotonic()
    hot = hot_store()
    run = Run.objects.prefetch_related("nodes").get(name=name)
    run.alerts.all().delete()
    faults = list(run.injected_faults.select_related("node", "run"))
    run.compiles.all().delete()
    simulate_history(hot, run, faults, now=now)
    compile_past(hot, run, faults, now=now)
    lasted_s = time.monotonic() - began
    return f"{name}: {run.last_step:,} steps, {run.alerts.count()} alerts in {lasted_s:.1f} s"
