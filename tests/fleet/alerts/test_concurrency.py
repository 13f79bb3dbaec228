"""Concurrent changes of one alert: two people, a person and a worker, two workers."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from fleet import alerts
from fleet.models import Alert, Node, Run
from telemetry.detect.findings import Finding
from tests.fleet.alerts.crash import DiedError, dying_at, everything_stored
from tests.fleet.alerts.state_machine import as_notified, as_stored
from tests.helpers import NOON

SHARE = ("allreduce_share", "run:llama")
SECOND = timedelta(seconds=1)


@pytest.fixture
def open_alert(transactional_db: None, finding: Finding) -> Alert:
    [alert] = alerts.reconcile([finding], evaluated=[SHARE], now=NOON)
    return alert


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do all of it at the same moment, each on a connection of its own."""
    answers: list[Any] = [None] * len(acts)
    gate = threading.Barrier(len(acts))

    def do(i: int) -> None:
        gate.wait()
        try:
            answers[i] = acts[i]()
        finally:
            connection.close()

    threads = [threading.Thread(target=do, args=(i,)) for i in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def acknowledge_as(pk: int, name: str) -> Callable[[], bool]:
    alert = Alert.objects.get(pk=pk)
    return lambda: alerts.acknowledge(alert, by=name, comment="", now=NOON + SECOND)


def events_match_rows() -> None:
    for alert in Alert.objects.all():
        assert as_notified(list(alert.events.all())) == as_stored(alert)


def test_of_many_who_take_it_one_has_it(open_alert: Alert) -> None:
    names = ["alice", "bob", "carol", "dave"]
    answers = at_once(*(acknowledge_as(open_alert.pk, name) for name in names))

    open_alert.refresh_from_db()
    assert answers.count(True) == 1
    assert open_alert.acknowledged_by == names[answers.index(True)]
    assert open_alert.events.filter(kind="acknowledged").count() == 1
    events_match_rows()


def test_of_many_marks_one_stays(open_alert: Alert) -> None:
    def mark_as(name: str) -> Callable[[], bool]:
        alert = Alert.objects.get(pk=open_alert.pk)
        return lambda: alerts.mark_false(alert, by=name, reason="noise", now=NOON + SECOND)

    names = ["alice", "bob", "carol"]
    answers = at_once(*(mark_as(name) for name in names))

    open_alert.refresh_from_db()
    assert answers.count(True) == 1
    assert open_alert.marked_false_by == names[answers.index(True)]
    assert open_alert.events.filter(kind="marked_false").count() == 1
    events_match_rows()


def test_resolving_during_an_acknowledgement_loses_neither(open_alert: Alert) -> None:
    taken, _ = at_once(
        acknowledge_as(open_alert.pk, "alice"),
        lambda: alerts.reconcile([], evaluated=[SHARE], now=NOON + SECOND),
    )

    open_alert.refresh_from_db()
    assert open_alert.resolved_at == NOON + SECOND
    assert (open_alert.acknowledged_by == "alice") is taken
    assert open_alert.events.filter(kind="acknowledged").count() == taken
    events_match_rows()


def test_a_refresh_does_not_undo_a_concurrent_change(open_alert: Alert, finding: Finding) -> None:
    at_once(
        acknowledge_as(open_alert.pk, "alice"),
        lambda: alerts.reconcile([finding], evaluated=[SHARE], now=NOON + SECOND),
    )

    open_alert.refresh_from_db()
    assert open_alert.acknowledged_by == "alice"
    assert open_alert.last_seen_at == NOON + SECOND


def test_two_watchers_fire_one_alert(
    transactional_db: None, finding: Finding, run: Run, limping: Node
) -> None:
    def evaluate() -> list[Alert]:
        return alerts.reconcile([finding], evaluated=[SHARE], now=NOON)

    at_once(evaluate, evaluate, evaluate)

    alert = Alert.objects.get()
    assert alert.events.count() == 1


def test_silences_and_evaluation_agree(open_alert: Alert, finding: Finding) -> None:
    at_once(
        lambda: alerts.silence(
            "", ends_at=NOON + timedelta(hours=1), reason="known", by="alice", now=NOON
        ),
        lambda: alerts.reconcile([finding], evaluated=[SHARE], now=NOON + SECOND),
    )
    alerts.reconcile([finding], evaluated=[SHARE], now=NOON + 2 * SECOND)

    assert open_alert.events.filter(kind="silenced").count() == 1
    events_match_rows()


def test_a_process_that_dies_anywhere_leaves_nothing_half_stored(
    db: None, finding: Finding
) -> None:
    statement, is_done = 0, False
    before = everything_stored()
    while not is_done:
        try:
            with transaction.atomic(), dying_at(statement):
                alerts.reconcile([finding], evaluated=[SHARE], now=NOON)
            is_done = True
        except DiedError:
            assert everything_stored() == before
        statement += 1

    assert statement > 5
    assert Alert.objects.get().events.count() == 1
