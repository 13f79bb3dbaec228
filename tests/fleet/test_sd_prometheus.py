"""`/sd/prometheus`: every node as a target, or none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Node, Run
from fleet.pages import metrics
from telemetry.store.hot import HotStore
from tests.fleet.scraping import samples
from tests.helpers import block, watch_since


@pytest.fixture(autouse=True)
def reading(settings: Settings) -> None:
    """Let anyone on this machine read."""
    settings.ANONYMOUS_READING = True


def targets(client: Client) -> list[dict[str, Any]]:
    response = client.get("/sd/prometheus")
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    found: list[dict[str, Any]] = response.json()
    return found


def test_a_node_is_a_target_with_its_own_page_and_one_of_awss_names(
    client: Client, hot: HotStore, steady: Node
) -> None:
    labels = {
        "__scheme__": "http",
        "instance": "steady",
        "node": "steady",
        "run": "llama",
        "team": "LLM",
        "instance_type": "trn1.32xlarge",
        "availability_zone": "",
        "source": "simulated",
    }
    own = {"__metrics_path__": "/metrics/nodes/steady"}
    neuron = {
        "__metrics_path__": "/metrics/neuron",
        "__param_node": "steady",
        "metrics_path": "/metrics/neuron",
    }

    assert targets(client) == [
        {"targets": ["testserver"], "labels": own | labels},
        {"targets": ["testserver"], "labels": neuron | labels},
    ]


def test_the_pages_of_a_target_are_there_and_never_tell_the_same(
    client: Client, hot: HotStore, steady: Node, limping: Node
) -> None:
    hot.append([block(tick=int(time.time()) + 60)])
    pages = [samples(client, address(target["labels"])) for target in targets(client)]

    names = [{name for name, *_ in page} for page in pages]

    assert all(names)
    assert not names[0] & names[1]
    assert names[0] == names[2]
    assert "steady" not in str(pages[:2])
    assert "limping" not in str(pages[2:])


def address(labels: dict[str, str]) -> str:
    """Return the address that Prometheus makes of a target's labels."""
    start = "__param_"
    asked = {name.removeprefix(start): labels[name] for name in labels if name.startswith(start)}
    return f"{labels['__metrics_path__']}?{urlencode(asked)}"


def test_targets_are_in_order_of_their_names(
    client: Client, hot: HotStore, silent: Node, steady: Node, limping: Node
) -> None:
    names = [target["labels"]["node"] for target in targets(client)]

    assert names[::2] == names[1::2] == ["limping", "silent", "steady"]
    assert targets(client) == targets(client)


def test_a_node_whose_run_is_over_is_none_unless_it_reports(
    client: Client, hot: HotStore, steady: Node, limping: Node
) -> None:
    Run.objects.update(finished_at=timezone.now())
    hot.append([block(tick=int(time.time()), nodes=["limping"])])

    assert [target["labels"]["node"] for target in targets(client)] == ["limping"] * 2


def test_an_empty_fleet_is_an_empty_list(client: Client, hot: HotStore, db: None) -> None:
    assert targets(client) == []


@contextmanager
def failing(when: Callable[[str], bool]) -> Iterator[None]:
    """Let the database fail at some statements."""

    def execute(run: Any, sql: str, *rest: Any) -> Any:
        if when(sql):
            raise OperationalError("server closed the connection unexpectedly")
        return run(sql, *rest)

    with connection.execute_wrapper(execute):
        yield


@pytest.mark.parametrize(
    "path", ["/sd/prometheus", "/metrics", "/metrics/neuron", "/metrics/nodes/steady"]
)
def test_while_the_database_is_away_it_is_no_list_at_all(
    client: Client, hot: HotStore, steady: Node, path: str
) -> None:
    with failing(lambda sql: "fleet_node" in sql):
        response = client.get(path)

    assert response.status_code == 503
    assert response["Content-Type"] == "application/problem+json"
    assert "closed the connection" not in response.text


@pytest.fixture
def of_parts(monkeypatch: pytest.MonkeyPatch, steady: Node, limping: Node) -> None:
    """Make two nodes a large fleet, one of them far behind in its run."""
    monkeypatch.setattr(metrics, "MOST_LISTED", 1)
    Node.objects.filter(pk=limping.pk).update(rank=5 * metrics.NODES_PER_PART + 3)


@pytest.mark.usefixtures("of_parts")
def test_of_a_large_fleet_the_targets_are_parts_of_runs(client: Client, hot: HotStore) -> None:
    hot.append([block(tick=int(time.time()))])
    labels = [target["labels"] for target in targets(client)]

    assert [each["instance"] for each in labels] == ["llama/0"] * 2 + ["llama/5"] * 2
    assert labels[3] == {
        "__metrics_path__": "/metrics/neuron",
        "__scheme__": "http",
        "__param_run": "llama",
        "__param_part": "5",
        "metrics_path": "/metrics/neuron",
        "instance": "llama/5",
        "run": "llama",
        "team": "LLM",
    }
    pages = [samples(client, address(each)) for each in labels]
    assert all(pages)
    assert ["steady" in str(page) for page in pages] == [True, True, False, False]
    assert ["limping" in str(page) for page in pages] == [False, False, True, True]


@pytest.mark.usefixtures("of_parts")
def test_nodes_without_a_run_are_parts_too(client: Client, hot: HotStore, limping: Node) -> None:
    Node.objects.update(run=None)
    hot.append([block(tick=int(time.time()))])

    pages = [samples(client, address(target["labels"])) for target in targets(client)]

    assert "steady" in str(pages)
    assert "limping" in str(pages)


@pytest.mark.parametrize("query", ["run=llama&part=7", "run=none&part=0", "run=llama&part=x"])
@pytest.mark.parametrize("path", ["/metrics", "/metrics/neuron"])
def test_an_unknown_part_is_not_found(
    client: Client, hot: HotStore, steady: Node, path: str, query: str
) -> None:
    assert client.get(f"{path}?{query}").status_code == 404


def test_it_asks_the_database_no_more_for_many_nodes(
    client: Client,
    hot: HotStore,
    steady: Node,
    limping: Node,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    watch_since(hot, time.time() - 3600)
    targets(client)
    # Whether nodes have changed, which runs are active, and the labels.
    with django_assert_num_queries(3):
        targets(client)
