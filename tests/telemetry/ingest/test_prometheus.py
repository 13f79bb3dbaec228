"""Remote write: one request is read, a scrape is assembled from several, gaps stay gaps."""

import math
import re
from pathlib import Path

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.blocks import METRICS
from telemetry.ingest.exporters import EXPORTERS, name_of
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.neuron_monitor import Reading
from telemetry.ingest.node_series import NodeSeries
from telemetry.ingest.prometheus import WrittenSamples, labels_of, run_of, samples_of, unpack
from telemetry.units import DAY_S
from telemetry.write_request import WriteRequest

ROOT = Path(__file__).resolve().parents[3]
AT_S = 1_750_000_000
MACHINE = {"instance": "10.0.0.7:8000", "instance_id": "i-07", "instance_type": "trn1.32xlarge"}
Written = tuple[str, dict[str, str], float]


def message(*series: Written, at_s: float = AT_S) -> bytes:
    request = WriteRequest()
    for name, labels, value in series:
        one = request.timeseries.add()
        for key, text in sorted({"__name__": name, **labels}.items()):
            one.labels.add(name=key, value=text)
        one.samples.add(value=value, timestamp=int(at_s * 1000))
    body: bytes = request.SerializeToString()
    return body


def monitor(
    utilization: float = 0.9, completed: float = 100.0, n_cores: int = 32
) -> list[Written]:
    """One scrape of neuron-monitor's exporter: busy cores, memory of two of them, executions."""
    return [
        *(
            ("neuroncore_utilization_ratio", MACHINE | {"neuroncore": str(i)}, utilization)
            for i in range(32)
        ),
        *(
            (f"neuroncore_memory_usage_{kind}", MACHINE | {"neuroncore": core}, 1e9)
            for kind in ("tensors", "constants")
            for core in ("2", "3")
        ),
        ("execution_status_total", MACHINE | {"status_type": "completed"}, completed),
        ("execution_status_total", MACHINE | {"status_type": "timed_out"}, 3.0),
        ("python_info", MACHINE, 1.0),
    ]


def node_after(*scrapes: tuple[float, list[Written]]) -> tuple[NodeSeries, list[Reading]]:
    node, readings = NodeSeries(), []
    for at_s, series in scrapes:
        read = samples_of(message(*series, at_s=at_s))
        ((name, samples),) = read.by_node.items()
        node.identity |= read.identities[name]
        node.add(samples, arrived_s=at_s)
        readings += [reading for reading, _ in node.readings(now_s=at_s + 1)]
    readings += [reading for reading, _ in node.readings(now_s=scrapes[-1][0] + 60)]
    return node, readings


def named(labels: dict[str, str]) -> str:
    return name_of(labels).name


def test_a_node_is_named_by_its_label_or_its_host() -> None:
    assert named({"instance": "10.0.0.7:8000"}) == "10.0.0.7"
    assert named({"instance": "ip-10-0-0-7"}) == "ip-10-0-0-7"
    assert named({"instance": "10.0.0.7:8000", "node": "trn-07"}) == "trn-07"
    assert named({}) == ""
    assert named({"instance": "[fd00::7]:8000"}) == named({"instance": "fd00::7"}) == "fd00::7"


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost.localdomain", "127.0.0.1", "0.0.0.0", "[::1]"]
)
def test_what_each_machine_calls_itself_names_none(host: str) -> None:
    """As Prometheus on each node scrapes it: all nodes would be one."""
    itself = {"instance": f"{host}:8000", "hostname": "localhost"}
    found = samples_of(
        message(
            ("node_memory_MemTotal_bytes", itself, 1.0),
            ("node_memory_MemTotal_bytes", itself | {"instance_id": "i-07"}, 1.0),
            ("node_memory_MemTotal_bytes", itself | {"node": "trn-08"}, 1.0),
        )
    )

    assert (found.n_rejected, set(found.by_node)) == (1, {"i-07", "trn-08"})
    assert "node_memory_MemTotal_bytes names no node" in found.reason


