"""Recurrence: the same alert again, a new one with a link to the earlier, flapping."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet.alerts import acknowledge, reconcile
from fleet.alerts.reconcile import damp
from fleet.models import Alert, Delivery, Node, Receiver, Route
from telemetry.detect import RULES
from telemetry.detect.findings import Finding
from telemetry.detect.shares import LAYOUT
from tests.fleet.alerts.conftest import Evaluate
from tests.helpers import NOON

MINUTE = 60


def kinds(alert: Alert) -> list[str]:
    return [event.kind for event in alert.events.all()]


def test_back_within_five_minutes_it_fires_on_its_own_row(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, finding)
    evaluate(1)
    [alert] = evaluate(1 + 5 * MINUTE, finding)

    assert Alert.objects.count() == 1
    assert alert.is_open
    assert alert.n_firings == 2
    assert kinds(alert) == ["fired", "resolved", "refired"]
    assert alert.events.last().text.endswith("firing 2")  # type: ignore[union-attr]


def test_its_owner_stays_the_same(evaluate: Evaluate, finding: Finding) -> None:
    [alert] = evaluate(0, finding)
    acknowledge(alert, by="alice", comment="", now=NOON)
    evaluate(1)
    [again] = evaluate(60, finding)

    assert again.acknowledged_by == "alice"


@pytest.mark.parametrize("is_resolved_between", [False, True])
def test_a_warning_that_becomes_a_page_is_acknowledged_no_longer(
    evaluate: Evaluate, finding: Finding, *, is_resolved_between: bool
) -> None:
    """The timeline says who acknowledged the warning; on-call is notified of the page, once."""
    hook = Receiver.objects.create(
        name="hook", kind="webhook", target="http://127.0.0.1:1/", created_at=NOON
    )
    Route.objects.create(name="all", is_default=True).receivers.add(hook)
    [alert] = evaluate(0, replace(finding, severity="warn"))
    assert acknowledge(alert, by="alice", comment="", now=NOON)
    Delivery.objects.update(state=Delivery.State.SENT)
    if is_resolved_between:
        evaluate(10)
        Delivery.objects.update(state=Delivery.State.SENT)
    n_sent = Delivery.objects.count()

    [paged] = evaluate(20, finding)
    evaluate(30, finding)

    paged.refresh_from_db()
    assert (paged.pk, paged.get_severity_display()) == (alert.pk, "page")
    assert (paged.state, paged.acknowledged_by) == ("firing", "")
    entry = paged.events.get(kind="unacknowledged")
    assert entry.text == "acknowledged by alice as a warning; it pages now"
    assert kinds(paged).index("acknowledged") < kinds(paged).index("unacknowledged")
    assert [each.kind for each in hook.deliveries.order_by("pk")[n_sent:]] == ["firing"]
    assert acknowledge(paged, by="bob", comment="", now=NOON + timedelta(minutes=1))


def test_back_within_the_hour_it_is_a_new_row_that_knows_the_earlier(
    evaluate: Evaluate, finding: Finding
) -> None:
    [first] = evaluate(0, finding)
    evaluate(1)
    [second] = evaluate(59 * MINUTE, finding)

    assert second.pk != first.pk
    assert second.earlier == first


def test_back_after_the_hour_it_is_new(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, finding)
    evaluate(1)
    [second] = evaluate(62 * MINUTE, finding)

    assert second.earlier is None


def test_another_culprit_is_no_recurrence(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, finding)
    evaluate(1)
    [second] = evaluate(60, replace(finding, cause="efa_loss", node=None, device=3))

    assert Alert.objects.count() == 2
    assert second.earlier is None


def test_the_same_culprit_under_another_rule_is_a_recurrence(
    evaluate: Evaluate, finding: Finding
) -> None:
    [first] = evaluate(0, finding)
    evaluate(1)
    [again] = evaluate(60, replace(finding, rule="core_slow"))

    assert again == first
    assert again.rule == "core_slow"


def test_a_cause_that_is_not_seen_this_time_stays_known(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, finding)
    evaluate(1)
    [again] = evaluate(60, replace(finding, cause="unknown", node=None, device=None))

    assert (again.cause, again.device) == ("slow_core", 17)


def flapped(evaluate: Evaluate, finding: Finding) -> Alert:
    """Fire three times within half an hour."""
    for minute in range(3):
        evaluate(minute * MINUTE, finding)
        evaluate(minute * MINUTE + 30)
    return Alert.objects.get()


def test_minutes_later_what_has_no_culprit_is_not_the_earlier_ones_doing(
    evaluate: Evaluate, finding: Finding
) -> None:
    [first] = evaluate(0, finding)
    evaluate(1)
    [second] = evaluate(3 * MINUTE, replace(finding, cause="unknown", node=None, device=None))

    assert (second.cause, second.node) == ("unknown", None)
    assert second.earlier == first


def test_a_run_that_was_changed_does_not_bring_an_earlier_culprit_back(
    evaluate: Evaluate, finding: Finding
) -> None:
    [first] = evaluate(0, finding)
    evaluate(1)
    layout = replace(
        finding,
        cause="unknown",
        severity="warn",
        node=None,
        device=None,
        evidence={"kind": LAYOUT},
    )
    [second] = evaluate(60, layout)

    assert second.pk != first.pk
    assert second.cause == "unknown"
    assert second.node is None
    assert second.severity == Alert.Severity.WARN


def test_three_firings_within_half_an_hour_are_flapping_and_reported_so(
    evaluate: Evaluate, finding: Finding
) -> None:
    alert = flapped(evaluate, finding)

    assert alert.flapping_since is not None
    assert kinds(alert).count("flapping") == 1
    text = alert.events.get(kind="flapping").text
    assert text == "fired 3 times within 30 minutes; resolves after 10 quiet minutes"


def test_what_flaps_is_over_after_ten_quiet_minutes_only(
    evaluate: Evaluate, finding: Finding
) -> None:
    alert = flapped(evaluate, finding)
    assert alert.is_open
    assert alert.quiet_since is not None

    evaluate(5 * MINUTE, finding)
    evaluate(5 * MINUTE + 1)
    evaluate(15 * MINUTE)
    alert.refresh_from_db()
    assert alert.is_open
    assert alert.n_firings == 4

    evaluate(15 * MINUTE + 1)
    alert.refresh_from_db()
    assert not alert.is_open
    last = alert.events.last()
    assert last is not None
    assert (last.kind, last.text) == ("resolved", "quiet for 10 minutes, after 4 firings")


def test_what_flaps_states_nothing_of_every_turn(evaluate: Evaluate, finding: Finding) -> None:
    alert = flapped(evaluate, finding)
    n_events = alert.events.count()
    for second in range(200, 400, 10):
        evaluate(second, finding)
        evaluate(second + 5)

    assert alert.events.count() == n_events


def test_what_flaps_and_was_away_for_minutes_gets_a_line_when_it_is_back(
    evaluate: Evaluate, finding: Finding
) -> None:
    alert = flapped(evaluate, finding)

    evaluate(5 * MINUTE, finding)

    last = alert.events.last()
    assert last is not None
    assert (last.kind, last.at) == ("refired", NOON + timedelta(minutes=5))
    assert last.text.endswith("; firing 4")


def test_firings_on_rows_that_follow_each_other_count_together(
    evaluate: Evaluate, finding: Finding
) -> None:
    for i in range(3):
        evaluate(i * 7 * MINUTE, finding)
        evaluate(i * 7 * MINUTE + 1)

    latest = Alert.objects.latest("pk")
    assert Alert.objects.count() == 3
    assert latest.flapping_since is not None
    assert latest.is_open


def test_a_flapping_alert_that_fires_once_more_is_not_reported_as_flapping_again(
    evaluate: Evaluate, finding: Finding
) -> None:
    alert = flapped(evaluate, finding)
    damp(alert, now=NOON + timedelta(seconds=3 * MINUTE))

    assert kinds(alert).count("flapping") == 1


def of_run(finding: Finding, rule: str, cause: str, onset_s: float = 0.0, **more: Any) -> Finding:
    """Return a problem of the whole run that began some seconds after noon; steps take 60 s."""
    where: dict[str, Any] = {"node": None, "device": None, "evidence": {"step_s": 60.0}}
    when = NOON.timestamp() + onset_s
    return replace(finding, rule=rule, cause=cause, onset_s=when, **where | more)


@pytest.mark.parametrize("cause", ["recompile", "hang", "checkpoint_slow"])
def test_a_pause_that_also_shows_as_a_long_step_is_one_alert(finding: Finding, cause: str) -> None:
    pause = of_run(finding, cause, cause)
    long_step = of_run(finding, "step_slow", "seq_imbalance", onset_s=3)
    every = {(each, "run:llama") for each in (cause, "step_slow")}

    def at(second: float, *found: Finding) -> None:
        reconcile(found, evaluated=every, now=NOON + timedelta(seconds=second))

    at(10, pause, long_step)
    # The long step stays in view for longer than the pause is found.
    at(20, long_step)
    at(30, long_step)
    assert list(Alert.objects.values_list("cause", flat=True)) == [cause]
    # Steps that are still slow two steps later are a problem of their own.
    at(150, long_step)
    assert Alert.objects.open().get().cause == "seq_imbalance"


def test_the_step_that_a_hang_made_long_accuses_no_node_again(
    evaluate: Evaluate, finding: Finding, limping: Node, steady: Node
) -> None:
    evaluate(10, of_run(finding, "step_slow", "stage_imbalance", node=limping.name))
    evaluate(20)
    again = of_run(finding, "core_slow", "slow_core", node=limping.name)
    evaluate(21, again)
    assert Alert.objects.get().resolved_at is not None

    elsewhere = replace(again, node=steady.name)
    evaluate(22, elsewhere)
    assert Alert.objects.open().get().node == steady


def test_what_the_hardware_still_shows_of_a_hang_is_no_alert(
    finding: Finding, limping: Node
) -> None:
    every = {("hang", "run:llama"), ("core_slow", f"node:{limping.name}")}

    def at(second: float, *found: Finding) -> None:
        reconcile(found, evaluated=every, now=NOON + timedelta(seconds=second))

    at(10, of_run(finding, "hang", "hang", node=limping.name))
    at(300)
    # Cores are measured, so the finding has no step time.
    idle = of_run(finding, "core_slow", "slow_core", 295, node=limping.name, evidence={})
    at(301, idle)
    assert not Alert.objects.open().exists()
    at(340, idle)
    assert Alert.objects.open().get().cause == "slow_core"


def test_a_slow_exchange_is_one_alert_under_the_rule_of_the_share(finding: Finding) -> None:
    slow = of_run(finding, "step_slow", "network", onset_s=5)
    share = of_run(finding, "allreduce_share", "network")
    every = {(rule, "run:llama") for rule in ("step_slow", "allreduce_share")}
    for second, found in ((10, [slow]), (20, [slow, share]), (30, [share])):
        reconcile(found, evaluated=every, now=NOON + timedelta(seconds=second))

    alert = Alert.objects.get()
    assert (alert.rule, alert.is_open) == ("allreduce_share", True)


def test_a_row_that_fired_again_is_explained_by_its_newest_onset(
    finding: Finding, limping: Node
) -> None:
    every = {("step_slow", "run:llama"), ("core_slow", "node:limping")}

    def longer_stage(onset_s: float) -> Finding:
        evidence = {"onset_s": NOON.timestamp() + onset_s}
        return of_run(finding, "step_slow", "stage_imbalance", onset_s, evidence=evidence)

    reconcile([longer_stage(0)], evaluated=every, now=NOON)
    reconcile([], evaluated=every, now=NOON + timedelta(seconds=60))
    reconcile([longer_stage(200)], evaluated=every, now=NOON + timedelta(seconds=210))
    node = of_run(finding, "core_slow", "slow_compute", 200, node=limping.name)
    reconcile([node], evaluated=every, now=NOON + timedelta(seconds=250))

    alert = Alert.objects.get()
    assert (alert.rule, alert.node, alert.n_firings) == ("core_slow", limping, 2)


@pytest.mark.parametrize(("cause", "n_alerts"), [("network", 1), ("stage_imbalance", 2)])
def test_a_link_that_is_found_later_explains_the_slow_network_of_its_run(
    finding: Finding, limping: Node, cause: str, n_alerts: int
) -> None:
    every = {("step_slow", "run:llama"), ("efa_degraded", "node:limping")}
    reconcile([of_run(finding, "step_slow", cause)], evaluated=every, now=NOON)
    link = of_run(finding, "efa_degraded", "efa_loss", 44, node=limping.name, evidence={})
    reconcile([link], evaluated=every, now=NOON + timedelta(seconds=55))

    assert Alert.objects.count() == n_alerts
    assert Alert.objects.open().get().node == limping


def test_the_step_that_ends_a_hang_accuses_its_node_no_second_time(
    finding: Finding, limping: Node
) -> None:
    every = {("hang", "run:llama"), ("step_slow", f"node:{limping.name}")}
    stopped = of_run(finding, "hang", "hang", node=limping.name)
    reconcile([stopped], evaluated=every, now=NOON + timedelta(seconds=10))
    long_step = of_run(finding, "step_slow", "slow_compute", 5, node=limping.name)
    reconcile([long_step], evaluated=every, now=NOON + timedelta(seconds=300))
    assert not Alert.objects.open().exists()


@pytest.mark.parametrize(
    "rule", sorted(name for name, each in RULES.items() if each.subject != "budget")
)
def test_only_the_end_of_what_slows_steps_hides_a_long_step(finding: Finding, rule: str) -> None:
    every = {(name, "run:llama") for name in RULES} | {("monitoring_blind", "fleet")}
    first = of_run(finding, rule, "unknown" if RULES[rule].is_symptom else rule)
    long_step = of_run(finding, "step_slow", "seq_imbalance", onset_s=15)
    reconcile([first], evaluated=every, now=NOON + timedelta(seconds=10))
    reconcile([], evaluated=every, now=NOON + timedelta(seconds=20))
    reconcile([long_step], evaluated=every, now=NOON + timedelta(seconds=21))
    assert Alert.objects.open().exists() != RULES[rule].slows_steps


@pytest.mark.parametrize("rule", ["efa_degraded", "device_unhealthy", "node_silent"])
def test_what_else_is_wrong_with_a_node_that_hangs_is_an_alert(
    finding: Finding, limping: Node, rule: str
) -> None:
    every = {("hang", "run:llama"), (rule, f"node:{limping.name}")}
    stopped = of_run(finding, "hang", "hang", node=limping.name)
    reconcile([stopped], evaluated=every, now=NOON + timedelta(seconds=10))
    other = of_run(finding, rule, "unknown", 12, node=limping.name, evidence={})
    reconcile([stopped, other], evaluated=every, now=NOON + timedelta(seconds=20))
    assert set(Alert.objects.open().values_list("rule", flat=True)) == {"hang", rule}


@pytest.mark.parametrize("cause", ["throttle", "slow_compute"])
def test_a_finding_that_knows_less_takes_no_node_off_an_alert(
    finding: Finding, limping: Node, cause: str
) -> None:
    every = {("step_slow", "run:llama")}
    known = of_run(finding, "step_slow", cause, node=limping.name, device=3)
    reconcile([known], evaluated=every, now=NOON + timedelta(seconds=10))
    less = of_run(finding, "step_slow", "slow_compute", 60)
    reconcile([less], evaluated=every, now=NOON + timedelta(seconds=70))
    alert = Alert.objects.open().get()
    assert (alert.cause, alert.node, alert.device) == (cause, limping, 3)
    assert kinds(alert) == ["fired"]


@pytest.mark.parametrize(("rule", "again_s"), [("step_slow", 50), ("allreduce_share", 18)])
def test_uneven_work_that_pauses_for_some_steps_is_one_alert(
    finding: Finding, rule: str, again_s: int
) -> None:
    every = {(rule, "run:llama")}
    uneven = of_run(finding, rule, "seq_imbalance", evidence={"step_s": 1.0})
    for second in (10, 15, again_s):
        found = [] if second == 15 else [uneven]
        reconcile(found, evaluated=every, now=NOON + timedelta(seconds=second))
    assert kinds(Alert.objects.get()).count("refired") == 0
    reconcile([], evaluated=every, now=NOON + timedelta(seconds=150))
    assert not Alert.objects.open().exists()
