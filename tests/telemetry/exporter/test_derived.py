"""A simulated node under the exporter's names: values and consistency."""

from functools import partial

import numpy as np
import pytest

from telemetry import catalog
from telemetry.blocks import Block
from telemetry.exporter.hardware import read_snapshot
from telemetry.exporter.neuron_exporter import CORE_BYTES, neuron_families
from telemetry.exporter.neuron_exporter_names import NodeLabels, region_of
from telemetry.simulate.plan import Fault, Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S
from tests.telemetry.exporter.exporter_reference import (
    Series,
    holds_against_the_facts,
    named,
    shown,
)
from tests.telemetry.simulate.played import PIPELINED, SMALL, VISION, plan_of

# As the exporters of each node give them.
own_families = partial(neuron_families, is_alone=True)
BUSY_AFTER_S = 90


def labels_of(run: RunSpec) -> dict[str, NodeLabels]:
    zone = "us-east-2b"
    return {
        name: NodeLabels(
            name, name, run.instance, zone, region_of(zone), f"subnet-{zone}", run.name
        )
        for name in run.node_names
    }


def lived(hot: HotStore, plan: Plan, *, until_s: int) -> list[Series]:
    """Simulate a run for a while; return the series of its nodes at the end."""
    shard, end = plan.shards[0], int(plan.epoch_s) + until_s
    hot.now = lambda: float(end)
    clock = play(plan, shard, start_clock(plan), end - 10, every_s=600).clock
    for block in play(plan, shard, clock, end).span.blocks():
        hot.append([block])
    return shown(own_families(read_snapshot(hot, now_s=end), labels_of(plan.run), {}))


def of(found: list[Series], node: str) -> list[Series]:
    return [each for each in found if each.labels["instance_id"] == node]


@pytest.mark.parametrize("run", [SMALL, PIPELINED, VISION], ids=lambda run: run.instance)
def test_a_training_node_gives_the_exporters_series(hot: HotStore, run: RunSpec) -> None:
    found = lived(hot, plan_of(run), until_s=BUSY_AFTER_S)

    machine = catalog.instances()[run.instance]
    for node in run.node_names:
        holds_against_the_facts(
            of(found, node), tags={run.name: range(machine.n_cores)}, n_devices=machine.n_devices
        )
    [info] = [s for s in of(found, run.node_names[0]) if s.name == "neuron_hardware_info"]
    assert info.labels["neuron_device_count"] == str(machine.n_devices)
    assert info.labels["neuroncore_per_device_count"] == str(machine.chip.cores_logical)


@pytest.mark.parametrize("run", [PIPELINED, VISION], ids=lambda run: run.instance)
def test_an_idle_node_gives_what_the_exporter_would_of_one(hot: HotStore, run: RunSpec) -> None:
    plan = plan_of(run)
    machine = catalog.instances()[run.instance]
    shape = (len(run.node_names), machine.n_devices)
    idle = {
        "core_utilization_ratio": np.zeros((shape[0], machine.n_cores)),
        "device_memory_used_bytes": np.zeros(shape),
        "vcpu_usage_ratio": np.full((shape[0], 1), 0.01),
        "host_memory_used_bytes": np.full((shape[0], 1), 1e10),
        "executions_completed_per_s": np.zeros((shape[0], 1)),
        "executions_failed_per_s": np.zeros((shape[0], 1)),
        "execution_errors_per_s": np.zeros((shape[0], 1)),
        **{
            f"{part}_ecc_{kind}": np.zeros(shape)
            for part in ("mem", "sram")
            for kind in ("corrected", "uncorrected")
        },
    }
    hot.now = lambda: float(plan.epoch_s)
    hot.append([Block(plan.shards[0], plan.epoch_s, tuple(run.node_names), idle)])

    found = shown(own_families(read_snapshot(hot, now_s=plan.epoch_s), labels_of(run), {}))

    for node in run.node_names:
        holds_against_the_facts(of(found, node), tags={}, n_devices=machine.n_devices)


def test_what_is_derived_is_in_keeping_with_what_was_measured(hot: HotStore) -> None:
    plan = plan_of(VISION)
    found = of(lived(hot, plan, until_s=BUSY_AFTER_S), VISION.node_names[0])
    block = hot.latest()[plan.shards[0]]

    memory = sum(
        sum(named(found, f"neuroncore_memory_usage_{purpose}").values())
        for purpose in (*CORE_BYTES, "tensors")
    )
    measured = float(block.values["device_memory_used_bytes"][0].sum())
    used = named(found, "neuron_runtime_memory_used_bytes")
    system = named(found, "system_vcpu_usage_ratio")
    process = named(found, "neuron_runtime_vcpu_usage_ratio")
    latency = named(found, "execution_latency_seconds")
    assert memory == pytest.approx(measured, rel=1e-6)
    assert used[("neuron_device",)] == pytest.approx(measured, rel=1e-6)
    assert 0 < used[("host",)] < named(found, "system_memory_used_bytes")[()]
    assert sum(system.values()) == pytest.approx(
        float(block.values["vcpu_usage_ratio"][0, 0]), abs=2e-4
    )
    assert all(process[kind] <= system[kind] for kind in process)
    assert [*latency.values()] == sorted(latency.values())


def test_a_fault_shows_under_the_exporters_names_too(hot: HotStore) -> None:
    bad = Fault(
        kind="ecc_uncorrected",
        node=VISION.node_names[1],
        device=3,
        start_s=60.0,
        duration_s=600.0,
        magnitude=60.0,
    )
    found = lived(hot, plan_of(VISION, faults=[bad]), until_s=BUSY_AFTER_S)

    healthy, faulty = (of(found, node) for node in VISION.node_names[:2])
    errors = named(faulty, "execution_errors_total")
    events = {
        (s.labels["event_type"], s.labels["neuron_device_index"]): s.value
        for s in faulty
        if s.name == "hardware_ecc_events_total"
    }
    assert errors[("hardware",)] > 0
    assert named(faulty, "execution_status_total")[("completed_with_err",)] > 0
    assert events["mem_ecc_uncorrected", "3"] > 0
    assert not any(named(healthy, "execution_errors_total").values())


def test_gpus_are_none_of_aws_exporters_business(hot: HotStore) -> None:
    hot.append([Block("gpu/0", NOON_S, ("gpu-0",), {"vcpu_usage_ratio": np.ones((1, 1))})])

    who = {"gpu-0": NodeLabels("gpu-0", "gpu-0", "p5.48xlarge")}

    assert shown(own_families(read_snapshot(hot, now_s=NOON_S), who, {})) == []


def test_a_region_is_a_zone_without_its_letter() -> None:
    assert [region_of(zone) for zone in ("us-east-2b", "us-west-2-lax-1a", "", "x")] == [
        "us-east-2",
        "us-west-2-lax-1",
        "",
        "",
    ]
