"""Each fault has its own signature, at its location only."""

import msgspec
import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.simulate.plan import Benign, Fault
from telemetry.simulate.shard import PlayedShard
from telemetry.simulate.step_model import exposed_allreduce_s, step_plan
from tests.telemetry.simulate.played import (
    END_S,
    EPOCH,
    PIPELINED,
    START_S,
    VISION,
    phase,
    plan_of,
    played,
    steps,
    values,
    with_fault,
)

BEFORE = (40.0, START_S)
DEVICE = 5


def ratio(played: PlayedShard, metric: str) -> FloatArray:
    """Return a metric during the fault over before: (n_nodes, n_parts), medians over ticks."""
    during = np.median(values(played, metric), axis=0)
    return during / np.median(values(played, metric, *BEFORE), axis=0)


def longer(played: PlayedShard, name: str) -> FloatArray:
    """Return how many times longer each worker spent in a phase during the fault."""
    return phase(played, name) / phase(played, name, *BEFORE)


def others(array: FloatArray, node: int = 1) -> FloatArray:
    return np.delete(array, node, axis=0)


def outlier(array: FloatArray) -> tuple[int, int]:
    """Return the node and part that stand farthest from the median."""
    far = np.abs(array - np.median(array))
    node, part = np.unravel_index(int(far.argmax()), far.shape)
    return int(node), int(part)


def test_efa_latency_makes_all_transfer_longer_and_no_one_wait() -> None:
    result = with_fault("efa_latency", 20, device=DEVICE)
    healthy = step_plan(VISION)
    # A window-limited flow: twenty times the round trip, a twentieth of the throughput.
    slowed_s = exposed_allreduce_s(healthy, latency_factor=20, bandwidth_factor=20)

    expected = float(slowed_s) / healthy.exposed_allreduce_s
    np.testing.assert_allclose(longer(result, "transfer_s"), expected, rtol=0.05)
    np.testing.assert_allclose(longer(result, "compute_s"), 1, atol=0.02)
    assert steps(result).wait_ratio.mean() < 0.03
    assert steps(result).allreduce_share_ratio.mean() > 0.25


def test_efa_latency_shows_on_its_device_alone() -> None:
    slower = ratio(with_fault("efa_latency", 8, device=DEVICE), "efa_latency_s")

    assert outlier(slower) == (1, DEVICE)
    assert slower[1, DEVICE] == pytest.approx(8, rel=0.1)  # the link is busier, too
    assert np.sort(slower.ravel())[-2] < 1.1


def test_efa_latency_leaves_retransmits_as_they_were() -> None:
    result = with_fault("efa_latency", 8, device=DEVICE)

    assert values(result, "efa_retransmits_per_s").max() < 10


def test_efa_loss_sends_many_packets_twice_over_its_device() -> None:
    result = with_fault("efa_loss", 0.05, device=DEVICE)
    sent = values(result, "efa_tx_packets_per_s")
    again = values(result, "efa_retransmits_per_s")

    assert outlier(again.mean(axis=0)) == (1, DEVICE)
    assert again[:, 1, DEVICE].sum() / sent[:, 1, DEVICE].sum() == pytest.approx(0.05, rel=0.02)
    assert (longer(result, "transfer_s") > 5).all()
    assert 1.1 < ratio(result, "efa_latency_s")[1, DEVICE] < 2


def test_efa_down_silences_its_device_and_loads_its_neighbour() -> None:
    result = with_fault("efa_down", device=DEVICE)
    tx = values(result, "efa_tx_bytes_per_s").mean(axis=0)

    assert tx[1, DEVICE] == 0
    assert tx[1, DEVICE + 1] == pytest.approx(2 * np.median(tx), rel=0.1)
    assert np.isnan(values(result, "efa_latency_s")[:, 1, DEVICE]).all()
    assert values(result, "efa_impaired_per_s")[:, 1, DEVICE].min() > 0
    assert values(result, "efa_unresponsive_per_s").sum(axis=0).argmax() == 16 + DEVICE
    assert (longer(result, "transfer_s") > 1).all()


def test_slow_core_computes_longer_and_all_others_wait() -> None:
    result = with_fault("slow_core", 1.5, device=17)
    slower, batch = longer(result, "compute_s"), steps(result)

    assert slower[1] == pytest.approx(1.5, rel=0.02)
    np.testing.assert_allclose(others(slower), 1, atol=0.02)
    waits = phase(result, "wait_s")
    assert waits.argmin() == 1
    assert others(waits).min() > 100 * waits[1]
    assert batch.wait_ratio.mean() == pytest.approx(0.75 * (1 - 1 / 1.5), rel=0.1)


def test_slow_core_is_the_one_of_its_node_that_stays_busy() -> None:
    busy = values(with_fault("slow_core", 1.5, device=17), "core_utilization_ratio").mean(axis=0)

    assert busy[1].argmax() == 17
    assert busy[1, 17] > 0.9
    assert np.delete(busy[1], 17).max() < 0.75


def test_throttle_keeps_the_cores_of_its_device_busy() -> None:
    result = with_fault("throttle", 1.4, device=DEVICE)
    busy = values(result, "core_utilization_ratio").mean(axis=0)[1]

    assert set(np.argsort(busy)[-4:]) == {20, 21, 22, 23}
    assert longer(result, "compute_s")[1] == pytest.approx(1.4, rel=0.02)


def test_hbm_slow_moves_fewer_bytes_on_its_device_and_slows_its_node() -> None:
    result = with_fault("hbm_slow", 0.5, device=DEVICE)
    bandwidth = values(result, "hbm_bandwidth_bytes_per_s").mean(axis=0)

    assert bandwidth[1].argmin() == DEVICE
    assert bandwidth[1, DEVICE] == pytest.approx(0.5 * np.median(bandwidth[1]), rel=0.05)
    assert 1.3 < longer(result, "compute_s")[1] < 2
    assert phase(result, "wait_s").argmin() == 1


