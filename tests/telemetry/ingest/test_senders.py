"""Series of real senders: replicas, intervals, ended processes, collectors, blank values."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from telemetry.ingest import otlp
from telemetry.ingest.exporters import REPLICA_LABELS, name_of
from telemetry.ingest.node_series import NodeSeries
from telemetry.ingest.prometheus import WrittenSamples, recognise

AT_S = 1_795_500_000
Labels = Mapping[str, str]
Written = tuple[str, Labels, float]
Rows = dict[str, list[float]]
EFA = {"instance": "10.4.2.17:9100", "device": "rdmap0s6", "port": "1"}
MONITOR = {
    "instance": "10.4.2.17:8000",
    "instance_id": "i-0a1b",
    "instance_type": "trn1.2xlarge",
    "availability_zone": "us-east-1c",
}
GPU = {"instance": "10.4.2.30:9400", "instance_type": "p5.48xlarge"}


class Player:
    """Plays scrapes through the reader, as Prometheus would send them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeSeries] = {}
        self.runs: set[str] = set()

    def play(self, at_s: float, series: Iterable[Written]) -> Iterator[tuple[str, float, Rows]]:
        found = WrittenSamples()
        for name, labels, value in series:
            known = recognise(tuple(sorted({"__name__": name, **labels}.items())))
            if known:
                found.add(known, [(round(at_s * 1000), value)])
        for node, samples in found.by_node.items():
            state = self.nodes.setdefault(node, NodeSeries())
            state.identity |= found.identities[node]
            self.runs |= found.runs[node].keys()
            state.add(samples, arrived_s=at_s)
            for reading, end_s in state.readings(now_s=at_s + 11):
                yield node, end_s - AT_S, {n: v.tolist()[0] for n, v in reading.values.items()}


def played(scrapes: Iterable[tuple[float, Sequence[Written]]]) -> dict[int, Rows]:
    """The values of the only node, by second since the first scrape."""
    player = Player()
    found = [each for at_s, series in scrapes for each in player.play(AT_S + at_s, series)]
    assert len({node for node, _, _ in found}) == 1
    return {round(end_s): rows for _, end_s, rows in found}


def efa(
    at_s: float, labels: dict[str, str] | None = None, *, since_s: float = 0.0
) -> list[Written]:
    """2 GB/s, 3 retransmits and 250,000 packets a second."""
    return [
        (f"node_amazonefa_{name}", EFA | (labels or {}), rate * (at_s - since_s))
        for name, rate in (("tx_bytes", 2e9), ("retrans_pkts", 3), ("tx_pkts", 250_000))
    ]


def all_are(found: Mapping[int, float], value: float) -> bool:
    return bool(found) and all(each == pytest.approx(value) for each in found.values())


def rates(found: Mapping[int, Rows], metric: str = "efa_tx_bytes_per_s") -> dict[int, float]:
    return {at: rows[metric][0] for at, rows in found.items() if metric in rows}


# Replicas, and intervals.


def replicas(label: str, every_s: int, *, offset_s: float = 11) -> Iterator[tuple[float, Any]]:
    for i in range(12):
        for replica, at_s in enumerate((i * every_s, i * every_s + offset_s)):
            yield at_s, efa(at_s, {label: f"prometheus-{replica}"})


@pytest.mark.parametrize("label", [*REPLICA_LABELS, "not_known_as_one"])
@pytest.mark.parametrize(("every_s", "offset_s"), [(30, 11), (30, 1), (15, 7), (60, 59)])
def test_two_replicas_give_rates_at_each_scrape_but_the_first(
    label: str, every_s: int, offset_s: float
) -> None:
    found = played(replicas(label, every_s, offset_s=offset_s))
    of_first = list(range(every_s, 12 * every_s, every_s))
    assert set(rates(found)) >= set(of_first[1:])
    for metric, rate in (("efa_tx_bytes_per_s", 2e9), ("efa_retransmits_per_s", 3.0)):
        assert all_are(rates(found, metric), rate)
    if label in REPLICA_LABELS:
        # One of them is read, as by Mimir and Cortex.
        assert list(rates(found)) == of_first


