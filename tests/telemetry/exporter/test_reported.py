"""A real node under the exporter's names, series by series."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Block
from telemetry.exporter.hardware import read_snapshot
from telemetry.exporter.neuron_exporter import neuron_families
from telemetry.exporter.neuron_exporter_names import NodeLabels
from telemetry.ingest.neuron_monitor import read_line
from telemetry.store.hot import HotStore
from telemetry.store.node_state import NodeReport, last_reports, save_reports
from tests.helpers import NOON_S
from tests.telemetry.exporter.exporter_reference import (
    Series,
    holds_against_the_facts,
    named,
    shown,
)

# As the exporters of each node give them.
own_families = partial(neuron_families, is_alone=True)
DATA = Path(__file__).parents[1] / "ingest/data"
Report = dict[str, Any]
REAL = NodeLabels("", "", "", is_simulated=False)


def lines_of(stream: str) -> list[bytes]:
    return (DATA / f"{stream}.ndjson").read_bytes().splitlines()


def exported(
    hot: HotStore, *lines: bytes, node: str = "real", every_s: float = 1.0
) -> list[Series]:
    """Let a node report these lines, a second apart, and return what is shown of it."""
    for i, line in enumerate(lines):
        at_s = NOON_S + i * every_s
        note = NodeReport(node, at_s, at_s, read_line(line).executed, line)
        save_reports(hot, [note])
    values = {"vcpu_usage_ratio": np.full((1, 1), 0.1)}
    hot.append([Block(f"node:{node}", NOON_S, (node,), values)])
    snapshot = read_snapshot(hot, now_s=NOON_S)
    return shown(own_families(snapshot, {node: REAL}, last_reports(hot, [node])))


def changed(stream: str, change: Callable[[Report], object]) -> bytes:
    """Return a stream's first line with something about it changed."""
    report = json.loads(lines_of(stream)[0])
    change(report)
    return json.dumps(report).encode()


@pytest.mark.parametrize(
    ("stream", "tags", "n_devices"),
    [
        ("trn1.2xlarge", {"51200": range(2)}, 1),
        ("trn1.32xlarge", {"51200": range(16), "51201": range(16, 32)}, 16),
        ("trn2.48xlarge", {"51200": range(64)}, 16),
        ("trn1.32xlarge-idle", {}, 16),
    ],
)
def test_a_stream_gives_the_exporters_series(
    hot: HotStore, stream: str, tags: dict[str, range], n_devices: int
) -> None:
    found = exported(hot, *lines_of(stream))

    holds_against_the_facts(found, tags=tags, n_devices=n_devices)


def test_values_are_those_of_the_report_in_the_exporters_units(hot: HotStore) -> None:
    line = lines_of("trn2.48xlarge")[0]
    report = json.loads(line)
    process = report["neuron_runtime_data"][0]["report"]
    found = exported(hot, line)

    cores = process["neuroncore_counters"]["neuroncores_in_use"]
    assert named(found, "neuroncore_utilization_ratio") == {
        (core,): pytest.approx(use["neuroncore_utilization"] / 100) for core, use in cores.items()
    }
    used = process["memory_used"]["neuron_runtime_used_bytes"]
    by_core = used["usage_breakdown"]["neuroncore_memory_usage"]
    for purpose in by_core["0"]:
        assert named(found, f"neuroncore_memory_usage_{purpose}", memory_location="None") == {
            (core,): pytest.approx(float(memory[purpose])) for core, memory in by_core.items()
        }
    latency = process["execution_stats"]["latency_stats"]["total_latency"]
    assert named(found, "execution_latency_seconds") == {(p,): s for p, s in latency.items()}
    usage = report["system_data"]["vcpu_usage"]["average_usage"]
    kernel = sum(usage[kind] for kind in ("system", "io_wait", "irq", "soft_irq"))
    assert named(found, "system_vcpu_usage_ratio") == {
        ("user",): pytest.approx((usage["user"] + usage["nice"]) / 100),
        ("system",): pytest.approx(kernel / 100),
    }
    n_vcpus = len(report["system_data"]["vcpu_usage"]["usage_data"])
    assert named(found, "system_vcpu_count") == {(): n_vcpus}
    assert named(found, "neuron_hardware_info", neuron_device_count="16") == {("4",): 1.0}


def test_the_base_labels_say_which_machine_it_is(hot: HotStore) -> None:
    found = exported(hot, lines_of("trn2.48xlarge")[0])

    [info] = [each for each in found if each.name == "instance_info"]
    assert info.labels == {
        "instance_name": "real",
        "instance_id": "i-0000002079071820",
        "instance_type": "trn2.48xlarge",
        "availability_zone": "us-east-2b",
        "region": "us-east-2",
        "subnet_id": "subnet-00000000",
    }


def test_counts_add_up_over_reports_and_a_report_counts_once(hot: HotStore) -> None:
    lines = lines_of("trn1.32xlarge")
    done = [read_line(line).executed["51200"][6] for line in lines]

    exported(hot, *lines)
    found = exported(hot, *lines)

    counted = named(found, "execution_status_total", runtime_tag="51200", status_type="completed")
    assert counted == {(): sum(done)}