@pytest.mark.parametrize(
    ("labels", "run"),
    [
        ({"run": "llama-70b"}, "llama-70b"),
        ({"pod_name": "llama-worker-3"}, "llama"),
        ({"exported_pod": "llama-3-x7k2p"}, "llama"),
        ({"pod_name": "gpt-13b-0"}, "gpt-13b"),
        ({"pod_name": "notebook"}, "notebook"),
        # As a job that reports its steps under this name is called.
        ({"run": "llama-3.1 8b"}, "llama-3-1-8b"),
        ({"exported_pod": "llama-3.1-worker-0"}, "llama-3-1"),
        ({"run": "?"}, ""),
        ({}, ""),
    ],
)
def test_a_run_is_named_by_its_label_or_by_the_job_of_its_pod(
    labels: dict[str, str], run: str
) -> None:
    assert run_of(labels) == run


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"exported_pod": "llama-0", "exported_namespace": "ml", "namespace": "monitoring"}, 1),
        ({"pod_name": "llama-0", "namespace": "ml"}, 1),
        ({"k8s_pod_name": "llama-0", "k8s_namespace_name": "ml"}, 1),
        # The exporter's own.
        ({"pod": "neuron-monitor-x7k2p", "namespace": "monitoring"}, 0),
        ({"pod_name": "a\nb"}, 0),
    ],
)
def test_labels_of_a_series_are_those_of_its_node(labels: dict[str, str], found: int) -> None:
    assert labels_of(labels) == ({"pod": "llama-0", "namespace": "ml"} if found else {})
    assert labels_of({"eks_amazonaws_com_nodegroup": "trn2"}) == {"node_group": "trn2"}


def test_of_several_pods_of_a_node_the_first_stays_while_it_is_there() -> None:
    node = NodeSeries()
    seen = []
    for at_s, pod in ((0, "a"), (15, "b"), (30, "a"), (140, "b"), (151, "b")):
        node.label({"pod": pod}, arrived_s=at_s)
        seen.append(node.labels["pod"][0])

    assert seen == ["a", "a", "a", "a", "b"]


@pytest.mark.parametrize(
    ("devices", "per_device"),
    [("2000000000", "2"), ("9" * 21, "9" * 21), ("0", "2"), ("-1", "2"), ("\u0663", "2")],
)
def test_a_shape_that_no_node_has_is_not_taken(devices: str, per_device: str) -> None:
    labels = {"neuron_device_count": devices, "neuroncore_per_device_count": per_device}
    series = [("neuron_hardware_info", MACHINE | labels, 1.0), *monitor()]
    node, _ = node_after((AT_S, series), (AT_S + 15, series))
    assert (node.shape.n_devices, node.shape.n_cores) == (16, 32)


def test_series_of_one_scrape_become_one_reading() -> None:
    _, (first, second) = node_after((AT_S, monitor()), (AT_S + 15, monitor(0.5, completed=130)))
    assert first.identity.instance_id == "i-07"
    assert (first.shape.n_devices, first.shape.n_cores) == (16, 32)
    np.testing.assert_allclose(first.values["core_utilization_ratio"], np.full((1, 32), 0.9))
    memory = first.values["device_memory_used_bytes"][0]
    assert memory[1] == 4e9
    assert np.isnan(np.delete(memory, 1)).all()
    # Rates need two scrapes.
    assert "executions_completed_per_s" not in first.values
    assert second.period_s == 15
    assert second.values["executions_completed_per_s"].tolist() == [[2.0]]
    assert second.values["executions_failed_per_s"].tolist() == [[0.0]]