@pytest.mark.parametrize("every_s", [10, 15, 30, 60])
@pytest.mark.parametrize("offset_ratio", [0.01, 0.4, 0.7, 0.96])
def test_the_second_replica_takes_over_without_a_hole(every_s: int, offset_ratio: float) -> None:
    offset_s = every_s * offset_ratio
    both = list(replicas("prometheus_replica", every_s, offset_s=offset_s))
    scrapes = [each for i, each in enumerate(both) if i % 2 or each[0] <= 5 * every_s]
    found = rates(played(scrapes))
    assert all_are(found, 2e9)
    # Each scrape covers the seconds since the one before.
    assert np.diff(sorted(found)).max() <= 2.5 * every_s
    assert max(found) == round(11 * every_s + offset_s)


def test_a_replica_whose_clock_is_behind_makes_no_reset() -> None:
    # It takes over; what it says of its first second is less than what the other one said.
    first = [(30.0 * i, efa(30 * i, {"prometheus_replica": "a"})) for i in range(6)]
    second = [(at, efa(at - 61, {"prometheus_replica": "b"})) for at in (210.0, 240.0, 270.0)]
    found = rates(played([*first, *second]))
    assert all_are(found, 2e9)
    assert 270 in found


@pytest.mark.parametrize("label", ["cluster", "tenant"])
def test_other_labels_do_tell_series_apart(label: str) -> None:
    # They are added up, as two ports of a device are.
    scrapes = [(15 * i, efa(15 * i, {label: "a"}) + efa(15 * i, {label: "b"})) for i in (0, 1)]
    assert rates(played(scrapes)) == {15: pytest.approx(4e9)}


@pytest.mark.parametrize(
    "times",
    [
        [*range(0, 90, 15), *range(135, 600, 60)],
        [*range(0, 90, 15), *range(375, 2_000, 300)],
        [*range(0, 90, 60), *range(75, 300, 15)],
        [*range(0, 60, 10), *range(110, 400, 30), *range(460, 1_000, 120)],
    ],
)
def test_a_changed_interval_costs_one_gap_at_most(times: list[int]) -> None:
    found = rates(played((at, efa(at)) for at in times))
    assert all_are(found, 2e9)
    changes = sum(abs(b - a) > 1 for a, b in zip(np.diff(times), np.diff(times)[1:], strict=False))
    assert len(found) >= len(times) - 1 - changes
    assert set(found) >= set(times[-3:])


def test_a_series_that_a_scrape_does_not_have_goes_on_afterwards() -> None:
    # Of three scrapes the second came without one device.
    other = {"device": "rdmap16s27"}
    scrapes = [(at, efa(at) + (efa(at, other) if at != 15 else [])) for at in (0, 15, 30)]
    assert played(scrapes)[30]["efa_tx_bytes_per_s"] == [pytest.approx(2e9)] * 2


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    scrapes = [(at, efa(at, since_s=0 if at < 30 else 25)) for at in (0, 15, 30, 45)]
    found = rates(played(scrapes))
    assert found == {15: pytest.approx(2e9), 30: pytest.approx(2e9 / 3), 45: pytest.approx(2e9)}


# Processes that have ended.


def process(
    tag: str, busy: float, *, done: float | None = None, cores: Sequence[int] = (0, 1)
) -> list[Written]:
    """The series of a process: its cores, 2 GB of each, and what it has completed."""
    own = MONITOR | {"runtime_tag": tag}
    series: list[Written] = []
    for core in cores:
        part = own | {"neuroncore": str(core)}
        series.append(("neuroncore_utilization_ratio", part, busy))
        series.append(("neuroncore_memory_usage_tensors", part | {"memory_location": "None"}, 2e9))
    if done is not None:
        series.append(("execution_status_total", own | {"status_type": "completed"}, done))
    return series


HARDWARE: Written = (
    "neuron_hardware_info",
    MONITOR | {"neuron_device_count": "1", "neuroncore_per_device_count": "2"},
    1.0,
)


