"""Ingest while Redis or the database is unavailable."""

from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import Settings

from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import URL, Post
from tests.telemetry.ingest.reports import lines

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_without_redis_it_asks_to_be_sent_again(
    client: Client, secret: str, settings: Settings
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    response = client.post(
        URL, TRN2[0], content_type="text/plain", headers={"Authorization": f"Bearer {secret}"}
    )

    assert response.status_code == 503
    assert int(response["Retry-After"]) > 0


def test_without_the_database_it_asks_to_be_sent_again(
    post: Post, hot: HotStore, secret: str
) -> None:
    def down(*_: object) -> None:
        raise DatabaseError

    with connection.execute_wrapper(down):
        response = post(TRN2[0])

    assert response.status_code == 503
    assert hot.shards() == ()
    assert post(TRN2[0]).status_code == 200


def test_a_known_node_needs_no_database(post: Post) -> None:
    def down(*_: object) -> None:
        raise DatabaseError

    post(TRN2[0])
    with connection.execute_wrapper(down):
        assert post(TRN2[1]).status_code == 200
