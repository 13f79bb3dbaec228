"""Problem nodes: alerts added up by accused node, with their costs."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from fleet.costs.problem_nodes import problem_nodes
from fleet.models import Alert, Node
from tests.helpers import just_now

Fire = Callable[..., Alert]
COST = {"lost_s": 1800.0, "n_nodes": 4, "usd": 60.0}


def test_a_node_has_the_sum_of_its_alerts(fired: Fire, limping: Node) -> None:
    for cause, ago in (("slow_core", 50), ("efa_latency", 30)):
        alert = fired(
            ago=timedelta(minutes=ago),
            resolved_at=just_now() - timedelta(minutes=ago - 10),
            cause=cause,
            node=limping,
        )
        Alert.objects.filter(pk=alert.pk).update(cost=COST)
    [found] = problem_nodes(now=just_now(), days=1)

    assert found.name == limping.name
    assert (len(found.alerts), found.n_open, found.is_repeated) == (2, 0, True)
    assert found.node_hours == pytest.approx(4.0)
    assert found.usd == pytest.approx(120.0)
    assert len(found.causes) == 2


def test_nodes_accused_together_share_the_loss(fired: Fire) -> None:
    alert = fired()
    evidence = alert.evidence | {"nodes": ["trn-a", "trn-b"]}
    Alert.objects.filter(pk=alert.pk).update(
        node=None, parts=[{"node": "trn-a"}, {"node": "trn-b"}], evidence=evidence, cost=COST
    )
    found = problem_nodes(now=just_now(), days=1)

    assert [each.name for each in found] == ["trn-a", "trn-b"]
    assert [each.usd for each in found] == [30.0, 30.0]


@pytest.mark.parametrize("change", [{"is_drill": True}, {"node": None, "parts": []}])
def test_drills_and_alerts_without_a_node_are_left_out(
    alert: Alert, change: dict[str, object]
) -> None:
    Alert.objects.filter(pk=alert.pk).update(**change)
    assert problem_nodes(now=just_now(), days=1) == []


def test_what_ended_before_the_period_is_left_out(fired: Fire) -> None:
    fired(ago=timedelta(days=3), resolved_at=just_now() - timedelta(days=2))
    assert problem_nodes(now=just_now(), days=1) == []
    assert len(problem_nodes(now=just_now(), days=7)) == 1


def test_the_page_names_node_causes_and_cost(client: Client, alert: Alert) -> None:
    Alert.objects.filter(pk=alert.pk).update(cost=COST)
    text = client.get("/problem-nodes/", {"days": "30"}).text

    assert alert.node is not None
    assert alert.node.get_absolute_url() in text
    assert "1 open" in text
    assert "$60.00" in text
    assert "1 node in 30 days" in text


@pytest.mark.parametrize("days", ["", "0", "8", "x"])
def test_an_unknown_period_is_a_week(client: Client, db: None, days: str) -> None:
    assert "0 nodes in 7 days" in client.get("/problem-nodes/", {"days": days}).text


def test_a_new_machine_under_the_name_starts_its_own_record(fired: Fire, limping: Node) -> None:
    ended = just_now() - timedelta(minutes=40)
    fired(ago=timedelta(minutes=50), resolved_at=ended, cause="slow_core", node=limping)
    now = just_now()
    assert Alert.objects.histories([limping], until=now)[limping.name].n_alerts == 1
    Node.objects.update(replaced_at=now - timedelta(minutes=20), replaced_id="i-0abc")
    assert problem_nodes(now=now, days=1) == []
    assert Alert.objects.histories([limping], until=now)[limping.name].n_alerts == 0

    fired(ago=timedelta(minutes=10), resolved_at=now, cause="slow_core", node=limping)
    [found] = problem_nodes(now=now, days=1)
    assert len(found.alerts) == 1