@pytest.mark.parametrize("counted", [False, True])
def test_a_process_that_another_one_replaced_has_ended(*, counted: bool) -> None:
    def scrape(i: int) -> list[Written]:
        old = process("3101", 0.92, done=40.0 * min(i, 4) if counted else None)
        new = process("4477", 0.41, done=30.0 * i if counted else None)
        return [HARDWARE, *old, *(new if i >= 4 else [])]

    found = played((15 * i, scrape(i)) for i in range(10))
    for at, rows in found.items():
        is_new = at > 60 or (at == 60 and not counted)
        assert rows["core_utilization_ratio"] == [0.41 if is_new else 0.92] * 2
        if at > 60:
            assert rows["device_memory_used_bytes"] == [4e9]
    if counted:
        assert found[90]["executions_completed_per_s"] == [2.0]


def test_two_processes_that_share_a_core_and_work_are_two() -> None:
    # Neither stands still.
    def scrape(i: int) -> list[Written]:
        return [HARDWARE, *process("1", 0.5 + i / 100), *(process("2", 0.3) if i > 1 else [])]

    found = played((15 * i, scrape(i)) for i in range(6))
    assert found[75]["core_utilization_ratio"] == [0.55, 0.55]
    assert found[75]["device_memory_used_bytes"] == [8e9]


@pytest.mark.parametrize(
    ("busy", "is_there"),
    [
        (0.95, False),
        (0.031, False),
        # It may hang in a collective, and shows that.
        (1.0, True),
        # It has loaded its model and waits.
        (0.0, True),
    ],
)
@pytest.mark.parametrize("has_pod", [False, True], ids=["", "with a pod now and then"])
def test_a_process_whose_counters_stand_still_has_ended(
    busy: float, *, is_there: bool, has_pod: bool
) -> None:
    def scrape(i: int) -> list[Written]:
        own = process("7", busy if i >= 5 else 0.5 + i / 50, done=30.0 * min(i, 5))
        pod = {"pod_name": "llama-worker-3"} if has_pod and i % 2 else {}
        return [HARDWARE, *((name, {**labels, **pod}, value) for name, labels, value in own)]

    found = played((15 * i, scrape(i)) for i in range(15))
    assert found[75]["core_utilization_ratio"] == [pytest.approx(busy)] * 2
    last = found.get(14 * 15, {})
    assert ("core_utilization_ratio" in last) is is_there
    assert ("device_memory_used_bytes" in last) is is_there


def test_a_monitor_that_reports_each_minute_ends_no_process() -> None:
    def scrape(i: int) -> list[Written]:
        report = i // 4
        return [HARDWARE, *process("7", 0.5 + (report % 7) / 50, done=120.0 * report)]

    found = played((15 * i, scrape(i)) for i in range(60))
    assert all("core_utilization_ratio" in rows for at, rows in found.items() if at >= 120)


def test_a_process_that_goes_on_is_there_again() -> None:
    def scrape(i: int) -> list[Written]:
        done = 30.0 * (i if i < 5 else max(5, i - 8))
        return [HARDWARE, *process("7", 0.5 + done / 1e5, done=done)]

    found = played((15 * i, scrape(i)) for i in range(20))
    assert "core_utilization_ratio" not in found.get(12 * 15, {})
    assert found[19 * 15]["core_utilization_ratio"][0] == pytest.approx(0.5033)


# Values that cannot be.


def gpus(name: str, values: Sequence[float]) -> list[Written]:
    return [(name, GPU | {"gpu": str(i)}, value) for i, value in enumerate(values)]


BLANKS = (2147483632, 2147483635, 9223372036854775792.0, 140737488355328, 140737488355331)


@pytest.mark.parametrize(
    ("name", "metric", "good", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "core_utilization_ratio", 12, 0.12),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "core_utilization_ratio", 0.9, 0.9),
        ("DCGM_FI_DEV_FB_USED", "device_memory_used_bytes", 70_000, 70_000 * 2**20),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "hbm_bandwidth_bytes_per_s", 0.5, None),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "mem_ecc_uncorrected", 0, 0),
        ("DCGM_FI_DEV_XID_ERRORS", "device_unhealthy", 0, 0),
    ],
)
@pytest.mark.parametrize("bad", [*BLANKS, -1, 808334905 * 1e9])
def test_blank_and_impossible_values_are_unknown(
    name: str, metric: str, good: float, value: float | None, bad: float
) -> None:
    row = played([(0, gpus(name, [good, good, good, bad]))])[0][metric]
    assert math.isnan(row[3])
    assert value is None or row[:3] == [pytest.approx(value)] * 3


