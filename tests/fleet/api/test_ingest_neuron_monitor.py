import gzip
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from fleet.models import Node, Token
from telemetry.store.hot import HotStore, open_store
from tests.parts import NOON, free_port

URL = "/api/v1/ingest/neuron-monitor"
DATA = Path(__file__).parents[2] / "telemetry" / "ingest" / "data"
TRN2 = (DATA / "trn2.48xlarge.ndjson").read_bytes()
LINES = TRN2.splitlines()
LINE = LINES[0]

Post = Callable[..., Any]


@pytest.fixture
def secret(db: None) -> str:
    return Token.issue("nodes", Token.Scope.INGEST, now=NOON)[1]


@pytest.fixture
def post(client: Client, secret: str, redis_url: str) -> Post:
    def send(
        body: bytes, *, node: str | None = "real", bearer: str = secret, **headers: str
    ) -> Any:
        url = URL if node is None else f"{URL}?node={node}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(
            url,
            body,
            content_type="application/x-ndjson",
            headers={"Authorization": f"Bearer {bearer}", **named},
        )

    return send


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    return open_store(redis_url)


def test_a_report_becomes_a_node_of_the_fleet(post: Post, hot: HotStore) -> None:
    response = post(LINE, node=None)

    assert response.status_code == 200
    assert response.json()["accepted"] == 1
    node = Node.objects.get()
    assert (node.name, node.source) == ("i-0000002079071820", Node.Source.NEURON_MONITOR)
    assert (node.instance_type, node.zone) == ("trn2.48xlarge", "us-east-2b")
    assert (node.n_cores, node.n_devices, node.shard) == (64, 16, "node:i-0000002079071820")
    block = hot.latest()[node.shard]
    assert block.values["core_utilization_ratio"][0, 0] == pytest.approx(0.9219, abs=0.01)
    assert abs(block.tick - time.time()) < 5


def test_without_a_token_nothing_is_taken(client: Client, db: None, redis_url: str) -> None:
    response = client.post(URL, LINE, content_type="application/x-ndjson")

    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response["Content-Type"] == "application/problem+json"
    assert not Node.objects.exists()
