"""Senders killed at every stage: nothing is lost, duplicates share their key."""

import random
import socket
import time
from threading import Event

import pytest

from fleet.models import Delivery, Receiver, Route, Run
from tests.fleet.notifications.conftest import an_alert, say
from tests.fleet.notifications.processes import Senders, until
from tests.fleet.notifications.receiver_server import (
    OK,
    ReceiverServer,
    serve_receiver,
    thinks,
    waits_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


def states() -> set[str]:
    return set(Delivery.objects.values_list("state", flat=True))


def all_sent() -> bool:
    return states() == {"sent"}


def test_killed_before_it_took_anything(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    Route.objects.update(group_wait_s=1)
    first = senders.start()
    say(an_alert(run), "fired")
    first.kill()
    assert states() == {"pending"}

    senders.start()
    until(all_sent)
    assert hook_server.keys == [Delivery.objects.get().key]


def test_killed_after_claiming_one_before_sending(
    senders: Senders, hook: Receiver, run: Run
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hook.target = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        hook.save()
        first = senders.start()
        say(an_alert(run), "fired")
        until(lambda: states() == {"sending"})
        first.kill()
    with serve_receiver() as hook_server:
        hook.target = hook_server.url
        hook.save(update_fields=["target"])
        senders.start()
        until(all_sent)

        delivery = Delivery.objects.get()
        assert hook_server.keys == [delivery.key]
        assert delivery.n_attempts == 2


@pytest.mark.parametrize("answered", [False, True], ids=["not answered", "not written down"])
def test_killed_while_or_after_the_receiver_had_it(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer, *, answered: bool
) -> None:
    may_answer = Event()
    hook_server.answers = [waits_for(may_answer), OK]
    first = senders.start()
    say(an_alert(run), "fired")
    hook_server.until(1)
    if answered:
        first.freeze()
        may_answer.set()
        time.sleep(0.1)
    first.kill()
    may_answer.set()
    assert states() == {"sending"}

    senders.start()
    until(all_sent)
    assert hook_server.keys == [Delivery.objects.get().key] * 2
    assert hook_server.posts[0].body == hook_server.posts[1].body


def test_killed_again_and_again_at_any_time(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    rng = random.Random(7)
    hook_server.answers = [thinks(0.05)]
    for i in range(15):
        say(an_alert(run, f"node:{i}", "node_silent"), "fired")
    for _ in range(3):
        one = senders.start()
        n_before = len(hook_server.posts)
        until(lambda n=n_before: len(hook_server.posts) > n)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.4))
        one.kill()
    senders.start()
    until(all_sent)

    assert set(hook_server.keys) == set(Delivery.objects.values_list("key", flat=True))
    assert len(set(hook_server.keys)) == 15
    assert len(hook_server.keys) <= sum(Delivery.objects.values_list("n_attempts", flat=True))


def test_two_senders_never_send_the_same(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    Receiver.objects.exclude(pk=hook.pk).delete()
    for i in range(15):
        say(an_alert(run, f"node:{i}", "node_silent"), "fired")
    for _ in range(2):
        senders.start(lease=60)
    until(all_sent)

    assert len(hook_server.keys) == len(set(hook_server.keys)) == 15


def test_asked_to_stop_it_finishes_what_it_sends(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [thinks(0.5)]
    one = senders.start()
    say(an_alert(run), "fired")
    hook_server.until(1)

    assert one.stop() == 0
    assert all_sent()