def test_one_impossible_sample_of_a_gpu_is_unknown() -> None:
    def scrape(at: int) -> list[Written]:
        return gpus("DCGM_FI_DEV_GPU_UTIL", [12, 12, 12, 808334905 if at == 30 else 12, 12])

    found = played((at, scrape(at)) for at in range(0, 75, 15))
    assert math.isnan(found[30]["core_utilization_ratio"][3])
    others = [
        v for row in found.values() for v in row["core_utilization_ratio"] if not math.isnan(v)
    ]
    assert others == [pytest.approx(0.12)] * 24


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        # A share above 1 without a unit that would say percent.
        ("neuroncore_utilization_ratio", {"neuroncore": "0"}, 41.0),
        ("neuroncore_utilization_ratio", {"neuroncore": "0"}, -0.5),
        # More than a trn1 device has.
        ("neuroncore_memory_usage_tensors", {"neuroncore": "0"}, 9.7e24),
        ("neuroncore_memory_usage_tensors", {"neuroncore": "0"}, 5e10),
        ("system_memory_used_bytes", {}, 9.2e18),
        ("execution_latency_seconds", {"percentile": "p50"}, -1.0),
        ("hardware_ecc_events_total", {"event_type": "mem_ecc_corrected"}, -3.0),
    ],
)
def test_values_that_no_machine_can_have_are_unknown(
    name: str, labels: dict[str, str], value: float
) -> None:
    well = ("system_vcpu_usage_ratio", MONITOR | {"usage_type": "user"}, 0.2)
    rows = played([(0, [HARDWARE, well, (name, MONITOR | labels, value)])])[0]
    assert rows.pop("vcpu_usage_ratio") == [0.2]
    assert all(math.isnan(each) for row in rows.values() for each in row)


def test_a_counter_that_leaps_is_compared_with_its_last_possible_value() -> None:
    scrapes = [(at, efa(at)) for at in range(0, 90, 15)]
    name, labels, _ = scrapes[3][1][0]
    scrapes[3][1][0] = (name, labels, 9.2e18)
    found = rates(played(scrapes))
    assert all_are(found, 2e9)
    assert sorted(found) == [15, 30, 60, 75]


# Names of nodes.


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"instance": "10.4.2.17:9100"}, "10.4.2.17"),
        ({"instance": "[fd00::7]:9100"}, "fd00::7"),
        ({"instance": "trn-07:9100"}, "trn-07"),
        ({"instance": "10.4.2.17:8000", "instance_id": "i-1"}, "i-1"),
        ({"instance": "trn-07:8000", "instance_id": "i-1"}, "trn-07"),
        ({"instance": "10.4.9.8:9400", "kubernetes_node": "ip-10-4-2-30"}, "ip-10-4-2-30"),
        ({"instance": "10.4.9.8:9400", "kubernetes_node": "a", "instance_id": "i-1"}, "a"),
        ({"instance": "10.4.9.8:9400", "Hostname": "gpu-7"}, "gpu-7"),
        # Those of a container, or of the exporter's pod.
        ({"instance": "10.4.9.8:9400", "Hostname": "3f2a9c1b7d4e"}, "10.4.9.8"),
        ({"instance": "10.4.9.8:9400", "Hostname": "dcgm-x7", "pod": "dcgm-x7"}, "10.4.9.8"),
        ({"instance": "nm-x7:8000", "pod": "nm-x7", "instance_id": "i-1"}, "i-1"),
        ({"instance": "10.4.9.8:9400", "node": "mine", "kubernetes_node": "ip-10"}, "mine"),
    ],
)
def test_a_node_is_named_by_what_stays(labels: Labels, name: str) -> None:
    assert name_of(labels).name == name


