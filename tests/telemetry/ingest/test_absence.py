"""Missing groups, parts and figures of a report."""

from typing import Any

import numpy as np
import pytest

from telemetry.ingest.neuron_monitor import Reading, read_line
from tests.telemetry.ingest.reports import cores, encoded, group, report


def read(document: Any) -> Reading:
    return read_line(encoded(document))


@pytest.mark.parametrize("gone", ["null", "missing", "error"])
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("execution_stats", "executions_completed_per_s"),
        ("memory_used", "device_memory_used_bytes"),
    ],
)
def test_a_group_of_a_process_may_be_absent(name: str, metric: str, gone: str) -> None:
    document = report()
    shown = document["neuron_runtime_data"][0]["report"]
    if gone == "null":
        shown[name] = None
    elif gone == "missing":
        del shown[name]
    else:
        shown[name]["error"] = "the runtime does not answer"

    values = read(document).values

    assert metric not in values
    assert np.isfinite(values["core_utilization_ratio"]).all()


@pytest.mark.parametrize("gone", ["null", "missing"])
@pytest.mark.parametrize("name", ["vcpu_usage", "memory_info", "neuron_hw_counters"])
def test_a_group_of_the_machine_may_be_absent(name: str, gone: str) -> None:
    document = report()
    if gone == "null":
        document["system_data"][name] = None
    else:
        del document["system_data"][name]

    assert np.isfinite(read(document).values["core_utilization_ratio"]).all()


@pytest.mark.parametrize("name", ["system_data", "instance_info", "neuron_hardware_info"])
def test_a_whole_part_may_be_null(name: str) -> None:
    document = report()
    document[name] = None

    assert read(document).shape.n_cores == 64


def test_latencies_may_be_null() -> None:
    document = report()
    stats = group(document, "execution_stats")
    stats["latency_stats"] = {"total_latency": None, "device_latency": None}

    assert read(document).values["executions_completed_per_s"][0, 0] > 0


def test_keys_that_no_one_knows_are_ignored() -> None:
    document = report()
    document["neuron_k8s_info"] = {"period": 15, "neuroncores_k8s_info": {"0": {"pod_name": "a"}}}
    document["system_data"]["vcpu_usage"]["usage_data"] = "anything"
    cores(document)["0"]["temperature"] = [1, 2, {"three": None}]

    assert np.isfinite(read(document).values["core_utilization_ratio"]).all()
