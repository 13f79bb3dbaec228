"""Batches when the store accepts, throttles, fails or refuses."""

import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import cramjam
import numpy as np
import pytest

from telemetry.long_term import remote_write
from telemetry.long_term.remote_write import (
    Delivered,
    Endpoint,
    SeriesChunk,
    StoppedError,
    WriteBatch,
    WriteClient,
    batches,
    retry_after_s,
)
from telemetry.write_request import WriteRequest
from tests.long_term_stores import Moody, moody_server

NOON_MS = 1_795_262_400_000
FULL = (429, {"Retry-After": "0"}, b"too many")
BROKEN_OFF = (200, {"Content-Length": "100", "Connection": "close"}, b"short")
GARBAGE = (503, {"X": "y"}, bytes(range(256)))
NOTHING: dict[str, str] = {}
ENDLESS = (200, NOTHING, b"x" * (1 << 21))


@pytest.fixture
def store() -> Iterator[Moody]:
    with moody_server() as moody:
        yield moody


@pytest.fixture
def client_to() -> Iterator[Callable[..., WriteClient]]:
    made: list[WriteClient] = []

    def make(url: str, token_file: str = "") -> WriteClient:
        endpoint = Endpoint(url, token_file, timeout_s=5.0, keep_alive=True)
        rng = random.Random(0)
        made.append(
            WriteClient(endpoint, threading.Event(), n_threads=2, first_pause_s=0.01, rng=rng)
        )
        return made[-1]

    yield make
    for client in made:
        client.close()


def batch(n_series: int = 3, n_times: int = 1) -> WriteBatch:
    heads = [remote_write.series("x", (("node", str(i)),)) for i in range(n_series)]
    times_ms = NOON_MS + 1000 * np.arange(n_times)[None]
    return WriteBatch([SeriesChunk(heads, np.ones((n_series, n_times)), times_ms)])


def seconds_of(body: bytes) -> set[int]:
    message = WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body)))
    return {(s.timestamp - NOON_MS) // 1000 for one in message.timeseries for s in one.samples}


def test_a_batch_is_posted_as_the_specification_states(
    store: Moody, client_to: Callable[..., WriteClient]
) -> None:
    found = client_to(f"{store.url}/api/v1/write").deliver(iter([batch()]))

    assert found == Delivered(sent=3)
    assert store.paths == ["/api/v1/write"]
    assert store.headers[0]["Content-Type"] == "application/x-protobuf"
    assert store.headers[0]["Content-Encoding"] == "snappy"
    assert store.headers[0]["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert "Authorization" not in store.headers[0]


def test_a_token_that_changes_on_disk_is_used_at_once(
    store: Moody, client_to: Callable[..., WriteClient], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    client = client_to(store.url, token_file=str(token))
    for secret in ("one\n", "two\n"):
        token.write_text(secret)
        client.deliver(iter([batch()]))

    assert [h["Authorization"] for h in store.headers] == ["Bearer one", "Bearer two"]


def test_a_password_in_the_address_signs_in_and_is_never_shown(
    store: Moody, client_to: Callable[..., WriteClient]
) -> None:
    url = store.url.replace("//", "//us%40er:p%3Ass@")
    client = client_to(url)
    client.deliver(iter([batch()]))

    assert store.headers[0]["Authorization"] == "Basic dXNAZXI6cDpzcw=="
    assert client.endpoint.safe_url == store.url


@pytest.mark.parametrize("failure", [FULL, BROKEN_OFF, GARBAGE, ENDLESS])
def test_a_transient_failure_loses_nothing(
    store: Moody,
    client_to: Callable[..., WriteClient],
    failure: tuple[int, dict[str, str], bytes],
) -> None:
    store.answers += [failure, failure]

    found = client_to(store.url).deliver(iter([batch()]))

    assert found == Delivered(sent=3, retries=2)
    assert len(set(store.bodies)) == 1


def test_a_store_that_asks_for_a_pause_gets_it(
    store: Moody, client_to: Callable[..., WriteClient]
) -> None:
    store.answers.append((503, {"Retry-After": "1"}, b""))
    began = datetime.now(UTC)

    client_to(store.url).deliver(iter([batch()]))

    assert datetime.now(UTC) - began >= timedelta(seconds=1)


def test_what_is_refused_takes_nothing_else_with_it(
    store: Moody, client_to: Callable[..., WriteClient], caplog: pytest.LogCaptureFixture
) -> None:
    store.answers += [(400, {}, b"out of order"), (204, {}, b""), (400, {}, b"too old")]

    found = client_to(store.url).deliver(iter([batch(n_series=2, n_times=4)]))

    assert found == Delivered(sent=6, dropped=2, why="400 too old")
    assert [seconds_of(body) for body in store.bodies] == [{0, 1, 2, 3}, {0}, {1}, {2}, {3}]
    assert "2 samples were rejected" in caplog.text


def test_it_stops_on_request_and_holds_one_batch_per_thread(
    store: Moody, client_to: Callable[..., WriteClient]
) -> None:
    store.answers += [GARBAGE] * 10_000
    client = client_to(store.url)
    made: list[int] = []

    def endless() -> Iterator[WriteBatch]:
        while True:
            made.append(1)
            yield batch()

    threading.Timer(0.3, client.stopping.set).start()
    with pytest.raises(StoppedError):
        client.deliver(endless())

    assert len(made) == client.n_threads


def test_a_problem_is_reported_while_it_lasts(
    store: Moody, client_to: Callable[..., WriteClient]
) -> None:
    store.answers += [GARBAGE] * 10_000
    client = client_to(store.url)
    heard: list[str] = []

    def hear(why: str) -> None:
        heard.append(why)
        client.stopping.set()

    client.on_failure = hear
    with pytest.raises(StoppedError):
        client.deliver(iter([batch()]))

    assert "503" in heard[0]
    assert store.url in heard[0]


def test_a_pause_may_be_asked_for_by_date() -> None:
    later = datetime.now(UTC) + timedelta(seconds=90)

    assert 80 < retry_after_s(format_datetime(later)) <= 90
    assert retry_after_s("12") == 12.0
    assert retry_after_s("soon") == retry_after_s("") == retry_after_s("-5") == 0.0


@pytest.mark.parametrize("url", ["", "victoria:8428", "ftp://victoria/write", "http:///write"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of a long-term store"):
        Endpoint(url)


def test_batches_are_bounded_and_hold_everything_once() -> None:
    chunks = [
        batch(n_series=n, n_times=n_times).chunks[0] for n, n_times in ((7, 3), (50, 1), (2, 40))
    ]

    cut = list(batches(chunks, most=20))

    assert sum(each.n_samples for each in cut) == 7 * 3 + 50 + 80
    assert all(each.n_samples <= 20 or len(each.chunks[0].heads) == 1 for each in cut)
    assert len(b"".join(each.body() for each in cut)) > 0
