"""Search of nodes, runs and alerts by part of a name."""

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.models import Alert, Node
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

    assert "No node, run or alert matches “&lt;zebra&gt;”" in page


def test_it_gives_htmx_only_the_results(client: Client, limping: Node) -> None:
    response = client.get(
        "/search", {"q": "limp"}, headers={"HX-Request": "true", "HX-Target": "results"}
    )

    assert response.text.strip().startswith("<ul>")


def test_it_asks_the_database_four_times(
    client: Client, limping: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(4):
        client.get("/search", {"q": "limp"})


def test_it_is_for_reading_only(client: Client, db: None) -> None:
    client.force_login(member("admin"))
    assert client.post("/search").status_code == 405


def test_it_names_the_subject_of_an_alert(client: Client, limping: Node) -> None:
    Alert.objects.create(
        rule="allreduce_share",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=limping.run,
        score=1.5,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )

    page = client.get("/search", {"q": "llama"}).text

    assert "/alerts/" in page
    assert "run:llama" not in page
