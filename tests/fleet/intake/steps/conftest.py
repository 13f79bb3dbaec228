"""What the tests of step reports share: an intake, and a way to deliver lines to it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fleet.intake.steps.deliveries import Intake, Outcome
from fleet.intake.steps.following import follow_reported
from telemetry.store.hot import HotStore

Deliver = Callable[..., Outcome]
Follow = Callable[[float], None]


@pytest.fixture
def deliver(db: None, hot: HotStore) -> Deliver:
    """Give a function that delivers lines at a moment."""
    intake = Intake(time.monotonic)

    def send(*lines: bytes, at_s: float, sent_s: float | None = None) -> Outcome:
        return intake.deliver(hot, lines, arrived_s=at_s, sent_s=sent_s)

    return send


@pytest.fixture
def follow(db: None, hot: HotStore) -> Follow:
    """Give a function that follows the runs, as a worker does each second."""
    return lambda at_s: follow_reported(hot, now=datetime.fromtimestamp(at_s, UTC))