def test_a_scrape_waits_for_its_missing_series_and_ends_with_the_next_one() -> None:
    node = NodeSeries()

    def read(series: list[Written], at_s: float) -> list[tuple[Reading, float]]:
        written = samples_of(message(*series, at_s=at_s))
        node.identity |= written.identities["i-07"]
        node.add(written.by_node["i-07"], arrived_s=at_s)
        return list(node.readings(now_s=at_s))

    # How many series there are is not known yet: the first scrape waits.
    assert read(monitor(), AT_S) == []
    assert len(list(node.readings(now_s=AT_S + 11))) == 1
    # Pieces in any order: complete with the last one.
    assert read(monitor()[20:], AT_S + 15) == []
    ((whole, end_s),) = read(monitor()[:20], AT_S + 15)
    assert end_s == AT_S + 15
    assert np.isfinite(whole.values["core_utilization_ratio"]).all()
    # A scrape without some series is stored when the next one begins.
    assert read(monitor()[4:], AT_S + 30) == []
    (part, _), (_, _) = read(monitor(), AT_S + 45)
    assert np.isnan(part.values["core_utilization_ratio"][0, :4]).all()


def test_repeated_and_older_samples_change_nothing() -> None:
    node, readings = node_after((AT_S, monitor()), (AT_S + 15, monitor()))
    read = samples_of(message(*monitor(0.1), at_s=AT_S + 15)).by_node["i-07"]
    n_new, n_repeated = node.add(read, arrived_s=AT_S + 16)
    assert (n_new, n_repeated) == (0, len(read))
    assert len(readings) == 2
    assert list(node.readings(now_s=AT_S + 99)) == []


def test_a_counter_that_fell_counts_from_zero() -> None:
    _, readings = node_after((AT_S, monitor(completed=1000)), (AT_S + 15, monitor(completed=30)))
    assert readings[1].values["executions_completed_per_s"].tolist() == [[2.0]]


def test_an_outage_is_not_covered() -> None:
    _, readings = node_after(
        (AT_S, monitor()), (AT_S + 15, monitor()), (AT_S + 600, monitor(completed=900))
    )
    assert readings[2].period_s == 15
    assert "executions_completed_per_s" not in readings[2].values


def test_markers_of_stale_series_are_no_values() -> None:
    stale = np.array([0x7FF0000000000002], "u8").view("f8")[0]
    read = samples_of(
        message(("neuroncore_utilization_ratio", MACHINE | {"neuroncore": "0"}, stale))
    )
    assert read.by_node == {"i-07": []}


def test_processes_on_a_core_count_once() -> None:
    tags = [
        (
            "neuroncore_utilization_ratio",
            MACHINE | {"neuroncore": "0", "runtime_tag": tag},
            ratio,
        )
        for tag, ratio in (("1", 0.7), ("2", 0.2))
    ]
    _, (reading,) = node_after((AT_S, tags))
    assert reading.values["core_utilization_ratio"][0, 0] == 0.7


def test_host_values_come_from_node_exporter() -> None:
    host = {"instance": "10.0.0.7:9100"}

    def scrape(idle_s: float) -> list[Written]:
        return [
            *(
                ("node_cpu_seconds_total", host | {"cpu": str(i), "mode": "idle"}, idle_s)
                for i in range(4)
            ),
            ("node_cpu_seconds_total", host | {"cpu": "0", "mode": "user"}, 5.0),
            ("node_memory_MemTotal_bytes", host, 100.0),
            ("node_memory_MemAvailable_bytes", host, 30.0),
        ]

    _, (_, second) = node_after((AT_S, scrape(0.0)), (AT_S + 15, scrape(12.0)))
    assert second.values["vcpu_usage_ratio"][0, 0] == pytest.approx(0.2)
    assert second.values["host_memory_used_bytes"].tolist() == [[70.0]]