@pytest.mark.parametrize(
    "stays",
    [
        {"kubernetes_node": "ip-10-4-2-30.ec2.internal", "Hostname": "ip-10-4-2-30.ec2.internal"},
        {"k8s_node_name": "ip-10-4-2-30.ec2.internal"},
        {"Hostname": "ip-10-4-2-30.ec2.internal", "pod": "dcgm-exporter-x7k2p"},
        {"instance_id": "ip-10-4-2-30.ec2.internal"},
    ],
)
def test_a_new_address_of_an_exporters_pod_is_no_new_node(stays: Labels) -> None:
    player = Player()
    nodes = set()
    for i in range(8):
        address = "10.4.9.8:9400" if i < 4 else "10.4.9.55:9400"
        labels = {"instance": address, "exported_pod": "llama-worker-1", **stays}
        series = [("DCGM_FI_DEV_GPU_UTIL", labels | {"gpu": str(gpu)}, 70.0) for gpu in range(8)]
        for node, _, rows in player.play(AT_S + 15 * i, series):
            nodes.add(node)
            assert rows["core_utilization_ratio"] == [pytest.approx(0.7)] * 8
    assert nodes == {"ip-10-4-2-30.ec2.internal"}
    assert player.runs == {"llama"}


# Health by several sources.


@pytest.mark.parametrize("second_s", [0, 4, 11])
@pytest.mark.parametrize(("xid", "check"), [(79, 0.0), (0, 1.0), (79, 1.0), (0, 0.0)])
def test_a_device_is_sick_if_any_source_says_so(second_s: int, xid: int, check: float) -> None:
    health = {"instance": "10.4.2.30:9100", "job": "check"}
    scrapes: list[tuple[float, list[Written]]] = []
    for i in range(6):
        scrapes.append((15 * i, gpus("DCGM_FI_DEV_XID_ERRORS", [0, xid])))
        said = [("accelerator_unhealthy", health | {"device": "1"}, check)]
        scrapes.append((15 * i + second_s, [*said]))
    found = played(scrapes)
    after = {at: rows["device_unhealthy"][1] for at, rows in found.items() if at >= 15}
    assert set(after.values()) == {float(xid == 79 or check == 1.0)}


def test_checks_by_two_jobs_do_not_hide_each_other() -> None:
    def said(job: str, value: float) -> list[Written]:
        labels = {"instance": "10.4.2.30:9100", "job": job, "device": "0"}
        return [("accelerator_unhealthy", labels, value)]

    found = played((7 * i, said(*(("a", 1.0), ("b", 0.0))[i % 2])) for i in range(10))
    assert {rows["device_unhealthy"][0] for rows in found.values()} == {1.0}
    # Once its source says so, it is well again.
    both = played((7 * i, said("ab"[i % 2], float(i == 0))) for i in range(10))
    assert [rows["device_unhealthy"][0] for rows in both.values()][:4] == [1.0, 1.0, 0.0, 0.0]


# Collectors of OpenTelemetry.


def export(*metrics: Mapping[str, Any], **resource: str) -> WrittenSamples:
    attributes = {"host.name": "ip-10-4-2-19", "host.type": "inf2.xlarge", "host.id": "i-0a1d"}
    attributes |= {key.replace("_", "."): text for key, text in resource.items()}
    document = {
        "resourceMetrics": [
            {
                "resource": {"attributes": texts(attributes)},
                "scopeMetrics": [{"scope": {"name": "awsneuron"}, "metrics": list(metrics)}],
            }
        ]
    }
    return otlp.samples_of(otlp.decode(json.dumps(document).encode(), is_json=True))


def texts(labels: Labels) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]


def gauge(name: str, unit: str, *points: tuple[Labels, float]) -> dict[str, Any]:
    rows = [
        {"attributes": texts(labels), "timeUnixNano": str(AT_S * 10**9), "asDouble": value}
        for labels, value in points
    ]
    return {"name": name, "unit": unit, "gauge": {"dataPoints": rows}}


def values_of(found: WrittenSamples) -> Rows:
    ((node, samples),) = found.by_node.items()
    state = NodeSeries()
    state.identity |= found.identities[node]
    state.add(samples, arrived_s=AT_S)
    ((reading, _),) = state.readings(now_s=AT_S + 60)
    return {name: row.tolist()[0] for name, row in reading.values.items()}


