"""Fixtures of step report tests: an intake, and a way to deliver lines."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.ingest.steps import StepIngest, StepIngestResult, update_reported_runs
from telemetry.store.hot import HotStore
from tests.fleet.ingest.import_command import BROKEN, A, Write, dated
from tests.telemetry.ingest.logs.log_lines import call, done, hit, neuronx

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


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: str, name: str = "train.log") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


@pytest.fixture
def file(write: Write) -> Path:
    """A log of four ranks that compiles, trains ten steps, and breaks a device."""
    lines = [call(A, pid=1), done(A, seconds=60, pid=1), hit(A, seconds=61, pid=2)]
    lines += [
        f"[rank{rank}]: {now} {neuronx(step, step_s=10.0, loss=8.0 - step / 10)}"
        for step in range(1, 11)
        for rank in range(4)
        for now in [dated(100 + 10 * step)]
    ]
    return write(*lines, "saving", f"{dated(150)} {BROKEN}", "step 11 step_time")
