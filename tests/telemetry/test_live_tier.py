"""A live run at an input tier: what its agents store, and when."""

import msgspec
import numpy as np
import pytest

from telemetry.simulate.inputs import TIERS
from telemetry.simulate.observation import next_report, reported_live
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore
from telemetry.tasks import observe

EPOCH = 1_800_000_000
RUN = RunSpec(
    name="hooked",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=2,
    tp=8,
    seq_len=4096,
    global_batch=32,
    compile_s=0,
)


def plan_at(tier: str) -> Plan:
    return Plan(run=RUN, seed=1, epoch_s=EPOCH, inputs=TIERS[tier])


def test_a_shard_is_stored_when_a_report_is_over(hot: HotStore) -> None:
    plan = plan_at("agent_hooks")
    clock = play(plan, "hooked/0", start_clock(plan), EPOCH + 100).clock
    seconds = range(EPOCH + 101, EPOCH + 121)
    ends = [now for now in seconds if next_report(plan.inputs, 0, now - 1) == now]

    assert np.diff(ends).tolist() == [5, 5, 5]
    assert observe(hot, plan, ["hooked/0"], clock, ends[0] - 1) is None
    found = observe(hot, plan, ["hooked/0"], clock, ends[1] + 2)
    assert found is not None
    played, [blocks] = found
    assert played.clock.tick == ends[1]
    assert [block.tick for block in blocks][-5:] == list(range(ends[1] - 4, ends[1] + 1))
    last = [block.values["vcpu_usage_ratio"].tolist() for block in blocks[-5:]]
    assert all(value == last[0] for value in last)


def test_a_probe_is_repeated_from_the_last_report() -> None:
    plan = plan_at("agent_hooks")
    clock = play(plan, "hooked/0", start_clock(plan), EPOCH + 100).clock
    span = play(plan, "hooked/0", clock, EPOCH + 105).span
    before = np.full((2, 8), 16e-6)

    seen = reported_live(plan.inputs, span, 0, {"efa_latency_s": before})

    assert (EPOCH + 101) % 60 < (EPOCH + 105) % 60
    np.testing.assert_allclose(seen.values["efa_latency_s"], np.broadcast_to(before, (5, 2, 8)))
    assert "hbm_bandwidth_bytes_per_s" not in seen.values


def test_without_an_agent_only_steps_are_stored(hot: HotStore) -> None:
    plan = plan_at("hooks_only")
    found = observe(hot, plan, ["hooked/0"], start_clock(plan), EPOCH + 90)

    assert found is not None
    assert found[1] == [()]
    assert len(found[0].steps)
    assert np.isnan(found[0].steps.phases["wait_s"]).all()


@pytest.mark.parametrize("tier", ["", "agent_hooks"])
def test_a_run_keeps_its_tier(tier: str) -> None:
    spec = msgspec.structs.replace(RUN, tier=tier)

    assert RunSpec(**msgspec.to_builtins(spec)).tier == tier
