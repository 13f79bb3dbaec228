"""Sending: outcome of each response, order, and failure notifications."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event

import pytest

from fleet.models import Delivery, Receiver, Route, Run
from fleet.notifications.delivery import DeliveryClient, NotificationSender, RetryPolicy, claim
from fleet.notifications.http_client import Allowed, HttpClient
from tests.fleet.notifications.conftest import an_alert, receiver, say
from tests.fleet.notifications.processes import until
from tests.fleet.notifications.receiver_server import (
    OK,
    ReceiverServer,
    closes,
    hangs,
    status,
    waits_for,
)
from tests.helpers import just_now

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)
LOOPBACK = Allowed.of(["127.0.0.0/8"])


@dataclass
class Clock:
    """Time as a test has it: real, and some seconds ahead."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return just_now() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sender(transactional_db: None, clock: Clock) -> Iterator[NotificationSender]:
    http = HttpClient(LOOPBACK, timeout_s=0.5)
    policy = RetryPolicy(
        first_s=10, longest_s=40, give_up_after=timedelta(hours=1), min_attempts=3
    )
    client = DeliveryClient(http, base_url="https://trnwatch.example")
    one = NotificationSender(client, clock=clock, retry_policy=policy, rng=random.Random(0))
    yield one
    one.stop(within_s=5)


def send(sender: NotificationSender) -> None:
    """Send all that is due now."""
    until_idle = time.monotonic() + 20
    for _ in range(4):
        sender.turn()
        while not sender.is_idle and time.monotonic() < until_idle:
            time.sleep(0.005)


def test_what_arrives_is_sent(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    say(an_alert(run), "fired")
    send(sender)

    delivery, hook = Delivery.objects.get(), Receiver.objects.get()
    assert (delivery.state, delivery.n_attempts, delivery.last_status) == ("sent", 1, 200)
    assert (hook.n_sent, hook.n_failed, hook.n_dead) == (1, 0, 0)
    assert hook_server.keys == [delivery.key]


@pytest.mark.parametrize(
    "failure", [status(500), hangs(20), closes, b"garbage\r\n\r\n", status(302)]
)
def test_failures_are_retried_with_the_same_key_and_text(
    sender: NotificationSender,
    hook: Receiver,
    run: Run,
    hook_server: ReceiverServer,
    clock: Clock,
    failure: bytes,
) -> None:
    hook_server.answers = [failure, OK]
    alert, began = an_alert(run), just_now()
    say(alert, "fired")
    send(sender)
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.n_attempts) == ("pending", 1)
    assert began + 5 * SECOND <= delivery.next_try_at <= just_now() + 10 * SECOND

    clock.ahead += 11 * SECOND
    alert.cause = "slow_core"
    alert.save()
    send(sender)
    assert Delivery.objects.get().state == "sent"
    assert len(set(hook_server.keys)) == 1
    assert hook_server.posts[0].body == hook_server.posts[1].body


def test_who_asks_for_retries_is_given_it(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer, clock: Clock
) -> None:
    hook_server.answers = [status(429, "Retry-After: 300"), OK]
    say(an_alert(run), "fired")
    send(sender)
    clock.ahead += 290 * SECOND
    send(sender)
    assert len(hook_server.posts) == 1

    clock.ahead += 15 * SECOND
    send(sender)
    assert Delivery.objects.get().state == "sent"


def test_a_plain_no_is_final_and_is_sent_to_others(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    other = Receiver.objects.create(
        name="other", kind="slack", target=hook_server.url, created_at=just_now()
    )
    hook_server.answers = [status(404, body=b"no_service"), OK]
    say(an_alert(run), "fired")
    Route.objects.get().receivers.add(other)
    send(sender)

    dead = hook.deliveries.get()
    assert (dead.state, dead.n_attempts, dead.last_error) == ("dead", 1, "404: no_service")
    assert Receiver.objects.get(name="hook").n_dead == 1
    word = other.deliveries.get()
    assert (word.kind, word.state) == ("undelivered", "sent")
    assert "Could not notify hook (firing): 404: no_service" in hook_server.posts[1].json["text"]


def test_retries_ends(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer, clock: Clock
) -> None:
    hook_server.answers = [status(503)]
    say(an_alert(run), "fired")
    for _ in range(3):
        send(sender)
        clock.ahead += timedelta(minutes=31)

    assert Delivery.objects.get().state == "dead"


def test_the_end_never_overtakes_the_beginning(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer, clock: Clock
) -> None:
    hook_server.answers = [status(500), OK]
    alert = an_alert(run)
    say(alert, "fired")
    send(sender)
    say(alert, "resolved")
    send(sender)
    assert len(hook_server.posts) == 1

    clock.ahead += 11 * SECOND
    send(sender)
    assert [post.json["kind"] for post in hook_server.posts] == ["firing", "firing", "resolved"]


def test_a_receiver_that_hangs_keeps_no_one_else_waiting(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    over = Event()
    sender.client = DeliveryClient(
        HttpClient(LOOPBACK, timeout_s=60), base_url="https://trnwatch.example"
    )
    hook_server.answers = [waits_for(over)]
    say(an_alert(run), "fired")
    sender.turn()
    hook_server.until(1)
    hook_server.answers = [OK]
    other = receiver("other", "slack", hook_server.url)
    say(an_alert(run, "node:steady", "node_silent"), "fired")
    sender.turn()

    until(lambda: other.deliveries.get().state == "sent")
    assert hook.deliveries.get().state == "sending"
    over.set()


def test_nothing_is_sent_to_a_receiver_that_is_off(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    say(an_alert(run), "fired")
    Receiver.objects.update(is_enabled=False)
    send(sender)
    assert hook_server.posts == []

    Receiver.objects.update(is_enabled=True)
    send(sender)
    assert len(hook_server.posts) == 1


def test_what_cannot_be_rendered_fails_with_a_log_entry(
    sender: NotificationSender, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    say(an_alert(run), "fired")
    Delivery.objects.update(body={"at": "sixes and sevens"})
    hook.kind, hook.target = "pagerduty", "http://[::1"
    hook.save()
    send(sender)

    assert Delivery.objects.get().state == "dead"


def test_one_of_two_claims_wins(hook: Receiver, run: Run) -> None:
    say(an_alert(run), "fired")
    mine, yours = Delivery.objects.get(), Delivery.objects.get()
    take: Callable[[Delivery, str], bool] = lambda it, by: claim(  # noqa: E731
        it, by=by, lease=SECOND, now=just_now()
    )

    assert take(mine, "me")
    assert not take(yours, "you")


def test_an_expired_claim_can_be_acquired_by_another(hook: Receiver, run: Run) -> None:
    say(an_alert(run), "fired")
    now = just_now()
    first = Delivery.objects.get()
    assert claim(first, by="gone", lease=SECOND, now=now)
    assert not Delivery.objects.due(now).exists()

    [forsaken] = Delivery.objects.due(now + 2 * SECOND)
    assert claim(forsaken, by="me", lease=SECOND, now=now + 2 * SECOND)