@pytest.mark.parametrize("unit", ["%", "percent", "1", ""])
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("neuroncore_utilization_ratio", "neuroncore"),
        ("neuroncore_utilization_ratio", "aws.neuron.core"),
        ("aws.neuron.neuroncore.utilization", "neuroncore"),
        ("aws.neuron.neuroncore.utilization", "aws.neuron.neuroncore.id"),
        ("neuroncore.utilization.ratio", "neuroncore"),
    ],
)
def test_collectors_give_the_share_that_their_unit_says(name: str, label: str, unit: str) -> None:
    scale = 100 if unit in {"%", "percent"} else 1
    found = export(gauge(name, unit, ({label: "0"}, 0.41 * scale), ({label: "1"}, 0.73 * scale)))
    row = values_of(found)["core_utilization_ratio"]
    assert row == [pytest.approx(0.41), pytest.approx(0.73)]
    assert (found.n_rejected, found.n_ignored) == (0, 0)


def test_the_public_receiver_gives_what_neuron_monitor_gives() -> None:
    core = {"aws.neuron.neuroncore.id": "1"}
    found = export(
        gauge("aws.neuron.neuroncore.utilization", "1", (core, 0.25)),
        gauge(
            "aws.neuron.neuroncore.memory.usage",
            "By",
            *((core | {"aws.neuron.memory.category": kind}, 1e9) for kind in ("tensors", "code")),
        ),
        gauge(
            "aws.neuron.execution.latency",
            "s",
            ({"aws.neuron.latency.type": "total", "aws.neuron.latency.quantile": "p50"}, 0.02),
            ({"aws.neuron.latency.type": "device", "aws.neuron.latency.quantile": "p50"}, 0.01),
        ),
        gauge(
            "aws.neuron.errors",
            "{error}",
            (
                {
                    "hw.id": "0",
                    "error.type": "uncorrected",
                    "aws.neuron.memory.type": "dram",
                },
                2.0,
            ),
        ),
        host_type="trn1.2xlarge",
    )
    rows = values_of(found)
    assert rows["core_utilization_ratio"][1] == 0.25
    assert rows["device_memory_used_bytes"] == [2e9]
    assert rows["execution_latency_p50_s"] == [0.02]
    assert rows["mem_ecc_uncorrected"] == [2.0]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("aws.neuron.something.else", {"neuroncore": "0"}),
        ("neuron_new_name", {}),
        ("DCGM_FI_DEV_NEW", {"gpu": "0"}),
    ],
)
def test_a_known_exporter_of_which_nothing_is_read_is_told(name: str, labels: Labels) -> None:
    found = export(gauge(name, "1", (labels, 0.25), (labels, 0.3)))
    assert (found.by_node, found.n_rejected) == ({}, 2)
    assert name in found.reason
    assert "docs/real-nodes.md" in found.reason
    # Beside what is read it is one of many that are not used.
    more = gauge("aws.neuron.neuroncore.utilization", "1", ({"neuroncore": "0"}, 0.5))
    assert export(gauge(name, "1", (labels, 0.25)), more).n_rejected == 0


def test_a_point_without_its_part_is_told() -> None:
    found = export(gauge("aws.neuron.neuroncore.utilization", "1", ({"core": "0"}, 0.25)))
    assert found.n_rejected == 1
    assert "without the attribute neuroncore" in found.reason


def test_times_in_another_unit_are_converted() -> None:
    found = export(gauge("execution.latency", "ms", ({"percentile": "p50"}, 20.0)))
    assert values_of(found)["execution_latency_p50_s"] == [pytest.approx(0.02)]


def test_what_comes_by_two_protocols_does_not_replace_each_other() -> None:
    # Prometheus and a collector see the same exporter, at different times.
    node = NodeSeries()
    for i in range(4):
        at_ms = 1000 * (AT_S + 15 * i)
        for protocol, offset_s in (("", 0), ("OTLP", 4)):
            written = WrittenSamples()
            for name, labels, value in efa(15 * i + offset_s):
                series = recognise(tuple(sorted({"__name__": name, **labels}.items())))
                assert series is not None
                written.add(series, [(at_ms + 1000 * offset_s, value)], protocol=protocol)
            node.add(written.by_node["10.4.2.17"], arrived_s=at_ms / 1000 + offset_s)
    found = list(node.readings(now_s=AT_S + 999))
    assert {r.values["efa_tx_bytes_per_s"].item() for r, _ in found} == {2e9}
    assert len(found) == 6
