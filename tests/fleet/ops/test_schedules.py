"""What follows the clock is sent once in each of its seconds, at the same place in it."""

from datetime import UTC, datetime

import pytest
from pytest_django import Settings

from fleet.ops.schedules import EachSecond
from tests.helpers import NOON_S


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_it_is_due_once_a_second_and_does_not_drift(after_s: float) -> None:
    now_s = [NOON_S + 0.93]
    schedule, last = EachSecond(after_s, clock_s=lambda: now_s[0]), at(NOON_S + 0.93)
    sent: list[float] = []
    while len(sent) < 200:
        is_due, wait_s = schedule.is_due(last)
        if is_due:
            sent.append(now_s[0])
            last = at(now_s[0])
            # Sending takes a moment: a period from the last call would add it each time.
            now_s[0] += 0.007
        else:
            now_s[0] += wait_s

    assert [int(s - after_s) - NOON_S for s in sent] == [*range(1, 201)]
    assert max((s - after_s) % 1 for s in sent) < 0.05


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    assert EachSecond(clock_s=lambda: NOON_S - 60.0).is_due(at(NOON_S)).is_due


def test_ticks_begin_with_the_second_and_are_evaluated_in_it(settings: Settings) -> None:
    entries = settings.CELERY_BEAT_SCHEDULE.values()
    after_s = {
        each["task"].rpartition(".")[2]: each["schedule"]._after_s
        for each in entries
        if isinstance(each["schedule"], EachSecond)
    }
    assert after_s == {"start_tick": 0.0, "watch_fleet": 0.5}
