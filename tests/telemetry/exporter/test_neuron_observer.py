"""Series under Neuron Observer's names: read back, they say what the other exporters' say."""

import subprocess
from typing import Any

import numpy as np

from telemetry.exporter.efa_exporter import efa_families
from telemetry.exporter.exposition import ArrayFamily, write_page
from telemetry.exporter.hardware import read_snapshot
from telemetry.exporter.neuron_exporter import neuron_families
from telemetry.exporter.neuron_exporter_names import NodeLabels
from telemetry.exporter.neuron_observer import OBSERVED, observer_families
from telemetry.ingest.exporters import EXPORTERS, ROWS
from telemetry.ingest.neuron_monitor import Reading, read_line
from telemetry.ingest.node_series import NodeSeries
from telemetry.ingest.prometheus import samples_of
from telemetry.store.hot import HotStore
from telemetry.store.node_state import NodeReport, last_reports, save_reports
from tests.helpers import NOON_S, block
from tests.telemetry.exporter.exporter_reference import Series, shown
from tests.telemetry.exporter.test_efa import read
from tests.telemetry.exporter.test_reported import DATA
from tests.telemetry.ingest.test_prometheus import message

EVERY_S = 15
TRN1 = NodeLabels("steady", "i-1", "trn1.32xlarge", runtime_tag="llama")
REAL = NodeLabels("", "", "trn1.32xlarge", is_simulated=False)


def families(hot: HotStore, labels: dict[str, NodeLabels], *, at_s: int) -> list[ArrayFamily]:
    snapshot = read_snapshot(hot, now_s=at_s)
    real = [name for name, known in labels.items() if not known.is_simulated]
    return [
        *neuron_families(snapshot, labels, last_reports(hot, real), is_alone=True),
        *efa_families(hot, snapshot, labels, is_alone=True),
    ]


def scraped(*pages: list[Series]) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Return the last values of scrapes of one node, and its devices and cores."""
    node = NodeSeries()
    readings: list[Reading] = []
    for i, page in enumerate(pages):
        at_s = NOON_S + i * EVERY_S
        target = {"instance": "steady:8000", "node": "steady"}
        written = [(each.name, {**each.labels, **target}, each.value) for each in page]
        found = samples_of(message(*written, at_s=at_s))
        node.identity |= found.identities["steady"]
        node.add(found.by_node["steady"], arrived_s=at_s)
        readings += [reading for reading, _ in node.readings(now_s=at_s + EVERY_S)]
    values = {name: array for reading in readings for name, array in reading.values.items()}
    return values | {"shape": np.array([node.n_devices, node.cores_per_device])}


def observed(page: list[Series]) -> tuple[list[Series], list[Series]]:
    """Separate a page: the other exporters' series, and Observer's."""
    theirs = [each for each in page if each.name in OBSERVED]
    return [each for each in page if each.name not in OBSERVED], theirs


def grown(hot: HotStore, labels: dict[str, NodeLabels]) -> list[list[Series]]:
    """Play a simulated node for two scrapes; return what each shows."""
    pages = []
    random = np.random.default_rng(1)
    for second in range(-2, EVERY_S + 1):
        values: dict[str, Any] = {
            "core_utilization_ratio": random.uniform(0.2, 1.0, (1, 32)),
            "mem_ecc_corrected": np.arange(16.0)[None],
            "executions_failed_per_s": np.array([[2.0]]),
        }
        hot.append([block(tick=NOON_S + second, nodes=["steady"], **values)])
        if second in (0, EVERY_S):
            found = families(hot, labels, at_s=NOON_S + second)
            pages.append(shown([*found, *observer_families(found)]))
        else:
            # EFA counts are added up at each scrape.
            shown(families(hot, labels, at_s=NOON_S + second))
    return pages


def test_read_back_they_say_the_same(hot: HotStore) -> None:
    pages = [observed(page) for page in grown(hot, {"steady": TRN1})]
    theirs, ours = (scraped(*some) for some in zip(*pages, strict=True))
    # Observer has no memory of cores by default, nor latency in a known unit.
    assert theirs.keys() - ours.keys() == {
        "device_memory_used_bytes",
        *(f"execution_latency_{of}_s" for of in ("p50", "p99", "p100")),
    }
    assert ours.keys() <= theirs.keys()
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-4, err_msg=name)
    assert ours["mem_ecc_corrected"].tolist() == [list(range(16))]


def test_a_real_nodes_are_those_of_its_report(hot: HotStore) -> None:
    line = (DATA / "trn1.32xlarge.ndjson").read_bytes().splitlines()[0]
    save_reports(hot, [NodeReport("real", NOON_S, NOON_S, read_line(line).executed, line)])
    read(hot, "real", tx_bytes=7)
    found = families(hot, {"real": REAL}, at_s=NOON_S)
    theirs, ours = observed(shown([*found, *observer_families(found)]))
    sent = [each for each in ours if each.name == "neuron_efa_tx_bytes"]
    assert [(each.labels["efa_device"], each.value) for each in sent] == [("rdmap16s27", 7)]
    gauges = ("core_utilization_ratio", "mem_ecc_corrected", "vcpu_usage_ratio", "shape")
    for name in gauges:
        np.testing.assert_allclose(scraped(ours)[name], scraped(theirs)[name], err_msg=name)


def test_names_are_those_that_are_read() -> None:
    assert OBSERVED.keys() <= EXPORTERS["neuron observer"].keys()
    assert {ROWS[name][0] for name in OBSERVED} == {"neuron observer"}


def test_promtool_can_read_them(hot: HotStore) -> None:
    hot.append([block(nodes=["steady"])])
    found = families(hot, {"steady": TRN1}, at_s=NOON_S)
    page = write_page(observer_families(found))
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    # 3: only its advice on names.
    assert check.returncode in (0, 3), check.stderr
    assert page.count(b"# TYPE neuron_") == len(OBSERVED)
