"""Unplanned compiles become one alert with the changed key fields."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fleet.alerts import reconcile
from fleet.alerts.evaluate import watch
from fleet.alerts.recompiles import (
    compile_findings,
    explain_recent,
    finding_of,
    joined,
    raise_from_log,
)
from fleet.alerts.text import AlertText
from fleet.models import Alert, AlertEvent, Run
from fleet.runs.compiles import store_compiles
from telemetry.compiles import MISS, Compile
from telemetry.detect import Finding
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, steps

RECOMPILE = ("recompile", "run:llama")


def recompiled(run: Run, *, at_s: float = NOON_S, seconds: float = 90.0, n: int = 1) -> None:
    """Let a run compile graphs that it had: a day before, with other flags."""
    for each in range(n):
        graph = f"MODULE_{each}"
        was = Compile(f"{graph}+a", MISS, at_s - 86_400, 60.0, process="p", flags="-O1")
        now = Compile(f"{graph}+b", MISS, at_s + each * seconds, seconds, process="p", flags="-O2")
        notified_at = datetime.fromtimestamp(at_s + (each + 1) * seconds, UTC)
        store_compiles(run, [was], now=notified_at - timedelta(days=1))
        store_compiles(run, [now], now=notified_at)


def seen_by_telemetry() -> Finding:
    """Return what telemetry finds of the same."""
    finding = Finding("recompile", "recompile", "warn", "llama", onset_s=NOON_S, score=4.0)
    return replace(finding, evidence={"lost_s": 20.0, "is_over": False})


def test_an_unplanned_compile_is_a_finding_with_what_changed(run: Run) -> None:
    recompiled(run)
    (finding,) = compile_findings([run], now=NOON + timedelta(seconds=100))

    assert (finding.rule, finding.run, finding.severity) == ("recompile", "llama", "warn")
    assert finding.onset_s == NOON_S
    assert finding.evidence["lost_s"] == 90.0
    assert finding.evidence["key_changes"] == ["flags: -O1 became -O2"]


def test_graphs_that_come_one_after_another_are_one_problem(run: Run) -> None:
    recompiled(run, n=3, seconds=150.0)
    (finding,) = compile_findings([run], now=NOON + timedelta(seconds=460))

    assert (finding.onset_s, finding.evidence["lost_s"]) == (NOON_S, 450.0)
    assert finding.evidence["n_graphs"] == 3


def test_a_long_compile_pages(run: Run) -> None:
    recompiled(run, seconds=700.0)
    (finding,) = compile_findings([run], now=NOON + timedelta(seconds=710))

    assert finding.severity == "page"


def test_the_finding_lasts_three_minutes(run: Run) -> None:
    recompiled(run)

    assert compile_findings([run], now=NOON + timedelta(seconds=90 + 181)) == []


def test_the_finding_is_short_once_the_run_trains(run: Run) -> None:
    recompiled(run)
    notified_at = NOON + timedelta(seconds=90)
    trains_on, stands_still = {"llama": NOON_S + 95.0}, {"llama": NOON_S - 1.0}
    a_minute_later = notified_at + timedelta(minutes=1)

    assert len(compile_findings([run], now=notified_at, stepped_s=trains_on)) == 1
    assert compile_findings([run], now=a_minute_later, stepped_s=trains_on) == []
    assert len(compile_findings([run], now=a_minute_later, stepped_s=stands_still)) == 1


def test_what_no_one_dated_is_no_finding(run: Run) -> None:
    assert finding_of(run, []) is None


def test_telemetry_and_the_job_tell_of_one_problem(run: Run) -> None:
    recompiled(run)
    theirs = compile_findings([run], now=NOON + timedelta(seconds=91))
    (both,) = joined([seen_by_telemetry()], theirs)

    assert both.evidence["lost_s"] == 20.0
    assert both.evidence["key_changes"] == ["flags: -O1 became -O2"]
    assert joined([], theirs) == theirs
    assert joined([seen_by_telemetry()], []) == [seen_by_telemetry()]


def test_an_alert_that_burns_already_learns_what_changed_once(run: Run) -> None:
    run.started_at = NOON - timedelta(days=2)
    reconcile([seen_by_telemetry()], evaluated={RECOMPILE}, now=NOON + timedelta(seconds=20))
    recompiled(run)
    explain_recent(now=NOON + timedelta(seconds=91))
    explain_recent(now=NOON + timedelta(seconds=92))
    alert = Alert.objects.get()
    learnt = alert.events.get(kind=AlertEvent.Kind.LEARNED)

    assert alert.evidence["key_changes"] == ["flags: -O1 became -O2"]
    assert learnt.text == "flags: -O1 became -O2"
    assert learnt.snapshot["evidence"]["key_changes"] == ["flags: -O1 became -O2"]
    assert "What changed: flags: -O1 became -O2." in AlertText(alert, NOON).story


def test_a_log_of_today_raises_it_to_be_looked_at_and_an_old_one_does_not(run: Run) -> None:
    recompiled(run, seconds=700.0)
    run.finished_at = NOON + timedelta(hours=1)
    run.save()

    assert raise_from_log(run, now=NOON + timedelta(days=9)) == []
    (alert,) = raise_from_log(run, now=NOON + timedelta(hours=2))
    assert (alert.rule, alert.severity) == ("recompile", Alert.Severity.WARN)
    assert alert.onset_at == NOON
    # Reading the log again gives the same event.
    raise_from_log(run, now=NOON + timedelta(hours=2, minutes=1))
    assert Alert.objects.count() == 1


@pytest.fixture
def now_s() -> int:
    return int(time.time())


def test_watching_fires_one_alert_for_it(run: Run, hot: HotStore, now_s: int) -> None:
    hot.append_steps(steps("llama", ended_at_s=now_s - 20, n_steps=20))
    recompiled(run, at_s=now_s - 100)
    for second in range(3):
        watch(hot, now=datetime.fromtimestamp(now_s + second, UTC))
    (alert,) = Alert.objects.filter(rule="recompile")

    assert (alert.subject, alert.n_firings) == ("run:llama", 1)
    assert alert.evidence["key_changes"] == ["flags: -O1 became -O2"]