def test_a_process_that_is_gone_is_shown_no_more(hot: HotStore) -> None:
    busy = lines_of("trn1.32xlarge")[0]
    alone = changed("trn1.32xlarge", lambda report: report["neuron_runtime_data"].pop())
    idle = lines_of("trn1.32xlarge-idle")[0]

    assert {s.labels.get("runtime_tag") for s in exported(hot, busy, alone)} == {None, "51200"}
    holds_against_the_facts(exported(hot, busy, alone, idle), tags={}, n_devices=16)


def test_a_process_that_comes_back_counts_from_zero(hot: HotStore) -> None:
    busy, idle = lines_of("trn1.32xlarge")[0], lines_of("trn1.32xlarge-idle")[0]
    done = read_line(busy).executed["51200"][6]

    found = exported(hot, busy, busy, idle, busy)

    counted = named(found, "execution_status_total", runtime_tag="51200", status_type="completed")
    assert counted == {(): done}


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("neuroncore_counters", {"neuroncore_utilization_ratio"}),
        (
            "memory_used",
            {
                "neuron_runtime_memory_used_bytes",
                *(
                    f"neuroncore_memory_usage_{purpose}"
                    for purpose in (
                        "constants",
                        "model_code",
                        "model_shared_scratchpad",
                        "runtime_memory",
                        "tensors",
                    )
                ),
            },
        ),
        ("neuron_runtime_vcpu_usage", {"neuron_runtime_vcpu_usage_ratio"}),
        (
            "execution_stats",
            {"execution_errors_total", "execution_status_total", "execution_latency_seconds"},
        ),
    ],
)
@pytest.mark.parametrize("how", ["missing", "failed"])
def test_a_group_that_is_missing_or_failed_is_absent(
    hot: HotStore, path: str, lost: set[str], how: str
) -> None:
    def change(report: Report) -> None:
        groups = report["neuron_runtime_data"][0]["report"]
        if how == "missing":
            del groups[path]
        else:
            groups[path]["error"] = "could not be read"

    found = exported(hot, changed("trn1.2xlarge", change))

    holds_against_the_facts(found, tags={"51200": range(2)}, n_devices=1, without=lost)


def test_what_did_not_run_has_no_latency(hot: HotStore) -> None:
    def change(report: Report) -> None:
        stats = report["neuron_runtime_data"][0]["report"]["execution_stats"]
        stats["latency_stats"]["total_latency"] = None

    found = exported(hot, changed("trn1.2xlarge", change))

    without = {"execution_latency_seconds"}
    holds_against_the_facts(found, tags={"51200": range(2)}, n_devices=1, without=without)


def test_a_report_in_an_envelope_reads_alike(hot: HotStore) -> None:
    line = lines_of("trn2.48xlarge")[0]
    envelope = b'{"at": 1795222412.0, "seq": 17, "report": ' + line + b"}"

    assert (
        exported(hot, line, node="plain")[0].value == exported(hot, envelope, node="sent")[0].value
    )
    assert len(exported(hot, line, node="plain")) == len(exported(hot, envelope, node="sent"))


def test_two_nodes_never_share_a_series(hot: HotStore) -> None:
    line = lines_of("trn2.48xlarge")[0]
    exported(hot, line, node="one")
    exported(hot, line, node="two")
    who = {"one": REAL, "two": REAL}

    found = shown(own_families(read_snapshot(hot, now_s=NOON_S), who, last_reports(hot, [*who])))

    assert {each.labels["instance_name"] for each in found} == {"one", "two"}


def test_processes_under_one_tag_never_share_a_series(hot: HotStore) -> None:
    def change(report: Report) -> None:
        first, second = report["neuron_runtime_data"]
        second["neuron_runtime_tag"] = first["neuron_runtime_tag"]
        cores = second["report"]["neuroncore_counters"]["neuroncores_in_use"]
        cores["3"] = cores.pop("16")

    found = exported(hot, changed("trn1.32xlarge", change))

    assert len(named(found, "neuroncore_utilization_ratio")) == 31
    counted = named(found, "execution_status_total", status_type="completed")
    both = json.loads(lines_of("trn1.32xlarge")[0])["neuron_runtime_data"]
    done = [p["report"]["execution_stats"]["execution_summary"]["completed"] for p in both]
    assert counted == {(): sum(done)}


def test_a_silent_node_shows_nothing(hot: HotStore) -> None:
    exported(hot, lines_of("trn2.48xlarge")[0])

    snapshot = read_snapshot(hot, now_s=NOON_S + 100)

    assert shown(own_families(snapshot, {"real": REAL}, last_reports(hot, ["real"]))) == []


def test_an_older_report_counts_but_is_not_shown(hot: HotStore) -> None:
    new, old = lines_of("trn1.2xlarge")[:2]
    exported(hot, new)
    done = [read_line(line).executed["51200"][6] for line in (new, old)]

    earlier_s = NOON_S - 60.0
    save_reports(hot, [NodeReport("real", earlier_s, earlier_s, read_line(old).executed, old)])

    held = last_reports(hot, ["real"])["real"]
    assert held.line == new
    assert held.executed["51200"][6] == sum(done)
