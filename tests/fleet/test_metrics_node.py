"""`/metrics/nodes/<name>`: one node, as on `/metrics`."""

import time

import numpy as np
import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Node
from telemetry.blocks import Block
from telemetry.store.hot import HotStore
from tests.fleet.scraping import bearer, body, refused, samples
from tests.helpers import block

PAGE = "/metrics/nodes/steady"
PAGES = [PAGE, "/metrics", "/metrics/neuron", "/metrics/neuron?node=steady", "/sd/prometheus"]


@pytest.fixture(autouse=True)
def reading(settings: Settings) -> None:
    """Let anyone on this machine read."""
    settings.ANONYMOUS_READING = True


@pytest.fixture
def reported(hot: HotStore, steady: Node, limping: Node) -> None:
    """Let both nodes report, and be up for as long as a test takes."""
    hot.append([block(tick=int(time.time()) + 60)])


def test_it_reports_its_node_alone(client: Client, reported: None) -> None:
    found = samples(client, PAGE)

    assert found["trnwatch_node_up", "steady"] == 1
    assert not [key for key in found if "limping" in key]
    assert all(name.startswith("trnwatch_") for name, *_ in found)


def test_it_shows_what_the_whole_page_states(client: Client, reported: None) -> None:
    alone, whole = samples(client, PAGE), samples(client)

    assert alone == {key: value for key, value in whole.items() if "steady" in key}


def test_flops_are_a_share_of_the_peak_of_a_known_type(
    client: Client, hot: HotStore, steady: Node
) -> None:
    flops = np.repeat([[1.5 * 2.0**45, np.nan]], 16, axis=1)
    hot.append([Block(steady.shard, int(time.time()), ("steady",), {"core_flops_per_s": flops})])

    ratio = samples(client, PAGE)["trnwatch_node_flops_utilization_ratio", "steady"]

    assert ratio == pytest.approx(1.5 * 2.0**45 / 95e12)
    Node.objects.filter(pk=steady.pk).update(instance_type="unknown")
    assert ("trnwatch_node_flops_utilization_ratio", "steady") not in samples(client, PAGE)


def test_a_node_that_is_down_is_shown(client: Client, hot: HotStore, steady: Node) -> None:
    found = samples(client, PAGE)

    assert found["trnwatch_node_up", "steady"] == 0
    assert {key[0] for key in found} == {"trnwatch_node_up", "trnwatch_node_info"}


def test_an_unknown_node_is_a_problem(client: Client, reported: None) -> None:
    response = client.get("/metrics/nodes/missing")

    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"
    assert "missing" in response.json()["detail"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("who", ["unknown", "expired", "revoked", "of another scope", "of none"])
def test_who_brings_no_good_token_is_refused(
    client: Client, reported: None, settings: Settings, page: str, who: str
) -> None:
    settings.ANONYMOUS_READING = False
    headers, status = refused()[who]

    response = client.get(page, headers=headers)

    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("page", PAGES)
def test_a_good_token_opens(client: Client, reported: None, settings: Settings, page: str) -> None:
    settings.ANONYMOUS_READING = False

    assert client.get(page, headers=bearer(), REMOTE_ADDR="10.0.0.7").status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_while_redis_is_away_the_scrape_fails(client: Client, steady: Node, page: str) -> None:
    response = client.get(page)

    assert response.status_code == 503
    assert response["Content-Type"] == "application/problem+json"
    assert "REDIS_URL" in response.json()["detail"]


@pytest.mark.parametrize("page", PAGES)
def test_it_only_reads(client: Client, reported: None, page: str) -> None:
    assert client.post(page, headers=bearer()).status_code == 405


def test_it_asks_few_questions(
    client: Client, reported: None, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(4):
        body(client.get(PAGE))
