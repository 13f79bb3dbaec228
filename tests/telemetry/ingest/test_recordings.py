"""Recorded streams are read completely, in our units."""

import json

import numpy as np
import pytest

from telemetry.blocks import METRICS
from telemetry.ingest.neuron_monitor import read_lines
from tests.telemetry.ingest.reports import SAMPLES, lines, report

CORES = {"trn1.2xlarge": 2, "trn1.32xlarge": 32, "trn1.32xlarge-idle": 32, "trn2.48xlarge": 64}
DEVICES = {"trn1.2xlarge": 1, "trn1.32xlarge": 16, "trn1.32xlarge-idle": 16, "trn2.48xlarge": 16}


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_line_of_a_recorded_stream_is_read(sample: str) -> None:
    readings, refusals = read_lines(lines(sample))

    assert refusals == []
    assert [number for number, _ in readings] == list(range(1, len(lines(sample)) + 1))


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_metric_has_a_column_per_part(sample: str) -> None:
    n_parts = {"node": 1, "core": CORES[sample], "device": DEVICES[sample]}

    for _, reading in read_lines(lines(sample))[0]:
        for name, values in reading.values.items():
            assert values.shape == (1, n_parts[METRICS[name].part]), name


@pytest.mark.parametrize("sample", SAMPLES)
def test_shares_are_ratios_never_percent(sample: str) -> None:
    for _, reading in read_lines(lines(sample))[0]:
        for name, values in reading.values.items():
            if name.endswith("_ratio"):
                assert np.nanmax(values, initial=0.0) <= 1.0, name


def test_a_reading_states_what_the_report_states() -> None:
    [(_, reading), *_], _ = read_lines(lines("trn2.48xlarge"))
    shown = report()["neuron_runtime_data"][0]["report"]

    in_use = shown["neuroncore_counters"]["neuroncores_in_use"]
    ratios = [in_use[str(core)]["neuroncore_utilization"] / 100 for core in range(64)]
    np.testing.assert_allclose(reading.values["core_utilization_ratio"][0], ratios)

    by_core = shown["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"][
        "neuroncore_memory_usage"
    ]
    used = [sum(sum(by_core[str(4 * d + i)].values()) for i in range(4)) for d in range(16)]
    np.testing.assert_allclose(reading.values["device_memory_used_bytes"][0], used)

    completed = shown["execution_stats"]["execution_summary"]["completed"]
    rate = reading.values["executions_completed_per_s"][0, 0]
    assert rate == pytest.approx(completed / 1.0002)


def test_it_knows_the_reporting_machine() -> None:
    [(_, reading), *_], _ = read_lines(lines("trn2.48xlarge"))

    assert reading.identity.instance_id == "i-0000002079071820"
    assert reading.identity.instance_type == "trn2.48xlarge"
    assert reading.identity.zone == "us-east-2b"
    assert (reading.shape.n_devices, reading.shape.n_cores) == (16, 64)


def test_the_physical_cores_of_lnc2_are_kept_out() -> None:
    [(_, reading), *_], _ = read_lines(lines("trn2.48xlarge"))
    raw = json.loads(lines("trn2.48xlarge")[0])
    logical = raw["neuron_runtime_data"][0]["report"]["neuroncore_counters"]
    first = logical["neuroncores_in_use"]["0"]

    assert reading.values["core_utilization_ratio"].shape == (1, 64)
    assert reading.values["core_utilization_ratio"][0, 0] == pytest.approx(
        first["neuroncore_utilization"] / 100
    )


def test_what_neuron_monitor_does_not_measure_is_absent() -> None:
    [(_, reading), *_], _ = read_lines(lines("trn2.48xlarge"))

    assert not [name for name in reading.values if name.startswith(("efa_", "hbm_"))]
