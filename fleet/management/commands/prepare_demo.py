"""prepare_demo: make the demo fleet with a day of history, once, and hand its plans over."""

import time
from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core.management.base import BaseCommand

from fleet.demo import weather
from fleet.demo.past import live_through
from fleet.demo.runs import create_fleet
from fleet.models import Run
from fleet.plans import publish_plans
from telemetry.store.hot import HotStore, open_store


class Command(BaseCommand):
    """Make the demo fleet, or wake the one that is there."""

    help = "Make the demo fleet with its history, once; then hand its plans to the workers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take how many hours of history to make."""
        parser.add_argument("--hours", type=float, default=24.0, help="history to make (24)")

    def handle(self, *, hours: float, **options: object) -> None:
        """Create what is missing and publish every plan."""
        hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
        now = datetime.now(UTC).replace(microsecond=0)
        if not Run.objects.simulated().exists():
            create_fleet(now=now, longest=timedelta(hours=hours))
            weather.brew_past(now=now)
        # A run without clocks has no past yet, or only part of one: dying here begins it anew.
        for run in Run.objects.simulated().filter(clock={}).prefetch_related("nodes"):
            self._live_through(hot, run, now=now)
        weather.extend(hot, now=now)
        weather.welcome(hot, now=now)
        publish_plans(hot, now=datetime.now(UTC))

    def _live_through(self, hot: HotStore, run: Run, *, now: datetime) -> None:
        began = time.monotonic()
        run.alerts.all().delete()
        faults = list(run.injected_faults.select_related("node", "run"))
        live_through(hot, run, faults, now=now)
        self.stdout.write(
            f"{run.name}: {run.last_step:,} steps, {run.alerts.count()} alerts "
            f"in {time.monotonic() - began:.1f} s"
        )