def test_hbm_slow_may_be_put_as_times_slower() -> None:
    left = with_fault("hbm_slow", 0.5, device=DEVICE)
    slower = with_fault("hbm_slow", 2, device=DEVICE)

    np.testing.assert_array_equal(left.steps.step_s, slower.steps.step_s)


def test_input_stall_keeps_its_node_from_computing() -> None:
    result = with_fault("input_stall", 0.3)
    input_s = phase(result, "input_s")

    assert input_s[1] == pytest.approx(0.3, rel=0.1)
    assert others(input_s).max() < 0.01
    assert phase(result, "wait_s").argmin() == 1


def test_input_stall_of_the_whole_run_makes_no_one_wait() -> None:
    result = with_fault("input_stall", 0.3, whole_run=True)

    assert (phase(result, "input_s") > 0.25).all()
    assert steps(result).step_s.mean() > 0.75


def test_checkpoint_slow_writes_one_that_takes_many_times_longer() -> None:
    every = msgspec.structs.replace(VISION, checkpoint_every_s=50)
    result = with_fault("checkpoint_slow", 6, whole_run=True, on=every)
    batch = result.steps
    rows = np.flatnonzero(batch.phases["checkpoint_s"][:, 0])
    began_s = batch.ended_at_s[rows] - batch.step_s[rows] - EPOCH
    lasts_s = batch.phases["checkpoint_s"][rows, 0]
    is_slow = (began_s >= START_S) & (began_s < END_S)

    assert lasts_s[is_slow].min() > 4 * lasts_s[~is_slow].max()


def test_recompile_pauses_the_run_while_hosts_are_busy_and_cores_idle() -> None:
    result = with_fault("recompile", 30, whole_run=True)
    longest = int(result.steps.step_s.argmax())

    assert result.steps.phases["other_s"][longest, 0] == pytest.approx(30)
    assert result.clock.phase == "training"
    during = START_S + 2, START_S + 29
    assert values(result, "core_utilization_ratio", *during).max() < 0.05
    assert values(result, "vcpu_usage_ratio", *during).min() > 0.4


def test_ecc_errors_count_up_stay_counted_and_fail_executions() -> None:
    result = with_fault("ecc_uncorrected", 30, device=DEVICE)
    counts = result.span.values["mem_ecc_uncorrected"][:, 1, DEVICE]

    assert values(result, "mem_ecc_uncorrected", *BEFORE).max() == 0
    assert (np.diff(counts[10:]) >= 0).all()
    assert counts[-1] == 31
    assert np.delete(values(result, "mem_ecc_uncorrected")[-1, 1], DEVICE).max() == 0
    assert values(result, "execution_errors_per_s")[:, 1].min() > 0
    assert others(values(result, "execution_errors_per_s")[-1]).max() == 0


def test_a_silent_node_reports_nothing_and_trains_on() -> None:
    result = with_fault("node_silent")
    silent = [np.isnan(values(result, name)[:, 1]).all() for name in result.span.values]

    assert all(silent)
    assert np.isfinite(values(result, "vcpu_usage_ratio")[:, [0, 2, 3]]).all()
    assert np.isfinite(values(result, "vcpu_usage_ratio", END_S, 240)).all()
    assert np.isfinite(steps(result).phases["compute_s"]).all()


def test_a_crashed_node_reports_nothing_and_no_step_ends() -> None:
    result = with_fault("node_crash")

    assert np.isnan(values(result, "core_utilization_ratio")[:, 1]).all()
    assert len(steps(result)) == 0
    assert others(values(result, "core_utilization_ratio", START_S + 3).mean(axis=0)).max() < 0.1


def test_a_hanging_worker_is_the_one_that_does_not_wait() -> None:
    result = with_fault("hang")
    longest = int(result.steps.step_s.argmax())
    waits = result.steps.phases["wait_s"][longest]

    assert len(steps(result)) == 0
    assert result.steps.ended_at_s[longest] == pytest.approx(EPOCH + END_S, abs=0.1)
    assert waits[1] == 0
    assert others(waits).min() > 55
    assert values(result, "core_utilization_ratio", START_S + 2).max() < 0.1
    assert np.isfinite(values(result, "core_utilization_ratio")).all()


def test_uneven_sequences_slow_every_worker_in_turn() -> None:
    batch = steps(with_fault("seq_imbalance", 1.0, whole_run=True))
    slowest = batch.phases["compute_s"].argmax(axis=1)

    assert np.bincount(slowest, minlength=4).min() > 0.1 * len(slowest)
    assert batch.wait_ratio.mean() > 0.15


def test_a_long_stage_slows_its_nodes_in_every_step() -> None:
    result = with_fault("stage_imbalance", 0.5, whole_run=True, on=PIPELINED)

    np.testing.assert_allclose(longer(result, "compute_s"), [1, 1, 1, 1.5], atol=0.05)
    assert (steps(result).phases["wait_s"].argmin(axis=1) == 3).all()


@pytest.mark.parametrize("kind", ["hang", "node_crash"])
def test_what_begins_after_the_exchange_shows_only_from_then_on(kind: str) -> None:
    evaluating = Benign(kind="evaluation", run=VISION.name, start_s=START_S - 20, duration_s=40)
    late = Fault(kind=kind, node=f"{VISION.name}-01", start_s=START_S + 5, duration_s=60)
    result = played(plan_of(VISION, faults=[late], benign=[evaluating]), int(END_S))

    before = values(result, "core_utilization_ratio", START_S - 8, START_S + 4)
    assert before.min() > 0.4
