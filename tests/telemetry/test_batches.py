"""The newest blocks of nodes, merged from two senders."""

import numpy as np
import pytest

from telemetry.blocks import METRICS, Block
from telemetry.exporter.hardware import node_families, read_snapshot
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block
from tests.telemetry.exporter.exporter_reference import shown

EFA = tuple(name for name in METRICS if name.startswith("efa_"))
REPORT = tuple(name for name in METRICS if name not in EFA)


@pytest.fixture(autouse=True)
def noon(hot: HotStore) -> None:
    """Let it be noon."""
    hot.now = lambda: float(NOON_S)


def through(hot: HotStore, endpoint: tuple[str, ...], *seconds: int, fill: float = 0.5) -> None:
    """Store these values of a real node, from one sender, in each of these seconds."""
    for second in seconds:
        whole = block("node:real", NOON_S + second, ["real"], fill=fill)
        values = {name: whole.values[name] for name in endpoint}
        hot.merge([Block(whole.shard, whole.tick, whole.nodes, values)])


def service_counts(hot: HotStore, second: int = 0) -> dict[str, float]:
    """Return the node's values, one part of each name."""
    found = shown(node_families(read_snapshot(hot, now_s=NOON_S + second)))
    return {s.name: s.value for s in found if s.labels["node"] == "real"}


def n_reports(hot: HotStore) -> int:
    return len(shown(node_families(read_snapshot(hot, now_s=NOON_S))))


@pytest.mark.parametrize(("first", "then"), [(REPORT, EFA), (EFA, REPORT)], ids=["report", "efa"])
def test_what_another_process_reported_just_before_still_holds(
    hot: HotStore, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    through(hot, (*REPORT, *EFA), -9)
    whole = n_reports(hot)
    through(hot, first, *range(-8, -3), fill=0.25)
    through(hot, then, *range(-3, 1), fill=0.75)

    found = service_counts(hot)

    assert n_reports(hot) == whole
    by_report, by_efa = (0.25, 0.75) if first is REPORT else (0.75, 0.25)
    assert found["trnwatch_core_utilization_ratio"] == pytest.approx(by_report, abs=0.01)
    assert found["trnwatch_efa_latency_seconds"] == pytest.approx(by_efa, rel=0.01)


def test_what_was_reported_longer_ago_is_not(hot: HotStore) -> None:
    through(hot, REPORT, -20)
    through(hot, EFA, 0)

    found = service_counts(hot)

    assert "trnwatch_efa_latency_seconds" in found
    assert "trnwatch_core_utilization_ratio" not in found


def test_what_a_newer_report_does_not_tell_is_absent(hot: HotStore) -> None:
    through(hot, REPORT, -2)
    rest = tuple(name for name in REPORT if name != "device_memory_used_bytes")
    through(hot, rest, -1, 0)

    assert "trnwatch_device_memory_used_bytes" not in service_counts(hot)


def test_nodes_that_are_alike_are_read_together(hot: HotStore) -> None:
    hot.append(block(f"node:{i}", NOON_S, [f"{i}"]) for i in range(100))
    hot.append([block("llama/0")])

    snapshot = read_snapshot(hot, now_s=NOON_S)

    assert sorted(len(batch.nodes) for batch in snapshot.batches) == [2, 36, 64]
    values = [batch.values("core_utilization_ratio") for batch in snapshot.batches]
    assert all(np.shape(each)[1] == 32 for each in values if each is not None)
