"""`manage.py prepare_demo`: create the demo fleet with its history, and publish its plans."""

import os
import signal
import time
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from threading import Thread

from django.core.management.base import BaseCommand
from django.db import connections, transaction

from fleet.costs.spending import update_spending
from fleet.formatting import counted
from fleet.models import InjectedFault, Run
from fleet.ops.child_process import signal_on_parent_exit
from fleet.runs.similar_runs import update_due_comparisons
from fleet.simulation import demo_history
from fleet.simulation.demo import create_fleet, ensure_preflight, ensure_probe, ensure_trials
from fleet.simulation.demo_history import (
    announce_past,
    create_past_deploys,
    fill_recent,
    go_live,
    simulate_past,
)
from fleet.simulation.runs import publish_plans
from fleet.trials.services import update_due_figures
from telemetry.store.hot import hot_store

PARENT_CHECK_S = 1.0
# The past gives way to everything that is live.
NICE = 10


class Command(BaseCommand):
    help = "Create the demo fleet with its history, if missing; then publish its plans."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--hours", type=float, default=24.0, help="hours of history (24)")

    def handle(self, *, hours: float, **options: object) -> None:
        """Start the fleet now, then simulate its past behind it."""
        hot = hot_store()
        now = datetime.now(UTC).replace(microsecond=0)
        if not Run.objects.simulated().exists():
            # All or nothing: an interrupted command must not leave a fleet without faults.
            with transaction.atomic():
                runs = create_fleet(now=now, longest=timedelta(hours=hours))
                demo_history.create_past_faults(now=now)
                create_past_deploys(now=now)
                announce_past(now=now)
                for run in runs:
                    go_live(hot, run, faults_of(run), now=now)
        # Before the past is complete: a page must not say that there are none.
        ensure_trials(now=now)
        publish_plans(hot, now=now)
        self.stdout.write(f"{Run.objects.active().simulated().count()} simulated runs are live.")
        if Run.objects.without_past().exists():
            # The live fleet comes first.
            os.nice(NICE)
            self._simulate_past()
        ensure_probe(now=now)
        ensure_preflight()
        update_due_figures(hot, now=datetime.now(UTC))
        update_spending(hot, now=datetime.now(UTC))
        update_due_comparisons(hot, now=datetime.now(UTC), batch_size=20)
        now = datetime.now(UTC)
        demo_history.extend(hot, now=now)
        demo_history.start_first_fault(hot, now=now)
        publish_plans(hot, now=now)

    def _simulate_past(self) -> None:
        """Simulate the past of all runs, one process per core: the recent minutes first."""
        names = list(
            Run.objects.without_past().order_by("-n_nodes").values_list("name", flat=True)
        )
        connections.close_all()
        pool = ProcessPoolExecutor(
            os.cpu_count(),
            mp_context=get_context("fork"),
            initializer=end_with,
            initargs=(os.getpid(),),
        )
        with pool:
            list(pool.map(fill_recent_of, names))
            for line in pool.map(simulate_past_of, names):
                self.stdout.write(line)


def faults_of(run: Run) -> list[InjectedFault]:
    return list(run.injected_faults.select_related("node", "run"))


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


def fill_recent_of(name: str) -> None:
    run = Run.objects.get(name=name)
    fill_recent(hot_store(), run, faults_of(run))


def simulate_past_of(name: str) -> str:
    began = time.monotonic()
    run = Run.objects.prefetch_related("nodes").get(name=name)
    n_alerts = simulate_past(hot_store(), run, faults_of(run))
    lasted_s = time.monotonic() - began
    did = f"{counted(run.last_step, 'step')}, {counted(n_alerts, 'alert')}"
    return f"{name}: {did} in {lasted_s:.1f} s"
