"""A rule that raises an exception leaves its alerts unchanged, and stops no other rule or run."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.alerts.evaluate import watch
from fleet.alerts.failures import ALL_RULES, RuleFailure, rule_failures
from fleet.models import Alert, Node, Run
from telemetry.detect import DetectionInput, Finding
from telemetry.store.hot import HotStore
from tests.alerts import finding
from tests.helpers import NOON, NOON_S


@pytest.fixture
def other(run: Run) -> Run:
    fields = {f.name: getattr(run, f.name) for f in Run._meta.fields if f.name != "id"}
    return Run.objects.create(**fields | {"name": "other"})


def broken(inputs: DetectionInput) -> list[Finding]:
    if inputs.run == "llama":
        raise ZeroDivisionError(inputs.run)
    return []


def compiles(inputs: DetectionInput) -> list[Finding]:
    return [finding("recompile", inputs.run, onset_s=NOON_S, evidence={"end_s": 0.0})]


RULES = {"hang": broken, "recompile": compiles}


def hangs(run: Run) -> Alert:
    times = dict.fromkeys(("onset_at", "fired_at", "last_seen_at"), NOON - timedelta(minutes=5))
    return Alert.objects.create(
        rule="hang",
        cause="hang",
        subject=f"run:{run.name}",
        run=run,
        severity=Alert.Severity.PAGE,
        score=1.0,
        **times,
    )


def test_the_other_rules_and_runs_are_evaluated(
    hot: HotStore,
    other: Run,
    run: Run,
    steady: Node,
    client: Client,
    bob: User,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept, over = hangs(run), hangs(other)
    hot.gauge("listening_since_s", NOON.timestamp() - 60)
    hot.gauge("watched_at_s", NOON.timestamp() - 1)

    for second in range(3):
        watch(hot, now=NOON + timedelta(seconds=second), rules=RULES)

    found = set(Alert.objects.open().values_list("rule", "subject"))
    assert found == {
        ("hang", "run:llama"),
        ("recompile", "run:llama"),
        ("recompile", "run:other"),
    }
    kept.refresh_from_db()
    assert kept.last_seen_at < NOON
    over.refresh_from_db()
    assert over.resolved_at == NOON
    # One line with a traceback a minute, however often it fails.
    [line] = [r for r in caplog.records if "could not evaluate" in r.getMessage()]
    assert line.getMessage() == "could not evaluate hang of llama"
    assert line.exc_info
    assert hot.counters()["rules_failed"] == 3
    assert rule_failures(hot) == [
        RuleFailure("hang", "llama", "ZeroDivisionError: llama", (steady.name,))
    ]
    client.force_login(bob)
    text = client.get("/rules/").text
    assert "ZeroDivisionError: llama" in text
    assert "trnwatch_rules_failed_total 3.0" in client.get("/metrics").getvalue().decode()


def test_the_nodes_of_a_run_that_hangs_by_failure_keep_their_alerts_too() -> None:
    failure = RuleFailure("hang", "llama", "KeyError", ("a-01",))
    assert failure.covers("node_silent", "node:a-01")
    assert not failure.covers("node_silent", "node:a-02")
    assert not failure.covers("exec_errors", "node:a-01")
    assert RuleFailure(ALL_RULES, "llama", "", ("a-01",)).covers("exec_errors", "node:a-01")
    assert RuleFailure("step_slow", "llama", "").covers("allreduce_share", "run:llama")
    assert not RuleFailure("step_slow", "llama", "").covers("hang", "run:llama")
