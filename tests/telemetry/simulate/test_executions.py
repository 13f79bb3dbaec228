"""Signals of compute while all cores look busy: power, FLOPs, execution latency."""

import msgspec
import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.simulate.hardware import CLOCKED_POWER, COMPUTING_POWER, WAITING_POWER
from telemetry.simulate.inputs import FULL
from telemetry.simulate.plan import Benign, Fault
from telemetry.simulate.script import script_of
from telemetry.simulate.shard import play, start_clock
from tests.telemetry.simulate.played import EPOCH, VISION, plan_of

P50 = "execution_latency_p50_s"
BUSY = msgspec.structs.replace(FULL, busy_while_waiting=True)
SLOW = Fault(kind="throttle", node="vit-01", device=2, start_s=60, duration_s=600, magnitude=1.5)


def played(*faults: Fault, busy: bool = True) -> dict[str, FloatArray]:
    inputs = BUSY if busy else msgspec.structs.replace(FULL, busy_while_waiting=False)
    plan = msgspec.structs.replace(plan_of(VISION, faults=faults), inputs=inputs)
    span = play(plan, plan.shards[0], start_clock(plan), EPOCH + 300).span
    return {name: values[100:] for name, values in span.values.items()}


def test_a_core_that_waits_is_busy_unless_the_scenario_states_otherwise() -> None:
    waiting = played(SLOW)["core_utilization_ratio"].mean(axis=0)
    idle = played(SLOW, busy=False)["core_utilization_ratio"].mean(axis=0)
    [others], [slow] = np.split(idle[1].reshape(16, 4).mean(axis=1)[[0, 2]], 2)

    assert np.ptp(waiting) < 0.05
    assert slow / others == pytest.approx(1.5, rel=0.05)


def test_a_worker_without_input_is_idle_while_the_others_wait_inside_their_graphs() -> None:
    stall = Fault(kind="input_stall", node="vit-01", start_s=60, duration_s=600, magnitude=1)
    busy = played(stall)["core_utilization_ratio"].mean(axis=(0, 2))

    assert busy[1] < busy[[0, 2, 3]].min() - 0.3


def test_a_slow_device_draws_more_than_the_others_of_its_node_which_wait_for_it() -> None:
    power = played(SLOW)["device_power_ratio"].mean(axis=0)[1]
    healthy = played()["device_power_ratio"].mean(axis=0)[1]
    others = np.delete(power / healthy, 2).mean()

    assert power[2] / healthy[2] > others * 1.04
    assert (COMPUTING_POWER - WAITING_POWER) > (COMPUTING_POWER - CLOCKED_POWER)


def test_flops_fall_for_all_alike_and_add_up_to_those_of_the_steps() -> None:
    slow, healthy = played(SLOW)["core_flops_per_s"], played()["core_flops_per_s"]
    plan = script_of(plan_of(VISION)).step_plan

    ratios = slow.mean(axis=(0, 2)) / healthy.mean(axis=(0, 2))
    assert np.ptp(ratios) < 0.02
    assert ratios.max() < 0.85
    per_s = healthy.sum(axis=(1, 2)).mean()
    assert per_s == pytest.approx(plan.executed_flops / plan.step_s, rel=0.03)


def test_micro_batches_of_a_slow_node_take_longer_than_those_of_the_others() -> None:
    values = played(SLOW)
    median = np.nanmean(values["execution_latency_p50_s"][..., 0], axis=0)
    longest = np.nanmean(values["execution_latency_p100_s"][..., 0], axis=0)

    assert script_of(plan_of(VISION)).step_plan.layout.micro_batches > 1
    assert median[1] / np.delete(median, 1).mean() == pytest.approx(1.5, rel=0.03)
    assert longest[1] == pytest.approx(median[1], rel=0.05)
    assert (np.delete(longest, 1) > 1.05 * np.delete(median, 1)).all()


def test_what_the_live_fleet_does_not_store_is_not_played() -> None:
    plan = plan_of(VISION)
    span = play(plan, plan.shards[0], start_clock(plan), EPOCH + 10).span

    assert not {"device_power_ratio", "core_flops_per_s"} & span.values.keys()


def test_a_larger_batch_is_more_executions_of_the_same_length() -> None:
    larger = Benign(kind="batch_change", run="vit", start_s=60, duration_s=600, magnitude=2.0)
    usual, more = (
        np.nanmedian(play(plan, plan.shards[0], start_clock(plan), EPOCH + 300).span.values[P50])
        for benign in ((), (larger,))
        for plan in [msgspec.structs.replace(plan_of(VISION, benign=benign), inputs=BUSY)]
    )

    assert more == pytest.approx(usual, rel=0.05)
