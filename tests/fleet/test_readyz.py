"""Readiness: database, Redis, fresh ticks."""

import re
import time

from django.test import Client

from telemetry.store.hot import HotStore
from tests.fleet.test_anonymous_access import member
from tests.helpers import block


def test_it_is_ready_while_ticks_are_fresh(client: Client, db: None, hot: HotStore) -> None:
    hot.append([block(tick=int(time.time()))])

    response = client.get("/readyz")

    assert response.status_code == 200
    assert response.json()["checks"]["ticks"]["nodes"] == 2


def test_a_fleet_without_nodes_is_ready(client: Client, db: None, redis_url: str) -> None:
    assert client.get("/readyz").status_code == 200


def test_old_ticks_make_it_not_ready(client: Client, db: None, hot: HotStore) -> None:
    hot.append([block(tick=int(time.time()) - 60)])

    response = client.get("/readyz")

    assert response.status_code == 503
    assert re.search(r"6\d s old", response.json()["checks"]["ticks"]["why"])


def test_a_redis_that_is_away_is_named(client: Client, db: None) -> None:
    response = client.get("/readyz")

    assert response.status_code == 503
    assert response.json()["checks"]["database"]["ok"]
    assert not response.json()["checks"]["redis"]["ok"]


def test_it_only_answers(client: Client, db: None) -> None:
    client.force_login(member("admin"))
    assert client.post("/readyz").status_code == 405
