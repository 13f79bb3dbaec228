"""Concurrent callers: all are answered, and each call counts once."""

import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from pytest_django import Settings
from redis import Redis

from fleet.access.throttling import RequestGate
from fleet.models import Token
from telemetry.store.hot import HotStore
from tests.helpers import NOON

N_THREADS, N_EACH = 16, 10


def asked_in_a_row(address: str, secret: str) -> Counter[int]:
    """Ask for many things over one connection; give how often which status was answered."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    statuses: Counter[int] = Counter()
    try:
        for _ in range(N_EACH):
            connection.request("GET", "/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
            response = connection.getresponse()
            response.read()
            statuses[response.status] += 1
    finally:
        connection.close()
    return statuses


@pytest.mark.django_db(transaction=True)
def test_sixteen_callers_at_once_are_all_answered(address: str, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 100_000
    secrets = [Token.issue(f"t{i}", "read", now=NOON)[1] for i in range(N_THREADS)]

    with ThreadPoolExecutor(N_THREADS) as threads:
        answers = list(threads.map(lambda secret: asked_in_a_row(address, secret), secrets))

    assert sum(answers, Counter()) == {200: N_THREADS * N_EACH}


def test_threads_of_one_process_count_every_request_once(
    hot: HotStore, redis: Redis, settings: Settings
) -> None:
    settings.API_REQUESTS_PER_MINUTE = 400
    gate = RequestGate("API_REQUESTS_PER_MINUTE")

    def ask(thread: int) -> list[int]:
        names = ("all", f"own {thread}")
        return [gate.left(hot, {names[i % 2]: 1}, now_s=60.0)[names[i % 2]] for i in range(200)]

    with ThreadPoolExecutor(N_THREADS) as threads:
        left = [n for of_thread in threads.map(ask, range(N_THREADS)) for n in of_thread]

    gate.left(hot, {"last": 1000}, now_s=60.0)
    assert len(left) == N_THREADS * 200
    assert int(redis.get("rate:all:1") or 0) == N_THREADS * 100
    assert min(left) == 400 - N_THREADS * 100