def test_efa_devices_keep_their_places() -> None:
    def scrape(n: float, devices: tuple[str, ...]) -> list[Written]:
        return [
            ("node_amazonefa_tx_bytes", {"instance": "10.0.0.7:9101", "device": d, "port": "1"}, n)
            for d in devices
        ]

    names = ("rdmap16s27", "rdmap9s27")
    # Counters alone have no rate after the first scrape.
    _, (second,) = node_after((AT_S, scrape(0, names)), (AT_S + 10, scrape(50, names)))
    assert second.values["efa_tx_bytes_per_s"].tolist() == [[5.0, 5.0]]
    assert second.n_efa == 2


def test_a_gpu_is_a_core_and_a_device() -> None:
    gpu = {"instance": "10.0.0.7:9400", "gpu": "1", "instance_type": "p5.48xlarge"}
    _, (reading,) = node_after(
        (
            AT_S,
            [
                ("DCGM_FI_DEV_GPU_UTIL", gpu, 80.0),
                ("DCGM_FI_DEV_FB_USED", gpu, 1024.0),
                ("DCGM_FI_PROF_DRAM_ACTIVE", gpu, 0.5),
            ],
        )
    )
    assert reading.values["core_utilization_ratio"][0, 1] == pytest.approx(0.8)
    assert reading.values["device_memory_used_bytes"][0, 1] == 2**30
    assert 1e12 < reading.values["hbm_bandwidth_bytes_per_s"][0, 1] < 5e12


OBSERVED = {"instance": "10.0.0.7:50051", "node": "10.0.0.7"}


def observed(
    n: int, *more: Written, busy: float = 0.9, suffix: str = "_avg", scale: float = 100.0
) -> list[Written]:
    """One scrape of Neuron Observer as it exports by default: counts are sums over the node."""
    return [
        *(
            (f"neuron_core_utilization{suffix}", OBSERVED | {"neuroncore": str(i)}, busy * scale)
            for i in range(64)
        ),
        ("neuron_core_infer_completed_sum_total", OBSERVED, 100.0 * n),
        ("neuron_core_infer_timed_out_sum_total", OBSERVED, 15.0 * n),
        ("neuron_core_hw_err_hbm_ue_sum_total", OBSERVED, 30.0 * n),
        ("neuron_core_err_hw_sum_total", OBSERVED, 45.0 * n),
        ("neuron_device_mem_ecc_uncorrected_sum", OBSERVED, 2.0 * n),
        ("neuron_system_neuron_device_count", OBSERVED, 16.0),
        ("neuron_system_logical_neuroncore_count", OBSERVED, 64.0),
        ("neuron_system_memory_used_bytes", OBSERVED, 5e9),
        ("neuron_vcpu_vcpu_idle_percent_avg", OBSERVED, 80.0),
        *more,
    ]


def test_neuron_observer_gives_what_neuron_monitor_gives() -> None:
    efa = OBSERVED | {"efa_device": "rdmap16s27", "efa_port": "1"}
    scrapes = [observed(n, ("neuron_efa_tx_bytes_total", efa, 150.0 * n)) for n in (1, 2)]
    _, (_, second) = node_after((AT_S, scrapes[0]), (AT_S + 15, scrapes[1]))
    assert (second.shape.n_devices, second.shape.n_cores) == (16, 64)
    values = second.values
    np.testing.assert_allclose(values["core_utilization_ratio"], np.full((1, 64), 0.9))
    assert values["executions_completed_per_s"].tolist() == [[pytest.approx(100 / 15)]]
    assert values["executions_failed_per_s"].tolist() == [[3.0]]
    assert values["execution_errors_per_s"].tolist() == [[3.0]]
    assert values["efa_tx_bytes_per_s"].tolist() == [[10.0]]
    assert values["host_memory_used_bytes"].tolist() == [[5e9]]
    assert values["vcpu_usage_ratio"].tolist() == [[pytest.approx(0.2)]]
    # A sum over the node is stored as its first device, so that no device is accused.
    assert values["mem_ecc_uncorrected"][0, 0] == 4
    assert np.isnan(values["mem_ecc_uncorrected"][0, 1:]).all()


