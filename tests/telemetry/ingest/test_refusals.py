"""Refusals name the field and the reason."""

from collections.abc import Callable
from typing import Any

import pytest

from telemetry.ingest.lines import Refusal, RefusedError
from telemetry.ingest.neuron_monitor import read_line, read_lines
from telemetry.ingest.schemas import MAX_LINE_BYTES
from tests.telemetry.ingest.reports import cores, encoded, group, lines, report

Bend = Callable[[dict[str, Any]], None]
PROCESS = "neuron_runtime_data.0.report"
CORE_37 = f"{PROCESS}.neuroncore_counters.neuroncores_in_use.37.neuroncore_utilization"
ECC_5 = "system_data.neuron_hw_counters.neuron_devices.5"


def core_37(value: Any) -> Bend:
    def bend(document: dict[str, Any]) -> None:
        cores(document)["37"]["neuroncore_utilization"] = value

    return bend


def tensors(document: dict[str, Any]) -> None:
    used = group(document, "memory_used")["neuron_runtime_used_bytes"]
    used["usage_breakdown"]["neuroncore_memory_usage"]["9"]["tensors"] = -1


def completed(document: dict[str, Any]) -> None:
    group(document, "execution_stats")["execution_summary"]["completed"] = -3


def period(document: dict[str, Any]) -> None:
    group(document, "execution_stats")["period"] = -1.0


def latency(document: dict[str, Any]) -> None:
    group(document, "execution_stats")["latency_stats"]["total_latency"]["p99"] = -0.1


def physical(document: dict[str, Any]) -> None:
    cores(document)["3"]["v3d"]["nc_v3.7"]["neuroncore_utilization"] = -1


def ecc(document: dict[str, Any]) -> None:
    document["system_data"]["neuron_hw_counters"]["neuron_devices"][5]["mem_ecc_corrected"] = -1


def nameless_device(document: dict[str, Any]) -> None:
    del document["system_data"]["neuron_hw_counters"]["neuron_devices"][5]["neuron_device_index"]


def memory(document: dict[str, Any]) -> None:
    document["system_data"]["memory_info"]["memory_used_bytes"] = "lots"


def processes(document: dict[str, Any]) -> None:
    document["neuron_runtime_data"] = {"0": {}}


def devices(document: dict[str, Any]) -> None:
    document["neuron_hardware_info"]["neuron_device_count"] = -16


def kind(document: dict[str, Any]) -> None:
    document["instance_info"]["instance_type"] = 48


CASES: list[tuple[Bend, str, str]] = [
    (core_37(-3), CORE_37, ">= 0"),
    (core_37(250), CORE_37, "<= 101"),
    (core_37("high"), CORE_37, "got `str`"),
    (core_37([1]), CORE_37, "got `array`"),
    (physical, "neuroncores_in_use.3.v3d.nc_v3.7.neuroncore_utilization", ">= 0"),
    (tensors, "neuroncore_memory_usage.9.tensors", ">= 0"),
    (completed, "execution_stats.execution_summary.completed", ">= 0"),
    (period, "execution_stats.period", ">= 0"),
    (latency, "latency_stats.total_latency.p99", ">= 0"),
    (ecc, f"{ECC_5}.mem_ecc_corrected", ">= 0"),
    (nameless_device, ECC_5, "neuron_device_index"),
    (memory, "system_data.memory_info.memory_used_bytes", "got `str`"),
    (processes, "neuron_runtime_data", "got `object`"),
    (devices, "neuron_hardware_info.neuron_device_count", ">= 0"),
    (kind, "instance_info.instance_type", "got `int`"),
]


@pytest.mark.parametrize(("bend", "field", "reason"), CASES)
def test_a_wrong_value_is_refused_with_its_field(bend: Bend, field: str, reason: str) -> None:
    document = report()
    bend(document)

    with pytest.raises(RefusedError) as refused:
        read_line(encoded(document))

    assert refused.value.field.endswith(field)
    assert reason in refused.value.reason


def test_the_field_is_named_inside_an_envelope_too() -> None:
    document = report()
    cores(document)["37"]["neuroncore_utilization"] = -3

    with pytest.raises(RefusedError) as refused:
        read_line(encoded({"at": 1.0, "report": document}))

    assert refused.value.field == f"report.{CORE_37}"


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'"report"',
        b"{}",
        b'{"hello": 1}',
        b'{"report": {}}',
        b'{"report": 5}',
        b"\xff\xfe",
        b'{"instance_info": {"instance_id": "\x80"}, "neuron_runtime_data": []}',
        b'{"neuron_runtime_data": []',
        b'{"neuron_runtime_data": [], "x": NaN}',
        b'{"neuron_runtime_data": []} trailing',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"neuron_runtime_data": [{"pid": 1e400}]}',
        b'{"neuron_runtime_data": [], "neuron_hardware_info": {}}',
    ],
)
def test_what_is_no_report_is_refused(line: bytes) -> None:
    with pytest.raises(RefusedError):
        read_line(line)


def test_a_core_that_the_node_does_not_have_is_refused() -> None:
    document = report("trn1.2xlarge")
    cores(document)["7"] = {"neuroncore_utilization": 5.0}

    with pytest.raises(RefusedError, match="core 7, but the node counts 2"):
        read_line(encoded(document))


@pytest.mark.parametrize("index", ["-1", "4096", "one", "1.5", ""])
def test_a_core_is_a_number_within_reason(index: str) -> None:
    document = report()
    cores(document)[index] = {"neuroncore_utilization": 5.0}

    with pytest.raises(RefusedError) as refused:
        read_line(encoded(document))

    assert "neuroncores_in_use" in refused.value.field


def test_hardware_beyond_reason_is_refused() -> None:
    document = report()
    document["neuron_hardware_info"]["neuroncore_per_device_count"] = 1000

    with pytest.raises(RefusedError, match="at most 4096 cores"):
        read_line(encoded(document))


def test_a_line_beyond_all_measure_is_refused_unread() -> None:
    with pytest.raises(RefusedError, match="8,000,000"):
        read_line(b" " * (MAX_LINE_BYTES + 1))


def test_the_good_lines_around_a_bad_one_are_kept() -> None:
    good = lines("trn1.2xlarge")
    mixed = [good[0], b"", b"nonsense", good[1], b'{"neuron_runtime_data": 5}']

    readings, refusals = read_lines(mixed)

    assert [number for number, _ in readings] == [1, 4]
    assert [(r.line, r.field) for r in refusals] == [(3, ""), (5, "neuron_runtime_data")]


def test_a_refusal_reads_like_a_sentence() -> None:
    assert str(Refusal(3, "period", "is negative")) == "line 3: period: is negative"
    assert str(Refusal(3, "", "is no JSON")) == "line 3: is no JSON"


def test_a_line_with_two_faults_is_refused_all_the_same() -> None:
    bad = b'{"neuron_runtime_data": [{"report": {"neuroncore_counters": {"neuroncores_in_use": '
    bad += b'{"0": {"neuroncore_utilization": -1}}}}}], "x": '

    for rest in (b"oops}", b"[" * 100_000, b'"\x80"}', b'1, "neuron_runtime_data": null}'):
        with pytest.raises(RefusedError, match="neuroncore_utilization"):
            read_line(bad + rest)
