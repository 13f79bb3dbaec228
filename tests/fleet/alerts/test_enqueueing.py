"""From the timeline to the outbox: who is notified of what, once, and in which group."""

from datetime import timedelta

import pytest

from fleet.alerts.events import enqueue
from fleet.alerts.text import AlertText
from fleet.models import (
    Alert,
    AlertEvent,
    Delivery,
    Node,
    NotifiedState,
    Receiver,
    Route,
    Run,
    Silence,
)
from tests.helpers import NOON

SECOND = timedelta(seconds=1)


@pytest.fixture
def hook(db: None) -> Receiver:
    return Receiver.objects.create(
        name="hook", kind="webhook", target="http://127.0.0.1:1/", created_at=NOON
    )


@pytest.fixture
def pager(db: None) -> Receiver:
    return Receiver.objects.create(
        name="pager", kind="pagerduty", target="http://127.0.0.1:1/", created_at=NOON
    )


@pytest.fixture
def default(hook: Receiver) -> Route:
    route = Route.objects.create(name="everything else", is_default=True)
    route.receivers.add(hook)
    return route


def alert_on(run: Run, *, subject: str = "run:llama", rule: str = "allreduce_share") -> Alert:
    return Alert.objects.create(
        rule=rule,
        severity=Alert.Severity.PAGE,
        subject=subject,
        run=run,
        score=1.2,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )


def say(alert: Alert, kind: str, *, after_s: float = 0) -> None:
    now = NOON + after_s * SECOND
    enqueue(alert, AlertEvent.objects.create(alert=alert, at=now, kind=kind), now=now)


def kinds(receiver: Receiver) -> list[str]:
    return [delivery.kind for delivery in receiver.deliveries.order_by("pk")]


def test_without_receivers_nothing_is_written(run: Run) -> None:
    say(alert_on(run), "fired")

    assert not Delivery.objects.exists()


def test_what_fires_goes_to_the_default_route_after_its_wait(
    run: Run, hook: Receiver, default: Route
) -> None:
    say(alert_on(run, rule="node_silent"), "fired")

    delivery = hook.deliveries.get()
    assert (delivery.kind, delivery.state, delivery.route) == ("firing", "pending", default)
    assert delivery.next_try_at == NOON + 5 * SECOND


@pytest.mark.parametrize("kind", Receiver.Kind)
def test_a_receiver_of_any_kind_is_notified(
    run: Run, hook: Receiver, default: Route, kind: Receiver.Kind
) -> None:
    hook.kind = kind
    hook.save()
    alert = alert_on(run, rule="node_silent")
    for event in ("fired", "acknowledged", "marked_false", "resolved"):
        say(alert, event)
    # What is over is marked without a message.
    say(alert, "marked_false")

    refused = {"acknowledged", "marked_false"} if kind in {"email", "alertmanager"} else set()
    refused |= {"marked_false"} if kind == "pagerduty" else set()
    every = ("firing", "acknowledged", "marked_false", "resolved")
    told = [kind for kind in every if kind not in refused]
    assert kinds(hook) == told


def test_a_first_message_waits_for_the_cause_but_not_for_long(
    run: Run, limping: Node, hook: Receiver, default: Route
) -> None:
    alert = alert_on(run)
    say(alert, "fired")
    assert hook.deliveries.get().next_try_at == NOON + 12 * SECOND
    # The cause is found: the message says it, at once.
    alert.cause, alert.node = "slow_core", limping
    alert.save()
    say(alert, "cause_changed", after_s=10)

    delivery = hook.deliveries.get()
    assert (delivery.kind, delivery.next_try_at) == ("firing", NOON + 10 * SECOND)
    assert delivery.events.count() == 2


def test_a_message_without_a_cause_says_that_it_is_being_located(run: Run) -> None:
    alert = alert_on(run)
    soon, later = (AlertText(alert, NOON + after * SECOND) for after in (12, 120))

    assert "Still locating the cause." in soon.detail
    assert "locating" in soon.story
    assert "Cause not identified yet." in later.detail


def test_alerts_of_one_run_share_a_message(run: Run, hook: Receiver, default: Route) -> None:
    say(alert_on(run), "fired")
    say(alert_on(run, subject="node:steady", rule="node_silent"), "fired", after_s=2)

    assert hook.deliveries.get().alerts.count() == 2


def test_a_message_that_was_tried_takes_no_one_in(
    run: Run, hook: Receiver, default: Route
) -> None:
    say(alert_on(run), "fired")
    hook.deliveries.update(n_attempts=1)
    say(alert_on(run, subject="node:steady", rule="node_silent"), "fired", after_s=2)

    assert kinds(hook) == ["firing", "firing"]


def test_what_fires_again_before_its_end_is_reported_is_reported_last(
    run: Run, hook: Receiver, default: Route
) -> None:
    alert = alert_on(run)
    for i, kind in enumerate(("fired", "resolved", "refired")):
        say(alert, kind, after_s=i)

    assert kinds(hook) == ["firing", "resolved", "firing"]


def test_a_pager_gets_each_alert_alone(run: Run, pager: Receiver, default: Route) -> None:
    default.receivers.add(pager)
    say(alert_on(run), "fired")
    say(alert_on(run, subject="node:steady", rule="node_silent"), "fired")

    assert [delivery.alerts.count() for delivery in pager.deliveries.all()] == [1, 1]


def test_a_route_above_takes_what_it_means(
    run: Run, hook: Receiver, pager: Receiver, default: Route
) -> None:
    route = Route.objects.create(name="pages", matchers="severity=page")
    route.receivers.add(pager)
    say(alert_on(run), "fired")

    assert kinds(pager) == ["firing"]
    assert kinds(hook) == []


