"""Liveness of this process, without other services."""

from django.test import Client


def test_it_lives_without_database_and_redis(client: Client) -> None:
    response = client.get("/healthz")

    assert response.status_code == 200
    assert response.json() == {"status": "ok"}
    assert response["Cache-Control"] == "no-store"


def test_it_only_answers(client: Client, db: None) -> None:
    assert client.post("/healthz").status_code == 405