def test_neuron_observer_may_count_by_device() -> None:
    counts = [
        ("neuron_device_sram_ecc_uncorrected", OBSERVED | {"neuron_device_index": str(i)}, 1.0 * i)
        for i in range(16)
    ]
    _, (reading,) = node_after((AT_S, observed(1, *counts)))
    assert reading.values["sram_ecc_uncorrected"].tolist() == [list(range(16))]


def test_utilization_without_a_unit_is_percent_once_a_core_was_busy() -> None:
    ratios = observed(1, scale=1.0)
    _, (reading,) = node_after((AT_S, ratios))
    assert reading.values["core_utilization_ratio"][0, 0] == pytest.approx(0.9)
    percent, idle = observed(1), observed(2, busy=0.005)
    _, readings = node_after((AT_S, percent), (AT_S + 15, idle))
    assert [r.values["core_utilization_ratio"][0, 0] for r in readings] == pytest.approx(
        [0.9, 0.005]
    )
    for suffix, scale in (("_avg_percent", 100.0), ("_avg_ratio", 1.0)):
        said = observed(1, busy=0.005, suffix=suffix, scale=scale)
        _, (reading,) = node_after((AT_S, said))
        assert reading.values["core_utilization_ratio"][0, 0] == pytest.approx(0.005)


def test_a_core_without_a_number_is_ignored() -> None:
    read = samples_of(message(("neuroncore_utilization_ratio", MACHINE, 0.5)))
    assert (read.by_node, read.n_ignored) == ({}, 1)


@pytest.mark.parametrize(("xid", "state"), [(0, 0), (31, 0), (45, 0), (48, 1), (79, 1)])
def test_a_gpu_is_unhealthy_after_an_xid_that_no_application_causes(xid: int, state: int) -> None:
    gpu = {"instance": "10.0.0.7:9400", "gpu": "1", "instance_type": "p5.48xlarge"}
    _, (reading,) = node_after((AT_S, [("DCGM_FI_DEV_XID_ERRORS", gpu, float(xid))]))
    assert reading.values["device_unhealthy"][0, 1] == state
    assert np.isnan(reading.values["device_unhealthy"][0, 0])


def test_of_several_health_checks_the_worst_counts() -> None:
    host = {"instance": "10.0.0.7:9100", "device": "3", "instance_type": "trn1.32xlarge"}
    checks = [
        ("accelerator_unhealthy", host | {"check": check}, state)
        for check, state in (("a", 1.0), ("b", 0.0))
    ]
    _, (reading,) = node_after((AT_S, checks))
    assert reading.values["device_unhealthy"][0, 3] == 1


@pytest.mark.parametrize(
    "name", ["3", "03", "device3", "neuron3", "nvidia3", "/dev/neuron3", "GPU-3", "cuda:3"]
)
def test_a_device_has_the_number_of_its_name_also_alone(name: str) -> None:
    for kind, n_devices in (("trn1.32xlarge", 16), ("", 4)):
        host = {"instance": "10.0.0.7:9100", "device": name, "instance_type": kind}
        _, (reading,) = node_after((AT_S, [("accelerator_unhealthy", host, 1.0)]))
        health = reading.values["device_unhealthy"][0]
        assert np.flatnonzero(health == 1).tolist() == [3]
        assert (health.size, int(np.isfinite(health).sum())) == (n_devices, 1)
        assert reading.rejected == ()


