"""Reminders of unacknowledged alerts, and repeats to Alertmanager."""

from datetime import timedelta

import pytest

from fleet.alerts.events import notify_newcomers
from fleet.models import Alert, Delivery, NotifiedState, Receiver, Route, Run, Silence
from fleet.notifications.delivery import DeliveryClient, Refresher, delete_old, remind
from fleet.notifications.http_client import Allowed, HttpClient
from tests.fleet.notifications.conftest import an_alert, receiver, say
from tests.fleet.notifications.receiver_server import ReceiverServer, status
from tests.helpers import just_now

MINUTE = timedelta(minutes=1)
COURIER = DeliveryClient(
    HttpClient(Allowed.of(["127.0.0.0/8"]), timeout_s=5), "https://trnwatch.example"
)


@pytest.fixture
def firing(hook: Receiver, run: Run) -> Alert:
    alert = an_alert(run)
    say(alert, "fired")
    Delivery.objects.update(state="sent")
    return alert


def kinds() -> list[str]:
    return list(Delivery.objects.order_by("pk").values_list("kind", flat=True))


def test_what_no_one_takes_is_reported_again(firing: Alert) -> None:
    now = just_now()

    assert remind(now=now + 29 * MINUTE) == 0
    assert remind(now=now + 31 * MINUTE) == 1
    assert remind(now=now + 32 * MINUTE) == 0
    assert kinds() == ["firing", "repeated"]
    assert NotifiedState.objects.get().n_repeats == 1


def test_several_are_reported_again_in_one_message(firing: Alert, run: Run) -> None:
    Route.objects.update(group_by="run")
    NotifiedState.objects.update(group_key="route 1 llama")
    say(an_alert(run, "node:steady", "node_silent"), "fired")
    NotifiedState.objects.update(group_key="route 1 llama")
    Delivery.objects.update(state="sent")

    assert remind(now=just_now() + 31 * MINUTE) == 2
    assert Delivery.objects.get(kind="repeated").alerts.count() == 2


def test_a_receiver_that_is_added_while_an_alert_fires_hears_of_it_and_of_its_end(
    firing: Alert,
) -> None:
    late = receiver("late", Receiver.Kind.PAGERDUTY, "key")
    Route.objects.get().receivers.add(*Receiver.objects.all())
    for _ in range(2):
        notify_newcomers(now=just_now())

    assert list(late.deliveries.values_list("kind", flat=True)) == ["firing"]
    assert list(late.deliveries.get().alerts.all()) == [firing]
    Alert.objects.update(resolved_at=just_now())
    say(firing, "resolved")
    assert list(late.deliveries.order_by("pk").values_list("kind", flat=True)) == [
        "firing",
        "resolved",
    ]
    assert list(firing.deliveries.filter(receiver__name="hook", kind="firing")) != []


def test_what_is_silenced_is_not_sent_to_a_receiver_that_is_added(firing: Alert) -> None:
    now = just_now()
    mute = Silence.objects.create(
        matchers="run=llama", reason="test", by="ada", starts_at=now, ends_at=now + MINUTE
    )
    Alert.objects.update(silence=mute)
    late = receiver("late", Receiver.Kind.PAGERDUTY, "key")
    Route.objects.get().receivers.add(*Receiver.objects.all())
    notify_newcomers(now=now)

    assert not late.deliveries.exists()


@pytest.mark.parametrize(
    "what", ["acknowledged", "resolved", "silenced", "never", "switched off", "pagerduty"]
)
def test_no_one_is_reminded_without_need(firing: Alert, what: str) -> None:
    now = just_now()
    if what == "acknowledged":
        Alert.objects.update(acknowledged_at=now, acknowledged_by="ada")
    elif what == "resolved":
        say(firing, "resolved")
        Delivery.objects.exclude(kind="firing").delete()
    elif what == "silenced":
        Silence.objects.create(
            matchers="run=llama", reason="x", by="ada", starts_at=now, ends_at=now + 60 * MINUTE
        )
    elif what == "never":
        Route.objects.update(repeat_s=0)
    elif what == "switched off":
        Receiver.objects.update(is_enabled=False)
    else:
        Receiver.objects.update(kind="pagerduty")

    assert remind(now=now + 31 * MINUTE) == 0
    assert kinds() == ["firing"]


@pytest.fixture
def manager(db: None, run: Run, hook_server: ReceiverServer) -> Receiver:
    return receiver("manager", "alertmanager", hook_server.url)


def test_an_alertmanager_is_reported_in_time_what_lasts(
    manager: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    lasting, over = an_alert(run), an_alert(run, "node:steady", "node_silent")
    for alert in (lasting, over):
        say(alert, "fired")
    say(over, "resolved")
    refresher, now = Refresher(), just_now()
    for at in (now, now + timedelta(seconds=59), now + timedelta(seconds=61)):
        for each in refresher.due(now=at):
            refresher.refresh(each, COURIER, now=at)

    first, second = (post.json for post in hook_server.posts)
    assert [alert["labels"]["trnwatch_alert"] for alert in first] == [str(lasting.pk)]
    assert first[0]["endsAt"] < second[0]["endsAt"]


def test_the_labels_stay_whatever_is_found_out_later(
    manager: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    alert = an_alert(run)
    say(alert, "fired")
    Alert.objects.update(rule="efa_degraded", subject="node:steady")
    Refresher().refresh(manager, COURIER, now=just_now())

    [body] = hook_server.posts[0].json
    assert body["labels"]["alertname"] == "allreduce_share"
    assert body["annotations"]["rule"] == "efa_degraded"


def test_an_alertmanager_with_nothing_to_hear_is_left_alone(
    manager: Receiver, hook_server: ReceiverServer
) -> None:
    Refresher().refresh(manager, COURIER, now=just_now())

    assert hook_server.posts == []


def test_an_alertmanager_that_is_gone_is_noted(
    manager: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [status(503)]
    say(an_alert(run), "fired")
    Refresher().refresh(manager, COURIER, now=just_now())

    assert Receiver.objects.get().last_error == "503"


def test_what_was_sent_long_ago_is_forgotten_but_not_what_is_dead(firing: Alert) -> None:
    now = just_now()
    say(firing, "acknowledged")
    Delivery.objects.filter(kind="acknowledged").update(state="dead", ended_at=now)
    Delivery.objects.filter(kind="firing").update(ended_at=now)
    delete_old(before=now + MINUTE)

    assert kinds() == ["acknowledged"]
