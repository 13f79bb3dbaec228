"""Evaluation: simulated faults become the right alert, healthy runs none."""

import time
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from django.test import Client
from pytest_django import Settings

from fleet.alerts.evaluate import (
    find_all,
    open_alerts,
    open_problems,
    watch,
    watching_since_s,
    without_quiet,
)
from fleet.alerts.snapshots import RunMembers, RunSnapshot
from fleet.alerts.text import AlertText
from fleet.models import Alert, Node, Run
from fleet.runs.state import OTHER_JOB, WAIT_AFTER_PAUSE_S
from telemetry.blocks import Block, FloatArray, Span
from telemetry.detect import DetectionInput, Finding
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.steps import REPORTED_NAN, StepBatch
from telemetry.store.hot import HotStore
from telemetry.store.refused import note_refused
from tests.helpers import LLAMA, NOON, block, steps

LENGTH_S = 400
FAULT_AT_S = 300


@pytest.fixture
def now_s() -> int:
    return int(time.time())


@pytest.fixture
def llama(db: None, now_s: int) -> Run:
    """Make a run whose nodes are called as the simulator calls them."""
    run = Run.objects.create(
        name="llama",
        model=LLAMA.model,
        instance_type=LLAMA.instance,
        n_nodes=4,
        seq_len=4096,
        global_batch=64,
        usd_per_node_hour=21.5,
        price_basis="on demand",
        phase_since=NOON,
        started_at=NOON,
    )
    for rank, name in enumerate(LLAMA.node_names):
        Node.objects.create(
            name=name,
            instance_type=LLAMA.instance,
            source=Node.Source.SIMULATED,
            shard="llama/0",
            run=run,
            rank=rank,
            n_cores=32,
            n_devices=16,
            n_efa=8,
            first_seen_at=NOON,
        )
    return run


def fill(hot: HotStore, now_s: int, *faults: Fault, until_s: int | None = None) -> None:
    """Simulate the last minutes of the run into the store."""
    plan = Plan(run=LLAMA, seed=3, epoch_s=now_s - LENGTH_S, faults=faults)
    played = play(plan, "llama/0", start_clock(plan), until_s or now_s)
    hot.append(played.span.blocks())
    hot.append_steps(played.steps)


def listen(hot: HotStore, now_s: float) -> None:
    """Let watching have gone on for a while."""
    hot.gauge("listening_since_s", now_s - 60)
    hot.gauge("watched_at_s", now_s - 1)


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def test_a_healthy_run_has_no_alert(hot: HotStore, llama: Run, now_s: int) -> None:
    fill(hot, now_s)
    listen(hot, now_s)

    assert watch(hot, now=at(now_s)) == []


@pytest.mark.parametrize(
    ("kind", "device", "magnitude", "cause"),
    [
        ("efa_latency", 2, 6.0, "efa_latency"),
        ("efa_loss", 5, 0.05, "efa_loss"),
        # Cores that wait count as busy, so the slow one does not stand out.
        ("slow_core", 17, 1.8, "slow_compute"),
        ("hbm_slow", 3, 0.4, "hbm_slow"),
    ],
)
def test_a_fault_is_one_alert_that_names_cause_and_culprit(
    hot: HotStore, llama: Run, now_s: int, kind: str, device: int, magnitude: float, cause: str
) -> None:
    fault = Fault(
        kind=kind,
        node="llama-02",
        device=device,
        start_s=FAULT_AT_S,
        duration_s=600,
        magnitude=magnitude,
    )
    fill(hot, now_s, fault)
    listen(hot, now_s)

    # A process reads the hardware from its start on.
    for age_s in range(LENGTH_S - FAULT_AT_S + 10, -1, -10):
        watch(hot, now=at(now_s - age_s))

    alert = Alert.objects.get()
    assert (alert.rule, alert.cause, str(alert.node), alert.device) == (
        "allreduce_share",
        cause,
        "llama-02",
        device if kind == cause else None,
    )
    # All steps are stored already at the first look.
    assert abs(alert.evidence["onset_s"] - (now_s - LENGTH_S + FAULT_AT_S)) < 15


