"""Series of nodes and of the service are complete, with nothing extra."""

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.blocks import METRICS, Block
from telemetry.exporter.exposition import Collected, write_page
from telemetry.exporter.hardware import HARDWARE, NODE_UP, TOTALS, node_families, read_snapshot
from telemetry.exporter.service import COUNTERS, GAUGES, HOT_BYTES, QUEUE, SHARDS, ServiceCollector
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block

DOCUMENT = Path(__file__).parents[2] / "docs/metrics.md"
Samples = dict[tuple[str, ...], float]
QUEUES = ("ticks", "celery")


def families(
    hot: HotStore, *, now_s: float = NOON_S, expected: tuple[str, ...] = ()
) -> list[Metric]:
    nodes = node_families(read_snapshot(hot, now_s=now_s), expected=expected)
    return [*nodes, *ServiceCollector(hot, QUEUES).collect()]


def samples(hot: HotStore, *, now_s: float = NOON_S, expected: tuple[str, ...] = ()) -> Samples:
    """Return every series of the page by name and label values (in order of label name)."""
    page = write_page(families(hot, now_s=now_s, expected=expected))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def of_node(found: Samples, node: str) -> set[str]:
    return {key[0] for key in found if node in key[1:]}


def silenced(whole: Block, row: int) -> Block:
    """Return a block in which one node is silent."""
    values = {name: array.copy() for name, array in whole.values.items()}
    for array in values.values():
        array[row] = np.nan
    return dataclasses.replace(whole, values=values)


def test_every_part_of_every_node_has_its_value(hot: HotStore) -> None:
    cores = np.linspace(0, 1, 64).reshape(2, 32)
    hot.append([block(core_utilization_ratio=cores)])

    found = samples(hot)

    name = "trnwatch_core_utilization_ratio"
    assert found[name, "31", "limping"] == 1.0
    for node, row in (("steady", 0), ("limping", 1)):
        for core in range(32):
            assert found[name, str(core), node] == pytest.approx(cores[row, core], abs=0.0021)


def test_a_rounded_value_is_within_half_a_percent(hot: HotStore) -> None:
    latency = np.random.default_rng(0).uniform(1e-5, 1e-3, (2, 8))
    hot.append([block(efa_latency_s=latency)])

    found = samples(hot)

    for device in range(8):
        written = found["trnwatch_efa_latency_seconds", str(device), "steady"]
        assert written == pytest.approx(latency[0, device], rel=0.005)


def test_every_metric_and_total_is_there(hot: HotStore) -> None:
    hot.append([block()])

    names = {key[0] for key in samples(hot)}

    assert {spec.name for spec in (*HARDWARE.values(), *TOTALS.values(), NODE_UP)} <= names
    assert len(HARDWARE) == len(METRICS)


def test_absent_stays_absent(hot: HotStore) -> None:
    latency = np.full((2, 8), 1e-5)
    latency[1, 3] = np.nan
    hot.append([block(efa_latency_s=latency)])

    found = samples(hot)

    assert ("trnwatch_efa_latency_seconds", "3", "steady") in found
    assert ("trnwatch_efa_latency_seconds", "3", "limping") not in found


def test_a_silent_node_is_down_and_nothing_else(hot: HotStore) -> None:
    hot.append([block(tick=NOON_S - 20)])
    hot.append([silenced(block(tick=NOON_S), 1)])

    found = samples(hot, expected=("steady", "limping"))

    assert found["trnwatch_node_up", "steady"] == 1
    assert found["trnwatch_node_up", "limping"] == 0
    assert of_node(found, "limping") == {"trnwatch_node_up"}


def test_a_shard_that_stopped_is_down_although_its_last_block_is_there(hot: HotStore) -> None:
    hot.append([block("gone", nodes=["a"]), block("here", tick=NOON_S + 16, nodes=["b"])])

    found = samples(hot, now_s=NOON_S + 16, expected=("a",))

    assert of_node(found, "a") == {"trnwatch_node_up"}
    assert len(of_node(found, "b")) > 20


def test_a_node_that_was_never_heard_of_is_down(hot: HotStore) -> None:
    assert samples(hot, expected=("lost",))["trnwatch_node_up", "lost"] == 0


def test_totals_count_every_tick(hot: HotStore) -> None:
    sent = np.full((2, 8), 1e6)
    for second in range(10):
        hot.append([block(tick=NOON_S + second, efa_tx_bytes_per_s=sent)])

    found = samples(hot, now_s=NOON_S + 9)

    assert found["trnwatch_node_efa_tx_bytes_total", "steady"] == 8e7


def test_the_service_reports_itself(hot: HotStore) -> None:
    hot.gauge("tick_lateness_s", 0.25)
    hot.count("ticks_late", 3)

    found = samples(hot)

    assert found["trnwatch_tick_lateness_seconds",] == 0.25
    assert found["trnwatch_ticks_late_total",] == 3
    assert found["trnwatch_ingest_errors_total",] == 0
    assert [found["trnwatch_queue_tasks", queue] for queue in QUEUES] == [0, 0]
    assert found["trnwatch_hot_bytes",] > 0
    assert ("trnwatch_stream_clients",) not in found


def test_it_is_what_the_client_would_have_written(hot: HotStore) -> None:
    rng = np.random.default_rng(0)
    hbm, ecc = rng.uniform(1e9, 1e12, (2, 16)), rng.integers(0, 9, (2, 16)).astype(float)
    hot.append([block(hbm_bandwidth_bytes_per_s=hbm, mem_ecc_corrected=ecc)])
    found = [family for family in families(hot) if any(True for _ in family.samples)]

    assert write_page(found) == generate_latest(Collected(found))


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say(hot: HotStore) -> None:
    hot.append([block()])
    page = write_page(families(hot))

    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )

    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")


def test_a_metric_is_documented_with_its_exported_names() -> None:
    document = DOCUMENT.read_text()
    for metric in METRICS:
        section = document.partition(f"\n## {metric}\n")[2].partition("\n## ")[0]
        for spec in (HARDWARE[metric], TOTALS.get(metric, HARDWARE[metric])):
            named = f"`{spec.name}{{"
            assert named in section, f"docs/metrics.md, ## {metric}: name {named}…}}`"


def test_a_series_of_the_service_is_documented() -> None:
    document = DOCUMENT.read_text()
    specs = (NODE_UP, *GAUGES.values(), *COUNTERS.values(), QUEUE, HOT_BYTES, SHARDS)

    assert [each.name for each in specs if f"\n## {each.name}\n" not in document] == []
