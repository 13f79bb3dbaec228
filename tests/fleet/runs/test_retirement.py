"""Nodes and runs that will not report again are retired, and come back with a report."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from fleet.alerts.evaluate import watch
from fleet.alerts.reconcile import reconcile
from fleet.ingest.named_runs import SESSION, update_runs
from fleet.ingest.nodes import NodeIngest
from fleet.ingest.phases import update_run
from fleet.ingest.runs import assign_node, refresh_run
from fleet.models import Alert, Node, Run
from fleet.runs.node_columns import reporting_now
from fleet.runs.retirement import REPORTS_WITHIN, retire_node, retire_quiet, retire_run, unretire
from fleet.runs.state import Member, RunState
from fleet.runs.summaries import nodes_now
from telemetry.detect import Finding
from telemetry.errors import FieldError
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_reports import BeatLine, RunLine
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, block, just_now
from tests.telemetry.ingest.reports import lines

pytestmark = pytest.mark.django_db
LINE = lines("trn1.2xlarge")[0]
DAY = timedelta(days=1)
Make = Callable[..., Node]


@pytest.fixture
def real() -> Make:
    """Give a function that makes a real node."""

    def make(name: str = "real", **fields: object) -> Node:
        usual: dict[str, object] = {
            "instance_type": "trn1.32xlarge",
            "source": Node.Source.NEURON_MONITOR,
            "shard": f"node:{name}",
            "n_cores": 32,
            "n_devices": 16,
            "first_seen_at": NOON,
        }
        return Node.objects.create(name=name, **usual | fields)

    return make


@pytest.fixture
def reported(run: Run) -> Run:
    """Make the run one that a job reports, last a day ago."""
    run.session, run.heard_at = "first", NOON - DAY
    run.started_at = NOON - 2 * DAY
    run.save()
    return run


def test_a_retired_node_is_not_expected_and_its_alert_resolves(hot: HotStore, real: Make) -> None:
    now = just_now()
    now_s = int(now.timestamp())
    quiet, other = real(), real("other")
    hot.append([block("node:real", now_s - 300, ("real",))])
    hot.append(block("node:other", tick, ("other",)) for tick in range(now_s - 20, now_s + 2))
    hot.gauge("listening_since_s", now_s - 60)
    hot.gauge("watched_at_s", now_s - 1)
    watch(hot, now=now)
    alert = Alert.objects.get(rule="node_silent")

    assert retire_node(hot, quiet, by="olga", now=now)
    assert not retire_node(hot, quiet, by="ada", now=now)
    watch(hot, now=now + timedelta(seconds=1))

    alert.refresh_from_db()
    quiet.refresh_from_db()
    assert alert.events.get(kind="resolved").text == "its node is retired"
    assert (quiet.retired_at, quiet.retired_by) == (now, "olga")
    assert reporting_now(hot, now_s=now_s) == (1, 1)
    assert not nodes_now(hot, [quiet], now_s=now_s)[0].is_silent
    assert [node.name for node in Node.objects.expected()] == [other.name]


def test_without_any_node_in_use_monitoring_is_not_blind(hot: HotStore, real: Make) -> None:
    now = just_now()
    Alert.objects.create(
        rule="monitoring_blind",
        severity=Alert.Severity.PAGE,
        subject="fleet",
        score=1.2,
        **dict.fromkeys(("onset_at", "fired_at", "last_seen_at"), now - DAY),
    )
    node = real()
    watch(hot, now=now)
    assert Alert.objects.open().exists()

    retire_node(hot, node, by="olga", now=now)
    watch(hot, now=now + timedelta(seconds=1))

    assert not Alert.objects.open().exists()


def test_a_group_of_retired_nodes_resolves(hot: HotStore, run: Run, real: Make) -> None:
    nodes = [real(name, run=run, zone="a", rack="r1") for name in ("one", "two")]
    found = [
        Finding(
            rule="efa_degraded",
            cause="efa_loss",
            severity="page",
            run="llama",
            node=node.name,
            device=1,
            onset_s=NOON_S - 10,
            score=2.0,
            evidence={},
        )
        for node in nodes
    ]
    reconcile(found, evaluated=(), now=NOON)
    assert Alert.objects.get().parts
    for node in nodes:
        retire_node(hot, node, by="olga", now=NOON)

    later = NOON
    for _ in range(10):
        later += timedelta(seconds=30)
        reconcile([], evaluated=(), now=later)

    assert not Alert.objects.open().exists()


def test_a_node_that_reports_cannot_be_retired(hot: HotStore, real: Make) -> None:
    node = real()
    hot.append([block("node:real", NOON_S - 30, ("real",))])

    with pytest.raises(FieldError, match="real reported 30 s ago"):
        retire_node(hot, node, by="olga", now=NOON)

    assert retire_node(hot, node, by="olga", now=NOON + REPORTS_WITHIN)


def test_a_simulated_node_is_retired_once_its_run_is_over(
    hot: HotStore, steady: Node, run: Run
) -> None:
    with pytest.raises(FieldError, match="simulated for llama"):
        retire_node(hot, steady, by="olga", now=NOON)

    run.finished_at = NOON
    run.save()
    assert retire_node(hot, Node.objects.get(pk=steady.pk), by="olga", now=NOON)


def test_a_report_brings_a_node_back(hot: HotStore, real: Make, reported: Run) -> None:
    by_agent, by_job = real(), real("worker", source=Node.Source.STEPS)
    for node in (by_agent, by_job):
        retire_node(hot, node, by="olga", now=NOON)

    NodeIngest(keep_s=900).deliver([LINE], node="real", arrived_s=NOON_S)
    beat = BeatLine(run="llama", session="first", worker="w", node="worker")
    assign_node(hot, reported, beat, now=NOON)

    assert not Node.objects.exclude(retired_at=None).exists()
    assert not Node.objects.exclude(retired_by="").exists()


def test_the_limit_of_nodes_counts_those_in_use(
    hot: HotStore, real: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.ingest.rows.MAX_NODES", 1)
    ingest, gone = NodeIngest(keep_s=900), real()

    refused = ingest.deliver([LINE], node="new", arrived_s=NOON_S)
    assert "retire those that are gone" in refused.refused[0].reason
    retire_node(hot, gone, by="olga", now=NOON)

    assert ingest.deliver([LINE], node="new", arrived_s=NOON_S).n_accepted == 1
    assert ingest.deliver([LINE], node="real", arrived_s=NOON_S).n_refused == 1


def test_a_retired_run_ends_with_its_last_report(reported: Run) -> None:
    assert retire_run(reported, by="olga", now=NOON)
    assert not retire_run(reported, by="olga", now=NOON)

    run = Run.objects.get()
    assert (run.finished_at, run.phase) == (NOON - DAY, Run.Phase.FAILED)
    assert (run.retired_at, run.retired_by) == (NOON, "olga")
    assert run.annotations.get().text == "failed"


def test_a_run_that_reports_or_is_simulated_is_not_retired(reported: Run) -> None:
    reported.heard_at = NOON - timedelta(seconds=50)
    with pytest.raises(FieldError, match="llama reported 50 s ago"):
        retire_run(reported, by="olga", now=NOON)

    reported.is_simulated = True
    with pytest.raises(FieldError, match="simulated and active"):
        retire_run(reported, by="olga", now=NOON)
    assert Run.objects.get().retired_at is None


def test_a_report_brings_a_run_back(reported: Run) -> None:
    retire_run(reported, by="olga", now=NOON)

    run = refresh_run(RunLine(run="llama", session="first"), now=NOON)
    member = Member(node="n", rank=0, stage=0, n_workers=1, heard_s=NOON_S)
    update_run(run, RunState("first", {"w": member}, NOON_S, shift=0), now=NOON)

    assert (run.retired_at, run.finished_at, run.phase) == (None, None, Run.Phase.TRAINING)


def test_a_run_that_had_finished_stays_finished(reported: Run) -> None:
    Run.objects.update(phase=Run.Phase.FINISHED, finished_at=NOON)
    retire_run(Run.objects.get(), by="olga", now=NOON)

    run = refresh_run(RunLine(run="llama", session="first"), now=NOON)

    assert (run.retired_at, run.finished_at) == (None, NOON)


def test_the_limit_of_runs_counts_those_in_use(
    reported: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.ingest.runs.MAX_RUNS", 1)
    with pytest.raises(RefusedError, match="retire those that are over"):
        refresh_run(RunLine(run="new", session="s"), now=NOON)

    retire_run(reported, by="olga", now=NOON)

    assert refresh_run(RunLine(run="new", session="s"), now=NOON).name == "new"


def test_a_run_known_by_labels_ends_when_its_nodes_are_retired(
    hot: HotStore, run: Run, real: Make
) -> None:
    Run.objects.update(session=SESSION)
    node = real(run=run)
    update_runs([], now=NOON)
    assert Run.objects.active().exists()

    retire_node(hot, node, by="olga", now=NOON)
    update_runs([], now=NOON)

    assert not Run.objects.active().exists()


# Automatically


def test_what_has_not_reported_for_long_is_retired(
    hot: HotStore, real: Make, reported: Run
) -> None:
    now, after = NOON + 30 * DAY, 30 * DAY
    real("gone", last_seen_at=NOON - timedelta(hours=1))
    real("recent", last_seen_at=NOON + timedelta(hours=1))
    real("reporting", last_seen_at=NOON - timedelta(hours=1))
    hot.append([block("node:reporting", int(now.timestamp()) - 5, ("reporting",))])

    assert retire_quiet(hot, after=after, now=now) == (1, 1)
    assert retire_quiet(hot, after=after, now=now) == (0, 0)

    retired = Node.objects.exclude(retired_at=None)
    assert [(node.name, node.retired_by) for node in retired] == [("gone", "")]
    assert Run.objects.get().finished_at == NOON - DAY
    seen_at = Node.objects.get(name="reporting").last_seen_at
    assert seen_at == now - timedelta(seconds=5)


def test_a_row_from_before_counts_from_now_on(hot: HotStore, real: Make) -> None:
    real()

    assert retire_quiet(hot, after=DAY, now=NOON) == (0, 0)
    assert Node.objects.get().last_seen_at == NOON
    assert retire_quiet(hot, after=DAY, now=NOON + 2 * DAY) == (1, 0)


def test_zero_days_retire_nothing(hot: HotStore, real: Make, reported: Run) -> None:
    real(last_seen_at=NOON - 400 * DAY)

    assert retire_quiet(hot, after=timedelta(0), now=NOON) == (0, 0)


def test_imported_and_simulated_runs_and_nodes_stay(hot: HotStore, run: Run, steady: Node) -> None:
    Run.objects.update(heard_at=NOON - 400 * DAY)
    Node.objects.update(last_seen_at=NOON - 400 * DAY)

    assert retire_quiet(hot, after=DAY, now=NOON) == (0, 0)


def test_what_someone_brought_back_stays(hot: HotStore, real: Make, reported: Run) -> None:
    node = real(last_seen_at=NOON - 400 * DAY)
    retire_quiet(hot, after=timedelta(hours=1), now=NOON)

    assert unretire(node, by="olga")
    assert unretire(reported, by="olga")
    assert not unretire(node, by="olga")

    assert retire_quiet(hot, after=timedelta(hours=1), now=NOON) == (0, 0)
    assert Node.objects.get().retired_by == "olga"


def test_the_newest_report_is_stored_in_utc(hot: HotStore, real: Make) -> None:
    real()
    hot.append([block("node:real", NOON_S - 100, ("real",))])

    retire_quiet(hot, after=DAY, now=NOON)

    assert Node.objects.get().last_seen_at == datetime.fromtimestamp(NOON_S - 100, UTC)
