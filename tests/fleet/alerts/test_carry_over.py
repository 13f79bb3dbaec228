"""One fault stays one alert when another rule detects it."""

from dataclasses import replace

from fleet.models import Alert, Node, Run
from telemetry.detect.findings import Finding
from tests.fleet.alerts.conftest import Evaluate
from tests.helpers import NOON


def kinds(alert: Alert) -> list[str]:
    return [event.kind for event in alert.events.all()]


def of_node(finding: Finding) -> Finding:
    """Return the same fault as its own rule sees it."""
    return replace(finding, rule="core_slow", severity="warn", evidence={})


def test_the_same_culprit_under_another_rule_is_the_same_alert(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, finding)
    evaluate(1, of_node(finding))

    alert = Alert.objects.get()
    assert (alert.rule, alert.subject) == ("core_slow", "node:limping")
    assert alert.severity == Alert.Severity.WARN
    assert kinds(alert) == ["fired", "rule_changed"]
    assert "slow core at limping, core 17" in alert.events.last().text  # type: ignore[union-attr]


def test_a_class_of_causes_and_one_of_them_are_the_same_alert(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, replace(of_node(finding), rule="step_slow", cause="slow_compute", device=None))
    evaluate(1, finding)

    alert = Alert.objects.get()
    assert (alert.rule, alert.cause) == ("allreduce_share", "slow_core")


def test_a_run_whose_slow_node_is_known_later_has_one_alert(
    evaluate: Evaluate, finding: Finding
) -> None:
    vague = replace(finding, rule="step_slow", cause="stage_imbalance", node=None, device=None)
    evaluate(0, vague)
    evaluate(1, of_node(finding))
    assert Alert.objects.get().rule == "core_slow"


def test_more_urgent_is_reported_at_once_and_less_urgent_after_a_while(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, of_node(finding))
    evaluate(1, finding)
    for second in range(2, 200):
        evaluate(second, of_node(finding))
    alert = Alert.objects.get()
    assert (alert.rule, alert.severity) == ("allreduce_share", Alert.Severity.PAGE)

    evaluate(400, of_node(finding))
    alert.refresh_from_db()
    assert alert.rule == "core_slow"
    assert kinds(alert) == ["fired", "rule_changed", "rule_changed"]


def test_a_symptom_is_replaced_by_its_cause(evaluate: Evaluate, finding: Finding) -> None:
    symptom = replace(finding, rule="step_slow", cause="unknown", node=None, device=None)
    evaluate(0, symptom)
    evaluate(1, of_node(finding))

    alert = Alert.objects.get()
    assert (alert.rule, alert.cause, alert.device) == ("core_slow", "slow_core", 17)
    assert alert.node is not None
    assert kinds(alert) == ["fired", "rule_changed"]


def test_two_symptoms_without_a_cause_are_one_problem(
    evaluate: Evaluate, finding: Finding
) -> None:
    symptom = replace(finding, cause="unknown", node=None, device=None)
    evaluate(0, symptom)
    evaluate(1, replace(symptom, rule="step_slow"))

    assert Alert.objects.get().rule == "step_slow"


def test_two_culprits_are_two_alerts(evaluate: Evaluate, finding: Finding, steady: Node) -> None:
    evaluate(0, finding)
    link = replace(
        finding, rule="efa_degraded", cause="efa_latency", node="steady", device=3, evidence={}
    )
    evaluate(1, finding, link)

    assert Alert.objects.open().count() == 2


def test_a_new_culprit_takes_the_symptom_and_the_old_continues_under_its_own_rule(
    evaluate: Evaluate, finding: Finding, steady: Node
) -> None:
    evaluate(0, finding)
    first = Alert.objects.get()
    worse = replace(finding, cause="efa_latency", node="steady", device=3, score=2.0)
    evaluate(1, worse, of_node(finding))

    first.refresh_from_db()
    second = Alert.objects.exclude(pk=first.pk).get()
    assert (first.rule, first.cause) == ("core_slow", "slow_core")
    assert (second.rule, second.cause) == ("allreduce_share", "efa_latency")


def test_an_alert_in_the_way_moves_at_once(
    evaluate: Evaluate, finding: Finding, steady: Node
) -> None:
    evaluate(0, of_node(finding))
    evaluate(1, finding)
    worse = replace(finding, cause="efa_latency", node="steady", device=3, score=2.0)
    evaluate(2, worse, of_node(finding))

    assert {(a.rule, a.cause) for a in Alert.objects.open()} == {
        ("core_slow", "slow_core"),
        ("allreduce_share", "efa_latency"),
    }


