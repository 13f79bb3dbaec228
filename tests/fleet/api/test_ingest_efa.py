"""Ingest of EFA counters, probes, driver sysfs and agent status."""

import json
import time
from typing import Any

import numpy as np
import pytest
from django.test import Client

from fleet.models import Node, Token
from telemetry.blocks import METRICS
from telemetry.store.hot import HotStore
from telemetry.store.node_state import read_sidecars
from telemetry.store.reading import AGENT_RESTART_S
from tests.fleet.api.conftest import Post
from tests.helpers import NOON
from tests.telemetry.ingest.reports import report

URL = "/api/v1/ingest/efa"
STREAM = "0123456789abcdef"


def port(index: int = 0, **shown: Any) -> dict[str, Any]:
    """Return the report of a port of a device."""
    return {"device": f"rdmap{index}s27", "port": 1, "index": index, **shown}


def line(at_s: float, **shown: Any) -> bytes:
    """Return a line as the agent sends it, without a report."""
    efa = {"period": 2.0, "devices": [port(i, increase={"tx_bytes": 4_000}) for i in range(2)]}
    return json.dumps({"at": at_s, "efa": efa, **shown}).encode()


@pytest.fixture
def known(post: Post) -> int:
    """Give the second of a report of a node with two EFA devices, through the other endpoint."""
    now = int(time.time())
    document = {"at": now + 0.5, "report": report("trn1.2xlarge")}
    assert post(json.dumps(document).encode()).status_code == 200
    return now


