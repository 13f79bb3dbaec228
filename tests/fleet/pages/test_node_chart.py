"""Node charts as JSON: one line per part, null for gaps."""

import time
from datetime import timedelta

import numpy as np
import pytest
from django.test import Client

from fleet.charts.node_maps import MAPS
from fleet.models import Annotation, Node, Run
from telemetry.blocks import Block
from telemetry.store.hot import HotStore
from tests.fleet.pages.test_node_list import stray
from tests.helpers import block, just_now

LATENCY = "/nodes/steady/charts/efa-latency"


def test_it_draws_one_line_per_link(client: Client, alive: Run) -> None:
    figure = client.get(LATENCY).json()

    assert [line["label"] for line in figure["series"]] == [f"EFA {i}" for i in range(8)]
    assert figure["unit"] == "s"
    assert figure["scale"] == "log"
    assert {len(line["values"]) for line in figure["series"]} == {len(figure["t"])}


def test_what_was_not_reported_is_null_and_never_zero(client: Client, alive: Run) -> None:
    values = client.get(LATENCY).json()["series"][0]["values"]

    assert values[0] is None
    assert values[-1] == 0.5


def test_the_part_that_leaves_its_peers_stands_out(
    client: Client, hot: HotStore, alive: Run
) -> None:
    now_s = int(time.time())
    slow = np.full((2, 8), 17e-6)
    slow[0, 2] = 142e-6
    hot.append([block(tick=now_s - i, efa_latency_s=slow) for i in range(30, 150)])
    roles = {line["label"]: line["role"] for line in client.get(LATENCY).json()["series"]}

    assert roles["EFA 2"] == "bad"
    assert set(roles.values()) == {"bad", "muted"}


def test_flops_are_drawn_as_shares_of_the_peak_and_latencies_by_percentile(
    client: Client, hot: HotStore, alive: Run, steady: Node
) -> None:
    assert client.get("/nodes/steady/charts/flops").status_code == 404, "it is simulated"
    Node.objects.filter(pk=steady.pk).update(
        source=Node.Source.NEURON_MONITOR, shard="node:steady"
    )
    values = {
        "core_flops_per_s": np.full((1, 32), 1.5 * 2.0**45),
        "execution_latency_p50_s": np.array([[0.25]]),
        "execution_latency_p99_s": np.array([[0.5]]),
        "execution_latency_p100_s": np.array([[1.0]]),
    }
    hot.append([Block("node:steady", int(time.time()) - 1, ("steady",), values)])

    flops = client.get("/nodes/steady/charts/flops").json()
    latency = client.get("/nodes/steady/charts/execution-latency").json()

    assert flops["unit"] == "ratio"
    assert flops["series"][5]["values"][-1] == pytest.approx(0.5555, abs=1e-3)
    assert [(s["label"], s["values"][-1]) for s in latency["series"]] == [
        ("median", 0.25),
        ("99th percentile", 0.5),
        ("slowest", 1.0),
    ]
    Node.objects.filter(pk=steady.pk).update(instance_type="unknown")
    assert client.get("/nodes/steady/charts/flops").json()["unit"] == "flops_per_s"


def test_the_heat_map_has_a_row_per_core(client: Client, alive: Run) -> None:
    heat = client.get("/nodes/steady/charts/core-heat").json()

    assert len(heat["rows"]) == 32
    assert {len(row) for row in heat["values"]} == {len(heat["t"])}
    # trn1.32xlarge: two cores a device.
    assert heat["places"][17] == ["device 8 of steady", "/nodes/steady/devices/8/"]
    assert client.get(heat["places"][17][1]).status_code == 200


@pytest.mark.parametrize("chart", sorted(MAPS))
def test_every_map_is_data_and_a_table(client: Client, alive: Run, chart: str) -> None:
    address = f"/nodes/steady/charts/{chart}"
    drawn = client.get(address).json()

    assert len(drawn["rows"]) == len(drawn["values"]) > 0
    assert [len(row) for row in drawn["strengths"]] == [len(row) for row in drawn["values"]]
    assert len(drawn["peers"]) == len(drawn["t"])
    page = client.get(address, headers={"Accept": "text/html"}).text
    assert drawn["rows"][0] in page


def test_a_chart_that_has_not_changed_is_not_sent_again(client: Client, alive: Run) -> None:
    query = f"{LATENCY}?from={int(time.time()) - 30}&to={int(time.time()) - 20}"
    first = client.get(query)
    again = client.get(query, headers={"If-None-Match": first["ETag"]})

    assert again.status_code == 304
    assert not again.content


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("window=year", "window"),
        ("from=1700000000", "to"),
        ("from=noon&to=1700000000", "from"),
        ("from=1700000900&to=1700000000", "to"),
        ("from=0&to=1700000000", "from"),
        ("from=nan&to=1700000000", "from"),
        ("from=99999999999999&to=1700000000", "from"),
    ],
)
def test_a_bad_window_is_refused_by_the_name_of_its_field(
    client: Client, alive: Run, query: str, field: str
) -> None:
    response = client.get(f"{LATENCY}?{query}")

    assert response.status_code == 400
    assert response.json()["error"]["field"] == field


def test_an_old_window_is_empty_and_not_wrong(client: Client, alive: Run) -> None:
    figure = client.get(f"{LATENCY}?from=1700000000&to=1700003600").json()

    assert all(value is None for line in figure["series"] for value in line["values"])


def test_a_real_node_marks_what_is_estimated(client: Client, alive: Run, steady: Node) -> None:
    Node.objects.filter(pk=steady.pk).update(source=Node.Source.NEURON_MONITOR)

    assert client.get("/nodes/steady/charts/hbm").json()["note"].startswith("estimate")


@pytest.mark.parametrize("path", ["/nodes/steady/charts/weather", "/nodes/missing/charts/hbm"])
def test_it_does_not_know_other_charts_or_nodes(client: Client, alive: Run, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_node_without_links_has_no_link_chart(client: Client, alive: Run) -> None:
    stray(run=None)

    assert client.get("/nodes/stray/charts/efa-latency").status_code == 404
    assert client.get("/nodes/stray/charts/cores").status_code == 200


def test_what_was_noted_of_the_node_of_its_run_or_of_everything_is_marked(
    client: Client, alive: Run, steady: Node, limping: Node
) -> None:
    at = just_now() - timedelta(seconds=10)
    for text, about in (
        ("cable", {"node": steady}),
        ("loader", {"run": alive}),
        ("firmware", {}),
        ("another", {"node": limping}),
    ):
        Annotation.objects.create(at=at, kind="note", text=text, **about)

    events = client.get(LATENCY).json()["events"]
    assert {event[1] for event in events} == {"note: cable", "note: loader", "note: firmware"}
    assert "events" not in client.get("/nodes/steady/charts/core-heat").json()
