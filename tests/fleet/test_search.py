"""Search of everything that has a page, by words of its name."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Alert, Node, Trial
from fleet.pages.search import PLACES
from telemetry.store.hot import HotStore
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON


@pytest.fixture(autouse=True)
def _open_to_all(settings: Settings) -> None:
    settings.ANONYMOUS_READING = True


def test_it_finds_by_a_piece_of_the_name(client: Client, limping: Node, steady: Node) -> None:
    page = client.get("/search", {"q": "LIMP"}).text

    assert "/nodes/limping/" in page
    assert "/nodes/steady/" not in page


def test_it_finds_runs(client: Client, limping: Node) -> None:
    assert "/runs/llama/" in client.get("/search", {"q": "lla"}).text


def test_it_shows_when_there_is_nothing(client: Client, db: None) -> None:
    page = client.get("/search", {"q": "<zebra>"}).text

    assert "Nothing matches “&lt;zebra&gt;”" in page


def test_it_gives_htmx_only_the_results(client: Client, limping: Node) -> None:
    response = client.get(
        "/search", {"q": "limp"}, headers={"HX-Request": "true", "HX-Target": "results"}
    )

    assert response.text.strip().startswith('<section class="hits">')


def test_it_asks_the_database_five_times(
    client: Client, limping: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(5):
        client.get("/search", {"q": "limp"})


def test_it_is_for_reading_only(client: Client, db: None) -> None:
    client.force_login(member("admin"))
    assert client.post("/search").status_code == 405


def fire(node: Node, **fields: Any) -> Alert:
    usual: dict[str, Any] = {
        "rule": "step_slow",
        "cause": "network",
        "severity": Alert.Severity.PAGE,
        "subject": "run:llama",
        "run": node.run,
        "node": node,
        "device": 4,
        "score": 1.5,
        "onset_at": NOON,
        "fired_at": NOON,
        "last_seen_at": NOON,
    }
    return Alert.objects.create(**usual | fields)


def found(client: Client, text: str) -> list[tuple[str, str, str]]:
    """Return the title, the address and the group of each result."""
    groups = client.get("/search", {"q": text}).context["groups"]
    return [(str(hit.title), hit.url, group.title) for group in groups for hit in group.hits]


def test_it_names_the_subject_of_an_alert(client: Client, limping: Node) -> None:
    fire(limping)
    page = client.get("/search", {"q": "llama"}).text

    assert "/alerts/" in page
    assert "run:llama" not in page


@pytest.mark.parametrize("text", ["efa", "EFA limping", "network", "slow network llama", "efa 4"])
def test_an_alert_that_fires_comes_before_all_else(
    client: Client, limping: Node, steady: Node, text: str
) -> None:
    over = fire(limping, resolved_at=NOON + timedelta(hours=1))
    mild = fire(steady, subject="node:steady", severity=Alert.Severity.WARN, cause="efa_loss")
    worst = fire(limping, subject="node:limping")
    results = found(client, text)

    assert results[0][1:] == (f"/alerts/{worst.pk}/", "Open alerts")
    assert (f"/alerts/{over.pk}/", "Resolved alerts") in [each[1:] for each in results]
    if "limping" not in text and "network" not in text:
        assert results[1][1] == f"/alerts/{mild.pk}/"


@pytest.mark.parametrize(
    ("text", "title", "url"),
    [
        ("nodes", "Nodes", "/nodes/"),
        ("handover", "Shift handover", "/hand-over/"),
        ("start drill", "Start a drill", "/drills/new/"),
        ("new trial", "New trial", "/trials/#new-title"),
        ("limping efa 4", "EFA 4 of limping", "/nodes/limping/#link-4"),
        ("device 3 limping", "Device 3 of limping", "/nodes/limping/devices/3/"),
        ("limping core 7", "Core 7 of limping", "/nodes/limping/devices/3/"),
        ("efa_degraded", "EFA device degraded", "/runbooks/efa_degraded/"),
        ("bakeoff", "bakeoff", "/trials/bakeoff/"),
        ("operations", "Operations", "/docs/operations/"),
    ],
)
def test_it_finds_what_has_a_page(
    client: Client, limping: Node, text: str, title: str, url: str
) -> None:
    client.force_login(member("admin"))
    Trial.objects.create(name="bakeoff", question="Do we move?", created_by="x", created_at=NOON)

    assert found(client, text)[0][:2] == (title, url)


def test_a_number_that_no_part_has_is_no_device(client: Client, limping: Node) -> None:
    assert [each[1] for each in found(client, "limping efa 99")] == ["/nodes/limping/"]


def test_actions_and_pages_are_those_of_the_role(client: Client, limping: Node) -> None:
    assert "New budget" not in [title for title, *_ in found(client, "budget")]

    client.force_login(member("lead"))
    assert [title for title, *_ in found(client, "budget")][:2] == ["Budgets", "New budget"]


def test_it_offers_to_acknowledge_what_nobody_has(client: Client, limping: Node) -> None:
    alert = fire(limping)
    [first, *_] = found(client, "ack")

    assert first[0].startswith("Acknowledge: ")
    assert first[1] == f"/alerts/{alert.pk}/"


def test_without_a_query_it_lists_open_alerts_pages_and_runs(
    client: Client, limping: Node
) -> None:
    fire(limping)

    assert found(client, "")[0][2] == "Open alerts"
    assert {each[2] for each in found(client, "")} == {"Open alerts", "Pages and actions", "Runs"}


def test_each_place_has_its_page(client: Client, hot: HotStore, limping: Node) -> None:
    client.force_login(member("admin"))
    for place in PLACES:
        url, _, fragment = place.hit().url.partition("#")
        response = client.get(url)
        assert response.status_code == 200, url
        assert f'id="{fragment}"' in response.text or not fragment