@pytest.fixture
def send(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts to this door."""

    def send(body: bytes, *, node: str | None = "real", bearer: str = secret) -> Any:
        headers = {"Authorization": f"Bearer {bearer}"}
        url = URL if node is None else f"{URL}?node={node}"
        return client.post(url, body, content_type="application/x-ndjson", headers=headers)

    return send


def block_at(hot: HotStore, tick: int) -> dict[str, Any]:
    """Return all values of one second that are there."""
    span = hot.window("node:real", (), start=tick, end=tick)
    return {m: array[0, 0] for m, array in span.values.items() if np.isfinite(array).any()}


def test_efa_and_the_report_of_a_second_are_one_block(
    send: Post, hot: HotStore, known: int
) -> None:
    before = block_at(hot, known)
    reported = send(line(known + 0.6)).json()
    after = block_at(hot, known)

    assert (reported["node"], reported["accepted"]) == ("real", 1)
    assert after["efa_tx_bytes_per_s"].tolist() == [2_000, 2_000]
    assert set(after) == {*before, "efa_tx_bytes_per_s"}
    assert all((after[name] == before[name]).all() for name in before)


def test_whichever_of_the_two_comes_first(post: Post, send: Post, hot: HotStore) -> None:
    now = int(time.time())
    post(json.dumps({"at": now - 9.5, "report": report("trn1.2xlarge")}).encode())
    send(line(now + 0.5))
    post(json.dumps({"at": now + 0.6, "report": report("trn1.2xlarge")}).encode())

    assert {"efa_tx_bytes_per_s", "vcpu_usage_ratio"} <= set(block_at(hot, now))
    totals = hot.totals().nodes
    assert totals["efa_tx_bytes_per_s"]["real"] >= 4_000
    assert totals["executions_completed_per_s"]["real"] > 0


def test_the_same_again_changes_nothing(send: Post, hot: HotStore, known: int) -> None:
    send(line(known + 0.6))
    totals = hot.totals().nodes
    numbered = line(known + 0.6, seq=4, stream=STREAM)
    send(numbered)
    reported = send(numbered).json()

    assert (reported["accepted"], reported["repeated"]) == (0, 1)
    assert hot.totals().nodes == totals


def test_every_efa_metric_of_a_simulated_node_can_be_filled(
    send: Post, hot: HotStore, known: int
) -> None:
    grown = {
        "tx_bytes": 100,
        "rx_bytes": 200,
        "tx_pkts": 10,
        "retrans_pkts": 1,
        "rx_drops": 2,
        "impaired_remote_conn_events": 3,
        "unresponsive_remote_events": 4,
    }
    efa = {"period": 1.0, "devices": [port(increase=grown, latency_s=1.7e-5)]}
    send(line(known + 0.6, efa=efa))

    block = block_at(hot, known)
    assert {m for m in METRICS if METRICS[m].part == "efa"} <= set(block)
    assert block["efa_latency_s"] == pytest.approx(1.7e-5, rel=0.01)
    assert block["efa_unresponsive_per_s"] == 4


def test_a_report_may_carry_it_all_in_its_envelope(post: Post, hot: HotStore) -> None:
    now = int(time.time())
    health = {"version": "1", "n_dropped": 3, "problem": "server: away"}
    efa = {"period": 1.0, "devices": [port(5, increase={"tx_bytes": 7}, counters={"tx_bytes": 9})]}
    neuron = {"devices": [{"index": 0, "power_ratio": 0.5, "unhealthy": ["hbm"]}]}
    document = {
        "at": now + 0.5,
        "report": report("trn1.2xlarge"),
        "efa": efa,
        "neuron": neuron,
        "agent": health,
    }

    assert post(json.dumps(document).encode()).json()["accepted"] == 1

    assert block_at(hot, now)["efa_tx_bytes_per_s"][5] == 7
    assert Node.objects.get().n_efa == 6
    assert read_sidecars(hot, "efa", ["real"])["real"] == [
        {"device": "rdmap5s27", "index": 5, "port": 1, "counters": {"tx_bytes": 9}}
    ]
    assert read_sidecars(hot, "neuron", ["real"])["real"][0]["unhealthy"] == ["hbm"]
    assert read_sidecars(hot, "agent", ["real", "other"])["real"]["n_dropped"] == 3


def test_a_node_whose_agent_was_asked_to_end_is_missed_later(
    post: Post, hot: HotStore, known: int
) -> None:
    assert hot.quiet_s() == {}
    stopping = {"version": "1", "stopping": True}
    document = {"at": known + 0.7, "report": report("trn1.2xlarge"), "agent": stopping}
    assert post(json.dumps(document).encode()).json()["accepted"] == 1

    assert hot.quiet_s() == {"real": AGENT_RESTART_S}
    later_s = hot.now() + AGENT_RESTART_S + 1
    hot.now = lambda: later_s
    assert hot.quiet_s() == {}


def test_without_a_monitor_the_driver_reports_the_cores(
    send: Post, hot: HotStore, db: None
) -> None:
    now = int(time.time())
    devices = [{"index": i, "cores": 2, "memory_used_bytes": 1e9} for i in range(2)]
    cores = [{"device": 1, "core": core, "busy": 0.5} for core in range(2)]
    neuron = {"period": 1.0, "devices": devices, "cores": cores}
    document = {"at": now + 0.5, "instance": {"instance_id": "i-0abc"}, "neuron": neuron}

    reported = send(json.dumps(document).encode(), node=None).json()

    node = Node.objects.get()
    assert (reported["node"], node.n_cores, node.n_devices) == ("i-0abc", 4, 2)
    span = hot.window("node:i-0abc", ("core_utilization_ratio",), start=now, end=now)
    values = span.values["core_utilization_ratio"][0, 0]
    assert np.isnan(values[:2]).all()
    assert values[2:] == pytest.approx([0.5, 0.5], abs=0.005)


def test_a_logical_core_is_the_mean_of_its_physical_ones(
    post: Post, send: Post, hot: HotStore
) -> None:
    now = int(time.time())
    post(json.dumps({"at": now - 5, "report": report("trn2.48xlarge")}).encode())
    cores = [{"device": 0, "core": core, "busy": core / 10} for core in range(8)]
    send(json.dumps({"at": now + 0.5, "neuron": {"cores": cores}}).encode())

    values = block_at(hot, now)["core_utilization_ratio"]
    assert values[:4] == pytest.approx([0.05, 0.25, 0.45, 0.65], abs=0.005)
    assert np.isnan(values[4:]).all()


@pytest.mark.parametrize(
    ("shown", "field"),
    [
        ({"efa": None}, ""),
        ({"efa": {"devices": [port(), port()]}}, "efa.devices"),
        ({"efa": {"devices": [port(64)]}}, "efa.devices.0.index"),
        ({"efa": {"devices": [port(device="a/b")]}}, "efa.devices.0.device"),
        ({"efa": {"devices": [port(latency_s=0)]}}, "efa.devices.0.latency_s"),
        ({"efa": {"devices": [port(latency_s=61)]}}, "efa.devices.0.latency_s"),
        (
            {"efa": {"devices": [port(increase={"tx_bytes": -1})]}},
            "efa.devices.0.increase.tx_bytes",
        ),
        (
            {"efa": {"devices": [port(counters={"tx_bytes": 1.5})]}},
            "efa.devices.0.counters.tx_bytes",
        ),
        ({"neuron": {"devices": [{"index": 7}]}}, "neuron.devices"),
        ({"neuron": {"cores": [{"device": 0, "core": 0, "busy": 1.2}]}}, "neuron.cores.0.busy"),
        ({"neuron": {"cores": [{"device": 9, "core": 0, "busy": 1}]}}, "neuron.cores"),
        ({"stream": "short"}, "stream"),
        ({"agent": {"version": "1", "n_dropped": -1}}, "agent.n_dropped"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    send: Post, known: int, shown: dict[str, Any], field: str
) -> None:
    answer = send(line(known + 1, **shown))

    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["field"] == field


def test_a_node_that_no_one_knows_must_say_what_it_has(send: Post, db: None) -> None:
    answer = send(line(time.time()))

    assert (answer.status_code, answer.json()["field"]) == (400, "neuron.devices")
    assert not Node.objects.exists()


def test_only_a_token_that_may_ingest_opens_it(client: Client, send: Post, db: None) -> None:
    scrape = Token.issue("scrape", Token.Scope.SCRAPE, now=NOON)[1]

    assert send(b"{}", bearer="wrong").status_code == 401
    assert send(b"{}", bearer=scrape).status_code == 403
    assert client.get(URL).status_code == 405
