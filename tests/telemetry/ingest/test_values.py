"""Values of each report group, and missing values."""

import math
from typing import Any

import numpy as np
import pytest

from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import (
    Reading,
    Shape,
    decode_line,
    read_line,
    read_sidecar_line,
)
from tests.telemetry.ingest.reports import cores, encoded, group, report


def read(document: Any) -> Reading:
    return read_line(encoded(document))


def utilization(document: Any) -> Any:
    return read(document).values["core_utilization_ratio"][0]


def test_an_idle_node_is_up_and_its_cores_are_absent() -> None:
    document = report("trn1.32xlarge-idle")

    reading = read(document)

    assert np.isnan(reading.values["core_utilization_ratio"]).all()
    assert reading.values["host_memory_used_bytes"][0, 0] > 0
    assert reading.values["vcpu_usage_ratio"][0, 0] == pytest.approx(0.1687)
    assert "device_memory_used_bytes" not in reading.values


def test_a_core_that_no_process_holds_is_absent_not_idle() -> None:
    document = report()
    del cores(document)["5"]
    cores(document)["6"]["neuroncore_utilization"] = 0

    ratio = utilization(document)

    assert math.isnan(ratio[5])
    assert ratio[6] == 0.0


def test_several_processes_hold_cores_of_their_own() -> None:
    document = report("trn1.32xlarge")
    first, second = document["neuron_runtime_data"]

    assert np.isfinite(utilization(document)).all()
    document["neuron_runtime_data"] = [second]
    assert np.isnan(utilization(document)[:16]).all()
    document["neuron_runtime_data"] = [first]
    assert np.isnan(utilization(document)[16:]).all()


def test_a_core_with_two_processes_in_a_period_counts_both() -> None:
    document = report("trn1.2xlarge")
    process = document["neuron_runtime_data"][0]
    cores(document)["0"]["neuroncore_utilization"] = 30.0
    document["neuron_runtime_data"] = [process, process]

    assert utilization(document)[0] == pytest.approx(0.6)


def test_it_never_exceeds_one() -> None:
    document = report()
    cores(document)["0"]["neuroncore_utilization"] = 100.6

    assert utilization(document)[0] == 1.0


def test_the_physical_cores_stand_in_for_a_missing_logical_one() -> None:
    document = report()
    core = cores(document)["3"]
    core["neuroncore_utilization"] = None
    core["v3d"] = {
        "nc_v3.6": {"neuroncore_utilization": 40.0},
        "nc_v3.7": {"neuroncore_utilization": 60.0},
    }

    assert utilization(document)[3] == pytest.approx(0.5)


def test_without_either_the_core_is_absent() -> None:
    document = report()
    cores(document)["3"] = {"flops": 0}

    assert math.isnan(utilization(document)[3])


def test_memory_is_summed_by_device_over_processes() -> None:
    document = report("trn1.32xlarge")
    usage = {"tensors": 1000, "constants": 10, "model_code": None}
    for process, held in zip(document["neuron_runtime_data"], ([0, 1, 2], [2]), strict=True):
        used = process["report"]["memory_used"]["neuron_runtime_used_bytes"]
        used["usage_breakdown"]["neuroncore_memory_usage"] = {str(core): usage for core in held}

    memory = read(document).values["device_memory_used_bytes"][0]

    assert memory[:2].tolist() == [2020, 2020]
    assert np.isnan(memory[2:]).all()


def test_a_single_device_may_do_without_the_breakdown() -> None:
    document = report("trn1.2xlarge")
    used = group(document, "memory_used")["neuron_runtime_used_bytes"]
    used["usage_breakdown"] = None

    memory = read(document).values["device_memory_used_bytes"]

    assert memory[0, 0] == used["neuron_device"]


def test_every_ending_but_completed_is_a_failure() -> None:
    document = report("trn1.2xlarge")
    stats = group(document, "execution_stats")
    stats["period"] = 2.0
    stats["execution_summary"] = {
        "completed": 20,
        "completed_with_err": 1,
        "completed_with_num_err": 1,
        "timed_out": 1,
        "incorrect_input": 1,
        "failed_to_queue": 1,
    }
    stats["error_summary"] = {"generic": 1, "numerical": 2, "hardware": 3}

    values = read(document).values

    assert values["executions_completed_per_s"][0, 0] == 10.0
    assert values["executions_failed_per_s"][0, 0] == 2.5
    assert values["execution_errors_per_s"][0, 0] == 3.0


