"""The step histogram on a real Prometheus: quantiles are right, counters never fall."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fleet.metrics.collectors import DURATIONS
from fleet.models import Run
from fleet.runs.step_durations import EDGES_S, LATE_S, update_step_durations
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from tests.fleet.prometheus_server import Prometheus, eventually, prometheus
from tests.fleet.scraping import bearer
from tests.helpers import just_now, steps

NAME = DURATIONS.name
DOCUMENT = Path(__file__).parents[3] / "docs/metrics.md"


def made(n_steps: int, *, first: int, start_s: float) -> StepBatch:
    """Return steps of about half a second, of which one in twenty takes three times as long."""
    rng = np.random.default_rng(first)
    lasting = 0.5 * (1 + 0.02 * rng.standard_normal(n_steps))
    lasting[::20] *= 3
    batch = steps(n_steps=n_steps, first=first)
    batch.phases["compute_s"][:] = lasting[:, None]
    ended_at_s = start_s + np.cumsum(lasting)
    return StepBatch(batch.run, batch.workers, batch.step, ended_at_s, batch.phases, batch.tokens)


@pytest.fixture
def scraping(address: str, tmp_path: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes the runs."""
    secret = bearer()["Authorization"].removeprefix("Bearer ")
    job = {
        "job_name": "all",
        "authorization": {"credentials": secret},
        "params": {"nodes": ["0"]},
        "static_configs": [{"targets": [address.removeprefix("http://")]}],
    }
    with prometheus(tmp_path, [job]) as running:
        yield running


@pytest.mark.prometheus
def test_quantiles_are_those_of_the_steps_and_no_counter_falls(
    hot: HotStore, run: Run, scraping: Prometheus
) -> None:
    start_s = int(time.time()) - 600
    first = made(400, first=1, start_s=start_s)
    second = made(400, first=401, start_s=float(first.ended_at_s[-1]))
    hot.append_steps(first)
    durable.write_steps(first)
    settled_s = float(first.ended_at_s[-1]) + LATE_S + 1
    update_step_durations(hot, now=datetime.fromtimestamp(settled_s, UTC))
    counted = f"{NAME}_count == 400"
    assert eventually(lambda: scraping.values(counted))

    # Redis is lost, and comes back empty; the run goes on.
    hot.execute("FLUSHDB")
    hot.append_steps(second)
    update_step_durations(hot, now=just_now())

    assert eventually(lambda: scraping.values(f"{NAME}_count == 800"))
    assert scraping.values(f"sum(resets({NAME}_bucket[5m])) + sum(resets({NAME}_sum[5m]))") == {
        (): 0.0
    }
    step_s = np.concatenate([first.step_s, second.step_s])
    for q in (0.5, 0.9, 0.99):
        (reported,) = scraping.values(f"histogram_quantile({q}, {NAME}_bucket)").values()
        # Within the bucket that the quantile lies in.
        assert reported == pytest.approx(np.quantile(step_s, q), rel=0.25)
    assert scraping.values(f"{NAME}_sum") == {(): pytest.approx(step_s.sum(), rel=1e-3)}
    assert len(scraping.ask(f"{NAME}_bucket")) == len(EDGES_S) + 1


def test_it_is_documented() -> None:
    assert f"\n## {NAME}\n" in DOCUMENT.read_text()
