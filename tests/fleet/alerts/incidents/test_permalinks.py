"""Permalinks: the same window, evidence and state later."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from fleet.alerts import mark_false, unmark_false
from fleet.charts.frozen import as_of, frozen_link, parse_moment
from fleet.models import Alert, AlertEvent, Node
from tests.helpers import NOON, NOON_S

Make = Callable[..., Alert]
SECOND = timedelta(seconds=1)


def happen(alert: Alert, kind: str, after_s: float, **fields: object) -> AlertEvent:
    at = NOON + after_s * SECOND
    return AlertEvent.objects.create(alert=alert, at=at, kind=kind, **fields)


def test_what_it_reported_then_is_what_it_states_again(make: Make, steady: Node) -> None:
    alert = make(cause="unknown", node=None, device=None, evidence={"share_ratio": 0.27})
    happen(alert, "fired", 0, snapshot=alert.snapshot)
    alert.cause, alert.node, alert.device = "slow_core", steady, 3
    alert.evidence = {"share_ratio": 0.4}
    alert.save()
    happen(alert, "cause_changed", 30, snapshot=alert.snapshot)
    events = list(alert.events.all())

    first = as_of(alert, events, at=NOON + 10 * SECOND)
    later = as_of(alert, events, at=NOON + 40 * SECOND)

    assert (first.cause, first.node, first.evidence) == ("unknown", None, {"share_ratio": 0.27})
    assert (later.cause, later.node, later.device) == ("slow_core", steady, 3)
    assert alert.cause == "slow_core"


def test_who_had_it_and_whether_it_was_over_follow_from_the_events(make: Make) -> None:
    alert = make(acknowledged_at=NOON, acknowledged_by="bob", resolved_at=NOON + 90 * SECOND)
    happen(alert, "fired", 0)
    happen(alert, "acknowledged", 10, by="olga")
    happen(alert, "unacknowledged", 20, by="olga")
    happen(alert, "assigned", 25, by="olga", text="to bob: please")
    happen(alert, "acknowledged", 30, by="bob")
    happen(alert, "resolved", 60)
    happen(alert, "refired", 70)
    happen(alert, "resolved", 90)
    events = list(alert.events.all())

    def state(after_s: int) -> tuple[str, str, str]:
        then = as_of(alert, events, at=NOON + after_s * SECOND)
        return then.state, then.acknowledged_by, then.assigned_to

    assert state(5) == ("firing", "", "")
    assert state(15) == ("acknowledged", "olga", "")
    assert state(27) == ("firing", "", "bob")
    assert state(40) == ("acknowledged", "bob", "bob")
    assert state(65)[0] == "resolved"
    assert state(75)[0] == "acknowledged"
    assert state(95)[0] == "resolved"


def test_a_false_mark_shows_from_its_time_until_it_is_removed(make: Make) -> None:
    alert = make()
    mark_false(alert, by="olga", reason="wrong_node", comment="it: steady", now=NOON + SECOND)
    unmark_false(alert, by="olga", now=NOON + 3 * SECOND)
    mark_false(alert, by="bob", reason="noise", now=NOON + 5 * SECOND)
    events = list(alert.events.all())

    marks = [as_of(alert, events, at=NOON + n * SECOND).false_mark for n in (0, 2, 4, 6)]

    noise = "Marked false by bob: noise"
    assert marks == ["", "Marked false by olga: wrong node, it: steady", "", noise]


def test_the_link_has_the_window_and_the_time(make: Make) -> None:
    alert = make(resolved_at=NOON + timedelta(hours=3))
    at = NOON + timedelta(minutes=10)

    assert frozen_link(alert, at=at) == (
        f"/alerts/{alert.pk}/?from={NOON_S - 300}&to={NOON_S + 600}&at={NOON_S + 600}"
    )


@pytest.mark.parametrize("given", ["", "x", "-1", "1e9", "99999999999", "1" * 40])
def test_a_future_time_is_none(make: Make, given: str) -> None:
    assert parse_moment(given, alert=make(), now=datetime.now(UTC)) is None


def test_before_it_fired_there_was_nothing(make: Make) -> None:
    assert parse_moment("5", alert=make(), now=NOON + SECOND) == NOON
