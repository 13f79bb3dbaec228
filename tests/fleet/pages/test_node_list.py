"""The list of nodes: reporting, silent, and search among 100."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Node, Run
from fleet.pages.runs import run_context
from telemetry.store.hot import HotStore
from tests.helpers import NOON, watch_since

Page = Callable[..., str]


def test_it_lists_every_node_with_its_state(
    page: Page, alive: Run, alert: Alert, silent: Node
) -> None:
    text = page("/nodes/")

    assert "3 nodes" in text
    assert "2 report" in text
    assert "1 silent" in text
    assert "firing" in text


def test_nodes_whose_run_is_over_are_missed_by_no_one(
    page: Page, alive: Run, silent: Node
) -> None:
    Run.objects.update(phase=Run.Phase.FINISHED, finished_at=datetime.now(UTC))
    text = page("/nodes/")

    assert "2 report" in text
    assert "silent</span>" not in text
    assert "released" in text
    assert "2 <small>of 2</small>" in page("/")
    assert "silent</b> never reported" in page(f"/nodes/{silent.name}/")


def test_it_shows_the_spread_of_the_cores_and_not_only_their_mean(page: Page, alive: Run) -> None:
    text = page("/nodes/")

    assert 'class="range"' in text
    assert "cores between 50 % and 50 %, mean 50 %" in text


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        ("state=silent&run=llama", {"silent"}),
        ("state=up", {"steady"}),
        ("state=firing", {"limping"}),
        ("q=LIMP", {"limping"}),
        ("run=llama", {"steady", "limping", "silent"}),
        ("run=none", {"stray"}),
        ("type=trn1.2xlarge", {"stray"}),
        ("type=p5.48xlarge", set()),
        ("state=up&q=limp", set()),
    ],
)
def test_it_keeps_only_what_the_address_asks_for(
    page: Page, alive: Run, alert: Alert, silent: Node, query: str, listed: set[str]
) -> None:
    stray(run=None)
    text = page(f"/nodes/?{query}")

    assert {name for name in (*NAMES, "stray") if f'id="node-{name}"' in text} == listed


NAMES = ("steady", "limping", "silent")


def stray(run: Run | None, name: str = "stray") -> Node:
    return Node.objects.create(
        name=name,
        instance_type="trn1.2xlarge",
        source=Node.Source.NEURON_MONITOR,
        shard=f"node:{name}",
        run=run,
        n_cores=2,
        n_devices=1,
        first_seen_at=datetime.now(UTC),
    )


def test_a_filter_that_nothing_matches_offers_the_way_back(page: Page, alive: Run) -> None:
    text = page("/nodes/?q=missing")

    assert "No node matches" in text
    assert "Show all 2" in text


def test_the_live_stream_follows_the_same_filter(page: Page, alive: Run) -> None:
    assert 'data-live="nodes?state=up"' in page("/nodes/?state=up")


def test_an_empty_fleet_states_how_to_begin(page: Page, redis_url: str, db: None) -> None:
    assert "No nodes are reporting" in page("/nodes/")


def test_a_node_without_efa_states_it(page: Page, alive: Run) -> None:
    stray(run=None)

    assert '<span class="muted">none</span>' in page("/nodes/?q=stray")


def test_a_name_is_text_and_never_markup(page: Page, alive: Run) -> None:
    stray(run=None, name="<b>x")

    assert "<b>x" not in page("/nodes/")


def test_a_filter_is_text_and_never_markup(page: Page, alive: Run) -> None:
    assert '"><script>' not in page("/nodes/?q=%22%3E%3Cscript%3E")


def test_it_gives_htmx_only_the_partial_it_asks_for(client: Client, alive: Run) -> None:
    response = client.get("/nodes/", headers={"HX-Request": "true", "HX-Target": "nodes"})

    assert response.text.strip().startswith('<div id="nodes">')
    assert "HX-Target" in response["Vary"]


def test_a_hundred_nodes_cost_no_more_queries_than_one(
    client: Client,
    alive: Run,
    alert: Alert,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    Node.objects.bulk_create(
        Node(
            name=f"llama-{i:03d}",
            instance_type="trn1.32xlarge",
            source=Node.Source.SIMULATED,
            shard="llama/0",
            run=alive,
            rank=i,
            n_cores=32,
            n_devices=16,
            n_efa=8,
            first_seen_at=NOON,
        )
        for i in range(4, 102)
    )

    # Two of them read all nodes in columns, and only where they have changed.
    with django_assert_max_num_queries(9):
        text = client.get("/nodes/").text

    assert "100 nodes" in text


def many(run: Run, n: int) -> None:
    Node.objects.bulk_create(
        Node(
            name=f"llama-{i:03d}",
            instance_type="trn1.32xlarge",
            source=Node.Source.SIMULATED,
            shard="llama/0",
            run=run,
            rank=i,
            n_cores=32,
            n_devices=16,
            n_efa=8,
            first_seen_at=NOON,
        )
        for i in range(10, n)
    )


def test_many_nodes_are_several_pages(page: Page, alive: Run) -> None:
    many(alive, 250)
    n_others = alive.nodes.exclude(name__startswith="llama-").count()
    first, second = page("/nodes/?run=llama"), page("/nodes/?run=llama&page=2")

    assert f"{240 + n_others} nodes" in first
    assert first.count("<tr id=") == second.count("<tr id=") == 100
    assert "1 of 3" in first
    assert 'href="?run=llama&amp;page=2">Next</a>' in first
    assert 'href="?run=llama&amp;page=1">Previous</a>' in second


def test_the_page_of_a_large_run_shows_its_worst_nodes(
    page: Page, alive: Run, alert: Alert
) -> None:
    many(alive, 250)
    assert alert.node is not None
    alert.node.rank = 900
    alert.node.save()
    text = page("/runs/llama/")

    assert text.count("<tr id=") == 100
    assert f'id="node-{alert.node.name}"' in text
    assert '<a href="/nodes/?run=llama">All ' in text
    # What sums up the run is of all its nodes.
    context = run_context("llama")
    assert context["n_found"] == len(context["members"]) == alive.nodes.count()


def test_a_node_that_has_not_had_its_turn_yet_is_not_silent(
    page: Page, alive: Run, silent: Node, hot: HotStore
) -> None:
    assert "1 silent" in page("/nodes/")

    # trnwatch began to watch a moment ago.
    watch_since(hot, time.time())
    assert "silent</span>" not in page("/nodes/")
