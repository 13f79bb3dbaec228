"""Redis stops and returns: a clear error, nothing lost or duplicated."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis.exceptions
from redis import Redis as Client

from telemetry.store.connection import MAX_PIPELINED
from telemetry.store.hot import HotStore, StoreUnavailable
from tests.helpers import NOON_S, block, free_port, steps
from tests.telemetry.store.samples import Redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path, free_port())
    yield server
    server.kill()


@pytest.fixture
def hot(server: Redis) -> Iterator[HotStore]:
    with Client.from_url(server.url) as client:
        yield HotStore(client)


def test_what_was_committed_survives_kill_9(server: Redis, hot: HotStore) -> None:
    hot.commit("llama/0", before=None, after=b"1", blocks=[block()], steps=steps())
    server.kill()
    server.start()

    assert hot.clock("llama/0") == b"1"
    assert hot.latest()["llama/0"].tick == NOON_S
    assert len(hot.steps("llama", since_s=0)) == 10
    assert hot.totals().tokens == {"llama": 40_960.0}


def test_it_continues_where_it_stood_although_redis_forgot_its_script(
    server: Redis, hot: HotStore
) -> None:
    hot.commit("llama/0", before=None, after=b"1", blocks=[block()], steps=None)
    server.kill()
    server.start()

    again = {"before": b"1", "after": b"2"}
    assert hot.commit("llama/0", **again, blocks=[block(tick=NOON_S + 1)], steps=None)
    assert not hot.commit("llama/0", **again, blocks=[block(tick=NOON_S + 1)], steps=None)
    assert hot.append([block(tick=NOON_S), block(tick=NOON_S + 2)]) == 1


def test_while_redis_is_away_every_question_fails_alike(server: Redis, hot: HotStore) -> None:
    server.kill()

    questions: list[Callable[[], object]] = [
        hot.ping,
        hot.latest,
        hot.totals,
        lambda: hot.append([block()]),
        lambda: hot.steps("llama", since_s=0),
        lambda: hot.window("llama/0", start=NOON_S, end=NOON_S),
    ]
    for question in questions:
        with pytest.raises(StoreUnavailable, match="REDIS_URL"):
            question()


def test_the_error_is_a_connection_error_of_either_family() -> None:
    assert issubclass(StoreUnavailable, redis.exceptions.ConnectionError)
    assert issubclass(StoreUnavailable, ConnectionError)


def test_it_reconnects_by_itself(server: Redis, hot: HotStore) -> None:
    hot.append([block()])
    server.kill()
    with pytest.raises(StoreUnavailable):
        hot.ping()
    server.start()

    assert hot.ping()


def test_many_commands_are_neither_made_nor_sent_all_at_once(server: Redis, hot: HotStore) -> None:
    ahead = []
    with Client.from_url(server.url) as other:

        def commands() -> Iterator[tuple[str, str]]:
            for i in range(3 * MAX_PIPELINED):
                ahead.append(i - int(other.get("n") or 0))
                yield ("INCR", "n")

        assert hot.execute_all(commands()) == [*range(1, 3 * MAX_PIPELINED + 1)]
    assert max(ahead) < MAX_PIPELINED
