"""Healthy hardware: plausible levels and spread; bytes add up to the steps'."""

import msgspec
import numpy as np
import pytest

from telemetry import catalog
from telemetry.blocks import METRICS
from telemetry.simulate.plan import RunSpec
from telemetry.simulate.shard import PlayedShard
from telemetry.simulate.step_model import step_plan
from tests.telemetry.simulate.played import SMALL, VISION, plan_of, played, steps, values

GPU = msgspec.structs.replace(VISION, name="gpu", instance="p5.48xlarge")
WARM, LATER = 40.0, 640.0
# Played only for drills: the live fleet would store twice as much.
NOT_LIVE = {
    "collective_bandwidth_bytes_per_s",
    "collective_time_s",
    "device_power_ratio",
    "device_unhealthy",
    "core_flops_per_s",
    "execution_latency_p50_s",
    "execution_latency_p99_s",
    "execution_latency_p100_s",
}


@pytest.fixture(scope="module")
def healthy() -> PlayedShard:
    return played(plan_of(), int(LATER))


@pytest.mark.parametrize("run", [VISION, GPU, SMALL], ids=lambda run: run.instance)
def test_every_part_reports_every_metric(run: RunSpec) -> None:
    span, instance = played(plan_of(run), 60).span, catalog.instance(run.instance)
    n_parts = {
        "node": 1,
        "core": instance.n_cores,
        "device": instance.n_devices,
        "efa": instance.n_efa,
    }

    live = {m.name for m in METRICS.values() if n_parts[m.part]} - NOT_LIVE
    assert live - set(span.values) == set(), "fill it in telemetry/simulate/hardware.py"
    assert set(span.values) <= live
    for name, array in span.values.items():
        assert array.shape == (len(span.ticks), run.nodes, n_parts[METRICS[name].part])
        assert array.dtype == np.float32
        assert np.isfinite(array[30:]).all()
        assert (array[30:] >= 0).all()


def test_without_efa_there_are_no_efa_metrics() -> None:
    assert not [name for name in played(plan_of(SMALL), 60).span.values if name.startswith("efa")]


def test_cores_are_busy_and_not_all_alike(healthy: PlayedShard) -> None:
    busy = values(healthy, "core_utilization_ratio", WARM, LATER)
    by_core = np.median(busy, axis=0)

    assert 0.8 < np.median(busy) < 0.99
    assert busy.max() <= 1
    assert 0.003 < by_core.std() < 0.02


def test_cores_of_a_node_waver_together(healthy: PlayedShard) -> None:
    busy = values(healthy, "core_utilization_ratio", WARM, LATER)
    wavering = busy - np.median(busy, axis=0)
    within = np.corrcoef(wavering[:, 0, 0], wavering[:, 0, 40])[0, 1]
    across = np.corrcoef(wavering[:, 0, 0], wavering[:, 1, 0])[0, 1]

    assert within > 0.2
    assert within > across


def test_bytes_over_efa_are_those_of_the_steps(healthy: PlayedShard) -> None:
    n_steps = LATER - WARM
    n_steps /= steps(healthy, WARM, LATER).step_s.mean()
    sent = values(healthy, "efa_tx_bytes_per_s", WARM, LATER).sum(axis=(0, 2))

    np.testing.assert_allclose(sent, n_steps * step_plan(VISION).efa_bytes, rtol=0.02)


def test_bytes_of_hbm_are_those_of_the_steps(healthy: PlayedShard) -> None:
    n_steps = (LATER - WARM) / steps(healthy, WARM, LATER).step_s.mean()
    moved = values(healthy, "hbm_bandwidth_bytes_per_s", WARM, LATER).sum(axis=0)

    np.testing.assert_allclose(moved, n_steps * step_plan(VISION).hbm_bytes, rtol=0.05)
    assert moved.max() / (LATER - WARM) < catalog.instance(VISION.instance).chip.hbm_bytes_per_s


def test_probes_take_fifteen_to_seventeen_microseconds(healthy: PlayedShard) -> None:
    latency = values(healthy, "efa_latency_s", WARM, LATER)

    assert 15e-6 < np.median(latency) < 17e-6
    assert np.quantile(latency, 0.99) < 20e-6
    assert 0.1e-6 < np.median(latency, axis=0).std() < 1e-6


def test_hardly_a_packet_is_sent_twice(healthy: PlayedShard) -> None:
    again = values(healthy, "efa_retransmits_per_s", WARM, LATER).sum()
    sent = values(healthy, "efa_tx_packets_per_s", WARM, LATER).sum()

    assert 0 < again / sent < 1e-5


def test_what_should_not_be_is_zero(healthy: PlayedShard) -> None:
    for name in (
        "mem_ecc_uncorrected",
        "sram_ecc_uncorrected",
        "efa_impaired_per_s",
        "efa_unresponsive_per_s",
        "executions_failed_per_s",
        "execution_errors_per_s",
    ):
        assert values(healthy, name, WARM, LATER).max() == 0


def test_corrected_errors_count_up_over_days() -> None:
    counts = played(plan_of(), 5 * 86_400, every_s=3_600).span.values["mem_ecc_corrected"][1:]

    assert (np.diff(counts, axis=0) >= 0).all()
    assert (counts[-1] > counts[0]).any()
    assert (counts[-1] == counts[0]).any()
    assert (counts == np.floor(counts)).all()


def test_executions_complete_with_the_steps(healthy: PlayedShard) -> None:
    done = values(healthy, "executions_completed_per_s", WARM, LATER)[:, 0].sum()
    n_steps = (LATER - WARM) / steps(healthy, WARM, LATER).step_s.mean()
    plan = step_plan(VISION)

    assert done / n_steps == pytest.approx(64 * (plan.layout.micro_batches + 1), rel=0.02)


def test_memory_holds_the_model() -> None:
    result = played(plan_of(), 120)
    plan, chip = step_plan(VISION), catalog.instance(VISION.instance).chip
    held = values(result, "device_memory_used_bytes", WARM, 120)

    assert np.median(held) == pytest.approx(plan.device_memory_bytes, rel=0.02)
    assert held.max() < chip.hbm_bytes