@pytest.mark.parametrize("name", ["flops", "effective_flops"])
def test_flops_of_a_core_are_a_rate_whatever_the_period(name: str) -> None:
    document = report("trn1.2xlarge")
    group(document, "neuroncore_counters")["period"] = 5.0
    for use in cores(document).values():
        use[name] = use.pop("flops")

    flops = read(document).values["core_flops_per_s"]

    assert flops.tolist() == [[55_248_000_000_000.0, 43_578_000_000_000.0]]


def test_flops_that_were_not_counted_are_unknown_not_zero() -> None:
    document = report("trn1.2xlarge")
    cores(document)["0"] |= {"neuroncore_utilization": 0, "flops": 0}
    cores(document)["1"] |= {"neuroncore_utilization": 50, "flops": 0}

    idle, busy = read(document).values["core_flops_per_s"][0]

    assert idle == 0
    assert math.isnan(busy)


def test_latencies_of_processes_become_the_median_and_the_longest() -> None:
    document = report("trn1.32xlarge")
    for process, (median_s, p99_s, longest_s) in zip(
        document["neuron_runtime_data"], ((0.25, 0.4, 0.5), (0.75, 0.7, 0.8)), strict=True
    ):
        latency = process["report"]["execution_stats"]["latency_stats"]["total_latency"]
        latency |= {"p50": median_s, "p99": p99_s, "p100": longest_s}

    values = read(document).values

    assert values["execution_latency_p50_s"].tolist() == [[0.5]]
    assert values["execution_latency_p99_s"].tolist() == [[0.7]]
    assert values["execution_latency_p100_s"].tolist() == [[0.8]]


@pytest.mark.parametrize("latency", [None, {}, {"p50": 0, "p100": None}])
def test_without_an_execution_there_is_no_latency(latency: Any) -> None:
    document = report("trn1.2xlarge")
    group(document, "execution_stats")["latency_stats"]["total_latency"] = latency

    values = read(document).values

    assert not {name for name in values if name.startswith("execution_latency")}


@pytest.mark.parametrize(("others_s", "per_s"), [(0.062, 90.0), (1.0, 90.0), (5.0, 18.0)])
def test_counts_of_a_short_period_are_those_of_the_whole_report(
    others_s: float, per_s: float
) -> None:
    document = report("trn1.2xlarge")
    groups = [*document["neuron_runtime_data"][0]["report"].values()]
    for each in [*groups, *document["system_data"].values()]:
        each["period"] = others_s
    group(document, "execution_stats")["period"] = 0.062

    reading = read(document)

    assert reading.values["executions_completed_per_s"][0, 0] == per_s
    assert per_s * max(reading.period_s, 1.0) == 90.0


def test_a_device_is_unhealthy_where_the_driver_names_a_component() -> None:
    devices = [
        {"index": 1, "unhealthy": ["hbm", "link_efa"]},
        {"index": 2, "unhealthy": []},
        {"index": 3, "unhealthy": ["none"]},
        {"index": 4},
    ]

    reading = read({"report": report("trn1.32xlarge"), "neuron": {"devices": devices}})

    states = reading.values["device_unhealthy"][0]
    assert states[1:4].tolist() == [1, 0, 0]
    assert np.isnan(states[[0, 4, 5]]).all()


def test_power_is_of_a_device_with_its_time() -> None:
    document = report("trn1.32xlarge")
    power = [{"device": 2, "at": 1795222380, "ratio": 0.42}]

    reading = read({"report": document, "neuron": {"power": power}})

    assert reading.values["device_power_ratio"][0, 2] == 0.42
    assert np.isnan(reading.values["device_power_ratio"]).sum() == 15
    assert reading.power_at_s[2] == 1795222380
    assert "neuron" not in reading.sidecars


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ([{"device": 16, "at": 1, "ratio": 0.5}], "device 16, but the node has 16"),
        ([{"device": 1, "at": 1, "ratio": 0.5}] * 2, "names a device twice"),
        ([{"device": 1, "at": 1, "ratio": 42.5}], "1.01"),
    ],
)
def test_power_that_cannot_be_is_refused(power: Any, reason: str) -> None:
    line = {"report": report("trn1.32xlarge"), "neuron": {"power": power}}

    with pytest.raises(RefusedError, match=reason) as refused:
        read(line)

    assert refused.value.field.startswith("neuron.power")


