"""Node names of reports, and names a token may not use."""

from typing import Any

import pytest

from fleet.models import Node
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Post
from tests.telemetry.ingest.reports import encoded, lines, report

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


@pytest.mark.parametrize("name", ["a%20b", "a/b", "%00", "-a", "x" * 81, "", "%F0%9F%98%80"])
def test_a_name_that_no_node_may_have_is_refused(post: Post, name: str) -> None:
    response = post(TRN2[0], node=name)

    assert (response.status_code, response.json()["field"]) == (400, "node")


def test_a_nameless_node_is_asked_for_its_name(post: Post) -> None:
    document = report()
    document["instance_info"]["instance_id"] = ""

    response = post(encoded(document), node=None)

    assert response.status_code == 400
    assert response.json()["field"] == "instance_info.instance_id"
    assert "node=NAME" in response.json()["reason"]


def test_the_name_of_a_simulated_node_is_reserved(post: Post, steady: Node, hot: HotStore) -> None:
    response = post(TRN2[0], node="steady")

    assert response.status_code == 400
    assert "simulated" in response.json()["reason"]
    steady.refresh_from_db()
    assert steady.source == Node.Source.SIMULATED
    assert hot.shards() == ()


def test_two_machines_may_not_share_a_name(post: Post) -> None:
    other = report()
    other["instance_info"]["instance_id"] = "i-9"
    assert post(TRN2[0]).status_code == 200

    response = post(encoded(other))

    assert response.status_code == 400
    assert "i-0000002079071820" in response.json()["reason"]


def test_a_node_that_changed_is_brought_up_to_date(post: Post) -> None:
    post(TRN2[0])
    moved = report()
    moved["instance_info"]["instance_availability_zone"] = "us-east-2c"

    post(encoded(moved))

    assert Node.objects.get().zone == "us-east-2c"


def test_a_node_that_is_known_costs_no_query(post: Post, django_assert_num_queries: Any) -> None:
    post(TRN2[0])

    with django_assert_num_queries(0):
        post(TRN2[1])
