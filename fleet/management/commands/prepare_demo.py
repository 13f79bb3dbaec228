"""prepare_demo: make the demo fleet with a day of history, once, and hand its plans over."""

import os
import signal
import time
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from threading import Thread

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connections, transaction

from fleet.costs.spending import update_spending
from fleet.models import Run
from fleet.ops.child_process import signal_on_parent_exit
from fleet.runs.similar_runs import update_due_comparisons
from fleet.simulation import demo_history
from fleet.simulation.demo import create_fleet, ensure_preflight, ensure_probe, ensure_trials
from fleet.simulation.demo_history import announce_past, brew_deploys, compile_past, live_through
from fleet.simulation.runs import publish_plans
from fleet.trials.services import update_due_figures
from telemetry.store.hot import open_store

PARENT_CHECK_S = 1.0


class Command(BaseCommand):
    """Make the demo fleet, or wake the one that is there."""

    help = "Make the demo fleet with its history, once; then hand its plans to the workers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take how many hours of history to make."""
        parser.add_argument("--hours", type=float, default=24.0, help="history to make (24)")

    def handle(self, *, hours: float, **options: object) -> None:
        """Create missing parts of the demo, and publish every plan."""
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        now = datetime.now(UTC).replace(microsecond=0)
        if not Run.objects.simulated().exists():
            # All or nothing: who is stopped in between leaves no fleet without faults.
            with transaction.atomic():
                create_fleet(now=now, longest=timedelta(hours=hours))
                demo_history.brew_past(now=now)
                brew_deploys(now=now)
                announce_past(now=now)
                ensure_probe(now=now)
        # A run without clocks has no past yet, or only part of one: dying here begins it anew.
        unlived = Run.objects.simulated().filter(clock={}).order_by("-n_nodes")
        self._live_through(list(unlived.values_list("name", flat=True)), now=now)
        ensure_trials(now=now)
        ensure_preflight()
        update_due_figures(hot, now=datetime.now(UTC))
        update_spending(hot, now=datetime.now(UTC))
        update_due_comparisons(hot, now=datetime.now(UTC), batch_size=20)
        demo_history.extend(hot, now=now)
        demo_history.welcome(hot, now=now)
        publish_plans(hot, now=datetime.now(UTC))

    def _live_through(self, names: list[str], *, now: datetime) -> None:
        """Play the pasts side by side, a process for each core."""
        connections.close_all()
        pool = ProcessPoolExecutor(
            os.cpu_count(),
            mp_context=get_context("fork"),
            initializer=end_with,
            initargs=(os.getpid(),),
        )
        with pool:
            for line in pool.map(partial(past_of, now=now), names):
                self.stdout.write(line)


def end_with(parent: int) -> None:
    """End this process of the pool when the command ends, however that ends, and at Ctrl-C.

    A pool's processes wait for work for ever if the command is killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal_on_parent_exit(parent, signal.SIGKILL)
    Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """End this process soon after the command, where the kernel cannot do it."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def past_of(name: str, *, now: datetime) -> str:
    """Play one run's past, and say how it went."""
    began = time.monotonic()
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    run = Run.objects.prefetch_related("nodes").get(name=name)
    run.alerts.all().delete()
    faults = list(run.injected_faults.select_related("node", "run"))
    run.compiles.all().delete()
    live_through(hot, run, faults, now=now)
    compile_past(hot, run, faults, now=now)
    lasted_s = time.monotonic() - began
    return f"{name}: {run.last_step:,} steps, {run.alerts.count()} alerts in {lasted_s:.1f} s"
