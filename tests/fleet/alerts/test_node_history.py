"""Alert history of nodes: how often each was the culprit, compared with its peers."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from fleet.models import Alert, Node, Run
from fleet.models.alert_history import AlertHistory
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
Accuse = Callable[..., Alert]


@pytest.fixture
def nodes(run: Run) -> list[Node]:
    return Node.objects.bulk_create(
        Node(
            name=f"node-{i:02}",
            instance_type="trn1.2xlarge" if i == 19 else "trn2.48xlarge",
            source="simulated",
            shard="llama/0",
            run=run,
            n_cores=64,
            n_devices=16,
            first_seen_at=NOON,
        )
        for i in range(20)
    )


@pytest.fixture
def accuse(run: Run) -> Accuse:
    def fire(node: Node | None, *, days: float = 1, **fields: Any) -> Alert:
        at = NOON - timedelta(days=days)
        usual: dict[str, Any] = {
            "rule": "core_slow",
            "cause": "slow_core",
            "severity": Alert.Severity.PAGE,
            "subject": f"node:{node}",
            "run": run,
            "node": node,
            "score": 2.0,
            "resolved_at": at,
        }
        return Alert.objects.create(**usual | fields, onset_at=at, fired_at=at, last_seen_at=at)

    return fire


def history(node: Node) -> AlertHistory:
    return Alert.objects.histories([node], until=NOON)[node.name]


def test_a_node_without_alerts_has_an_empty_history(nodes: list[Node]) -> None:
    found = history(nodes[0])

    assert (found.n_alerts, found.n_runs, found.causes, found.last_at) == (0, 0, [], None)
    assert (found.n_others, found.others_median, found.is_unusual) == (18, 0, False)


def test_alerts_are_counted_by_cause_with_runs_and_last_time(
    nodes: list[Node], run: Run, accuse: Accuse
) -> None:
    other = Run.objects.get(pk=run.pk)
    other.pk, other.name = None, "other"
    other.save()
    accuse(nodes[0], days=3)
    accuse(nodes[0], days=2, run=other)
    accuse(nodes[0], days=4, cause="node_silent", run=None)

    found = history(nodes[0])

    assert [(c.cause, c.n_alerts, c.n_runs) for c in found.causes] == [
        ("slow_core", 2, 2),
        ("node_silent", 1, 0),
    ]
    assert (found.n_alerts, found.n_runs, found.last_at) == (3, 2, NOON - timedelta(days=2))


def test_what_is_older_or_later_or_a_repeat_does_not_count(
    nodes: list[Node], accuse: Accuse
) -> None:
    accuse(nodes[0], days=31)
    accuse(nodes[0], days=-1)
    first = accuse(nodes[0], days=2)
    accuse(nodes[0], days=1.98, earlier=first)

    assert history(nodes[0]).n_alerts == 1


def test_drills_are_counted_apart(nodes: list[Node], accuse: Accuse) -> None:
    for days in (1, 2, 3):
        accuse(nodes[0], days=days, is_drill=True)
    found = history(nodes[0])

    assert (found.n_alerts, found.n_drills, found.is_unusual) == (0, 3, False)


def test_an_alert_about_several_nodes_counts_for_each(nodes: list[Node], accuse: Accuse) -> None:
    accuse(None, cause="node_idle", evidence={"nodes": ["node-00", "node-01", "gone"]})

    counts = [history(node).n_alerts for node in nodes[:3]]
    assert counts == [1, 1, 0]


def test_a_node_is_unusual_if_its_peers_have_few_alerts(nodes: list[Node], accuse: Accuse) -> None:
    for days in (1, 2, 3):
        accuse(nodes[0], days=days)
    accuse(nodes[1])
    accuse(nodes[19], days=2)

    assert history(nodes[0]).is_unusual
    assert not history(nodes[1]).is_unusual
    assert history(nodes[19]).others_median is None


def test_a_node_is_usual_if_its_peers_have_as_many(nodes: list[Node], accuse: Accuse) -> None:
    for node in nodes[:19]:
        for days in (1, 2, 3):
            accuse(node, days=days)
    found = history(nodes[0])

    assert (found.n_alerts, found.others_median, found.is_unusual) == (3, 3, False)


def test_the_number_of_nodes_and_alerts_does_not_change_the_number_of_queries(
    nodes: list[Node], accuse: Accuse, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for node in nodes:
        single = node if node.name < "node-05" else None
        accuse(single, subject=node.name, evidence={"nodes": [node.name]})

    for some in (nodes[:1], nodes[:10]):
        with django_assert_num_queries(3):
            Alert.objects.histories(some, until=NOON)
        with django_assert_num_queries(1):
            Alert.objects.histories(some, until=NOON, compares=False)