def test_a_silent_node_is_an_alert_of_its_own(hot: HotStore, llama: Run, now_s: int) -> None:
    silence = Fault(kind="node_silent", node="llama-01", start_s=FAULT_AT_S, duration_s=600)
    fill(hot, now_s, silence)
    listen(hot, now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get()
    assert (alert.rule, alert.subject) == ("node_silent", "node:llama-01")
    assert "refused" not in AlertText(alert, at(now_s)).story


def test_an_alert_of_silence_says_that_reports_are_refused(
    hot: HotStore, llama: Run, now_s: int
) -> None:
    silence = Fault(kind="node_silent", node="llama-01", start_s=FAULT_AT_S, duration_s=600)
    fill(hot, now_s, silence)
    listen(hot, now_s)
    refused = [("llama-01", 120, "host: is text")]
    note_refused(hot, "node", refused, now_s=now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get()
    assert (alert.rule, alert.cause) == ("node_silent", "reports_refused")
    story = AlertText(alert, at(now_s)).story
    assert "Its reports arrive: " in story
    assert "refused: host: is text" in story


@pytest.mark.parametrize(
    ("refused", "cause"),
    [
        ("tokens: is negative", "reports_refused"),
        # These are not of the run.
        (f"run: llama {OTHER_JOB}", "unknown"),
    ],
)
def test_a_run_of_which_every_report_is_refused_is_not_said_to_hang(
    hot: HotStore, llama: Run, now_s: int, refused: str, cause: str
) -> None:
    Node.objects.update(source=Node.Source.STEPS)
    Run.objects.update(phase=Run.Phase.TRAINING)
    trained = steps(workers=LLAMA.node_names, n_steps=60, ended_at_s=now_s - 300, compute_s=1.0)
    hot.append_steps(trained)
    listen(hot, now_s)
    note_refused(hot, "run", [("llama", 120, refused)], now_s=now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get(rule="hang")
    assert alert.cause == cause
    if cause == "unknown":
        return
    assert alert.severity == Alert.Severity.WARN
    text = AlertText(alert, at(now_s))
    assert "hangs" not in text.headline + text.story
    assert "The cause is" not in text.story


def test_silence_resolves_nothing(hot: HotStore, llama: Run, now_s: int) -> None:
    fault = Fault(
        kind="slow_core",
        node="llama-02",
        device=1,
        start_s=FAULT_AT_S,
        duration_s=600,
        magnitude=1.8,
    )
    fill(hot, now_s, fault)
    listen(hot, now_s)
    watch(hot, now=at(now_s))

    later = now_s + 400
    listen(hot, later)
    watch(hot, now=at(later))

    rules = set(Alert.objects.open().values_list("rule", flat=True))
    assert rules == {"allreduce_share", "monitoring_blind"}


def test_no_one_is_silent_before_watching_has_listened(
    hot: HotStore, llama: Run, now_s: int
) -> None:
    fill(hot, now_s, until_s=now_s - 60)

    # Senders wait for up to half a minute between two attempts.
    for passed_s in (0, 30):
        assert watch(hot, now=at(now_s + passed_s)) == []
        hot.gauge("watched_at_s", now_s + passed_s + 30)
    hot.gauge("watched_at_s", now_s + WAIT_AFTER_PAUSE_S)
    assert [alert.rule for alert in watch(hot, now=at(now_s + WAIT_AFTER_PAUSE_S))] == [
        "monitoring_blind"
    ]


def test_no_run_hangs_before_watching_has_listened(hot: HotStore, llama: Run, now_s: int) -> None:
    fault = Fault(kind="hang", node="llama-02", start_s=FAULT_AT_S - 60, duration_s=600)
    fill(hot, now_s, fault)
    assert watch(hot, now=at(now_s)) == []
    listen(hot, now_s)
    assert [alert.rule for alert in watch(hot, now=at(now_s))] == ["hang"]

    # After an outage of the service it is neither confirmed nor resolved by what is missing.
    hot.gauge("watched_at_s", now_s - 100)
    assert watch(hot, now=at(now_s + 1)) == []
    assert Alert.objects.open().get().last_seen_at == at(now_s)


def test_a_pause_in_evaluation_restarts_the_grace_period(hot: HotStore) -> None:
    assert watching_since_s(hot, now_s=1000) == 1000
    assert watching_since_s(hot, now_s=1004) == 1000
    assert watching_since_s(hot, now_s=1030) == 1030


def test_a_node_that_left_the_fleet_is_not_expected(hot: HotStore, llama: Run, now_s: int) -> None:
    fill(hot, now_s)
    foreign = next(iter(hot.latest().values()))
    hot.append(
        [Block("old/0", now_s - 100, ("old-00",), {k: v[:1] for k, v in foreign.values.items()})]
    )
    listen(hot, now_s)

    assert watch(hot, now=at(now_s)) == []


def test_uncorrected_ecc_errors_are_an_alert(hot: HotStore, llama: Run, now_s: int) -> None:
    broken = Fault(
        kind="ecc_uncorrected",
        node="llama-03",
        device=4,
        start_s=FAULT_AT_S,
        duration_s=600,
        magnitude=60,
    )
    fill(hot, now_s, broken)
    listen(hot, now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get(rule="ecc_uncorrected")
    assert (str(alert.node), alert.device) == ("llama-03", 4)


@pytest.fixture
def real(db: None) -> Node:
    """Make a real node that trains no run."""
    return Node.objects.create(
        name="real",
        instance_type="trn1.32xlarge",
        source=Node.Source.NEURON_MONITOR,
        shard="node:real",
        n_cores=32,
        n_devices=16,
        first_seen_at=NOON,
    )


def test_a_real_node_without_a_run_has_its_memory_watched(
    hot: HotStore, real: Node, now_s: int
) -> None:
    for tick in range(now_s - 20, now_s + 1):
        counts = np.zeros((1, 16))
        counts[0, 5] = tick >= now_s - 5
        hot.append([block("node:real", tick, ("real",), sram_ecc_uncorrected=counts)])
    listen(hot, now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.device) == ("ecc_uncorrected", "node:real", 5)


def test_the_errors_of_a_new_machine_are_counted_from_its_first_report(
    hot: HotStore, real: Node, now_s: int
) -> None:
    replaced_s = now_s - 50
    real.replaced_at, real.replaced_id = at(replaced_s), "i-0abc"
    real.save()

    def count(first: int, last: int, n: int) -> None:
        for tick in range(first, last + 1):
            counts = np.zeros((1, 16))
            counts[0, 5] = n
            hot.append([Block("node:real", tick, ("real",), {"mem_ecc_uncorrected": counts})])

    # The one before had counted more.
    count(replaced_s - 100, replaced_s - 60, 3)
    count(replaced_s + 2, now_s, 1)
    listen(hot, now_s)
    watch(hot, now=at(now_s))
    assert not Alert.objects.exists()

    count(now_s + 1, now_s + 5, 2)
    listen(hot, now_s + 5)
    watch(hot, now=at(now_s + 5))
    assert Alert.objects.get().evidence["n_errors"] == 1


def test_an_unhealthy_device_alerts_until_it_is_reported_healthy(
    hot: HotStore, real: Node, now_s: int
) -> None:

    def report(tick: int, **states: FloatArray) -> None:
        busy = {"core_utilization_ratio": np.full((1, 32), 0.5)}
        hot.append([Block("node:real", tick, ("real",), busy | states)])
        listen(hot, tick)
        watch(hot, now=at(tick))

    sick = np.zeros((1, 16))
    sick[0, 5] = 1.0
    start = now_s - 150
    report(start, device_unhealthy=sick)
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.device) == ("device_unhealthy", "node:real", 5)
    assert alert.severity == Alert.Severity.WARN
    # Without a recent state, nothing is known.
    for age_s in range(10, 150, 10):
        report(start + age_s)
    assert Alert.objects.open().get() == alert
    report(now_s, device_unhealthy=0.0 * sick)
    assert not Alert.objects.open().exists()


def test_a_missing_device_alerts_until_all_report_again(
    hot: HotStore, real: Node, now_s: int
) -> None:
    start = now_s - 860

    def watch_at(age_s: int, *, missing: bool) -> None:
        counts = np.zeros((1, 16))
        counts[0, 9] = np.nan if missing else 0.0
        last = start + age_s
        for tick in range(last - 29, last + 1):
            hot.append([Block("node:real", tick, ("real",), {"mem_ecc_uncorrected": counts})])
        listen(hot, last)
        watch(hot, now=at(last))

    watch_at(0, missing=False)
    assert not Alert.objects.exists()
    watch_at(30, missing=True)
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.device) == ("device_missing", "node:real", 9)
    assert (alert.evidence["n_reporting"], alert.evidence["n_devices"]) == (15, 16)
    # Longer than the moments that are read: the alert remembers how many there were.
    for age_s in range(60, 810, 30):
        watch_at(age_s, missing=True)
    assert Alert.objects.open().get() == alert
    watch_at(840, missing=False)
    assert not Alert.objects.open().exists()


def test_of_devices_that_go_missing_one_after_the_other_all_are_told(
    hot: HotStore, real: Node, now_s: int
) -> None:
    start = now_s - 400

    def watch_until(first: int, last: int, *missing: int) -> None:
        counts = np.zeros((1, 16))
        counts[0, list(missing)] = np.nan
        for tick in range(start + first, start + last + 1):
            hot.append([Block("node:real", tick, ("real",), {"mem_ecc_uncorrected": counts})])
            # The report of a second may come after it is evaluated.
            for second in (tick, tick + 1):
                listen(hot, second)
                watch(hot, now=at(second))

    for tick in range(start - 130, start):
        whole = {"mem_ecc_uncorrected": np.zeros((1, 16))}
        hot.append([Block("node:real", tick, ("real",), whole)])
    watch_until(0, 20)
    watch_until(21, 60, 9)
    alert = Alert.objects.get()
    assert (alert.device, alert.n_firings, alert.is_open) == (9, 1, True)

    watch_until(61, 160, 9)
    watch_until(161, 200, 9, 11)
    alert.refresh_from_db()
    text = AlertText(alert, at(start + 200))
    assert text.headline == "14 of 16 accelerators of real report: devices 9, 11 are missing"
    assert alert.n_firings == 1


def test_what_flaps_and_is_quiet_is_over_for_detection(llama: Run) -> None:
    times = dict.fromkeys(("onset_at", "fired_at", "last_seen_at"), NOON)
    reported = times | {"severity": Alert.Severity.PAGE, "run": llama, "score": 1.5}
    share, stalls = ("allreduce_share", "run:llama"), ("input_stall", "run:llama")
    Alert.objects.create(rule=share[0], subject=share[1], cause="throttle", **reported)
    reported |= {"flapping_since": NOON, "quiet_since": NOON}
    quiet = Alert.objects.create(
        rule=stalls[0], subject=stalls[1], cause="input_stall", **reported
    )

    assert without_quiet({share, stalls}) == {share}
    assert [each.cause for each in open_problems([llama])[llama.pk]] == ["throttle"]

    quiet.quiet_since = None
    quiet.save()
    assert without_quiet({share, stalls}) == {share, stalls}
    assert {each.cause for each in open_problems([llama])[llama.pk]} == {"throttle", "input_stall"}


def test_a_loss_of_nan_pages_and_its_alert_ends_with_a_finite_one(
    hot: HotStore, llama: Run, now_s: int, client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    plan = Plan(run=LLAMA, seed=3, epoch_s=now_s - LENGTH_S, faults=())
    played = play(plan, "llama/0", start_clock(plan), now_s)
    hot.append(played.span.blocks())
    loss = played.steps.loss.copy()
    loss[-4:-1] = REPORTED_NAN
    steps = replace(played.steps, reported_loss=loss)
    hot.append_steps(steps[: len(steps) - 1])
    listen(hot, now_s)

    watch(hot, now=at(now_s))

    alert = Alert.objects.get(rule="loss_not_finite")
    assert (alert.severity, alert.subject) == (Alert.Severity.PAGE, "run:llama")
    assert alert.evidence["since_step"] == steps.step[-4]
    assert alert.evidence["value"] == "NaN"
    assert 'trnwatch_run_loss{run="llama"} NaN' in client.get("/metrics").getvalue().decode()
    assert "since step" in client.get(f"/alerts/{alert.pk}/").getvalue().decode()

    hot.append_steps(steps[len(steps) - 1 :])
    for age_s in range(0, 60, 5):
        watch(hot, now=at(now_s + age_s))
    assert not Alert.objects.open().filter(rule="loss_not_finite").exists()


def test_runs_share_the_budget_of_false_pages(run: Run, settings: Settings) -> None:
    settings.FALSE_PAGES_PER_YEAR = 1.5
    nothing = Span("s", np.zeros(0, int), (), {})
    snapshot = RunSnapshot(run, RunMembers(), StepBatch.empty(run.name), lambda *_: nothing)
    accepted = []

    def note(inputs: DetectionInput) -> list[Finding]:
        accepted.append(inputs.false_pages_per_year)
        return []

    for n_runs in (1, 3):
        find_all([snapshot] * n_runs, {}, now_s=0.0, open_=open_alerts([]), rules={"hang": note})

    assert accepted == [1.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(("per_s", "limit_s"), [(50.0, 30), (0.0, 19)])
def test_a_run_without_steps_goes_on_while_its_other_nodes_execute(
    run: Run, per_s: float, limit_s: int
) -> None:
    """An agent that restarts pages no one while the run needs its node, and works."""
    now_s, nodes = 1_000, ("a", "b")

    def hardware(metrics: object, last_s: int) -> Span:
        rate = np.full((last_s, 2, 1), [[np.nan], [per_s]])
        ticks = np.arange(now_s + 1 - last_s, now_s + 1)
        return Span("s", ticks, nodes, {"executions_completed_per_s": rate})

    def found(quiet_s: int) -> list[str | None]:
        snapshot = RunSnapshot(
            run, RunMembers(nodes), StepBatch.empty(run.name), hardware, report_every_s=5
        )
        seen = {"a": now_s - quiet_s, "b": now_s}
        silent = find_all([snapshot], seen, now_s=now_s, open_=open_alerts([]), rules={})
        return [each.node for each in silent]

    assert found(limit_s - 1) == []
    assert found(limit_s) == ["a"]


@pytest.mark.parametrize("rule", ["step_slow", "efa_degraded"])
def test_what_another_worker_has_just_found_does_not_end(
    hot: HotStore, llama: Run, now_s: int, rule: str
) -> None:
    """Another worker goes on; it is a block behind, and finds nothing yet."""
    fill(hot, now_s)
    listen(hot, now_s)
    node = Node.objects.get(name="llama-02") if rule == "efa_degraded" else None
    alert = Alert.objects.create(
        rule=rule,
        subject="node:llama-02" if node else "run:llama",
        severity=Alert.Severity.PAGE,
        cause="efa_loss",
        run=llama,
        node=node,
        onset_at=at(now_s - 60),
        fired_at=at(now_s - 30),
        last_seen_at=at(now_s - 9),
        score=1.0,
    )

    watch(hot, now=at(now_s))
    alert.refresh_from_db()
    assert alert.is_open

    # No worker has found it for two blocks of hardware, which is read every three seconds.
    for second in range(now_s + 1, now_s + 4):
        watch(hot, now=at(second))
    alert.refresh_from_db()
    assert not alert.is_open
