"""What the tests of the door share: a token, and a way to post lines."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from fleet.models import Token
from telemetry.store.hot import HotStore, open_store
from tests.parts import NOON

URL = "/api/v1/ingest/neuron-monitor"
Post = Callable[..., Any]


@pytest.fixture
def secret(db: None) -> str:
    """Give the secret of a token that may ingest."""
    return Token.issue("nodes", Token.Scope.INGEST, now=NOON)[1]


@pytest.fixture
def post(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts a body as a node."""

    def send(body: bytes, *, node: str | None = "real", bearer: str = secret, **more: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        headers["Authorization"] = f"Bearer {bearer}"
        url = URL if node is None else f"{URL}?node={node}"
        return client.post(url, body, content_type="application/x-ndjson", headers=headers)

    return send


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give the store that the test's settings name."""
    return open_store(redis_url)
