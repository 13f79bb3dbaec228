"""Firings: each time an alert fires or changes its culprit."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drills.playback import Firings
from fleet.models import Alert, AlertEvent, Node, Run

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def alert(run: Run, limping: Node) -> Alert:
    """Fire an alert at once about one node."""
    return Alert.objects.create(
        rule="allreduce_share",
        cause="slow_core",
        severity=Alert.Severity.PAGE,
        subject="run:llama",
        run=run,
        node=limping,
        device=7,
        score=1.3,
        onset_at=EPOCH + timedelta(seconds=100),
        fired_at=EPOCH + timedelta(seconds=106),
        last_seen_at=EPOCH + timedelta(seconds=106),
    )


@pytest.fixture
def firings() -> Firings:
    return Firings(EPOCH.timestamp())


def changed(alert: Alert, **fields: Any) -> list[Alert]:
    for name, value in fields.items():
        setattr(alert, name, value)
    alert.save()
    return [alert]


def test_a_firing_is_distinguished_from_its_onset_to_its_end(
    firings: Firings, alert: Alert
) -> None:
    firings.note([alert], at_s=106)
    firings.note(changed(alert, resolved_at=EPOCH + timedelta(seconds=200)), at_s=200)

    [firing] = firings.all()

    assert (firing.onset_s, firing.fired_s, firing.resolved_s) == (100, 106, 200)
    assert (firing.run, firing.node, firing.device) == ("llama", "limping", 7)


def test_one_that_burns_still_has_no_end(firings: Firings, alert: Alert) -> None:
    firings.note([alert], at_s=106)
    changed(alert, score=2.5)

    [firing] = firings.all()

    assert (firing.resolved_s, firing.score) == (None, 2.5)


def test_one_that_fires_again_on_its_row_is_reported_twice(firings: Firings, alert: Alert) -> None:
    firings.note([alert], at_s=106)
    firings.note(changed(alert, resolved_at=EPOCH + timedelta(seconds=200)), at_s=200)
    firings.note(changed(alert, resolved_at=None), at_s=230)

    assert [(f.fired_s, f.resolved_s) for f in firings.all()] == [(106, 200), (230, None)]


def test_one_that_flaps_and_is_back_after_quiet_minutes_is_reported_again(
    firings: Firings, alert: Alert
) -> None:
    firings.note([alert], at_s=106)
    alert.events.create(at=EPOCH + timedelta(seconds=500), kind=AlertEvent.Kind.REFIRED)
    since = {"onset_s": EPOCH.timestamp() + 490}
    firings.note(changed(alert, n_firings=4, evidence=since), at_s=500)
    firings.note(changed(alert, n_firings=5, score=2.0), at_s=520)

    reported = [(f.onset_s, f.fired_s, f.resolved_s) for f in firings.all()]
    assert reported == [(100, 106, 500), (490, 500, None)]


def test_a_cause_that_is_found_later_belongs_to_the_firing(
    firings: Firings, alert: Alert, limping: Node
) -> None:
    firings.note(changed(alert, cause="unknown", node=None, device=None), at_s=106)
    firings.note(changed(alert, cause="throttle", node=limping, device=3), at_s=300)

    assert [(f.cause, f.node) for f in firings.all()] == [("throttle", "limping")]


def test_a_better_cause_within_a_minute_belongs_to_the_firing(
    firings: Firings, alert: Alert
) -> None:
    firings.note([alert], at_s=106)
    firings.note(changed(alert, cause="throttle"), at_s=130)

    assert [f.cause for f in firings.all()] == ["throttle"]


def test_one_that_comes_to_accuse_another_node_is_reported_twice(
    firings: Firings, alert: Alert, steady: Node
) -> None:
    firings.note([alert], at_s=106)
    firings.note(changed(alert, node=steady), at_s=130)

    reported = [(f.node, f.fired_s, f.resolved_s) for f in firings.all()]
    assert reported == [("limping", 106, 130), ("steady", 130, None)]


def test_one_that_is_over_before_it_was_seen_is_no_firing(firings: Firings, alert: Alert) -> None:
    firings.note(changed(alert, resolved_at=EPOCH + timedelta(seconds=200)), at_s=200)

    assert firings.all() == []
