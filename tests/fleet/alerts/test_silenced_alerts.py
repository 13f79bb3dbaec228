"""Silences: a muted alert names its silence, and notifies when the silence ends."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from fleet import alerts
from fleet.alerts.matchers import silences_of
from fleet.models import Alert, Delivery, Receiver, Route, Silence
from telemetry.detect.findings import Finding
from telemetry.errors import FieldError
from tests.fleet.alerts.conftest import Evaluate
from tests.helpers import NOON

HOUR = timedelta(hours=1)
Hush = Callable[..., Silence]


@pytest.fixture
def hush(db: None) -> Hush:
    """Silence what is given, at noon, for an hour."""

    def make(matchers: str = "run=llama", *, ends_at: timedelta = HOUR) -> Silence:
        return alerts.silence(
            matchers, ends_at=NOON + ends_at, reason="known", by="alice", now=NOON
        )

    return make


@pytest.fixture
def _notified(db: None) -> None:
    """Route everything to one receiver."""
    route = Route.objects.create(name="all", is_default=True)
    route.receivers.add(
        Receiver.objects.create(
            name="hook", kind="webhook", target="https://hook.example/", created_at=NOON
        )
    )


def kinds(alert: Alert) -> list[str]:
    return [event.kind for event in alert.events.all()]


def test_an_open_alert_is_muted_at_once_with_creator_end_and_reason(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    [alert] = evaluate(-60, finding)
    silence = hush()

    alert.refresh_from_db()
    assert alert.silence == silence
    assert alert.is_silenced(NOON)
    event = alert.events.get(kind="silenced")
    assert (event.by, event.text) == ("alice", "until 2026-03-02 13:00 UTC: known")


@pytest.mark.usefixtures("_notified")
def test_what_fires_under_a_silence_is_muted_and_not_notified(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    hush()
    [alert] = evaluate(1, finding)

    assert kinds(alert) == ["fired", "silenced"]
    assert not Delivery.objects.exists()


@pytest.mark.usefixtures("_notified")
def test_what_still_fires_when_the_silence_ends_is_reported_as_if_it_fired(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    hush()
    evaluate(1, finding)
    [alert] = evaluate(3600, finding)

    assert kinds(alert) == ["fired", "silenced", "unsilenced"]
    assert alert.silence is None
    assert Delivery.objects.get().events.get().kind == "unsilenced"


def test_ending_it_early_is_heard_of_at_once(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    [alert] = evaluate(-60, finding)
    silence = hush()
    assert alerts.expire(silence, by="bob", now=NOON + HOUR / 2)
    assert not alerts.expire(silence, by="eve", now=NOON + HOUR / 2)

    alert.refresh_from_db()
    assert alert.silence is None
    assert (silence.ends_at, silence.expired_by) == (NOON + HOUR / 2, "bob")
    assert [event.kind for event in silence.events.all()] == ["created", "expired"]


def test_a_longer_silence_takes_over_from_one_that_ends(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    hush()
    longer = hush("rule=allreduce_share", ends_at=2 * HOUR)
    [alert] = evaluate(1, finding)
    assert alert.silence == longer
    shorter = alerts.silence(
        "", ends_at=NOON + HOUR, reason="all", by="alice", now=NOON + HOUR / 4
    )
    alerts.expire(longer, by="alice", now=NOON + HOUR / 2)

    alert.refresh_from_db()
    assert alert.silence in (shorter, Silence.objects.get(matchers="run=llama"))
    assert kinds(alert) == ["fired", "silenced", "silenced"]


def test_moving_the_end_is_noted_and_is_done_once(hush: Hush) -> None:
    silence = hush()
    same = Silence.objects.get()
    assert alerts.move_end(silence, to=NOON + 2 * HOUR, by="bob", now=NOON)
    assert not alerts.move_end(same, to=NOON + 3 * HOUR, by="eve", now=NOON)

    event = silence.events.get(kind="end_moved")
    assert event.text == "from 2026-03-02 13:00 UTC to 2026-03-02 14:00 UTC"


def test_a_resolved_alert_is_not_unmuted(evaluate: Evaluate, finding: Finding, hush: Hush) -> None:
    hush()
    evaluate(1, finding)
    evaluate(2)
    evaluate(4000, finding)

    first = Alert.objects.earliest("pk")
    assert kinds(first) == ["fired", "silenced", "resolved"]


@pytest.mark.parametrize(
    ("ends_at", "reason", "shown"),
    [
        (timedelta(0), "known", "ends_at: is not in the future"),
        (timedelta(days=31), "known", "more than 30 days ahead"),
        (HOUR, " ", "reason: is empty"),
        (HOUR, "x" * 501, "reason: is longer"),
    ],
)
def test_a_silence_that_cannot_be_is_refused(
    db: None, ends_at: timedelta, reason: str, shown: str
) -> None:
    with pytest.raises(FieldError, match=shown):
        alerts.silence("", ends_at=NOON + ends_at, reason=reason, by="alice", now=NOON)
    assert not Silence.objects.exists()


def test_a_silence_that_can_no_longer_be_read_mutes_nothing(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    Silence.objects.filter(pk=hush().pk).update(matchers="color=red")
    [alert] = evaluate(1, finding)

    assert alert.silence is None
    assert silences_of(alert, now=NOON) == []


def test_an_evaluation_that_began_before_a_silence_does_not_remove_it(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    evaluate(-60, finding)
    hush()
    evaluate(-1, finding)
    evaluate(1, finding)

    assert kinds(Alert.objects.get()) == ["fired", "silenced"]


def test_an_evaluation_that_began_before_a_silence_ended_does_not_restore_it(
    evaluate: Evaluate, finding: Finding, hush: Hush
) -> None:
    evaluate(-60, finding)
    alerts.expire(hush(), by="bob", now=NOON + timedelta(seconds=5))
    evaluate(4, finding)
    evaluate(6, finding)

    assert kinds(Alert.objects.get()) == ["fired", "silenced", "unsilenced"]
