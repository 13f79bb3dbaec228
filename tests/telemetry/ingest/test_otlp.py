"""OTLP: metrics become the series that Prometheus' exporters give."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags

from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import Reading
from telemetry.ingest.node_series import NodeSeries
from telemetry.ingest.otlp import decode, samples_of
from telemetry.ingest.prometheus import WrittenSamples

AT_S = 1_750_000_000
NODE = {"host.name": "trn-07", "host.id": "i-07", "host.type": "trn1.32xlarge"}
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
Point = tuple[Mapping[str, str], float]


def export(resource: Mapping[str, str] | None = None) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    for key, value in (NODE if resource is None else resource).items():
        of_resource.resource.attributes.add(key=key).value.string_value = value
    of_resource.scope_metrics.add()
    return request


def put(
    request: ExportMetricsServiceRequest,
    name: str,
    *points: Point,
    at_s: float = AT_S,
    temporality: int | None = None,
    start_s: float = 0.0,
    unit: str = "",
) -> Any:
    """Add a metric: a gauge, or a sum where there is a temporality; returns it."""
    metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name=name, unit=unit)
    data: Any = metric.gauge
    if temporality is not None:
        data = metric.sum
        data.aggregation_temporality, data.is_monotonic = temporality, True
    for labels, value in points:
        point = data.data_points.add(
            time_unix_nano=int(at_s * 1e9), start_time_unix_nano=int(start_s * 1e9)
        )
        for key, text in labels.items():
            point.attributes.add(key=key).value.string_value = text
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
    return metric


def read(*requests: ExportMetricsServiceRequest, node: str = "trn-07") -> list[Reading]:
    """The readings of a node after these requests."""
    series = NodeSeries()
    for request in requests:
        found = samples_of(request)
        series.identity |= found.identities[node]
        series.add(found.by_node[node], arrived_s=AT_S + 60)
    return [reading for reading, _ in series.readings(now_s=AT_S + 999)]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("neuroncore_utilization_ratio", ""),
        ("neuroncore.utilization", "1"),
        ("neuroncore_utilization", "1"),
    ],
)
def test_names_are_translated_as_for_prometheus(name: str, unit: str) -> None:
    request = export()
    put(request, name, ({"neuroncore": "3"}, 0.75), unit=unit)
    (reading,) = read(request)
    assert reading.values["core_utilization_ratio"][0, 3] == 0.75
    assert np.isfinite(reading.values["core_utilization_ratio"]).sum() == 1


@pytest.mark.parametrize(("unit", "scale"), [("%", 100), ("percent", 100), ("1", 1), ("", 1)])
def test_the_unit_of_neuron_observer_counts_where_it_is_given(unit: str, scale: int) -> None:
    request = export()
    busy = [({"neuroncore": str(core)}, 0.0075 * scale) for core in range(32)]
    put(request, "neuron.core.utilization.avg", *busy, unit=unit)
    errors = ({"neuron_device_index": "5"}, 4)
    put(request, "neuron.device.mem_ecc_uncorrected", errors, temporality=CUMULATIVE)
    (reading,) = read(request)
    np.testing.assert_allclose(reading.values["core_utilization_ratio"], 0.0075)
    assert reading.values["mem_ecc_uncorrected"][0, 5] == 4


def test_a_cumulative_sum_is_a_counter() -> None:
    requests = []
    for i, done in enumerate((100, 130)):
        requests.append(export())
        put(
            requests[i],
            "execution.status",
            ({"status.type": "completed"}, done),
            at_s=AT_S + 15 * i,
            temporality=CUMULATIVE,
        )
    # Counters alone say nothing before the second point.
    (reading,) = read(*requests)
    assert reading.values["executions_completed_per_s"].tolist() == [[2.0]]


@pytest.mark.parametrize(("period_s", "rate"), [(15, 3.0), (1, 45.0), (0.25, 45.0)])
def test_a_delta_is_a_rate_over_its_own_time(period_s: float, rate: float) -> None:
    request = export()
    done = ({"status_type": "completed"}, 45)
    put(request, "execution_status", done, temporality=DELTA, start_s=AT_S - period_s)
    (reading,) = read(request)
    assert reading.values["executions_completed_per_s"].tolist() == [[rate]]


def test_deltas_of_a_count_are_added_up_once() -> None:
    requests = []
    for i, n_errors in enumerate((2, 0, 3)):
        at_s = AT_S + 15 * i
        requests.append(export())
        labels = {"event_type": "mem_ecc_uncorrected", "neuron_device_index": "5"}
        point = (labels, n_errors)
        name = "hardware_ecc_events"
        put(requests[i], name, point, at_s=at_s, temporality=DELTA, start_s=at_s - 15)
    # The last request is repeated, and an old one comes late.
    readings = read(*requests, requests[2], requests[0])
    counts = [reading.values["mem_ecc_uncorrected"][0, 5] for reading in readings]
    assert counts == [2, 2, 5]


@pytest.mark.parametrize(
    ("resource", "node", "instance_id"),
    [
        (NODE, "trn-07", "i-07"),
        ({**NODE, "k8s.node.name": "ip-10-0-0-7"}, "ip-10-0-0-7", "i-07"),
        ({"host.id": "i-07"}, "i-07", "i-07"),
        ({"service.instance.id": "10.0.0.7:8000"}, "10.0.0.7", None),
        ({"host.id": "i-07", "service.instance.id": "627cc493"}, "i-07", "i-07"),
    ],
)
def test_resource_attributes_name_the_node(
    resource: dict[str, str], node: str, instance_id: str | None
) -> None:
    request = export(resource | {"cloud.availability_zone": "us-east-2b"})
    put(request, "system_memory_used_bytes", ({}, 5.0))
    found = samples_of(request)
    assert list(found.by_node) == [node]
    assert found.identities[node].get("instance_id") == instance_id
    assert found.identities[node]["zone"] == "us-east-2b"


def test_the_name_of_a_node_in_kubernetes_is_its_label() -> None:
    request = export({"k8s.node.name": "ip-10-0-0-7", "k8s.namespace.name": "monitoring"})
    labels = {"k8s.pod.name": "llama-worker-3", "k8s.namespace.name": "research"}
    put(request, "system_memory_used_bytes", (labels, 5.0))
    assert samples_of(request).labels == {
        "ip-10-0-0-7": {
            "kubernetes_node": "ip-10-0-0-7",
            "pod": "llama-worker-3",
            "namespace": "research",
        }
    }


def test_labels_of_a_point_outweigh_the_resource() -> None:
    request = export(NODE | {"k8s.pod.name": "exporter-x7k2p"})
    labels = {"node": "other", "k8s.pod.name": "llama-worker-3"}
    put(request, "system_memory_used_bytes", (labels, 5.0), ({}, 6.0))
    found = samples_of(request)
    assert {node: [s.value for s in some] for node, some in found.by_node.items()} == {
        "other": [5.0],
        "trn-07": [6.0],
    }
    # The exporter's own pod is no run.
    assert found.runs == {"other": {"llama": 1}, "trn-07": {}}


def test_series_of_a_collection_may_differ_by_milliseconds() -> None:
    requests = []
    for i in range(3):
        requests.append(export())
        for core in range(32):
            at_s = AT_S + 15 * i + core / 1000
            name = "neuroncore_utilization_ratio"
            put(requests[i], name, ({"neuroncore": str(core)}, 0.5), at_s=at_s)
    readings = read(requests[0], requests[1], requests[1], requests[0], requests[2])
    assert len(readings) == 3
    assert readings[-1].period_s == 15
    for reading in readings:
        np.testing.assert_array_equal(reading.values["core_utilization_ratio"], 0.5)


def test_what_is_not_used_is_ignored_and_what_is_unusable_rejected() -> None:
    request = export()
    put(request, "process.uptime", ({}, 5.0))
    put(request, "execution_status", ({"status_type": "unheard_of"}, 5), temporality=CUMULATIVE)
    histogram = request.resource_metrics[0].scope_metrics[0].metrics.add(name="execution_status")
    histogram.histogram.data_points.add(count=3)
    stale = put(request, "system_memory_used_bytes", ({}, 5.0)).gauge.data_points[0]
    stale.flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    found = samples_of(request)
    assert (found.by_node, found.n_ignored, found.n_rejected) == ({}, 2, 1)
    assert found.reason == "execution_status is a histogram; send a gauge or a sum"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temporality": 0}, "without aggregation_temporality"),
        ({"temporality": DELTA}, "without a start_time_unix_nano"),
        ({"temporality": DELTA, "start_s": AT_S + 1}, "without a start_time_unix_nano"),
        ({"at_s": 0, "temporality": CUMULATIVE}, "without time_unix_nano"),
    ],
)
def test_unusable_points_are_rejected_with_a_reason(change: dict[str, Any], reason: str) -> None:
    request = export()
    done = ({"status_type": "completed"}, 45)
    put(request, "execution_status", done, done, **change)
    put(request, "system_memory_used_bytes", ({}, 5.0))
    found = samples_of(request)
    assert found.n_rejected == 2
    assert reason in found.reason
    assert found.reason.startswith("execution_status ")
    assert len(found.by_node["trn-07"]) == 1


def test_a_point_of_no_node_says_what_is_missing() -> None:
    request = export({"service.name": "neuron"})
    put(request, "system_memory_used_bytes", ({}, 5.0))
    found = samples_of(request)
    assert (found.n_rejected, found.by_node) == (1, {})
    assert "host.name" in found.reason


def test_json_says_the_same_as_protobuf() -> None:
    request = export()
    put(request, "execution_status", ({"status_type": "completed"}, 45), temporality=CUMULATIVE)
    put(request, "neuroncore_utilization", ({"neuroncore": "3"}, 0.75), unit="1")
    body = json.loads(MessageToJson(request)) | {"unknown": 1}
    # By the specification integers are texts or numbers, enumerations numbers.
    data = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]
    assert data["dataPoints"][0]["asInt"] == "45"
    data["aggregationTemporality"] = 2
    packed = decode(request.SerializeToString(), is_json=False)
    assert decode(json.dumps(body).encode(), is_json=True) == packed == request


@pytest.mark.parametrize(
    ("body", "is_json"),
    [(b"\xff\xff", False), (b"{", True), (b"\xff", True), (b"[1]", True), (b"[" * 9_999, True)],
)
def test_what_is_no_export_is_refused(body: bytes, *, is_json: bool) -> None:
    with pytest.raises(RefusedError, match="is not an ExportMetricsServiceRequest"):
        decode(body, is_json=is_json)


@given(body=st.binary(max_size=300), is_json=st.booleans())
def test_any_bytes_are_read_or_refused(body: bytes, *, is_json: bool) -> None:
    try:
        found = samples_of(decode(body, is_json=is_json))
    except RefusedError:
        return
    assert isinstance(found, WrittenSamples)
