"""EFA series under the EFA exporter's names, from agents and simulation."""

import numpy as np
import pytest

from telemetry.exporter.efa_exporter import efa_families
from telemetry.exporter.hardware import read_snapshot
from telemetry.exporter.neuron_exporter_names import NodeLabels
from telemetry.store.hot import HotStore
from telemetry.store.node_state import save_sidecars
from tests.helpers import NOON_S, block
from tests.telemetry.exporter.exporter_reference import Series, shown

OF_DEVICES = (
    *("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd"),
    *("alloc_pd_err", "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err"),
    *("create_ah_err", "mmap_err"),
)
OF_PORTS = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops"),
    *("send_bytes", "send_wrs", "recv_bytes", "recv_wrs"),
    *("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"),
    *("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events", "lifespan"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
COUNTERS = {f"node_amazonefa_{name}" for name in (*OF_DEVICES, *OF_PORTS)}
KNOWN_TO_SOME = {"node_amazonefa_alloc_mr_err", "node_amazonefa_get_dma_mr_err"}
INFO = "node_amazonefa_info"
TRN1 = NodeLabels("steady", "steady", "trn1.32xlarge")
REAL = NodeLabels("", "", "trn1.32xlarge", is_simulated=False)


def exported(hot: HotStore, who: dict[str, NodeLabels], *, is_alone: bool = False) -> list[Series]:
    return shown(efa_families(hot, read_snapshot(hot, now_s=NOON_S), who, is_alone=is_alone))


def read(hot: HotStore, node: str, **counters: int) -> None:
    """Let the agent of a real node read its one device."""
    hot.append([block(f"node:{node}", nodes=[node])])
    device = {"device": "rdmap16s27", "port": 1, "counters": counters}
    save_sidecars(hot, [(node, {"efa": [device]})])


def holds_against_the_facts(found: list[Series], *, names: set[str], labels: set[str]) -> None:
    """Hold names, types and labels against the table."""
    assert {each.name for each in found} == names | {INFO}
    for each in found:
        is_info = each.name == INFO
        assert each.kind == ("gauge" if is_info else "counter"), each.name
        assert set(each.labels) == labels - ({"port"} if is_info else set()), each.name


def test_a_simulated_node_gives_the_exporters_series(hot: HotStore) -> None:
    hot.append([block(nodes=["steady"])])

    found = exported(hot, {"steady": TRN1})

    holds_against_the_facts(found, names=COUNTERS, labels={"node", "instance", "device", "port"})
    assert {each.labels["device"] for each in found} == {f"rdmap{16 * i}s27" for i in range(1, 9)}
    assert len(found) == 8 * (len(COUNTERS) + 1)


def test_on_its_own_page_a_node_needs_no_label(hot: HotStore) -> None:
    hot.append([block(nodes=["steady"])])

    found = exported(hot, {"steady": TRN1}, is_alone=True)

    holds_against_the_facts(found, names=COUNTERS, labels={"device", "port"})


def test_a_simulated_device_counts_what_it_did(hot: HotStore) -> None:
    again = np.zeros((1, 8))
    again[0, 2] = 5.0
    sent = np.full((1, 8), 8192e3)
    for second in range(-9, 1):
        hot.append(
            [
                block(
                    tick=NOON_S + second,
                    nodes=["steady"],
                    efa_retransmits_per_s=again,
                    efa_tx_bytes_per_s=sent,
                )
            ]
        )
        reported_s = NOON_S + second
        found = shown(efa_families(hot, read_snapshot(hot, now_s=reported_s), {"steady": TRN1}))

    counts = {(each.name, each.labels["device"]): each.value for each in found}
    assert counts["node_amazonefa_retrans_pkts", "rdmap48s27"] == 50
    assert counts["node_amazonefa_retrans_pkts", "rdmap16s27"] == 0
    assert counts["node_amazonefa_tx_bytes", "rdmap48s27"] == pytest.approx(8192e4, rel=0.004)


def test_a_real_node_shows_what_its_agent_read(hot: HotStore) -> None:
    every = {name.removeprefix("node_amazonefa_"): 7 for name in COUNTERS | KNOWN_TO_SOME}
    read(hot, "real", **every, not_known_to_anybody=1)

    found = exported(hot, {"real": REAL}, is_alone=True)

    names = COUNTERS | KNOWN_TO_SOME
    holds_against_the_facts(found, names=names, labels={"device", "port"})
    assert {each.value for each in found if each.name != INFO} == {7.0}


def test_an_old_driver_has_fewer_counters(hot: HotStore) -> None:
    read(hot, "real", tx_bytes=2**53 - 1, rx_bytes=0)

    found = exported(hot, {"real": REAL}, is_alone=True)

    values = {each.name: each.value for each in found}
    assert values == {
        "node_amazonefa_tx_bytes": 2.0**53 - 1,
        "node_amazonefa_rx_bytes": 0.0,
        INFO: 1.0,
    }


def test_nodes_on_one_page_are_distinguished(hot: HotStore) -> None:
    read(hot, "one", tx_bytes=1)
    read(hot, "two", tx_bytes=2)
    hot.append([block(nodes=["steady"])])

    found = exported(hot, {"one": REAL, "two": REAL, "steady": TRN1})

    values = {e.labels["node"]: e.value for e in found if e.name == "node_amazonefa_tx_bytes"}
    assert {node: values[node] for node in ("one", "two")} == {"one": 1, "two": 2}
    assert "steady" in values


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "p5.48xlarge"])
def test_a_node_without_efa_or_of_other_makers_shows_none(hot: HotStore, kind: str) -> None:
    hot.append([block(nodes=["steady"])])

    assert exported(hot, {"steady": NodeLabels("steady", "steady", kind)}) == []


def test_a_silent_node_shows_nothing(hot: HotStore) -> None:
    hot.append([block(nodes=["steady"], tick=NOON_S - 60)])
    read(hot, "real", tx_bytes=1)

    found = shown(
        efa_families(hot, read_snapshot(hot, now_s=NOON_S + 60), {"steady": TRN1, "real": REAL})
    )

    assert found == []
