"""Every API address refuses bytes that are not UTF-8, and names the position."""

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from fleet.models import Token
from tests.fleet.api.test_access import OPERATIONS
from tests.helpers import NOON

pytestmark = pytest.mark.django_db
BODIES = {
    "bare": b"\xff",
    "in a value": b'{"text": "\xff", "kind": "note"}',
    "in a name": b'{"\xff": 1}',
    "cut short": '{"text": "é'.encode()[:-1],
}


@pytest.fixture
def send(client: Client, redis_url: str) -> Callable[..., Any]:
    """Give a function that calls the API as a machine that may do everything."""
    headers = {"Authorization": f"Bearer {Token.issue('x', 'admin', now=NOON)[1]}"}

    def call(method: str, address: str, body: bytes = b"") -> Any:
        client.raise_request_exception = False
        return client.generic(method, address, body, "application/json", headers=headers)

    return call


@pytest.mark.parametrize(
    "query", ["%ff", "run=%ff", "limit=1&team=a%c3", "%ff=1", "run=%ed%a0%80", "cursor=%FF"]
)
def test_no_query_is_read_that_is_no_utf_8(send: Callable[..., Any], query: str) -> None:
    for method, address, _ in OPERATIONS:
        response = send(method, f"{address}?{query}", b"{}" if method == "POST" else b"")

        assert response.status_code == 400, (method, address)
        assert response["Content-Type"] == "application/problem+json"
        assert "UTF-8" in response.json()["detail"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_body_is_read_that_is_no_utf_8(send: Callable[..., Any], body: bytes) -> None:
    for method, address, _ in OPERATIONS:
        if method != "POST":
            continue
        response = send(method, address, body)

        assert response.status_code == 400, address
        assert response["Content-Type"] == "application/problem+json"
        assert response.json()["field"] == "body"
        assert "UTF-8" in response.json()["detail"]


@pytest.mark.parametrize("body", [rb'{"kind": "note", "text": "\ud800"}', b"[" * 16_000])
def test_json_that_cannot_be_read_is_no_error_of_ours(
    send: Callable[..., Any], body: bytes
) -> None:
    response = send("POST", "/api/v1/annotations", body)

    assert (response.status_code, response.json()["field"]) == (400, "body")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["neuron-monitor", "efa", "steps"])
def test_ingest_refuses_lines_that_are_no_utf_8(address: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {Token.issue('n', 'ingest', now=NOON)[1]}"}
    for body in (*BODIES.values(), b"[" * 16_000, b'{"a": "\xff"}\n{}\n'):
        for query in ("", "?node=%ff"):
            url = f"{address}/api/v1/ingest/{path}{query}"

            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60)

            with refused.value as response:
                assert response.code == 400
                assert response.headers["Content-Type"] == "application/problem+json"