def test_ecc_counts_are_passed_on_as_read() -> None:
    document = report()
    devices = document["system_data"]["neuron_hw_counters"]["neuron_devices"]
    devices[7]["mem_ecc_uncorrected"] = 3
    for device in devices:
        del device["sram_ecc_corrected"]

    values = read(document).values

    assert values["mem_ecc_uncorrected"][0].tolist() == [0.0] * 7 + [3.0] + [0.0] * 8
    assert "sram_ecc_corrected" not in values


def test_vcpu_usage_is_everything_but_idling() -> None:
    document = report()
    document["system_data"]["vcpu_usage"]["average_usage"] = {
        "user": 10,
        "nice": 1,
        "system": 5,
        "idle": 80,
        "io_wait": 2,
        "irq": 1,
        "soft_irq": 1,
    }

    assert read(document).values["vcpu_usage_ratio"][0, 0] == pytest.approx(0.2)


def test_what_the_report_counts_holds_against_the_catalogue() -> None:
    document = report("trn1.2xlarge")
    document["instance_info"]["instance_type"] = "trn2.48xlarge"

    assert read(document).shape.n_cores == 2


def test_an_unknown_machine_is_shaped_by_its_reports() -> None:
    document = report("trn1.32xlarge")
    document["neuron_hardware_info"] = {"error": "no access"}
    document["instance_info"]["instance_type"] = "trn9.huge"

    shape = read(document).shape

    assert (shape.n_devices, shape.n_cores) == (16, 32)


ULTRASERVER = "c0ffee0000000004"


@pytest.mark.parametrize("place", ["instance_info", "neuron_hardware_info", "neuron"])
def test_the_ultraserver_is_known_from_report_or_driver(place: str) -> None:
    line: dict[str, Any] = {"report": report("trn2.48xlarge"), "neuron": {}}
    part = line["neuron"] if place == "neuron" else line["report"][place]
    assert read(line).identity.ultraserver_id == ""

    part["ultraserver_id"] = ULTRASERVER
    assert read(line).identity.ultraserver_id == ULTRASERVER

    part["ultraserver_id"] = "0000000000000000"
    assert read(line).identity.ultraserver_id == ""


def test_the_drivers_flops_of_physical_cores_add_up_to_the_logical_one() -> None:
    counts = {0: 4e13, 1: 6e13, 2: 8e13, 4: 0, 5: 0}
    driver = [
        {"device": 0, "core": core, "busy": 0.5}
        | ({"flops": n} if (n := counts.get(core)) else {})
        for core in range(8)
    ]
    driver[4] |= {"flops": 0}
    driver[5] |= {"flops": 0}
    line = {"neuron": {"period": 2.0, "devices": [{"index": 0, "cores": 4}], "cores": driver}}

    reading = read_sidecar_line(decode_line(encoded(line)), shape=Shape(1, 4))

    flops = reading.values["core_flops_per_s"][0]
    assert flops[0] == 5e13
    assert np.isnan(flops[1:]).all(), "half of a core, not counted though busy, and not reported"
    assert reading.values["core_utilization_ratio"].tolist() == [[0.5] * 4]


def test_hbm_bandwidth_is_estimated_only_from_a_profile_and_a_pace() -> None:
    envelope = {"report": report(), "hbm_bytes_per_step": 2e12, "steps_per_s": 0.5}

    bandwidth = read(envelope).values["hbm_bandwidth_bytes_per_s"]

    assert bandwidth.tolist() == [[1e12] * 16]
    del envelope["steps_per_s"]
    assert "hbm_bandwidth_bytes_per_s" not in read(envelope).values


def test_the_envelope_states_when_and_which() -> None:
    reading = read({"at": 1_800_000_000.5, "seq": 7, "report": report()})

    assert (reading.at_s, reading.seq) == (1_800_000_000.5, 7)
