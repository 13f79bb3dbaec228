"""Two schedulers: one sends tasks, the other stands by."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from celery import Celery
from pytest_django import Settings
from redis import Redis

from fleet.celery import BOOT_ID, LEASE, Scheduler
from fleet.ops.liveness import NAME
from tests.conftest import NO_SERVER

QUEUES = ("ticks", "watch", "celery")


@pytest.fixture
def scheduler(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Scheduler]]:
    """Give a function that makes schedulers of one Redis; no lease ends while a test runs."""
    monkeypatch.setattr("fleet.celery.LEASE_S", 3600.0)
    made: list[Scheduler] = []

    def make() -> Scheduler:
        app = Celery("pair", set_as_current=False)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        made.append(Scheduler(app=app))
        return made[-1]

    yield make
    for each in made:
        each.close()


def sends(scheduler: Scheduler, redis: Redis) -> bool:
    """Let a scheduler take a turn while all tasks are due; return whether it sent one."""
    before = sum(int(redis.llen(queue)) for queue in QUEUES)
    for scheduled in scheduler.schedule.values():
        scheduled.last_run_at = datetime.fromtimestamp(0, UTC)
    scheduler.populate_heap()
    scheduler.tick()
    return sum(int(redis.llen(queue)) for queue in QUEUES) == before + 1


def test_one_of_two_schedulers_sends(
    scheduler: Callable[[], Scheduler], redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = scheduler(), scheduler()

    assert [sends(each, redis) for each in (first, second, first, second)] == [1, 0, 1, 0]
    assert 0 < int(redis.pttl(LEASE)) <= 3_600_000
    # As Redis does where the first hung: it learns of that before it sends anything.
    redis.delete(LEASE)
    caplog.clear()
    assert [sends(each, redis) for each in (second, first, second)] == [1, 0, 1]
    assert "are sent by beat@" in caplog.records[-1].message
    # One that ends lets another work at once.
    second.close()
    assert sends(first, redis)


@pytest.mark.skipif(not BOOT_ID.exists(), reason="Linux alone has a number for each boot")
def test_a_scheduler_that_its_supervisor_starts_again_goes_on(
    scheduler: Callable[[], Scheduler], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "beat")
    killed, next_of_its_name = scheduler(), scheduler()
    monkeypatch.setenv(NAME, "beat-2")
    another = scheduler()

    assert [sends(each, redis) for each in (killed, another, next_of_its_name)] == [1, 0, 1]


def test_no_scheduler_sends_while_redis_does_not_answer(
    scheduler: Callable[[], Scheduler], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.CELERY_BROKER_URL = NO_SERVER
    cut_off = scheduler()

    # It waits for its next turn, and does not hang in this one.
    assert cut_off.tick() > 0
    assert "are sent by no scheduler. Redis does not answer" in caplog.text
