"""Fixtures of step report tests: an intake, and a way to deliver lines."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fleet.ingest.phases import update_reported_runs
from fleet.ingest.steps import StepIngest, StepIngestResult
from telemetry.store.hot import HotStore

Deliver = Callable[..., StepIngestResult]
Follow = Callable[[float], None]


@pytest.fixture
def deliver(db: None, hot: HotStore) -> Deliver:
    """Give a function that delivers lines at a moment."""
    intake = StepIngest(time.monotonic)

    def send(*lines: bytes, at_s: float, sent_s: float | None = None) -> StepIngestResult:
        return intake.deliver(hot, lines, arrived_s=at_s, sent_s=sent_s)

    return send


@pytest.fixture
def follow(db: None, hot: HotStore) -> Follow:
    """Give a function that follows the runs, as a worker does each second."""
    return lambda at_s: update_reported_runs(hot, now=datetime.fromtimestamp(at_s, UTC))
