"""Annotations by the API: stored once, or refused with the field named."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from fleet.models import Annotation, Node, Run, Token
from tests.helpers import NOON

Send = Callable[..., Any]
AT = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
DEPLOY = {"kind": "deploy", "text": "loader 2.4.1", "at": AT.isoformat(), "run": "llama"}


@pytest.fixture
def shown(client: Client, run: Run, redis_url: str) -> Send:
    """Give a function that posts an annotation as a machine."""
    secret = Token.issue("ci", Token.Scope.ANNOTATE, now=NOON)[1]

    def send(body: object, *, bearer: str = secret) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {bearer}"}
        return client.post(
            "/api/v1/annotations", raw, content_type="application/json", headers=headers
        )

    return send


def test_it_is_kept_in_the_name_of_the_token(shown: Send, run: Run, steady: Node) -> None:
    response = shown(DEPLOY | {"node": "steady", "ends_at": AT.timestamp() + 60})
    note = Annotation.objects.get()

    assert response.status_code == 201
    assert (note.run, note.node, note.by, note.at) == (run, steady, "ci", AT)
    assert note.ends_at == AT + timedelta(seconds=60)
    assert response.json()["id"] == note.pk


def test_without_a_time_it_is_now(shown: Send) -> None:
    assert shown({"kind": "note", "text": "power cut"}).status_code == 201
    assert abs((Annotation.objects.get().at - datetime.now(UTC)).total_seconds()) < 60


def test_a_repeated_call_keeps_it_once(shown: Send) -> None:
    first, second = shown(DEPLOY), shown(DEPLOY)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("body", b"{"),
        ("body", b"\xff"),
        ("body", []),
        ("kind", {"text": "x"}),
        ("kind", DEPLOY | {"kind": "party"}),
        ("text", DEPLOY | {"text": 7}),
        ("text", DEPLOY | {"text": ""}),
        ("at", DEPLOY | {"at": "yesterday"}),
        ("at", DEPLOY | {"at": "2026-11-20T10:00:00"}),
        ("at", DEPLOY | {"at": 1e300}),
        ("at", DEPLOY | {"at": -5}),
        ("ends_at", DEPLOY | {"ends_at": 5}),
        ("run", DEPLOY | {"run": "missing"}),
        ("node", DEPLOY | {"node": "x" * 500}),
        ("colour", DEPLOY | {"colour": "red"}),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_kept(shown: Send, field: str, body: object) -> None:
    response = shown(body)

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["field"] == field
    assert not Annotation.objects.exists()


def test_a_large_body_is_refused(shown: Send) -> None:
    assert shown(DEPLOY | {"text": "x" * 20_000}).status_code == 413


def test_only_a_token_of_its_scope_opens_the_endpoint(shown: Send) -> None:
    wrong = Token.issue("nodes", Token.Scope.INGEST, now=NOON)[1]

    assert shown(DEPLOY, bearer=wrong).status_code == 403
    assert shown(DEPLOY, bearer="unknown").status_code == 401
    assert not Annotation.objects.exists()


def test_what_was_noted_can_be_read(client: Client, shown: Send) -> None:
    kept = shown(DEPLOY).json()
    reader = {"Authorization": f"Bearer {Token.issue('r', Token.Scope.READ, now=NOON)[1]}"}

    listed = client.get("/api/v1/annotations?kind=deploy", headers=reader).json()

    assert listed["items"] == [kept]
    assert client.get(f"/api/v1/annotations/{kept['id']}", headers=reader).json() == kept
    assert client.get("/api/v1/annotations?kind=note", headers=reader).json()["items"] == []


def test_it_is_neither_put_nor_deleted(client: Client, db: None) -> None:
    response = client.delete("/api/v1/annotations")

    assert response.status_code == 405
    assert response["Allow"] == "GET, HEAD, OPTIONS, POST"
