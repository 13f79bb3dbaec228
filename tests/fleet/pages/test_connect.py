"""The page that connects nodes: commands with address and token, and what reports."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Node, Token
from telemetry.ingest.exporters import KEEP, ROWS
from tests.helpers import just_now

Page = Callable[..., str]

pytestmark = pytest.mark.usefixtures("hot")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.usefixtures("db")
def test_it_fills_the_address_into_each_way(page: Page) -> None:
    shown = page("/connect/")

    assert "--server http://testserver --token-file" in shown
    assert "url: http://testserver/api/v1/ingest/prometheus" in shown
    assert "TRNWATCH_SERVER=http://testserver" in shown
    assert "create_token" in shown
    assert "No ingest token has been used yet" in shown


def test_an_admin_creates_the_token_that_the_commands_use(client: Client, admin: User) -> None:
    shown = client.post("/connect/", {"name": "rack 7"}).text

    secret = re.findall(r"echo &#x27;(trnw_\w+)&#x27;|echo '(trnw_[\w-]+)'", shown)
    assert secret
    token = Token.objects.get()
    assert (token.name, token.scope) == ("rack 7", "ingest")
    assert token.expires_at is not None


def test_a_missing_name_is_said_beside_the_field(client: Client, admin: User) -> None:
    response = client.post("/connect/", {"name": ""})

    assert response.status_code == 422
    assert "This field is required" in response.text
    assert not Token.objects.exists()


def test_an_operator_cannot_create_a_token(client: Client, operator: User) -> None:
    assert "create_token" in client.post("/connect/", {"name": "mine"}).text
    assert not Token.objects.exists()


def test_new_nodes_appear_and_older_ones_do_not(page: Page, limping: Node, steady: Node) -> None:
    now = just_now()
    Node.objects.update(source=Node.Source.NEURON_MONITOR, first_seen_at=now - timedelta(hours=2))
    Node.objects.filter(pk=steady.pk).update(first_seen_at=now - timedelta(seconds=30))

    shown = page("/connect/", **{"HX-Request": "true", "HX-Target": "reports"})

    assert "1 new node" in shown
    assert "steady" in shown
    assert "limping" not in shown
    assert "<html" not in shown


@pytest.mark.usefixtures("db")
def test_a_used_token_shows_that_requests_arrive(page: Page) -> None:
    now = just_now()
    Token.objects.create(
        name="rack 7", scope="ingest", digest="x", created_at=now, last_used_at=now
    )

    assert "the token <b>rack 7</b> was used" in page("/connect/")


def test_what_prometheus_keeps_is_what_is_read() -> None:
    assert [name for name in ROWS if not re.fullmatch(KEEP, name)] == []
    assert KEEP in (ROOT / "docs/real-nodes.md").read_text()