def test_an_alert_whose_culprit_another_names_by_now_is_over(
    evaluate: Evaluate, finding: Finding
) -> None:
    unknown = replace(finding, cause="unknown", node=None, device=None)
    evaluate(0, unknown, of_node(finding))
    assert Alert.objects.open().count() == 2
    evaluate(1, finding)

    alert = Alert.objects.open().get()
    gone = Alert.objects.exclude(resolved_at=None).get()
    assert gone.events.last().text == f"merged into alert {alert.pk}"  # type: ignore[union-attr]


def test_causes_that_take_turns_are_not_reported_at_every_turn(
    evaluate: Evaluate, finding: Finding, steady: Node
) -> None:
    other = replace(finding, cause="throttle", device=2)
    for second in range(20):
        evaluate(second, other if second % 2 else finding)

    assert kinds(Alert.objects.get()) == ["fired", "cause_changed"]


def test_another_runs_culprit_is_another_problem(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, finding)
    evaluate(
        1, finding, replace(finding, run="bert", rule="step_slow", node=None, cause="unknown")
    )

    assert Alert.objects.open().count() == 2


def test_an_alert_of_a_run_that_is_over_is_over(
    evaluate: Evaluate, finding: Finding, run: Run
) -> None:
    evaluate(0, finding)
    run.finished_at = run.started_at
    run.save()
    Alert.objects.update(rule="recompile")
    evaluate(1)

    alert = Alert.objects.get()
    assert alert.resolved_at is not None
    assert alert.events.last().text == "its run has ended"  # type: ignore[union-attr]


def test_what_could_wait_becomes_urgent_and_stays_so(evaluate: Evaluate, finding: Finding) -> None:
    mild = replace(finding, severity="warn")
    for second, now in enumerate((mild, finding, mild)):
        evaluate(second, now)

    alert = Alert.objects.get()
    assert alert.severity == Alert.Severity.PAGE
    assert kinds(alert) == ["fired", "worsened"]


def test_of_two_culprits_the_one_that_stays_continues_in_its_own_row(
    evaluate: Evaluate, finding: Finding, steady: Node
) -> None:
    link = replace(finding, cause="efa_loss", node=steady.name, device=4)
    evaluate(0, finding)
    evaluate(1, finding, replace(link, rule="efa_degraded", evidence={}))
    evaluate(2, link)

    first, second = Alert.objects.order_by("pk")
    assert (first.cause, kinds(first)) == ("slow_core", ["fired", "resolved"])
    assert (second.rule, second.cause) == ("allreduce_share", "efa_loss")
    assert kinds(second) == ["fired", "rule_changed"]


def test_nothing_moves_to_where_a_flapping_alert_waits_for_its_end(
    evaluate: Evaluate, finding: Finding, steady: Node
) -> None:
    link = replace(finding, cause="efa_loss", node=steady.name, device=4)
    for second in range(0, 40, 20):
        evaluate(second, finding)
        evaluate(second + 10)
    evaluate(40, finding, replace(link, rule="efa_degraded", evidence={}))
    evaluate(41, link)

    first, second_alert = Alert.objects.order_by("pk")
    assert (first.is_open, first.cause) == (True, "slow_core")
    assert (second_alert.is_open, second_alert.rule) == (True, "efa_degraded")


def slow_steps(finding: Finding, *, onset_s: float) -> Finding:
    """Return steps of 30 seconds without a known cause, since a second."""
    return replace(
        finding,
        rule="step_slow",
        cause="unknown",
        node=None,
        device=None,
        onset_s=NOON.timestamp() + onset_s,
        evidence={"step_s": 30.0},
    )


def test_a_slow_step_that_began_in_a_problem_belongs_to_it(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, finding)
    evaluate(20)
    for second in (21, 50, 79):
        evaluate(second, slow_steps(finding, onset_s=10))
    assert Alert.objects.get().resolved_at is not None

    evaluate(81, slow_steps(finding, onset_s=10))
    assert Alert.objects.open().get().rule == "step_slow"


def test_slow_steps_that_begin_after_a_problem_are_another_one(
    evaluate: Evaluate, finding: Finding
) -> None:
    evaluate(0, finding)
    evaluate(20)
    evaluate(40, slow_steps(finding, onset_s=25))
    assert Alert.objects.open().get().rule == "step_slow"


def test_memory_errors_slow_no_step(evaluate: Evaluate, finding: Finding) -> None:
    evaluate(0, replace(finding, rule="ecc_uncorrected", cause="ecc_uncorrected"))
    evaluate(20)
    evaluate(21, slow_steps(finding, onset_s=10))
    assert Alert.objects.open().filter(rule="step_slow").exists()


def test_a_hang_without_a_culprit_may_prove_to_be_slow_steps(
    evaluate: Evaluate, finding: Finding
) -> None:
    stopped = replace(finding, rule="hang", cause="unknown", node=None, device=None)
    evaluate(0, stopped)
    evaluate(1, slow_steps(finding, onset_s=-12))
    assert Alert.objects.get().rule == "step_slow"
