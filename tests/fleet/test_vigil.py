"""Watching the watching: alive, gone, back again."""

from datetime import datetime, timedelta

import pytest
from redis import Redis

from fleet.models import Alert, Delivery, Receiver, Route
from fleet.vigil import Vigil, last_look
from telemetry.store.hot import HotStore
from tests.parts import NOON, free_port

SECOND = timedelta(seconds=1)


class Looks:
    """When the fleet was last looked at, as a test has it."""

    def __init__(self, at: datetime | None) -> None:
        self.at = at

    def __call__(self) -> datetime | None:
        return self.at


def open_alerts() -> list[str]:
    return list(Alert.objects.open().values_list("rule", flat=True))


def test_while_somebody_looks_all_is_well(db: None) -> None:
    vigil = Vigil(Looks(NOON + 99 * SECOND), since=NOON)

    assert vigil.keep(now=NOON + 100 * SECOND)
    assert open_alerts() == []


def test_a_minute_without_a_look_is_an_alert(db: None) -> None:
    looks = Looks(NOON + 10 * SECOND)
    vigil = Vigil(looks, since=NOON)

    assert not vigil.keep(now=NOON + 60 * SECOND)
    assert open_alerts() == []
    for i in range(3):
        assert not vigil.keep(now=NOON + (71 + i) * SECOND)
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.severity) == ("monitoring_blind", "fleet", "1-page")
    assert alert.onset_at == NOON + 10 * SECOND


def test_it_pages_by_itself(db: None) -> None:
    route = Route.objects.create(name="default", is_default=True)
    route.receivers.create(name="hook", kind="webhook", target="http://x/", created_at=NOON)
    Vigil(Looks(None), since=NOON).keep(now=NOON + 61 * SECOND)

    assert Delivery.objects.get(receiver=Receiver.objects.get()).kind == "firing"


def test_what_was_before_it_began_is_not_held_against_anybody(db: None) -> None:
    vigil = Vigil(Looks(NOON - 3600 * SECOND), since=NOON)

    assert not vigil.keep(now=NOON + 30 * SECOND)
    assert open_alerts() == []


def test_it_ends_what_it_raised_when_somebody_looks_again(db: None) -> None:
    looks = Looks(None)
    vigil = Vigil(looks, since=NOON)
    vigil.keep(now=NOON + 61 * SECOND)
    assert open_alerts() == ["monitoring_blind"]

    looks.at = NOON + 70 * SECOND
    assert vigil.keep(now=NOON + 71 * SECOND)
    assert open_alerts() == []


def test_it_leaves_alone_what_others_raised(db: None) -> None:
    Alert.objects.create(
        rule="monitoring_blind",
        severity="1-page",
        subject="fleet",
        score=1,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )
    Vigil(Looks(NOON + 9 * SECOND), since=NOON).keep(now=NOON + 10 * SECOND)

    assert open_alerts() == ["monitoring_blind"]


def test_the_last_look_is_read_from_the_store(redis_url: str, hot: HotStore) -> None:
    assert last_look(redis_url)() is None
    hot.gauge("watched_at_s", NOON.timestamp())

    assert last_look(redis_url)() == NOON


def test_without_a_store_nobody_can_tell() -> None:
    assert last_look(f"redis://127.0.0.1:{free_port()}")() is None


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_nonsense_in_the_store_is_no_look(redis: Redis, redis_url: str, kind: str) -> None:
    if kind == "string":
        redis.set("service:gauges", "nonsense")
        assert last_look(redis_url)() is None
    else:
        redis.hset("service:gauges", "watched_at_s", "12.5")
        assert last_look(redis_url)() is not None
