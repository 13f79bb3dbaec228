"""Reconciling: fire once, refresh, rename, acknowledge, resolve."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.alerts import acknowledge, comment, reconcile
from fleet.models import Alert, AlertEvent, InjectedFault, Node, Run
from telemetry.detect.findings import Finding
from tests.helpers import NOON

SECOND = timedelta(seconds=1)
SHARE = ("allreduce_share", "run:llama")


def kinds(alert: Alert) -> list[str]:
    return [event.kind for event in alert.events.all()]


def test_a_finding_fires_one_alert_that_names_the_culprit(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON)

    alert = Alert.objects.get()
    assert (alert.run_id, alert.node_id) == (Run.objects.get().pk, Node.objects.get().pk)
    assert (alert.cause, alert.device, alert.state) == ("slow_core", 17, "firing")
    assert alert.fired_at - alert.onset_at == timedelta(seconds=12)
    assert kinds(alert) == ["fired"]
    assert alert.events.get().text == "at 30.0 % of the step; slow core at limping, core 17"


def test_the_same_finding_again_opens_and_reports_nothing(finding: Finding) -> None:
    for i in range(3):
        reconcile([finding], evaluated=[SHARE], now=NOON + i * SECOND)

    alert = Alert.objects.get()
    assert alert.last_seen_at == NOON + 2 * SECOND
    assert kinds(alert) == ["fired"]


def test_an_alert_says_how_long_a_checkpoint_has_taken_a_minute_ago_at_most(
    finding: Finding,
) -> None:
    def after(seconds: int) -> Finding:
        evidence = {"kind": "checkpoint", "phase_s": 100.0 + seconds}
        return replace(finding, rule="checkpoint_slow", cause="checkpoint_slow", evidence=evidence)

    subject = ("checkpoint_slow", "run:llama")
    for seconds in range(0, 150, 10):
        reconcile([after(seconds)], evaluated=[subject], now=NOON + seconds * SECOND)
    alert = Alert.objects.get()
    assert alert.evidence["phase_s"] == 220.0
    assert kinds(alert) == ["fired"]


def test_a_finding_judged_late_does_not_turn_time_back(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON + 5 * SECOND)
    reconcile([], evaluated=[SHARE], now=NOON)

    assert Alert.objects.get().is_open


def test_it_resolves_when_it_was_watched_and_is_over(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON)
    reconcile([], evaluated=[SHARE], now=NOON + SECOND)

    alert = Alert.objects.get()
    assert alert.resolved_at == NOON + SECOND
    assert kinds(alert) == ["fired", "resolved"]


def test_a_rule_that_was_not_evaluated_leaves_its_alert_unchanged(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON)
    reconcile([], evaluated=[("allreduce_share", "run:other")], now=NOON + SECOND)

    assert Alert.objects.get().is_open


def test_a_cause_found_later_is_named(finding: Finding) -> None:
    unknown = replace(finding, cause="unknown", node=None, device=None)
    reconcile([unknown], evaluated=[SHARE], now=NOON)
    reconcile([finding], evaluated=[SHARE], now=NOON + SECOND)

    alert = Alert.objects.get()
    assert alert.cause == "slow_core"
    assert alert.node is not None
    assert kinds(alert) == ["fired", "cause_changed"]


def test_evidence_that_fades_does_not_unname_the_culprit(finding: Finding) -> None:
    unknown = replace(finding, cause="unknown", node=None, device=None)
    reconcile([finding], evaluated=[SHARE], now=NOON)
    reconcile([unknown], evaluated=[SHARE], now=NOON + SECOND)

    assert Alert.objects.get().cause == "slow_core"


def test_a_node_found_before_its_cause_is_named(finding: Finding) -> None:
    unknown = replace(finding, cause="unknown", node=None, device=None)
    reconcile([unknown], evaluated=[SHARE], now=NOON)
    reconcile([replace(unknown, node=finding.node)], evaluated=[SHARE], now=NOON + SECOND)

    alert = Alert.objects.get()
    assert alert.node is not None
    assert kinds(alert) == ["fired", "cause_changed"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"cause": "efa_latency", "node": None, "device": None}, {"cause": "unknown"}),
        ({"cause": "unknown"}, {"cause": "unknown", "device": None}),
        ({"cause": "unknown"}, {"cause": "unknown", "node": None, "device": None}),
        (
            {"cause": "unknown", "node": None, "device": None},
            {"cause": "unknown", "node": None, "device": 3},
        ),
    ],
    ids=["known cause", "known node", "node faded", "still no node"],
)
def test_an_unknown_cause_renames_nothing_else(
    finding: Finding, first: dict[str, str | None], then: dict[str, str | None]
) -> None:
    reconcile([replace(finding, **first)], evaluated=[SHARE], now=NOON)  # type: ignore[arg-type]
    second = replace(finding, **then)  # type: ignore[arg-type]
    reconcile([second], evaluated=[SHARE], now=NOON + 2 * timedelta(minutes=1))

    assert kinds(Alert.objects.get()) == ["fired"]


def test_a_second_evaluation_at_the_same_time_changes_nothing(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON)
    changed = reconcile([replace(finding, score=1.6)], evaluated=[SHARE], now=NOON)

    alert = Alert.objects.get()
    assert changed == []
    assert (alert.score, kinds(alert)) == (1.2, ["fired"])


def test_getting_worse_is_reported_and_getting_a_little_worse_is_not(finding: Finding) -> None:
    reconcile([finding], evaluated=[SHARE], now=NOON)
    reconcile([replace(finding, score=1.25)], evaluated=[SHARE], now=NOON + SECOND)
    reconcile([replace(finding, score=1.6)], evaluated=[SHARE], now=NOON + 2 * SECOND)

    assert kinds(Alert.objects.get()) == ["fired", "worsened"]


def test_only_the_first_to_acknowledge_has_it(finding: Finding) -> None:
    [alert] = reconcile([finding], evaluated=[SHARE], now=NOON)

    assert acknowledge(alert, by="alice", comment="draining", now=NOON + SECOND)
    assert not acknowledge(alert, by="bob", comment="me too", now=NOON + SECOND)

    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.state) == ("alice", "acknowledged")
    assert alert.events.get(kind=AlertEvent.Kind.ACKNOWLEDGED).text == "draining"


def test_a_resolved_alert_cannot_be_acknowledged(finding: Finding) -> None:
    [alert] = reconcile([finding], evaluated=[SHARE], now=NOON)
    reconcile([], evaluated=[SHARE], now=NOON + SECOND)

    assert not acknowledge(alert, by="alice", comment="", now=NOON + 2 * SECOND)


def test_an_empty_comment_is_refused(finding: Finding) -> None:
    [alert] = reconcile([finding], evaluated=[SHARE], now=NOON)

    with pytest.raises(match="comment: is empty"):
        comment(alert, by="alice", text="  ", now=NOON)


def test_a_drill_is_marked_and_the_weather_is_not(finding: Finding, run: Run) -> None:
    InjectedFault.objects.create(
        run=run,
        kind="slow_core",
        magnitude=2,
        starts_at=NOON - SECOND,
        ends_at=NOON + SECOND,
        injected_by="alice",
    )

    [alert] = reconcile([finding], evaluated=[SHARE], now=NOON)

    assert alert.is_drill


def idle(*nodes: str, node: str | None = None) -> Finding:
    """Return the finding about several idle nodes of a run, or about one."""
    return Finding(
        rule="node_idle",
        cause="node_idle",
        severity="warn",
        run="llama",
        node=node,
        onset_s=NOON.timestamp() - 600,
        score=1.0,
        nodes=nodes,
        evidence={"nodes": list(nodes)},
    )


IDLE = ("node_idle", "run:llama")


def test_nodes_that_work_again_leave_the_list_of_the_same_alert(run: Run) -> None:
    for second, nodes in enumerate([("a", "b", "c"), ("a", "c"), ("a", "c"), ("c",)]):
        reconcile([idle(*nodes)], evaluated=[IDLE], now=NOON + second * SECOND)

    alert = Alert.objects.get()
    assert (alert.subject, alert.nodes, alert.node) == ("run:llama", ["c"], None)
    assert kinds(alert) == ["fired", "learned", "learned"]
    assert [event.text.replace("\u202f", " ") for event in alert.events.all()] == [
        "idle node: 3 nodes: a, b, c",
        "2 nodes: a, c",
        "1 node: c",
    ]


def test_nodes_that_join_are_reported_on_the_same_alert(run: Run) -> None:
    reconcile([idle("a", "b")], evaluated=[IDLE], now=NOON)
    reconcile([idle("a", "b", "c")], evaluated=[IDLE], now=NOON + SECOND)

    alert = Alert.objects.get()
    assert alert.nodes == ["a", "b", "c"]
    assert kinds(alert) == ["fired", "worsened"]


def test_the_alert_of_the_first_idle_node_becomes_that_of_all(run: Run, limping: Node) -> None:
    reconcile([idle(limping.name, node=limping.name)], evaluated=[IDLE], now=NOON)
    reconcile([idle("a", limping.name)], evaluated=[IDLE], now=NOON + SECOND)

    alert = Alert.objects.get()
    assert (alert.subject, alert.node, alert.nodes) == ("run:llama", None, ["a", limping.name])
    assert kinds(alert) == ["fired", "rule_changed"]


def test_a_new_machine_closes_what_was_open_about_the_old(finding: Finding) -> None:
    errors = replace(finding, rule="ecc_uncorrected", cause="ecc", run=None, device=3)
    of_run = replace(finding, onset_s=NOON.timestamp())
    reconcile([errors, of_run], evaluated=[], now=NOON)
    assert Alert.objects.open().count() == 2
    replaced_at = NOON + 30 * SECOND
    Node.objects.update(instance_id="i-9", replaced_at=replaced_at, replaced_id="i-0abc")

    # Its counter starts at another number: found at the moment of the exchange.
    again = replace(errors, onset_s=replaced_at.timestamp() - 1)
    reconcile([again, of_run], evaluated=[], now=NOON + 31 * SECOND)

    old = Alert.objects.get(rule="ecc_uncorrected")
    assert not old.is_open
    assert old.events.get(kind="resolved").text == "machine replaced: i-9 for i-0abc"
    assert Alert.objects.open().get().rule == "allreduce_share"

    own = replace(errors, onset_s=replaced_at.timestamp() + 60)
    reconcile([own], evaluated=[], now=NOON + 95 * SECOND)
    new = Alert.objects.open().get(rule="ecc_uncorrected")
    assert (new.pk != old.pk, new.earlier) == (True, None)
