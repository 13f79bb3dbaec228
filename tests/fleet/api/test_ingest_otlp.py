"""OTLP metrics over HTTP: both encodings, partial success, refusals, and a real sender."""

import gzip
import json
import time
from datetime import UTC, datetime
from typing import Any

import cramjam
import numpy as np
import pytest
from django.test import Client
from google.protobuf.json_format import MessageToJson
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from fleet.alerts.evaluate import watch
from fleet.ingest import prometheus
from fleet.models import Alert, Node, Token
from telemetry.store.hot import HotStore
from telemetry.write_request import Status
from tests.fleet.api.conftest import Post
from tests.helpers import NOON, just_now
from tests.telemetry.ingest.test_otlp import CUMULATIVE, NODE, export, put
from tests.telemetry.ingest.test_prometheus import message, monitor

URL = "/api/v1/ingest/otlp"
NAME = NODE["host.name"]
# After this time no scrape waits for further series.
LATER_S = 11
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@pytest.fixture
def send(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts a request as a collector does."""

    def post(
        request: ExportMetricsServiceRequest | bytes,
        *,
        kind: str = PROTOBUF,
        url: str = URL,
        bearer: str = secret,
        packed: bool = False,
        **more: str,
    ) -> Any:
        if isinstance(request, bytes):
            body = request
        else:
            text = MessageToJson(request).encode()
            body = text if kind == JSON else request.SerializeToString()
        headers = {"Authorization": f"Bearer {bearer}"}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        if packed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return client.post(url, body, content_type=kind, headers=headers)

    return post


def scrape(at_s: float, ratio: float = 0.5, done: int = 100) -> ExportMetricsServiceRequest:
    request = export()
    cores = [({"neuroncore": str(core)}, ratio) for core in range(32)]
    put(request, "neuroncore.utilization", *cores, unit="1", at_s=at_s)
    labels = {"status_type": "completed"}
    put(request, "execution.status", (labels, done), at_s=at_s, temporality=CUMULATIVE)
    return request


def refusal(answer: Any) -> str:
    status = Status.FromString(answer.content)
    return str(status.message)


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@pytest.mark.parametrize("url", [URL, f"{URL}/v1/metrics"])
def test_exports_become_seconds_of_a_new_node(
    send: Post, hot: HotStore, kind: str, url: str
) -> None:
    end = int(time.time())
    for at_s, ratio, done in ((end - 30, 0.9, 100), (end - 15, 0.8, 130), (end, 0.7, 160)):
        answer = send(scrape(at_s, ratio, done), kind=kind, url=url, packed=at_s == end)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, kind)
        if kind == JSON:
            assert json.loads(answer.content) == {}
        else:
            assert not ExportMetricsServiceResponse.FromString(answer.content).ByteSize()
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 3
    node = Node.objects.get()
    assert (node.name, node.instance_type, node.instance_id) == (NAME, "trn1.32xlarge", "i-07")
    metrics = ("core_utilization_ratio", "executions_completed_per_s")
    span = hot.window(f"node:{NAME}", metrics, start=end - 29, end=end)
    busy, per_s = (span.values[metric][:, 0, 0] for metric in metrics)
    np.testing.assert_allclose(busy, [0.8] * 15 + [0.7] * 15, atol=0.01)
    np.testing.assert_allclose(per_s, 2.0, rtol=0.01)


def test_an_export_that_is_sent_again_counts_once(send: Post, hot: HotStore) -> None:
    end = int(time.time())
    for at_s, done in ((end - 15, 100), (end, 130), (end, 130), (end - 15, 100)):
        assert send(scrape(at_s, done=done)).status_code == 200
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    totals = hot.totals([f"node:{NAME}"])
    assert totals.nodes["executions_completed_per_s"][NAME] == pytest.approx(30.0, rel=0.01)


def test_rejected_points_are_said_and_the_others_stored(send: Post, hot: HotStore) -> None:
    request = scrape(time.time())
    put(request, "execution.errors", ({}, 1), ({}, 2), at_s=time.time(), temporality=0)
    answer = ExportMetricsServiceResponse.FromString(send(request).content).partial_success
    assert answer.rejected_data_points == 2
    assert "aggregation_temporality" in answer.error_message
    said = json.loads(send(request, kind=JSON).content)["partialSuccess"]
    assert said["rejectedDataPoints"] == "2"
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 1


def test_a_node_whose_name_is_not_valid_is_rejected(send: Post, hot: HotStore) -> None:
    request = export({"host.name": "rack 7"})
    put(request, "system_memory_used_bytes", ({}, 5.0), at_s=time.time())
    answer = ExportMetricsServiceResponse.FromString(send(request).content).partial_success
    assert answer.rejected_data_points == 1
    assert "'rack 7' is not a valid name" in answer.error_message
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 0
    assert float(hot.execute("HGET", "service:counters", "ingest_lines_refused")) == 1


@pytest.mark.parametrize(
    ("request_", "more", "status", "reason"),
    [
        (b"\xff\xff", {}, 400, "not an ExportMetricsServiceRequest"),
        (b"{", {"kind": JSON}, 400, "not an ExportMetricsServiceRequest"),
        (b"x", {"Content_Encoding": "gzip"}, 400, "gzip"),
        (b"x", {"Content_Encoding": "zstd"}, 400, "zstd"),
        (b"x", {"Content_Encoding": "br"}, 415, "Use gzip or zstd"),
        (b"x", {"kind": "text/plain"}, 415, PROTOBUF),
        (b"x", {"bearer": "unknown"}, 401, "token"),
    ],
)
def test_what_is_refused_says_why_in_the_encoding_of_the_request(
    send: Post, request_: bytes, more: dict[str, str], status: int, reason: str
) -> None:
    answer = send(request_, **more)
    assert answer.status_code == status
    is_json = more.get("kind", PROTOBUF) != PROTOBUF
    said = json.loads(answer.content)["message"] if is_json else refusal(answer)
    assert reason in said
    assert answer.headers["Content-Type"] == (JSON if is_json else PROTOBUF)


def test_a_token_that_may_only_read_is_refused(send: Post) -> None:
    read_only = Token.issue("scraper", Token.Scope.SCRAPE, now=NOON)[1]
    assert send(scrape(time.time()), bearer=read_only).status_code == 403


def test_a_full_queue_makes_the_sender_wait_and_send_again(send: Post, hot: HotStore) -> None:
    request, key = scrape(time.time()), prometheus.QUEUE + NAME
    hot.execute("RPUSH", key, *[b"x"] * prometheus.MAX_QUEUED)
    full = send(request)
    assert (full.status_code, full.headers["Retry-After"]) == (503, "5")
    assert "again" in refusal(full)
    hot.execute("DEL", key)
    assert send(request).status_code == 200
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 1


def test_a_rejected_device_is_an_alert(send: Post, hot: HotStore) -> None:
    now_s = int(time.time())
    request = scrape(now_s)
    states = [({"device": str(i)}, float(i == 5)) for i in range(16)]
    put(request, "accelerator.unhealthy", *states, at_s=now_s)
    assert send(request).status_code == 200
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    hot.gauge("listening_since_s", now_s - 60)
    hot.gauge("watched_at_s", now_s - 1)
    watch(hot, now=datetime.fromtimestamp(now_s, UTC))
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.device) == ("device_unhealthy", f"node:{NAME}", 5)


@pytest.mark.parametrize("method", ["get", "put"])
def test_other_methods_are_refused(client: Client, method: str, db: None) -> None:
    answer = getattr(client, method)(URL)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("temporality", list(AggregationTemporality)[1:])
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sdk_of_opentelemetry_can_send(
    address: str, hot: HotStore, temporality: AggregationTemporality, compression: Compression
) -> None:
    secret = Token.issue("otel", Token.Scope.INGEST, now=just_now())[1]
    exporter = OTLPMetricExporter(
        f"{address}{URL}/v1/metrics",
        headers={"Authorization": f"Bearer {secret}"},
        compression=compression,
        preferred_temporality={Counter: temporality},
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    provider = MeterProvider([reader], Resource(NODE))
    meter = provider.get_meter("test")

    def busy(_: CallbackOptions) -> list[Observation]:
        return [Observation(0.75, {"neuroncore": str(core)}) for core in range(32)]

    meter.create_observable_gauge("neuroncore.utilization", [busy], "1")
    done = meter.create_counter("execution.status")
    for n_done in (4, 6, 6):
        done.add(n_done, {"status_type": "completed"})
        assert reader.force_flush()
        time.sleep(1.1)
    provider.shutdown()

    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) >= 3
    node = Node.objects.get()
    assert (node.name, node.instance_type, node.n_cores) == (NAME, "trn1.32xlarge", 32)
    end = int(time.time())
    metrics = ("core_utilization_ratio", "executions_completed_per_s")
    span = hot.window(f"node:{NAME}", metrics, start=end - 10, end=end)
    ratio, per_s = (span.values[metric][:, 0, 0] for metric in metrics)
    assert np.nanmax(ratio) == pytest.approx(0.75, abs=0.01)
    # Six in a bit more than a second.
    assert 3.0 < np.nanmax(per_s) < 6.0


def collected(metric: str, unit: str, *values: float, **resource: str) -> bytes:
    """Return an export of AWS's collectors: a share of each core."""
    now_ns = "NOW"

    def texts(labels: dict[str, str]) -> list[dict[str, Any]]:
        return [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]

    points = [
        {"attributes": texts({"neuroncore": str(i)}), "timeUnixNano": now_ns, "asDouble": value}
        for i, value in enumerate(values)
    ]
    of_scope = {"metrics": [{"name": metric, "unit": unit, "gauge": {"dataPoints": points}}]}
    attributes = texts({name.replace("_", "."): text for name, text in resource.items()})
    of_resource = {"resource": {"attributes": attributes}, "scopeMetrics": [of_scope]}
    return json.dumps({"resourceMetrics": [of_resource]}).encode()


@pytest.mark.parametrize(
    ("body", "node", "ratios"),
    [
        (
            collected(
                "neuroncore_utilization_ratio",
                "%",
                *(41.0, 73.0),
                k8s_node_name="ip-10-4-2-17",
                host_type="trn1.2xlarge",
                host_id="i-0a1b",
            ),
            "ip-10-4-2-17",
            (0.41, 0.73),
        ),
        # Its type is in no catalogue, and nothing says how many devices there are.
        (
            collected(
                "aws.neuron.neuroncore.utilization",
                "1",
                *(0.25, 0.25),
                host_name="ip-10-4-2-19",
                host_type="inf2.xlarge",
                host_id="i-0a1d",
            ),
            "ip-10-4-2-19",
            (0.25, 0.25),
        ),
    ],
    ids=["CloudWatch agent", "awsneuronreceiver"],
)
def test_collectors_of_aws_make_a_node_with_values(
    send: Post, hot: HotStore, body: bytes, node: str, ratios: tuple[float, float]
) -> None:
    now_ns = str(int(time.time()) * 10**9)
    answer = send(body.replace(b"NOW", now_ns.encode()), kind=JSON)
    assert (answer.status_code, json.loads(answer.content)) == (200, {})
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert Node.objects.get().name == node
    found = hot.latest()[f"node:{node}"].values["core_utilization_ratio"]
    np.testing.assert_allclose(found, [ratios], atol=0.01)


@pytest.mark.parametrize("first", ["collector", "exporter"])
def test_a_collector_beside_an_exporter_of_the_same_machine_doubles_nothing(
    send: Post, client: Client, secret: str, hot: HotStore, first: str
) -> None:
    """The CloudWatch agent sends each minute; Prometheus scrapes neuron-monitor's exporter."""
    start = int(time.time()) - 180
    by_number = {"host.id": "i-07", "host.type": "trn1.32xlarge", "k8s.node.name": "ip-10-0-0-7"}
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": "snappy"}
    for after_s in range(0, 181, 15):
        done = 2.0 * after_s
        if after_s % 60 == (0 if first == "collector" else 30):
            request = export(by_number)
            cores = [({"neuroncore": str(core), "runtime_tag": "9"}, 90.0) for core in range(32)]
            put(request, "neuroncore_utilization_ratio", *cores, unit="%", at_s=start + after_s)
            counted = ({"status_type": "completed", "runtime_tag": "9"}, int(done))
            name, at_s = "execution_status_total", start + after_s
            put(request, name, counted, at_s=at_s, temporality=CUMULATIVE)
            ecc = {"event_type": "mem_ecc_corrected", "neuron_device_index": "3"}
            put(request, "hardware_ecc_events_total", (ecc, 7), at_s=at_s, temporality=CUMULATIVE)
            assert json.loads(send(request, kind=JSON).content) == {}
        if after_s or first == "exporter":
            body = bytes(
                cramjam.snappy.compress_raw(
                    message(*monitor(0.9, completed=done), at_s=start + after_s + 0.4)
                )
            )
            kind = "application/x-protobuf"
            url = "/api/v1/ingest/prometheus"
            assert client.post(url, body, content_type=kind, headers=headers).status_code == 204
        prometheus.assemble(hot, now_s=time.time() + LATER_S)
    node = Node.objects.get()
    assert (node.instance_id, node.n_cores, node.n_devices) == ("i-07", 32, 16)
    metrics = ("core_utilization_ratio", "executions_completed_per_s", "mem_ecc_corrected")
    span = hot.window(f"node:{node.name}", metrics, start=start + 60, end=start + 170)
    ratio, per_s, corrected = (span.values[metric] for metric in metrics)
    np.testing.assert_allclose(ratio[:, 0], 0.9, atol=0.01)
    np.testing.assert_allclose(per_s[:, 0], 2.0, rtol=0.01)
    assert set(corrected[:, 0, 3][np.isfinite(corrected[:, 0, 3])]) == {7.0}
    total = hot.totals([f"node:{node.name}"]).nodes["executions_completed_per_s"][node.name]
    assert 2.0 * 150 < total < 2.0 * 185


def test_a_collector_of_which_nothing_is_read_is_told(send: Post, hot: HotStore) -> None:
    body = collected("aws.neuron.neuroncore.new", "1", 0.25, host_name="ip-10-4-2-19")
    said = json.loads(send(body.replace(b"NOW", b"1"), kind=JSON).content)["partialSuccess"]
    assert said["rejectedDataPoints"] == "1"
    assert "aws.neuron.neuroncore.new is not read" in said["errorMessage"]
    assert float(hot.execute("HGET", "service:counters", "ingest_lines_refused")) == 1
