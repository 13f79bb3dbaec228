"""`/metrics/neuron`: nodes under the names of AWS exporters."""

import time

import pytest
from django.test import Client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.api.ingest import arrivals_of
from fleet.models import Node
from telemetry.exporter import neuron_exporter_names
from telemetry.exporter.neuron_observer import OBSERVED
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import Post, post, secret
from tests.fleet.scraping import body, samples
from tests.helpers import block
from tests.telemetry.ingest.reports import encoded, report

__all__ = ["post", "secret"]
PAGE = "/metrics/neuron"


@pytest.fixture(autouse=True)
def reading(settings: Settings) -> None:
    """Let anyone on this machine read."""
    settings.ANONYMOUS_READING = True


@pytest.fixture
def reported(hot: HotStore, steady: Node, limping: Node) -> None:
    """Let both nodes report, and be up for as long as a test takes."""
    hot.append([block(tick=int(time.time()) + 60)])


def test_it_has_every_name_of_awss_exporters_and_no_other(client: Client, reported: None) -> None:
    names = {
        line.split(" ")[2].removesuffix("_info")
        for line in body(client.get(PAGE)).decode().splitlines()
        if line.startswith("# TYPE ")
    }

    theirs = {
        spec.name.removesuffix("_info")
        for spec in (
            *neuron_exporter_names.ALL,
            *neuron_exporter_names.COUNTERS.values(),
            neuron_exporter_names.INFO,
        )
    }
    theirs |= set(OBSERVED)
    of_some = {f"node_amazonefa_{name}" for name in neuron_exporter_names.OF_SOME_DRIVERS}
    assert names == theirs - of_some


def series(client: Client, path: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body(client.get(path)).decode())
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("neuroncore_utilization_ratio", "node"),
        ("neuron_runtime_memory_used_bytes", "node"),
        ("execution_status_total", "node"),
        ("node_amazonefa_rx_bytes", "instance"),
        ("neuron_hardware_info", "instance"),
        ("neuron_efa_tx_bytes", "node"),
    ],
)
def test_every_series_can_be_grouped_by_its_node(
    client: Client, reported: None, name: str, label: str
) -> None:
    groups = {
        dict(labels)[label]
        for metric, labels in series(client, PAGE)
        if metric in {name, f"{name}_total"}
    }
    assert groups == {"steady", "limping"}


def test_one_nodes_part_states_what_the_whole_page_states(client: Client, reported: None) -> None:
    alone, whole = (series(client, f"{PAGE}{query}") for query in ("?node=steady", ""))

    # Of one node, Prometheus knows its name; of many, each series says it.
    assert not any({"node", "instance"} & dict(labels).keys() for _, labels in alone)
    for name in ("steady", "limping"):
        of_node = {("node", name), ("instance", name)}
        found = {
            (metric, labels - of_node): value
            for (metric, labels), value in whole.items()
            if of_node <= labels
        }
        assert found.keys() >= {key for key in alone if key[0].startswith("node_amazonefa")}
        if name == "steady":
            assert found == alone
    assert all({"node", "instance"} <= dict(labels).keys() for _, labels in whole)
    assert len(alone) > 100


def test_they_are_as_they_are_in_open_metrics_too(client: Client, reported: None) -> None:
    asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    page = body(client.get(PAGE, headers={"Accept": asked})).decode()

    names = {family.name for family in parse_open(page)}  # type: ignore[no-untyped-call]

    assert {"instance", "neuroncore_utilization_ratio", "node_amazonefa_tx_bytes"} <= names


@pytest.mark.parametrize("name", ["missing", "", "a%00b"])
def test_an_unknown_node_is_a_problem(client: Client, reported: None, name: str) -> None:
    response = client.get(f"{PAGE}?node={name}")

    assert response.status_code == 404
    assert response["Content-Type"] == "application/problem+json"
    assert "/sd/prometheus" in response.json()["detail"]


@pytest.mark.parametrize("query", ["", "?node=steady"])
def test_it_asks_few_questions(
    client: Client,
    reported: None,
    django_assert_max_num_queries: DjangoAssertNumQueries,
    query: str,
) -> None:
    with django_assert_max_num_queries(4):
        body(client.get(PAGE + query))


def test_short_reports_of_one_second_count_the_same_everywhere(post: Post, client: Client) -> None:
    document = report("trn1.2xlarge")
    document["instance_info"]["instance_type"] = "inf1.xlarge"
    [process] = document["neuron_runtime_data"]
    for group in [*process["report"].values(), *document["system_data"].values()]:
        group["period"] = 0.062
    process["report"]["execution_stats"]["execution_summary"]["completed"] = 1600

    for _ in range(4):
        assert post(encoded(document)).json()["accepted"] == 1
        # The next request may reach another process.
        arrivals_of.cache_clear()

    [theirs] = [
        value
        for key, value in samples(client, PAGE).items()
        if key[0] == "execution_status_total" and "completed" in key
    ]
    ours = samples(client, "/metrics")
    assert theirs == 4 * 1600
    assert [v for k, v in ours.items() if k[0] == "trnwatch_node_executions_completed_total"] == [
        theirs
    ]
