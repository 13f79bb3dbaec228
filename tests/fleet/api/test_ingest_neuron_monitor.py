"""Ingest of neuron-monitor lines."""

import json
import time

import numpy as np
import pytest
from django.test import Client

from fleet.models import Node
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import URL, Post
from tests.telemetry.ingest.reports import cores, encoded, lines, report, stream

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_a_report_becomes_a_node_of_the_fleet(post: Post, hot: HotStore) -> None:
    response = post(TRN2[0], node=None)

    assert response.status_code == 200
    assert response.json()["accepted"] == 1
    node = Node.objects.get()
    assert (node.name, node.source) == ("i-0000002079071820", Node.Source.NEURON_MONITOR)
    assert (node.instance_type, node.zone) == ("trn2.48xlarge", "us-east-2b")
    assert (node.n_cores, node.n_devices, node.shard) == (64, 16, "node:i-0000002079071820")
    block = hot.latest()[node.shard]
    assert block.values["core_utilization_ratio"][0, 0] == pytest.approx(0.9219, abs=0.01)
    assert abs(block.tick - time.time()) < 5


def test_the_ultraserver_is_kept_and_found(post: Post, client: Client) -> None:
    document = report("trn2.48xlarge")
    document["instance_info"]["ultraserver_id"] = "c0ffee0000000004"
    assert post(encoded(document)).json()["accepted"] == 1
    # Reports without it do not clear it.
    assert post(TRN2[1]).json()["accepted"] == 1

    node = Node.objects.get()
    assert node.ultraserver_id == "c0ffee0000000004"
    assert [*Node.objects.filter_by(text="c0ffee")] == [node]


def test_the_caller_may_name_the_node(post: Post) -> None:
    assert post(TRN2[0], node="trn2-a").json()["node"] == "trn2-a"
    assert Node.objects.get().name == "trn2-a"


def test_lines_sent_together_fill_the_seconds_before_arrival(post: Post, hot: HotStore) -> None:
    assert post(stream("trn1.2xlarge")).json()["accepted"] == 5

    now = int(time.time())
    span = hot.window("node:real", ("vcpu_usage_ratio",), start=now - 8, end=now)
    assert np.isfinite(span.values["vcpu_usage_ratio"]).sum() == 5


def test_a_bad_line_is_refused_and_the_good_ones_around_it_are_kept(post: Post) -> None:
    bent = report()
    cores(bent)["37"]["neuroncore_utilization"] = -3
    body = b"\n".join([TRN2[0], b"nonsense", encoded(bent), TRN2[1]])

    response = post(body)

    assert response.status_code == 200
    assert response.json()["accepted"] == 2
    first, second = response.json()["refused"]
    assert first["line"] == 2
    assert (second["line"], second["reason"]) == (3, "Expected `float` >= 0.0")
    assert second["field"].endswith("neuroncores_in_use.37.neuroncore_utilization")


def test_reports_over_several_lines_are_read(post: Post) -> None:
    printed = [json.dumps(json.loads(line), indent=4) for line in TRN2]
    bent = json.dumps({"report": {"system_data": 7}}, indent=4)

    response = post("\n".join([*printed * 3, bent]).encode()).json()

    n_lines = sum(text.count("\n") + 1 for text in printed) * 3
    assert n_lines > 10_000
    assert (response["accepted"] + response["repeated"], response["n_refused"]) == (9, 1)
    assert response["refused"][0]["line"] == n_lines + 1


def test_an_array_over_several_lines_is_refused_in_three_lines(post: Post) -> None:
    response = post(json.dumps([json.loads(line) for line in TRN2], indent=4).encode())

    assert response.status_code == 400
    assert response.json()["n_refused"] > 4_000
    assert [refusal["line"] for refusal in response.json()["refused"]] == [1, 2, 3]
    assert "jq -c" in response.json()["detail"]


def test_a_body_without_a_good_line_is_a_bad_request(post: Post, hot: HotStore) -> None:
    response = post(b"nonsense\n[]\n")

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["line"] == 1
    assert len(response.json()["refused"]) == 2
    assert "line 1" in response.json()["detail"]
    assert not Node.objects.exists()
    assert hot.shards() == ()


@pytest.mark.parametrize("body", [b"", b"\n \n"])
def test_an_empty_body_is_a_bad_request(post: Post, body: bytes) -> None:
    response = post(body)

    assert (response.status_code, response.json()["field"]) == (400, "body")


def test_a_report_with_several_faults_names_one_and_stores_nothing(
    post: Post, hot: HotStore
) -> None:
    bent = report()
    bent["system_data"]["memory_info"]["memory_used_bytes"] = "lots"

    response = post(encoded(bent))

    assert response.status_code == 400
    assert response.json()["field"] == "system_data.memory_info.memory_used_bytes"
    assert hot.shards() == ()


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete"])
def test_only_post_is_understood(client: Client, db: None, method: str) -> None:
    response = getattr(client, method)(URL)

    assert (response.status_code, response["Allow"]) == (405, "POST")
