"""The alert on several idle nodes: page, notification and API list them all."""

import pytest
from django.test import Client

from fleet.alerts import reconcile
from fleet.models import Alert, Run
from fleet.notifications.messages import item_of
from tests.alerts import finding
from tests.fleet.pages.conftest import Page
from tests.helpers import NOON, NOON_S

NODES = ("llama-02", "llama-03")


@pytest.fixture
def alert(alive: Run) -> Alert:
    scaled = {"at_s": NOON.timestamp() - 600, "n_before": 4, "n_after": 2}
    evidence = {"nodes": list(NODES), "scaled_down": scaled, "wait_ratio": None}
    idle = finding("node_idle", alive.name, onset_s=NOON_S - 600, nodes=NODES, evidence=evidence)
    (fired,) = reconcile([idle], evaluated=(), now=NOON)
    return fired


def test_the_page_lists_all_nodes_and_names_the_change_of_scale(page: Page, alert: Alert) -> None:
    text = page(alert.get_absolute_url())
    assert all(name in text for name in NODES)
    assert "scaled down from 4 to 2 nodes" in text


def test_the_api_lists_them(client: Client, alert: Alert) -> None:
    reported = client.get(f"/api/v1/alerts/{alert.pk}").json()
    assert (reported["node"], reported["nodes"]) == (None, list(NODES))


def test_the_notification_lists_them(alert: Alert) -> None:
    item = item_of(alert, None, base_url="https://trnwatch.example", now=NOON)
    assert all(name in item.summary and name in item.story for name in NODES)