@pytest.mark.parametrize("part", ["GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "0000:10:1c.0"])
def test_a_device_without_a_number_is_rejected(part: str) -> None:
    host = {"instance": "10.0.0.7:9100", "instance_type": "p5.48xlarge"}
    named = ("accelerator_unhealthy", host | {"device": part}, 1.0)
    read = samples_of(message(named, ("accelerator_unhealthy", host | {"device": "0"}, 1.0)))
    assert (read.n_rejected, [len(samples) for samples in read.by_node.values()]) == (1, [1])
    assert f"device={part!r}, which names no number" in read.reason


@pytest.mark.parametrize("name", ["16", "neuron16", "neuron123456789"])
def test_a_device_that_the_node_does_not_have_is_rejected(name: str) -> None:
    host = {"instance": "10.0.0.7:9100", "instance_type": "trn1.32xlarge"}
    states = [
        ("accelerator_unhealthy", host | {"device": each}, 1.0) for each in (name, "neuron2")
    ]
    _, (reading,) = node_after((AT_S, states))
    health = reading.values["device_unhealthy"][0]
    assert np.flatnonzero(health == 1).tolist() == [2]
    (reason,) = reading.rejected
    number = name.removeprefix("neuron")
    assert reason.startswith(f"device_unhealthy of device {number}, but the node has 16")


def test_efa_devices_are_numbered_in_the_order_of_their_names() -> None:
    efa = {"instance": "10.0.0.7:9100", "instance_type": "trn1.32xlarge"}
    names = ("rdmap16s27", "rdmap9s0", "rdmap160s27")
    scrapes = [
        (
            AT_S + 15 * n,
            [
                ("node_amazonefa_tx_bytes", efa | {"device": name}, 15.0 * n * (i + 1))
                for i, name in enumerate(names)
            ],
        )
        for n in (0, 1)
    ]
    _, readings = node_after(*scrapes)
    assert readings[-1].values["efa_tx_bytes_per_s"].tolist() == [[2.0, 1.0, 3.0]]
    assert readings[-1].rejected == ()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_series_that_is_read_becomes_a_value(exporter: str) -> None:
    kind = "p5.48xlarge" if exporter == "dcgm" else "trn1.32xlarge"
    rows = [(name, row) for name, some in EXPORTERS[exporter].items() for row in some]
    parts = {row.part: "0" for _, row in rows if row.part}
    machine = MACHINE | parts | {"instance_type": kind}
    series = [
        (name, machine | {label: min(wanted) for label, wanted in row.labels}, 1.0)
        for name, row in rows
    ]
    _, readings = node_after((AT_S, series), (AT_S + 15, series))
    found = set(readings[-1].values)
    assert found <= set(METRICS)
    named = {row.metric for _, row in rows}
    assert named & set(METRICS) <= found
    # What is not a metric itself is turned into one.
    assert bool(found - named) is bool(named - set(METRICS))


def test_of_collectives_those_across_nodes_count() -> None:
    gpu = {"instance": "10.0.0.7:9100", "node": "pod-3", "gpu": "GPU0", "collective": "AllReduce"}
    series = [
        (name, gpu | {"n_nodes": n_nodes, "message_size": size}, value)
        for n_nodes, size, gbs, us in (
            ("1", "1-2GB", 400.0, 9.0),
            ("4", "1-2GB", 44.0, 800.0),
            ("4", "1-2KB", 2.0, 30.0),
        )
        for name, value in (
            ("nccl_bus_bandwidth_gbs", gbs),
            ("nccl_collective_exec_time_microseconds", us),
        )
    ]
    _, (reading,) = node_after((AT_S, series))
    assert reading.values["collective_bandwidth_bytes_per_s"].tolist() == [[44e9]]
    assert reading.values["collective_time_s"].tolist() == [[pytest.approx(800e-6)]]
    # A label of the target names the node; Inspector's own, without one of its target's.
    for labels, node in (
        ({"node": "gpu-7", "exported_node": "pod-3", "instance": "a:1"}, "gpu-7"),
        # Scraped on its own machine, it knows its host better than the address.
        ({"node": "pod-3", "instance": "localhost:1"}, "pod-3"),
        ({"node": "gpu-7"}, "gpu-7"),
    ):
        read = samples_of(message(("nccl_bus_bandwidth_gbs", {"n_nodes": "2", **labels}, 1.0)))
        assert set(read.by_node) == {node}


def test_what_is_no_remote_write_is_refused() -> None:
    with pytest.raises(RefusedError, match="not a snappy block"):
        unpack(b"\x05hello", max_bytes=100)
    with pytest.raises(RefusedError, match="is not a WriteRequest"):
        samples_of(b"\xff\xff\xff")
    bomb = snappy(bytes(1_000_000))
    with pytest.raises(RefusedError, match="1,000,000 bytes once unpacked; 1,000 at most"):
        unpack(bomb, max_bytes=1_000)


def snappy(message: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(snappy))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read = samples_of(unpack(body, max_bytes=10_000))
    except RefusedError:
        return
    assert isinstance(read, WrittenSamples)


def test_infinite_values_are_left_out() -> None:
    infinite = samples_of(message(("system_memory_used_bytes", MACHINE, math.inf)))
    assert infinite.by_node["i-07"] == []


def test_the_documented_filter_keeps_every_series_that_is_read() -> None:
    text = (ROOT / "docs" / "real-nodes.md").read_text()
    kept = re.search(r'action: keep, regex: "(.+)"', text)
    dropped = re.search(r'action: drop, regex: "(.+)"', text)
    assert kept is not None
    assert dropped is not None
    names = {name for of in EXPORTERS.values() for name in of}
    assert {name for name in names if not re.fullmatch(kept[1], name)} == set()
    assert not re.fullmatch(kept[1], "go_threads")
    assert not re.fullmatch(dropped[1], "node_cpu_seconds_total;idle")
    assert re.fullmatch(dropped[1], "node_cpu_seconds_total;user")


@pytest.mark.parametrize(
    ("at_s", "reason"),
    [
        (AT_S + 61, "61 s ahead of trnwatch's clock"),
        (AT_S + 60, None),
        (AT_S - DAY_S, None),
        (AT_S - 2 * DAY_S, "2.0 days old"),
    ],
)
def test_samples_of_the_future_or_of_long_ago_are_rejected(
    at_s: float, reason: str | None
) -> None:
    read = samples_of(message(*monitor(), at_s=at_s))
    n_sent = len(read.by_node["i-07"])
    rejected = read.reject_times(now_s=AT_S)

    assert [n for _, n, _ in rejected] == ([] if reason is None else [n_sent])
    assert (read.n_rejected, bool(read.by_node)) == (
        (0, True) if reason is None else (n_sent, False)
    )
    assert (reason or "") in read.reason


def test_the_reason_is_about_samples_that_are_rejected_not_others_of_their_node() -> None:
    """Two messages behind each other are one."""
    read = samples_of(message(*monitor(), at_s=AT_S - 2 * DAY_S) + message(*monitor(), at_s=AT_S))
    n_sent = len(read.by_node["i-07"])
    [(_, n_rejected, reason)] = read.reject_times(now_s=AT_S)

    assert "2.0 days old" in reason
    assert n_rejected == len(read.by_node["i-07"]) == n_sent // 2


def test_series_that_are_not_used_are_never_rejected() -> None:
    read = samples_of(message(("kube_pod_labels", {"label": "x" * 5_000}, 1.0)))

    assert (read.n_ignored, read.n_rejected) == (1, 0)


def test_ever_longer_gaps_are_covered_up_to_a_limit() -> None:
    ends, at_s = [], float(AT_S)
    for gap_s in (0, 100, 240, 590, 1400):
        at_s += gap_s
        ends.append((at_s, monitor()))
    _, readings = node_after(*ends)
    assert max(reading.period_s for reading in readings) == 240


def test_a_part_with_an_endless_number_is_rejected() -> None:
    long = MACHINE | {"neuroncore": "9" * 5_000}
    read = samples_of(message(("neuroncore_utilization_ratio", long, 0.5)))
    assert (read.by_node, read.n_rejected) == ({}, 1)
    assert "at most 2,048" in read.reason
