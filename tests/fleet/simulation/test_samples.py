"""A simulated node answers the request of a sample as the agent of a real one does."""

from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest

from fleet.ingest.samples import load_sample, request_sample
from fleet.models import Node, Run, SampleRequest
from fleet.simulation.runs import create_run, publish_plan
from fleet.simulation.samples import BEGAN, answer_samples
from telemetry import tasks
from telemetry.errors import FieldError
from telemetry.ingest.samples import sample_tables
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import play, play_finely, start_clock
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def played(db: None, hot: HotStore, now: datetime) -> Run:
    """Simulate a run that has trained for some minutes."""
    run = create_run(LLAMA, started_at=now - timedelta(seconds=100))
    publish_plan(hot, run, now=now)
    tasks.simulate_shards([("llama", ["llama/0"])], int(now.timestamp()))
    return run


def ask(hot: HotStore, *, now: datetime) -> SampleRequest:
    node = Node.objects.get(name="llama-01")
    return request_sample(hot, node, by="olga", is_up=True, now=now)


def test_it_answers_when_its_seconds_are_over(hot: HotStore, played: Run, now: datetime) -> None:
    row = ask(hot, now=now)
    answer_samples(hot, now=now)
    row.refresh_from_db()
    assert row.state(now) == SampleRequest.State.SAMPLING

    later = now + timedelta(seconds=29)
    tasks.simulate_shards([("llama", ["llama/0"])], int(later.timestamp()))
    answer_samples(hot, now=later)
    row.refresh_from_db()
    assert row.answered_at is None

    later = now + timedelta(seconds=31)
    tasks.simulate_shards([("llama", ["llama/0"])], int(later.timestamp()))
    answer_samples(hot, now=later)
    row.refresh_from_db()
    stored = load_sample(row)
    assert stored is not None
    cores, sent, received = sample_tables(stored)
    assert cores.values.shape[1] == 32
    assert "assumes that neuron-monitor accepts" in cores.note
    # It reports what its charts show by the second.
    span = hot.window(
        "llama/0",
        ["core_utilization_ratio", "efa_tx_bytes_per_s"],
        start=int(now.timestamp()) + 1,
        end=int(now.timestamp()) + 30,
    ).of(("llama-01",))
    by_second = span.values["core_utilization_ratio"][:, 0].mean()
    assert np.nanmean(cores.values) == pytest.approx(by_second, rel=0.02)
    bytes_sent = span.values["efa_tx_bytes_per_s"][:, 0].sum()
    assert sent.values.sum() == pytest.approx(bytes_sent, rel=0.02)
    # Within a step the EFA devices are busy and idle, which a mean over a second hides.
    rate = received.values[:, 0] / np.diff(received.t_s, prepend=received.start_s)
    assert rate.max() > 1.2 * span.values["efa_tx_bytes_per_s"][:, 0].max()
    assert 280 < len(cores.t_s) <= 300


def test_a_simulation_that_was_restarted_says_so(
    hot: HotStore, played: Run, now: datetime
) -> None:
    row = ask(hot, now=now)
    answer_samples(hot, now=now)
    hot.execute("DEL", BEGAN.format(number=row.pk))
    answer_samples(hot, now=now)
    row.refresh_from_db()

    assert row.reason == "the simulation was restarted while it sampled"


def test_a_silent_node_does_not_answer(hot: HotStore, played: Run, now: datetime) -> None:
    start_s = now.timestamp() + 1
    played.injected_faults.create(
        node=Node.objects.get(name="llama-01"),
        kind="node_silent",
        magnitude=1,
        starts_at=datetime.fromtimestamp(start_s, UTC),
        ends_at=now + timedelta(minutes=5),
    )
    publish_plan(hot, played, now=now)
    tasks.simulate_shards([("llama", ["llama/0"])], int(start_s) + 5)
    row = ask(hot, now=now)
    answer_samples(hot, now=now)
    row.refresh_from_db()

    assert row.started_at is None


def test_only_a_tier_with_an_agent_has_samples(hot: HotStore, played: Run, now: datetime) -> None:
    for tier in ("hooks_only", "prometheus_15s"):
        Run.objects.update(plan={**played.plan, "tier": tier})
        with pytest.raises(FieldError, match="has no agent"):
            ask(hot, now=now)
    Run.objects.update(plan={**played.plan, "tier": "agent_only"})

    assert ask(hot, now=now).state(now) == "waiting"


def test_short_ticks_add_up_to_the_seconds_of_the_run() -> None:
    plan = Plan(run=msgspec.structs.replace(LLAMA, nodes=2), seed=3, epoch_s=1_700_000_000)
    clock = play(plan, "llama/0", start_clock(plan), plan.epoch_s + 120).clock
    seconds = play(plan, "llama/0", clock, clock.tick + 20).span.values
    finely = play_finely(plan, 1, clock, n_ticks=200, tick_s=0.1)

    for name, rel in (("core_utilization_ratio", 0.03), ("efa_tx_bytes_per_s", 0.02)):
        by_second = seconds[name][:, 1].mean(axis=1)
        again = finely[name].reshape(20, 10, -1).mean(axis=(1, 2))
        assert again == pytest.approx(by_second, rel=rel, abs=1e-3 * by_second.max())
