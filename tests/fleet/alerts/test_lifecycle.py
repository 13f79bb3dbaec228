"""Invariants of an alert under any order of events."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet import alerts
from fleet.alerts.matchers import silences_of
from fleet.alerts.relations import key_of, subject_of
from fleet.models import Alert, AlertEvent, Delivery, Node, Receiver, Route, Run, Silence
from telemetry.detect.findings import Finding
from tests.fleet.alerts.crash import DiedError, dying_at, everything_stored
from tests.fleet.alerts.faults import EVERYTHING, FAULTS, is_of
from tests.fleet.alerts.state_machine import as_notified, as_stored
from tests.helpers import NOON

Kind = AlertEvent.Kind
SECONDS = st.sampled_from([1, 1, 1, 5, 40, 150, 310, 700, 3700])
MATCHERS = st.sampled_from(["", "rule=allreduce_share", "cause=~slow_.*", "node=silent"])
NAMES = st.sampled_from(["alice", "bob"])
SETTINGS = settings(
    max_examples=14,
    stateful_step_count=30,
    derandomize=True,
    # To make a failure short takes minutes: add Phase.shrink when there is one.
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class AlertLife(RuleBasedStateMachine):
    """Faults come and go, people answer, clocks run, processes die."""

    def __init__(self) -> None:
        super().__init__()
        self.undone = transaction.atomic()
        self.undone.__enter__()
        self.now = NOON
        self.broken: dict[str, Finding] = {}
        self.judged: list[Finding] = []
        self.is_news = True
        self.blind_to: set[tuple[str, str]] = set()

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.undone.__exit__(None, None, None)

    # What happens to the fleet.

    @rule(name=st.sampled_from(sorted(FAULTS)), seen=st.integers(0, 2), score=st.floats(1, 3))
    def a_fault_appears_or_looks_different(self, name: str, seen: int, score: float) -> None:
        ways, self.is_news = FAULTS[name], False
        self.broken[name] = replace(ways[seen % len(ways)], score=score)

    @precondition(lambda self: self.broken)
    @rule(data=st.data())
    def a_fault_disappears(self, data: st.DataObject) -> None:
        self.is_news = False
        del self.broken[data.draw(st.sampled_from(sorted(self.broken)))]

    @rule(seconds=SECONDS)
    def time_passes_unwatched(self, seconds: int) -> None:
        self.is_news = False
        self.now += timedelta(seconds=seconds)

    @rule(seconds=SECONDS, dies_at=st.none() | st.integers(0, 40))
    def the_fleet_is_watched(self, seconds: int, dies_at: int | None) -> None:
        self._evaluate(EVERYTHING, seconds, dies_at)

    @rule(seconds=SECONDS, seen=st.sets(st.sampled_from(sorted(EVERYTHING))))
    def some_of_it_is_watched(self, seconds: int, seen: set[tuple[str, str]]) -> None:
        self._evaluate(seen, seconds, None)

    def _evaluate(self, seen: set[tuple[str, str]], seconds: int, dies_at: int | None) -> None:
        self.now += timedelta(seconds=seconds)
        found = [f for f in self._findings() if (f.rule, subject_of(f)) in seen]
        if self._act(lambda: alerts.reconcile(found, evaluated=seen, now=self.now), dies_at):
            self.judged, self.blind_to = found, EVERYTHING - seen

    def _findings(self) -> list[Finding]:
        """Return what is found: of two faults in one symptom, the second by its own rule."""
        found: dict[tuple[str, str], Finding] = {}
        for name, finding in self.broken.items():
            ways = (finding, *FAULTS[name][::-1])
            free = (each for each in ways if (each.rule, subject_of(each)) not in found)
            if (way := next(free, None)) is not None:
                found[(way.rule, subject_of(way))] = way
        return list(found.values())

    def _act(self, act: Callable[[], Any], dies_at: int | None) -> bool:
        """Do something, or die while doing it; then nothing of it may be left."""
        self.is_news = True
        if dies_at is None:
            act()
            return True
        before = everything_stored()
        try:
            with dying_at(dies_at):
                act()
        except DiedError:
            assert everything_stored() == before
            return False
        return True

    # What people do about it.

    @precondition(lambda self: Alert.objects.exists())
    @rule(
        data=st.data(),
        by=NAMES,
        what=st.sampled_from(
            ["take", "give back", "assign", "remark", "mark", "unmark", "call over"]
        ),
        dies_at=st.none() | st.integers(0, 8),
    )
    def a_user_acts(self, data: st.DataObject, by: str, what: str, dies_at: int | None) -> None:
        self.now += timedelta(seconds=1)
        nth = data.draw(st.integers(0, Alert.objects.count() - 1))
        # With run and node, so that only the act itself asks the database.
        alert = Alert.objects.select_related("run", "node").order_by("pk")[nth]
        acts: dict[str, Callable[[], Any]] = {
            "take": lambda: alerts.acknowledge(alert, by=by, comment="", now=self.now),
            "give back": lambda: alerts.unacknowledge(alert, by=by, now=self.now),
            "assign": lambda: alerts.assign(alert, to=by, by="alice", now=self.now),
            "remark": lambda: alerts.comment(alert, by=by, text="hm", now=self.now),
            "mark": lambda: alerts.mark_false(alert, by=by, reason="noise", now=self.now),
            "unmark": lambda: alerts.unmark_false(alert, by=by, now=self.now),
            "call over": lambda: self._call_over(alert, by),
        }
        self._act(acts[what], dies_at)

    def _call_over(self, alert: Alert, by: str) -> None:
        may = self.now - alert.last_seen_at >= timedelta(minutes=1)
        if may and alerts.resolve_manually(alert, by=by, now=self.now):
            self.judged = [f for f in self.judged if not is_of(alert, f)]

    @rule(
        matchers=MATCHERS,
        by=NAMES,
        minutes=st.integers(1, 240),
        dies_at=st.none() | st.integers(0, 8),
    )
    def a_user_silences(self, matchers: str, by: str, minutes: int, dies_at: int | None) -> None:
        self.now += timedelta(seconds=1)
        ends_at = self.now + timedelta(minutes=minutes)
        self._act(
            lambda: alerts.silence(matchers, ends_at=ends_at, reason="known", by=by, now=self.now),
            dies_at,
        )

    @precondition(lambda self: Silence.objects.active(self.now).exists())
    @rule(by=NAMES, ends_early=st.booleans())
    def a_user_ends_or_moves_a_silence(self, by: str, *, ends_early: bool) -> None:
        held = Silence.objects.active(self.now).earliest("pk")
        self.now, self.is_news = self.now + timedelta(seconds=1), True
        if ends_early:
            alerts.expire(held, by=by, now=self.now)
        else:
            alerts.move_end(held, to=self.now + timedelta(hours=1), by=by, now=self.now)

    # Invariants.

    @precondition(lambda self: self.is_news)
    @invariant()
    def no_problem_has_two_open_alerts(self) -> None:
        held = list(Alert.objects.open())
        accused = [(a.run_id, a.node_id, a.cause) for a in held if a.cause != "unknown"]
        assert max(Counter(map(key_of, held)).values(), default=1) == 1
        assert max(Counter(accused).values(), default=1) == 1

    @precondition(lambda self: self.is_news)
    @invariant()
    def faults_and_alerts_agree(self) -> None:
        held = list(Alert.objects.open().select_related("run", "node"))
        for finding in self.judged:
            assert any(is_of(alert, finding) for alert in held), finding
        for alert in held:
            is_flapping = alert.flapping_since is not None and alert.quiet_since is not None
            is_unseen = key_of(alert) in self.blind_to or is_flapping
            assert is_unseen or any(is_of(alert, finding) for finding in self.judged), alert

    @precondition(lambda self: self.is_news)
    @invariant()
    def the_timeline_contains_everything(self) -> None:
        for alert in Alert.objects.prefetch_related("events"):
            events = list(alert.events.all())
            assert [e.at for e in sorted(events, key=lambda e: e.pk)] == [e.at for e in events]
            assert as_notified(events) == as_stored(alert), [e.kind for e in events]

    @precondition(lambda self: self.is_news)
    @invariant()
    def receivers_are_notified(self) -> None:
        reported = set(Delivery.objects.values_list("events", flat=True))
        for event in AlertEvent.objects.filter(at=self.now).select_related("alert"):
            if event.kind in {Kind.FIRED, Kind.REFIRED, Kind.UNSILENCED}:
                assert event.pk in reported or silences_of(event.alert, now=self.now)
        known = Alert.objects.filter(notified_states__isnull=False)
        over = AlertEvent.objects.filter(kind=Kind.RESOLVED, alert__in=known, at=self.now)
        assert (
            set(
                over.filter(alert__notified_states__ended_at=self.now).values_list("pk", flat=True)
            )
            <= reported
        )


def test_its_promises_hold_whatever_happens(
    run: Run, steady: Node, limping: Node, silent: Node
) -> None:
    for name in ("alice", "bob"):
        User.objects.create_user(name, is_superuser=True)
    route = Route.objects.create(name="all", is_default=True)
    route.receivers.add(
        Receiver.objects.create(
            name="hook", kind="webhook", target="https://hook.example/", created_at=NOON
        )
    )

    run_state_machine_as_test(AlertLife, settings=SETTINGS)
