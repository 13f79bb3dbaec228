"""What Celery workers do for the fleet: watch, keep runs up to date, hand over plans."""

import time
from datetime import UTC, datetime

import msgspec
from celery import shared_task
from django.conf import settings

from fleet import watching, weather
from fleet.lives import follow_runs
from fleet.plans import publish_plans
from telemetry.store.hot import open_store


@shared_task(ignore_result=True, expires=5)
def watch_fleet() -> None:
    """Judge the newest ticks, then tell the pages that there is something to show."""
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    now = datetime.now(UTC)
    follow_runs(hot, now=now)
    watching.watch(hot, now=now)
    hot.publish_tick(int(now.timestamp()))
