"""The watchdog: evaluation alive, stopped, back again."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from django.utils.html import strip_tags
from redis import Redis

from fleet.alerts.text import AlertText
from fleet.alerts.watch_monitor import Programs, WatchMonitor, last_evaluation, programs
from fleet.models import Alert, Delivery, Receiver, Route
from fleet.ops.liveness import KEY
from telemetry.store.hot import HotStore
from tests.helpers import NOON, free_port

SECOND = timedelta(seconds=1)


class Evaluations:
    """When the fleet was last looked at, as a test has it."""

    def __init__(self, at: datetime | None) -> None:
        self.at = at

    def __call__(self) -> datetime | None:
        return self.at


def open_alerts() -> list[str]:
    return list(Alert.objects.open().values_list("rule", flat=True))


def all_in_time(_now: datetime) -> Mapping[str, float]:
    return {"worker-1@a": -29.0}


def watch(
    evaluations: Evaluations,
    first_s: float,
    last_s: float,
    *,
    every_s: int = 5,
    programs: Programs = all_in_time,
) -> bool:
    """Let one sender live from its start to its end, both from noon; was watching alive then?"""
    monitor, second, is_alive = WatchMonitor(evaluations, programs), first_s, False
    while second <= last_s:
        is_alive = monitor.check(now=NOON + second * SECOND)
        second += every_s
    return is_alive


def test_while_evaluation_runs_there_is_no_alert(db: None) -> None:
    for second in range(100):
        assert WatchMonitor(Evaluations(NOON + second * SECOND), all_in_time).check(
            now=NOON + (second + 1) * SECOND
        )
    assert open_alerts() == []


def test_a_minute_without_an_evaluation_is_an_alert(db: None) -> None:
    evaluations = Evaluations(NOON + 10 * SECOND)

    assert not watch(evaluations, 10, 70)
    assert open_alerts() == []
    assert not watch(evaluations, 71, 90)
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.severity) == ("monitoring_blind", "fleet", "1-page")
    assert alert.onset_at == NOON + 10 * SECOND


def test_it_pages_by_itself(db: None) -> None:
    route = Route.objects.create(name="default", is_default=True)
    route.receivers.create(name="hook", kind="webhook", target="http://x/", created_at=NOON)
    watch(Evaluations(None), 0, 65)

    assert Delivery.objects.get(receiver=Receiver.objects.get()).kind == "firing"


def test_a_first_start_counts_from_the_start(db: None) -> None:
    watch(Evaluations(None), 0, 60)
    assert open_alerts() == []

    watch(Evaluations(None), 65, 65)
    assert Alert.objects.get().onset_at == NOON


@pytest.mark.parametrize("returns_s", [20, 50, 58, 300])
@pytest.mark.parametrize("at", [NOON, None], ids=["store", "no store"])
def test_a_sender_that_was_killed_too_continues_counting(
    db: None, returns_s: int, at: datetime | None
) -> None:
    watch(Evaluations(NOON), 0, 15)
    watch(Evaluations(at), returns_s, max(65, returns_s + 30))

    alert = Alert.objects.get()
    assert alert.onset_at == NOON, "what the last sender knew is not lost with it"
    assert alert.fired_at <= NOON + max(65, returns_s + 30) * SECOND


@pytest.mark.parametrize("alive_s", [0, 5, 12, 50])
@pytest.mark.parametrize("away_s", [1, 40])
def test_a_sender_that_is_killed_again_and_again_still_raises_it(
    db: None, alive_s: int, away_s: int
) -> None:
    start_s = 0
    while start_s <= 6 * 60 and not open_alerts():
        watch(Evaluations(NOON), start_s, start_s + alive_s)
        start_s += alive_s + away_s

    quiet = Alert.objects.get().fired_at - NOON
    assert quiet <= timedelta(seconds=60 + 5 * away_s)


def test_several_senders_count_time_once(db: None) -> None:
    watch(Evaluations(NOON), 0, 0)
    for second in range(300, 330):
        # Five senders in the first half minute after everything stood still.
        for fifth in range(5):
            WatchMonitor(Evaluations(NOON), all_in_time).check(
                now=NOON + (second + fifth / 5) * SECOND
            )

    assert open_alerts() == []


def test_after_everything_stood_still_watching_may_start_first(db: None) -> None:
    evaluations = Evaluations(NOON)
    watch(evaluations, 0, 4)
    # The machine was suspended, or stopped, for an hour.
    watch(evaluations, 3600, 3625)
    assert open_alerts() == []

    evaluations.at = NOON + 3626 * SECOND
    assert watch(evaluations, 3630, 3630)
    evaluations.at = NOON + 3690 * SECOND
    assert watch(evaluations, 3635, 3690)
    assert open_alerts() == []


def test_a_clock_that_was_set_back_does_not_hide_it(db: None) -> None:
    watch(Evaluations(NOON + 3600 * SECOND), 3600, 3600)
    watch(Evaluations(NOON + 3600 * SECOND), 0, 0)
    # The store still has a time one hour ahead; no evaluation has run since.
    watch(Evaluations(None), 5, 65)

    assert open_alerts() == ["monitoring_blind"]


def test_it_resolves_its_alert_when_evaluation_resumes(db: None) -> None:
    evaluations = Evaluations(None)
    watch(evaluations, 0, 65)
    assert open_alerts() == ["monitoring_blind"]

    evaluations.at = NOON + 70 * SECOND
    assert watch(evaluations, 71, 71)
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
    WatchMonitor(Evaluations(NOON + 9 * SECOND), all_in_time).check(now=NOON + 10 * SECOND)

    assert open_alerts() == ["monitoring_blind"]


def story(*, at_s: float) -> str:
    """Return the text of the only alert at a second after noon."""
    said = AlertText(Alert.objects.get(), NOON + at_s * SECOND).story
    return re.sub(r"\s+", " ", strip_tags(said))


def test_it_names_the_programs_that_are_late(db: None, redis: Redis, redis_url: str) -> None:
    due = {"beat@a": 30, "worker-1@a": 27, "sender@a": 3600}
    redis.hset(
        KEY, mapping={name: f"{name} {NOON.timestamp() + s:.1f}" for name, s in due.items()}
    )
    evaluations = Evaluations(NOON)
    watch(evaluations, 0, 65, programs=programs(redis_url))

    assert Alert.objects.get().evidence["programs_late_s"] == {"beat@a": 35, "worker-1@a": 38}
    assert (
        "the fleet has not been evaluated for 1 min. "
        "When it fired, beat@a (35 s late), worker-1@a (38 s late) had not proved in time that "
        "they work. Until it is fixed"
    ) in story(at_s=65)

    evaluations.at = NOON + 70 * SECOND
    assert watch(evaluations, 70, 70, programs=programs(redis_url))
    assert open_alerts() == []
    assert "was not evaluated for 1 min. When it fired, beat@a (35 s" in story(at_s=700)


def test_it_says_that_redis_did_not_answer(db: None) -> None:
    watch(Evaluations(None), 0, 65, programs=programs(f"redis://127.0.0.1:{free_port()}"))

    assert "When it fired, Redis did not answer." in story(at_s=65)


def test_the_last_evaluation_is_read_from_the_store(redis_url: str, hot: HotStore) -> None:
    assert last_evaluation(redis_url)() is None
    hot.gauge("watched_at_s", NOON.timestamp())

    assert last_evaluation(redis_url)() == NOON


def test_without_a_store_no_one_can_tell() -> None:
    assert last_evaluation(f"redis://127.0.0.1:{free_port()}")() is None


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_invalid_stored_values_are_no_evaluation(redis: Redis, redis_url: str, kind: str) -> None:
    if kind == "string":
        redis.set("service:gauges", "nonsense")
        assert last_evaluation(redis_url)() is None
    else:
        redis.hset("service:gauges", "watched_at_s", "12.5")
        assert last_evaluation(redis_url)() is not None