def test_a_route_that_continues_leaves_it_to_others_too(
    run: Run, hook: Receiver, pager: Receiver, default: Route
) -> None:
    route = Route.objects.create(name="pages", matchers="severity=page", goes_on=True)
    route.receivers.add(pager, hook)
    say(alert_on(run), "fired")

    assert (kinds(pager), kinds(hook)) == (["firing"], ["firing"])


def test_a_route_that_cannot_be_read_means_every_alert(run: Run, pager: Receiver) -> None:
    Route.objects.create(name="odd", matchers="colour=blue").receivers.add(pager)
    say(alert_on(run), "fired")

    assert kinds(pager) == ["firing"]


def test_a_silenced_alert_is_sent_when_the_silence_ends(
    run: Run, hook: Receiver, default: Route
) -> None:
    alert = alert_on(run)
    silence = Silence.objects.create(
        matchers="run=llama",
        reason="planned",
        by="ada",
        starts_at=NOON,
        ends_at=NOON + 60 * SECOND,
    )
    say(alert, "fired")
    assert kinds(hook) == []

    silence.delete()
    say(alert, "unsilenced", after_s=60)
    assert kinds(hook) == ["firing"]


def test_a_flapping_alert_does_not_page_again_before_its_end_was_sent(
    run: Run, pager: Receiver, default: Route
) -> None:
    default.receivers.set([pager])
    alert = alert_on(run)
    say(alert, "fired")
    alert.flapping_since = NOON
    say(alert, "refired", after_s=300)
    assert kinds(pager) == ["firing"]

    say(alert, "resolved", after_s=900)
    say(alert, "refired", after_s=960)
    assert kinds(pager) == ["firing", "resolved", "firing"]


@pytest.mark.parametrize(
    ("kind", "is_reminder"), [("refired", True), ("cause_changed", False), ("acknowledged", False)]
)
def test_only_a_repeated_notification_restarts_the_reminder_interval(
    run: Run, hook: Receiver, default: Route, kind: str, *, is_reminder: bool
) -> None:
    alert = alert_on(run)
    say(alert, "fired")
    say(alert, kind, after_s=300)

    state = NotifiedState.objects.get()
    assert state.last_at == NOON + (300 if is_reminder else 0) * SECOND


def test_only_notified_receivers_get_the_end(
    run: Run, hook: Receiver, pager: Receiver, default: Route
) -> None:
    alert = alert_on(run)
    say(alert, "fired")
    default.receivers.set([pager])
    say(alert, "resolved", after_s=9)

    assert kinds(hook) == ["firing", "resolved"]
    assert kinds(pager) == []
    assert NotifiedState.objects.get().ended_at == NOON + 9 * SECOND


def test_a_route_may_keep_the_end_to_itself(run: Run, hook: Receiver, default: Route) -> None:
    Route.objects.update(sends_resolved=False)
    alert = alert_on(run)
    say(alert, "fired")
    say(alert, "resolved", after_s=9)

    assert kinds(hook) == ["firing"]


def test_a_cause_found_while_the_message_waits_joins_it(
    run: Run, hook: Receiver, default: Route
) -> None:
    alert = alert_on(run)
    say(alert, "fired")
    say(alert, "cause_changed", after_s=1)

    assert kinds(hook) == ["firing"]


def test_who_took_it_is_reported(run: Run, hook: Receiver, default: Route) -> None:
    alert = alert_on(run)
    say(alert, "fired")
    say(alert, "acknowledged", after_s=1)
    say(alert, "commented", after_s=2)

    assert kinds(hook) == ["firing", "acknowledged"]


def test_a_receiver_that_is_off_learns_nothing(run: Run, hook: Receiver, default: Route) -> None:
    Receiver.objects.update(is_enabled=False)
    say(alert_on(run), "fired")

    assert kinds(hook) == []


@pytest.mark.parametrize("kind", ["worsened", "cause_changed", "rule_changed"])
def test_a_warning_that_becomes_a_page_fires_again_for_all_it_pages(
    run: Run, hook: Receiver, pager: Receiver, kind: str
) -> None:
    """By the labels of a page, which Alertmanager routes; others still hear when it ends."""
    mailbox = Receiver.objects.create(
        name="box", kind="webhook", target="http://127.0.0.1:2/", created_at=NOON
    )
    pages = Route.objects.create(name="pages", matchers="severity=page", position=1)
    pages.receivers.add(hook, pager)
    Route.objects.create(name="rest", is_default=True).receivers.add(hook, mailbox)
    alert = alert_on(run, rule="node_silent")
    alert.severity = Alert.Severity.WARN
    alert.save()
    say(alert, "fired")
    assert [kinds(each) for each in (hook, pager, mailbox)] == [["firing"], [], ["firing"]]
    Delivery.objects.update(state=Delivery.State.SENT)

    alert.severity = Alert.Severity.PAGE
    alert.save()
    say(alert, kind, after_s=60)
    say(alert, kind, after_s=61)
    now_known = NotifiedState.objects.filter(receiver=hook, ended_at=None)
    assert [state.labels["severity"] for state in now_known] == ["page"]
    assert [kinds(each)[:2] for each in (hook, pager)] == [["firing", "firing"], ["firing"]]
    Delivery.objects.update(state=Delivery.State.SENT)
    say(alert, "resolved", after_s=90)
    assert [kinds(each)[-1] for each in (hook, pager, mailbox)] == ["resolved"] * 3
    assert hook.deliveries.filter(kind="resolved").count() == 1
